//! What moves and what does not, and what is in the memory then.

use dat_core::testing::device::soft::{Mr, Soft};
use dat_core::testing::device::*;

use super::ends::*;
use super::{alone, is_possible};

pub fn random(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

/// Whole pages move; what else is on the pages at the edges stays where it was.
#[test]
fn edges_stay_private() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(5 * page());
    let bytes: Vec<u8> = (0..memory.len())
        .map(|i| (i * 7 + i / 4096) as u8)
        .collect();
    memory.put(0, &bytes);
    let mr = b.register(memory.addr() + 100, 4 * page());
    let shared: Vec<bool> = (0..5)
        .map(|n| is_shared(memory.addr() + (n * page()) as u64))
        .collect();
    let middle = is_possible();
    assert_eq!(shared, [false, middle, middle, middle, false]);
    assert_eq!(memory.get(0, memory.len()), bytes);
    drop(mr);
    assert!((0..5).all(|n| !is_shared(memory.addr() + (n * page()) as u64)));
    assert_eq!(memory.get(0, memory.len()), bytes);
    assert_eq!(file_size(), 0);
    // Less than a page.
    let mr = b.register(memory.addr() + 1, page());
    assert!((0..5).all(|n| !is_shared(memory.addr() + (n * page()) as u64)));
    drop(mr);
}

/// Every byte arrives where it should, and no other changes: across edges, in segments, through
/// windows of a size that is no power of two.
#[test]
fn data_of_all_sizes_and_alignments() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let memory = Memory::new(80 * page());
    let (at, len) = (300, 77 * page() + 123);
    let mr = b.register(memory.addr() + at as u64, len);
    assert_eq!(is_shared(memory.addr() + 2 * page() as u64), is_possible());
    let mut model = vec![0u8; memory.len()];
    let mut state = 7;
    let mut sizes: Vec<usize> = (1..70).chain([4095, 4096, 4097, 65536, len]).collect();
    sizes.extend((0..400).map(|_| 1 + random(&mut state) % 20_000));
    for (round, size) in sizes.into_iter().enumerate() {
        let offset = random(&mut state) % (len - size + 1);
        let cuts = [random(&mut state) % size.max(2), size / 2 + 1];
        let cuts = [cuts[0].min(cuts[1]), cuts[0].max(cuts[1])];
        let remote = Remote {
            addr: memory.addr() + (at + offset) as u64,
            rkey: mr.rkey(),
        };
        let bytes: Vec<u8> = (0..size).map(|i| (i * 31 + round * 17 + 1) as u8).collect();
        a.buffer.put(0, &bytes);
        let status = a.run(SendOp::RdmaWrite(remote), size, &cuts);
        assert_eq!(status, WcStatus::Success);
        model[at + offset..at + offset + size].copy_from_slice(&bytes);
        assert!(memory.get(0, memory.len()) == model, "{size} at {offset}");
        a.buffer.put(0, &vec![0; size]);
        let op = SendOp::RdmaRead {
            remote,
            len: size as u32,
        };
        assert_eq!(a.run(op, size, &cuts), WcStatus::Success);
        assert!(a.buffer.get(0, size) == bytes, "{size} at {offset}");
    }
    drop(mr);
    assert!(memory.get(0, memory.len()) == model);
}

