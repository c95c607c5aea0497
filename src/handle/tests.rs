//! Whatever a caller hands in: null, stale, misaligned, random, of the wrong type, freed in the
//! same moment.

use super::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

static TABLE: u64 = 0x1234;

fn table() -> *const c_void {
    std::ptr::from_ref(&TABLE).cast()
}

#[repr(align(64))]
struct Apple(AtomicU64);
#[repr(align(64))]
struct Pear;

// SAFETY: tags that no other type of this test binary has, aligned to 64.
unsafe impl Object for Apple {
    const TAG: usize = 62;
}
// SAFETY: as above.
unsafe impl Object for Pear {
    const TAG: usize = 63;
}

fn apple(value: u64) -> *mut c_void {
    insert(table(), Arc::new(Apple(AtomicU64::new(value)))).unwrap()
}

fn value(handle: *mut c_void) -> Option<u64> {
    let guard = pin::pin();
    get::<Apple>(handle, &guard).map(|a| a.0.load(Ordering::Relaxed))
}

fn free(handle: *mut c_void) -> bool {
    let guard = pin::pin();
    get::<Apple>(handle, &guard).is_some_and(|a| remove(handle, a))
}

#[test]
fn a_handle_leads_to_its_object_and_its_table() {
    let h = apple(7);
    assert_eq!(value(h), Some(7));
    assert_eq!(table_of(h), Some(table()));
    // What other vendors' libdat does with a handle.
    // SAFETY: a valid handle points to its slot.
    assert_eq!(unsafe { *h.cast::<*const c_void>() }, table());
    assert!(free(h));
}

#[test]
fn null_and_small_numbers_are_refused() {
    for n in [0usize, 1, 2, 3, 8, 64, 4096] {
        let h = n as *mut c_void;
        assert_eq!(value(h), None);
        assert_eq!(table_of(h), None);
        assert!(!is_ours(h));
    }
}

#[test]
fn stale_handles_stay_refused() {
    let h = apple(1);
    assert!(free(h));
    for _ in 0..1000 {
        let other = apple(2);
        assert_ne!(other, h);
        assert_eq!(value(h), None);
        assert_eq!(table_of(h), None);
        assert!(free(other));
    }
    assert!(!free(h));
}

#[test]
fn misaligned_handles_are_refused() {
    let h = apple(1);
    for off in 1..16usize {
        let odd = (h as usize + off) as *mut c_void;
        assert_eq!(value(odd), None);
        assert_eq!(table_of(odd), None);
        assert!(is_ours(odd));
    }
    assert!(free(h));
}

#[test]
fn page_headers_are_no_handles() {
    let h = apple(1);
    let header = (h as usize & !4095) as *mut c_void;
    assert_eq!(value(header), None);
    assert_eq!(table_of(header), None);
    assert!(free(h));
}

#[test]
fn another_type_is_refused() {
    let h = insert(table(), Arc::new(Pear)).unwrap();
    assert_eq!(value(h), None);
    let guard = pin::pin();
    let pear = get::<Pear>(h, &guard).unwrap();
    assert!(remove(h, pear));
    assert!(!remove(h, pear));
    assert!(get::<Pear>(h, &guard).is_none());
}

#[test]
fn random_values_are_refused_or_name_a_live_object() {
    let live: Vec<_> = (0..100).map(apple).collect();
    let base = live[0] as usize;
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for i in 0..200_000u64 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // Half of them anywhere, half of them in or near the arena.
        let addr = if i % 2 == 0 {
            x as usize
        } else {
            base.wrapping_add((x % (1 << 21)) as usize)
                .wrapping_sub(1 << 20)
        };
        let h = addr as *mut c_void;
        if let Some(v) = value(h) {
            // Other tests of this process have live objects too; their values are small.
            assert!(v < 1000 || live.contains(&h));
        }
        let _ = table_of(h);
    }
    for h in live {
        assert!(free(h));
    }
}

#[test]
fn one_of_two_frees_wins() {
    for _ in 0..300 {
        let h = apple(5) as usize;
        let wins = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let wins = wins.clone();
                std::thread::spawn(move || {
                    if free(h as *mut c_void) {
                        wins.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(wins.load(Ordering::Relaxed), 1);
    }
}

/// Readers use a handle that another thread frees: they see the object whole or not at all.
#[test]
fn freed_while_in_use() {
    #[repr(align(64))]
    struct Canary(AtomicU64);
    // SAFETY: a tag of its own, aligned to 64.
    unsafe impl Object for Canary {
        const TAG: usize = 61;
    }
    impl Drop for Canary {
        fn drop(&mut self) {
            self.0.store(0xdead, Ordering::Relaxed);
        }
    }
    let current = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (current, stop) = (current.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut seen = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let h = current.load(Ordering::Relaxed) as *mut c_void;
                    let guard = pin::pin();
                    if let Some(c) = get::<Canary>(h, &guard) {
                        assert_eq!(c.0.load(Ordering::Relaxed), 0x600d);
                        seen += 1;
                    }
                }
                seen
            })
        })
        .collect();
    for _ in 0..3000 {
        let h = insert(table(), Arc::new(Canary(AtomicU64::new(0x600d)))).unwrap();
        current.store(h as usize, Ordering::Relaxed);
        let guard = pin::pin();
        let c = get::<Canary>(h, &guard).unwrap();
        assert!(remove(h, c));
    }
    stop.store(true, Ordering::Relaxed);
    for r in readers {
        r.join().unwrap();
    }
}

#[test]
fn emptied_pages_go_back_and_read_as_empty() {
    // More than two pages of slots, so that at least one page is wholly ours.
    let handles: Vec<_> = (0..1024).map(apple).collect();
    for &h in &handles {
        assert!(free(h));
    }
    for h in handles {
        assert_eq!(value(h), None);
        assert_eq!(table_of(h), None);
        // SAFETY: slots remain readable, also on pages whose memory was discarded.
        assert_eq!(unsafe { *h.cast::<*mut c_void>() }, null_mut());
    }
}

/// Where the kernel has pages of 64 KiB, as some for AArch64 and POWER, a page of the arena is a part of one.
#[cfg(not(miri))]
#[test]
fn large_pages_of_the_kernel_are_emptied_as_a_whole() {
    const LARGE: usize = 1 << 16;
    let handles: Vec<_> = (0..3 * LARGE / 16).map(|_| apple(5)).collect();
    memory::PRETENDED_PAGE.store(LARGE, Ordering::Relaxed);
    // All of the first small page of each large one, then the others, but for the last handle of each.
    let (first, others): (Vec<_>, Vec<_>) =
        (handles.iter().copied()).partition(|h| h.addr() % LARGE < 4096);
    let (kept, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|h| h.addr() % LARGE == LARGE - 16);
    for h in first {
        assert!(free(h));
    }
    for &h in others.iter().chain(&kept) {
        assert_eq!(value(h), Some(5));
    }
    for h in others {
        assert!(free(h));
    }
    for &h in &kept {
        assert_eq!(value(h), Some(5));
        assert!(free(h));
    }
    memory::PRETENDED_PAGE.store(0, Ordering::Relaxed);
    for h in handles {
        assert_eq!(value(h), None);
        // SAFETY: as above.
        assert_eq!(unsafe { *h.cast::<*mut c_void>() }, null_mut());
    }
}