/// Memory is in the file as long as anybody has registered anything of the page.
#[test]
fn overlapping_registrations() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let p = page();
    let memory = Memory::new(16 * p);
    let mut model: Vec<u8> = (0..memory.len()).map(|i| (i / 3) as u8).collect();
    memory.put(0, &model);
    let mut state = 3;
    let mut live: Vec<(usize, usize, Mr)> = Vec::new();
    for round in 0..600 {
        if live.len() < 5 && random(&mut state).is_multiple_of(2) {
            let start = random(&mut state) % (15 * p);
            let len = 1 + random(&mut state) % (memory.len() - start);
            let mr = b.register(memory.addr() + start as u64, len);
            if is_possible() {
                let whole = start.next_multiple_of(p)..(start + len) / p * p;
                let mut pages = whole.step_by(p);
                assert!(pages.all(|page| is_shared(memory.addr() + page as u64)));
            }
            live.push((start, len, mr));
        } else if !live.is_empty() {
            live.swap_remove(random(&mut state) % live.len());
        }
        for (start, len, mr) in &live {
            let (addr, rkey) = (memory.addr() + *start as u64, mr.rkey());
            assert!(a.read(Remote { addr, rkey }, *len) == model[*start..start + len]);
            let (at, byte) = (random(&mut state) % len, round as u8);
            let addr = addr + at as u64;
            assert_eq!(a.write(&[byte], Remote { addr, rkey }), WcStatus::Success);
            model[start + at] = byte;
        }
        assert!(memory.get(0, memory.len()) == model, "round {round}");
        let touched = |page: usize| {
            let mut all = live.iter();
            all.any(|(start, len, _)| *start < page + p && page < start + len)
        };
        for page in (0..memory.len()).step_by(p) {
            assert!(touched(page) || !is_shared(memory.addr() + page as u64));
        }
    }
    live.clear();
    assert!(memory.get(0, memory.len()) == model);
    assert_eq!(file_size(), 0);
}

/// As long as the kernel may copy to a page for a peer, because of a region that has not all of
/// it, or is not of such an adapter, the page does not move back.
#[test]
fn pages_that_others_reach_stay() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let p = page();
    let memory = Memory::new(4 * p);
    let plain = Soft::open("127.0.0.1 path=shm").unwrap();
    let shared = || {
        (0..4)
            .map(|n| is_shared(memory.addr() + (n * p) as u64))
            .collect::<Vec<_>>()
    };
    let yes = is_possible();
    for early in [true, false] {
        let part = || b.register(memory.addr() + (p + p / 2) as u64, p);
        let other = || {
            let at = memory.addr() + (3 * p + 8) as u64;
            plain.reg_mr(&b.pd, at, 8, Access::all()).unwrap()
        };
        // What peers cannot access holds no page.
        let local = || {
            let at = memory.addr() + 8;
            let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
            b.device.reg_mr(&b.pd, at, 8, access).unwrap()
        };
        let _local = local();
        let before = early.then(|| (part(), other()));
        let whole = b.register(memory.addr(), memory.len());
        assert_eq!(shared(), [yes; 4]);
        let (part, other) = before.unwrap_or_else(|| (part(), other()));
        drop(whole);
        assert_eq!(shared(), [false, yes, yes, yes]);
        drop(part);
        assert_eq!(shared(), [false, false, false, yes]);
        drop(other);
        assert_eq!(shared(), [false; 4]);
    }
}

/// After the registration it is memory like any other: what the program gives back is zero when
/// it comes again. Allocators rely on it.
#[test]
fn private_again() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(64 * page());
    memory.put(0, &vec![9; memory.len()]);
    for _ in 0..3 {
        let mr = b.register(memory.addr(), memory.len());
        assert_eq!(is_shared(memory.addr()), is_possible());
        drop(mr);
        assert!(!is_shared(memory.addr()));
    }
    assert!(memory.get(0, memory.len()).iter().all(|b| *b == 9));
    // SAFETY: our own mapping.
    let rc = unsafe { libc::madvise(memory.at(0).cast(), memory.len(), libc::MADV_DONTNEED) };
    assert_eq!(rc, 0);
    assert!(memory.get(0, memory.len()).iter().all(|b| *b == 0));
}

/// Memory with a property that would be lost stays where it is, and is reached as ever.
#[test]
fn what_does_not_move() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let p = page();
    let refuse = |memory: &Memory, what: &str| {
        let mr = b.register(memory.addr(), memory.len());
        assert!(!is_shared(memory.addr()), "{what}");
        let (addr, rkey) = (memory.addr() + 5, mr.rkey());
        assert_eq!(a.write(b"hello", Remote { addr, rkey }), WcStatus::Success);
        assert_eq!(memory.get(5, 5), b"hello", "{what}");
    };
    let advised = |advice: i32, what: &str| {
        let memory = Memory::new(4 * p);
        // SAFETY: our own mapping.
        let rc = unsafe { libc::madvise(memory.at(0).cast(), memory.len(), advice) };
        // Not every kernel is built with all of them.
        if rc == 0 {
            refuse(&memory, what);
        }
    };
    advised(libc::MADV_DONTFORK, "not inherited");
    advised(libc::MADV_WIPEONFORK, "wiped");
    advised(libc::MADV_MERGEABLE, "merged");
    advised(libc::MADV_HUGEPAGE, "huge pages");
    advised(libc::MADV_DONTDUMP, "not dumped");
    let shared = Memory::with(4 * p, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    refuse(&shared, "shared");
    let locked = Memory::new(4 * p);
    // SAFETY: our own mapping.
    if unsafe { libc::mlock(locked.at(0).cast(), locked.len()) } == 0 {
        refuse(&locked, "locked");
    }
    // A part is enough.
    let mixed = Memory::new(4 * p);
    // SAFETY: as above.
    unsafe { libc::madvise(mixed.at(3 * p).cast(), p, libc::MADV_DONTDUMP) };
    refuse(&mixed, "mixed");
    // The stack of the thread that asks.
    let local = [0u8; 3 * 65536];
    let local = std::hint::black_box(&local);
    let mr = b.register(local.as_ptr() as u64 - 16384, local.len());
    assert!(!is_shared(local.as_ptr() as u64));
    drop(mr);
    // Without the parameter.
    let plain = Soft::open("127.0.0.1 path=shm").unwrap();
    let end = End::new(&plain);
    let memory = Memory::new(4 * p);
    let mr = end.register(memory.addr(), memory.len());
    assert!(!is_shared(memory.addr()));
    drop(mr);
    // The same memory with the parameter.
    let mr = b.register(memory.addr(), memory.len());
    assert_eq!(is_shared(memory.addr()), is_possible());
    drop(mr);
    // For this end alone.
    let (addr, len) = (memory.addr(), memory.len() as u64);
    let mr = b
        .device
        .reg_mr(&b.pd, addr, len, Access::LOCAL_WRITE | Access::LOCAL_READ);
    assert!(!is_shared(memory.addr()));
    drop(mr);
    assert_eq!(file_size(), 0);
}

/// Memory that is unmapped, exchanged or moved while it is registered: nobody crashes, and what
/// the program has then is not touched.
#[test]
fn memory_that_goes_away() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let p = page();
    // Unmapped.
    let memory = Memory::new(8 * p);
    let mr = b.register(memory.addr(), memory.len());
    let (addr, rkey) = (memory.addr(), mr.rkey());
    assert_eq!(a.write(&[1; 100], Remote { addr, rkey }), WcStatus::Success);
    drop(memory);
    if is_possible() {
        assert_eq!(a.write(&[1; 100], Remote { addr, rkey }), WcStatus::Success);
    }
    drop(mr);
    assert_eq!(file_size(), 0);
    // Exchanged, and registered a second time, with the ends in both orders.
    for first in [true, false] {
        let (a, b) = pair();
        let memory = Memory::new(8 * p);
        let old = b.register(memory.addr(), memory.len());
        memory.renew();
        memory.put(0, &[7; 64]);
        let new = b.register(memory.addr(), memory.len());
        assert!(!is_shared(memory.addr()));
        let (addr, rkey) = (memory.addr(), new.rkey());
        assert_eq!(a.write(&[8; 32], Remote { addr, rkey }), WcStatus::Success);
        let (left, right) = if first { (old, new) } else { (new, old) };
        drop(left);
        drop(right);
        assert_eq!(memory.get(0, 32), [8; 32]);
        assert_eq!(memory.get(32, 32), [7; 32]);
        assert_eq!(file_size(), 0);
        // From then on it is memory like any other.
        let mr = b.register(memory.addr(), memory.len());
        assert_eq!(is_shared(memory.addr()), is_possible());
        drop(mr);
        assert_eq!(memory.get(0, 32), [8; 32]);
    }
    // Moved, as realloc does it: the contents go with it.
    let memory = Memory::new(8 * p);
    memory.put(0, &vec![5; memory.len()]);
    let mr = b.register(memory.addr(), memory.len());
    let to = Memory::new(8 * p);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (from, at, len) = (memory.at(0).cast(), to.at(0), to.len());
    // SAFETY: from one mapping of ours to the place of the other.
    let moved = unsafe { libc::mremap(from, len, len, flags, at) };
    assert_eq!(moved, at.cast());
    drop(mr);
    assert!(to.get(0, to.len()).iter().all(|b| *b == 5));
    assert_eq!(file_size(), 0);
    // SAFETY: our own mapping.
    unsafe { libc::madvise(to.at(0).cast(), to.len(), libc::MADV_DONTNEED) };
    assert!(to.get(0, to.len()).iter().all(|b| *b == 0));
    // Protected: it stays so.
    let memory = Memory::new(8 * p);
    memory.put(0, &[6; 100]);
    let mr = b.register(memory.addr(), memory.len());
    // SAFETY: our own mapping.
    unsafe { libc::mprotect(memory.at(0).cast(), memory.len(), libc::PROT_READ) };
    drop(mr);
    assert!(!is_shared(memory.addr()));
    assert_eq!(memory.get(0, 100), [6; 100]);
    // SAFETY: the kernel only looks whether it may write.
    let n = unsafe {
        let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
        let n = libc::read(zero, memory.at(0).cast(), 1);
        libc::close(zero);
        n
    };
    assert_eq!(n, -1);
}

/// Keys are judged as ever: bounds, rights, domains, windows, and their end.
#[test]
fn keys_decide() {
    let Some(_alone) = alone() else {
        return;
    };
    let p = page();
    let memory = Memory::new(16 * p);
    let attempt = |access: Access, offset: i64, len: usize| {
        let (a, b) = pair();
        let (addr, size) = (memory.addr() + 4 * p as u64, 4 * p as u64);
        let mr = b.device.reg_mr(&b.pd, addr, size, access).unwrap();
        assert_eq!(is_shared(addr), is_possible());
        let (addr, rkey) = (addr.wrapping_add_signed(offset), mr.rkey());
        a.write(&vec![3; len], Remote { addr, rkey })
    };
    let all = Access::all();
    let size = 4 * p as i64;
    assert_eq!(attempt(all, 0, 4 * p), WcStatus::Success);
    assert_eq!(memory.get(3 * p, p), vec![0; p]);
    assert_eq!(memory.get(8 * p, p), vec![0; p]);
    for (offset, len) in [(-1, 1), (0, 4 * p + 1), (size, 1), (size - 1, 2)] {
        assert_eq!(attempt(all, offset, len), WcStatus::RemoteAccess);
    }
    let read_only = Access::LOCAL_WRITE | Access::LOCAL_READ | Access::REMOTE_READ;
    assert_eq!(attempt(read_only, 0, 8), WcStatus::RemoteAccess);
    // Of another domain.
    let (a, b) = pair();
    let other = b.device.alloc_pd().unwrap();
    let (addr, len) = (memory.addr(), memory.len() as u64);
    let mr = b.device.reg_mr(&other, addr, len, all).unwrap();
    let rkey = mr.rkey();
    assert_eq!(a.write(&[4], Remote { addr, rkey }), WcStatus::RemoteAccess);
    drop(mr);
    // A key that is gone.
    let (a, b) = pair();
    let mr = b.register(addr, memory.len());
    let rkey = mr.rkey();
    drop(mr);
    assert_eq!(a.write(&[4], Remote { addr, rkey }), WcStatus::RemoteAccess);
    assert_eq!(memory.get(0, 1), [0]);
}
