use super::*;
use crate::test_pages::{MprotectFlags, TestPages};

/// Mapped memory of which some pages are withdrawn.
struct Pages {
    all: TestPages,
}

const PAGE: usize = 4096;

impl Pages {
    /// `count` pages that are filled, with one behind them and one in front of them that cannot be
    /// accessed.
    fn new(count: usize) -> Pages {
        install_handlers();
        let all = TestPages::new(count + 2);
        for i in 0..all.len() {
            // SAFETY: inside the mapping.
            unsafe { *all.at(i) = (i * 31 + i / 256 + 7) as u8 };
        }
        all.protect(0..1, MprotectFlags::empty());
        all.protect(count + 1..count + 2, MprotectFlags::empty());
        Pages { all }
    }

    fn protect(&self, pages: std::ops::Range<usize>, access: MprotectFlags) {
        self.all.protect(pages, access);
    }

    /// The address of the first byte that can be accessed, and so many further.
    fn start(&self, offset: usize) -> *mut u8 {
        self.all.at(PAGE).wrapping_add(offset)
    }

    /// The address so many bytes before the end.
    fn end(&self, offset: usize) -> *mut u8 {
        self.all.at(self.all.len() - PAGE).wrapping_sub(offset)
    }
}

fn bytes(at: *const u8, len: usize) -> Vec<u8> {
    // SAFETY: the tests pass ranges that can be read.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// Lengths around the borders of all ways to copy.
fn lengths() -> impl Iterator<Item = usize> {
    (0..300).chain([511, 512, 1000, 4095, 4096, 4097, 5000, 8192, 12_288])
}

#[test]
fn every_length_and_alignment() {
    let (from, to) = (Pages::new(4), Pages::new(4));
    for len in lengths() {
        for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 9), (33, 64), (3, 40)] {
            let around = bytes(to.start(0), 4 * PAGE);
            // SAFETY: both ranges are inside the pages.
            let copied = unsafe { copy(from.start(a), to.start(b), len) };
            assert_eq!(copied, Ok(()));
            let now = bytes(to.start(0), 4 * PAGE);
            assert_eq!(now[b..b + len], bytes(from.start(a), len), "{len} {a} {b}");
            assert_eq!(now[..b], around[..b], "{len} {a} {b}");
            assert_eq!(now[b + len..], around[b + len..], "{len} {a} {b}");
        }
    }
}

#[test]
fn ranges_that_overlap() {
    for len in lengths().filter(|len| *len < 9000) {
        for distance in [
            0, 1, 7, 16, 31, 32, 33, 63, 64, 65, 100, 128, 200, 257, 4096,
        ] {
            for (a, b) in [(5, 5 + distance), (5 + distance, 5)] {
                let pages = Pages::new(4);
                let expected = bytes(pages.start(a), len);
                // SAFETY: both ranges are inside the pages.
                let copied = unsafe { copy(pages.start(a), pages.start(b), len) };
                assert_eq!(copied, Ok(()));
                assert_eq!(bytes(pages.start(b), len), expected, "{len} {a} {b}");
            }
        }
    }
}

/// Where a copy needs aligned loads, it loads words with more than the bytes: none on another page, which may not be
/// there.
#[test]
fn every_alignment_in_a_word() {
    let (from, to) = (Pages::new(1), Pages::new(1));
    let mut number = 0u8;
    for len in 0..100 {
        for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
            for (source, target) in [
                (from.start(a), to.start(b)),
                (from.end(len + a), to.start(8 + b)),
                (from.start(8 + a), to.end(len + b)),
            ] {
                number = number.wrapping_add(1);
                let target_page = to.start(0);
                let in_page = target.addr() - target_page.addr();
                // SAFETY: inside the pages.
                unsafe {
                    target_page.write_bytes(number, PAGE);
                    assert_eq!(copy(source, target, len), Ok(()), "{len} {a} {b}");
                }
                let mut expected = vec![number; PAGE];
                expected[in_page..in_page + len].copy_from_slice(&bytes(source, len));
                assert_eq!(bytes(target_page, PAGE), expected, "{len} {a} {b}");
            }
        }
    }
}

#[test]
fn every_overlap_in_a_word() {
    let pages = Pages::new(1);
    for len in 0..100 {
        for (a, b) in (0..24).flat_map(|a| (0..24).map(move |b| (a, b))) {
            let expected = bytes(pages.start(a), len);
            // SAFETY: inside the pages.
            unsafe {
                assert_eq!(copy(pages.start(a), pages.start(b), len), Ok(()));
                assert_eq!(bytes(pages.start(b), len), expected, "{len} {a} {b}");
                // Not all bytes alike.
                for i in 0..128 {
                    *pages.start(i) = (i * 31 + len) as u8;
                }
            }
        }
    }
}

#[test]
fn the_side_that_is_not_there_is_named() {
    let (from, to) = (Pages::new(4), Pages::new(4));
    let source = Err(CopyFault::Source);
    let target = Err(CopyFault::Target);
    for len in lengths().filter(|len| *len > 0) {
        for over in [1, 2, 8, 15, 16, 33, 64, 100, 128, 200, 4096, 12_288] {
            let over = over.min(len);
            let within = len - over;
            // SAFETY: nothing uses the pages; what is not inside them fails.
            unsafe {
                assert_eq!(
                    copy(from.end(within), to.start(1), len),
                    source,
                    "{len} {over}"
                );
                assert_eq!(
                    copy(from.start(1), to.end(within), len),
                    target,
                    "{len} {over}"
                );
                let before = from.start(0).wrapping_sub(over);
                assert_eq!(copy(before, to.start(0), len), source, "{len} {over}");
                let before = to.start(0).wrapping_sub(over);
                assert_eq!(copy(from.start(0), before, len), target, "{len} {over}");
                if (8..=16).contains(&len) {
                    assert_eq!(copy_words(from.end(within), to.start(1), len), source);
                    assert_eq!(copy_words(from.start(1), to.end(within), len), target);
                }
            }
        }
    }
}

#[test]
fn a_copy_for_a_peer_arrives_or_names_the_side() {
    let (from, to) = (Pages::new(4), Pages::new(4));
    for len in lengths().filter(|len| *len > 0) {
        for (a, b) in [(0, 0), (0, 64), (7, 9), (63, 40)] {
            let around = bytes(to.start(0), 4 * PAGE);
            // SAFETY: both ranges are inside the pages.
            let copied = unsafe { copy_for_peer(from.start(a), to.start(b), len) };
            assert_eq!(copied, Ok(()), "{len} {a} {b}");
            let now = bytes(to.start(0), 4 * PAGE);
            assert_eq!(now[b..b + len], bytes(from.start(a), len), "{len} {a} {b}");
            assert_eq!(now[..b], around[..b], "{len} {a} {b}");
            assert_eq!(now[b + len..], around[b + len..], "{len} {a} {b}");
        }
        // SAFETY: nothing uses the pages; what is not inside them fails.
        unsafe {
            let copied = copy_for_peer(from.end(len - 1), to.start(0), len);
            assert_eq!(copied, Err(CopyFault::Source), "{len}");
            let copied = copy_for_peer(from.start(0), to.end(len - 1), len);
            assert_eq!(copied, Err(CopyFault::Target), "{len}");
        }
    }
}

#[test]
fn ranges_that_overlap_and_are_not_there() {
    let pages = Pages::new(4);
    let (source, target) = (Err(CopyFault::Source), Err(CopyFault::Target));
    for len in lengths().filter(|len| (2..9000).contains(len)) {
        // SAFETY: nothing uses the pages.
        unsafe {
            assert_eq!(copy(pages.end(len - 1), pages.end(len), len), source);
            assert_eq!(copy(pages.end(len), pages.end(len - 1), len), target);
        }
    }
    // The source is in the middle of a word, which begins in the target.
    // SAFETY: as above.
    let copied = unsafe { copy(pages.end(0).wrapping_add(3), pages.end(5), 8) };
    assert_eq!(copied, source);
    pages.protect(2..3, MprotectFlags::READ);
    for len in [8, 20, 200, 6000] {
        // SAFETY: nothing uses the pages.
        let copied = unsafe { copy(pages.start(PAGE - 4), pages.start(PAGE - 3), len) };
        assert_eq!(copied, target, "{len}");
    }
}

#[test]
fn pieces_are_stored_or_fail() {
    let pages = Pages::new(1);
    for len in [1, 2, 4, 8] {
        let value = [0xa5u8, 1, 2, 3, 4, 5, 6, 7];
        // SAFETY: inside the page, or behind it.
        unsafe {
            assert_eq!(store(pages.end(len), &value[..len]), Ok(()));
            assert_eq!(bytes(pages.end(len), len), value[..len]);
            assert_eq!(store(pages.end(0), &value[..len]), Err(CopyFault::Target));
        }
    }
    let (source, target) = (Err(CopyFault::Source), Err(CopyFault::Target));
    // SAFETY: inside the page, or not accessible.
    unsafe {
        for from in (16..24).map(|at| pages.start(at)).chain([pages.end(8)]) {
            assert_eq!(copy_aligned_word(from, pages.start(8)), Ok(()));
            assert_eq!(bytes(pages.start(8), 8), bytes(from, 8));
        }
        assert_eq!(copy_aligned_word(pages.end(7), pages.start(8)), source);
        assert_eq!(copy_aligned_word(pages.start(3), pages.end(0)), target);
    }
}

#[test]
fn words_change_in_one_piece_or_not_at_all() {
    let pages = Pages::new(1);
    let word = pages.start(8);
    let read = || u64::from_ne_bytes(bytes(word, 8).try_into().unwrap());
    // SAFETY: a word of the pages, which may be changed, or memory that is not there.
    unsafe {
        store(word, &5u64.to_ne_bytes()).unwrap();
        assert_eq!((fetch_add(word, u64::MAX), read()), (Ok(5), 4));
        assert_eq!((compare_swap(word, 5, 9), read()), (Ok(4), 4));
        assert_eq!((compare_swap(word, 4, 1 << 63), read()), (Ok(4), 1 << 63));
        assert_eq!((compare_swap(word, 0, 1), read()), (Ok(1 << 63), 1 << 63));
        pages.protect(1..2, MprotectFlags::READ);
        for at in [word, pages.start(0).wrapping_sub(8), pages.end(0)] {
            assert_eq!(fetch_add(at, 1), Err(CopyFault::Target));
            assert_eq!(compare_swap(at, 1 << 63, 1), Err(CopyFault::Target));
        }
        assert_eq!(read(), 1 << 63);
    }
}

#[test]
fn pages_that_can_be_read() {
    let pages = Pages::new(4);
    pages.protect(3..4, MprotectFlags::empty());
    assert_eq!(is_readable(pages.start(0), 2 * PAGE), Ok(()));
    assert_eq!(is_readable(pages.start(2 * PAGE), 0), Ok(()));
    assert_eq!(is_readable(pages.start(3 * PAGE), PAGE), Ok(()));
    for (offset, len) in [
        (2 * PAGE - 1, 2),
        (0, 4 * PAGE),
        (2 * PAGE, 1),
        (3 * PAGE - 1, 2),
    ] {
        assert_eq!(
            is_readable(pages.start(offset), len),
            Err(CopyFault::Source)
        );
    }
    for len in 0..200 {
        assert!(is_short_readable(pages.end(len), len));
    }
    for (offset, len) in [
        (2 * PAGE, 1),
        (2 * PAGE, 64),
        (2 * PAGE - 1, 2),
        (2 * PAGE - 7, 8),
        (3 * PAGE - 1, 2),
        (3 * PAGE - 63, 64),
    ] {
        assert!(!is_short_readable(pages.start(offset), len));
    }
    pages.protect(1..3, MprotectFlags::READ);
    assert_eq!(is_readable(pages.start(0), 2 * PAGE), Ok(()));
    assert!(is_short_readable(pages.start(0), PAGE));
}

/// The processor decides which of them [`copy`] uses.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_way_of_a_long_copy() {
    let (from, to) = (Pages::new(4), Pages::new(4));
    for (way, may_overlap) in arch::long_ways() {
        for len in lengths().filter(|len| *len > 128) {
            for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 9), (33, 64), (63, 40)] {
                let around = bytes(to.start(0), 4 * PAGE);
                // SAFETY: both ranges are inside the pages, or fail.
                unsafe {
                    assert_eq!(way(to.start(b), from.start(a), len), 0);
                    let now = bytes(to.start(0), 4 * PAGE);
                    assert_eq!(now[b..b + len], bytes(from.start(a), len), "{len} {a} {b}");
                    assert_eq!(now[..b], around[..b], "{len} {a} {b}");
                    assert_eq!(now[b + len..], around[b + len..], "{len} {a} {b}");
                    let fault = way(to.start(b), from.end(len - 1 - a), len);
                    assert_eq!(fault, from.end(0).addr(), "{len} {a} {b}");
                    let fault = way(to.end(len - 1 - b), from.start(a), len);
                    assert_eq!(fault, to.end(0).addr(), "{len} {a} {b}");
                }
            }
            for distance in [1, 15, 31, 64, 65, 127, 128]
                .into_iter()
                .filter(|_| may_overlap)
            {
                for (a, b) in [(5, 5 + distance), (5 + distance, 5)] {
                    let expected = bytes(to.start(a), len);
                    // SAFETY: both ranges are inside the pages.
                    assert_eq!(unsafe { way(to.start(b), to.start(a), len) }, 0);
                    assert_eq!(bytes(to.start(b), len), expected, "{len} {a} {b}");
                }
            }
        }
    }
}

/// Programs poll the last byte of what is to arrive, and use all of it once that byte has changed.
#[test]
fn the_last_byte_is_stored_after_all_others() {
    let (from, to) = (Pages::new(4), Pages::new(4));
    for len in lengths().filter(|len| *len > 1) {
        let target = to.end(len - 1);
        // SAFETY: all but the last byte are inside the pages.
        unsafe {
            target.write_bytes(0, len - 1);
            assert_eq!(copy(from.start(1), target, len), Err(CopyFault::Target));
        }
        // What is stored together with the last byte is not there.
        let before = len - len.min(64);
        assert_eq!(bytes(target, before), bytes(from.start(1), before), "{len}");
    }
}

/// Programs clear the byte that they have polled, and wait for the next message.
#[test]
fn the_last_byte_is_stored_once() {
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};
    const ARRIVED: u8 = 1;
    const SEEN: u8 = 2;
    /// As many rounds as there is time for: one in a thousand and more show a second store.
    const ROUNDS: usize = 20_000;
    const TIME: Duration = Duration::from_millis(300);
    let target: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(0)).collect();
    let source = [ARRIVED; 64];
    for len in [1, 2, 3, 4, 8, 9, 16, 17, 32, 64] {
        let (copied, round) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let end = Instant::now() + TIME;
        let is_time = |number: &usize| !number.is_multiple_of(64) || Instant::now() < end;
        let last = &target[len - 1];
        last.store(0, Ordering::SeqCst);
        // All loops are tight, and the stores that end them are visible at once.
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for number in 1.. {
                    while round.load(Ordering::SeqCst) < number {}
                    if round.load(Ordering::SeqCst) > number {
                        return;
                    }
                    let to = target.as_ptr().cast::<u8>().cast_mut();
                    // SAFETY: both have 64 bytes, and atomic bytes may be changed at any time.
                    let result = unsafe { copy(source.as_ptr(), to, len) };
                    assert_eq!(result, Ok(()));
                    copied.store(number, Ordering::SeqCst);
                }
            });
            let mut lost = 0;
            for number in (1..=ROUNDS).take_while(is_time) {
                round.store(number, Ordering::SeqCst);
                while last.load(Ordering::Relaxed) != ARRIVED {}
                last.store(SEEN, Ordering::Relaxed);
                while copied.load(Ordering::SeqCst) < number {}
                lost += usize::from(last.load(Ordering::Relaxed) != SEEN);
            }
            round.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(lost, 0, "{len} bytes");
        });
    }
}

/// Programs poll a number that is aligned, as the buffer is that it arrives in, and take what they see for all of it.
#[test]
fn an_aligned_number_arrives_in_one_piece() {
    use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
    use std::time::{Duration, Instant};
    const TIME: Duration = Duration::from_millis(10);
    // Elsewhere a copy ends with words that need not be aligned, so that a number between others may be in two of them.
    let is_whole_between_others = cfg!(any(
        target_arch = "x86_64",
        target_arch = "x86",
        target_arch = "riscv64"
    ));
    let target: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let (old, new) = ([0u8; 64], [!0u8; 64]);
    // Bytes of the number, where it is in the target, and how many bytes are copied in front of it and behind it.
    for (size, at) in [(2, 8), (2, 10), (2, 14), (4, 8), (4, 12), (8, 16)] {
        for (before, behind) in [(0, 0), (0, 3), (0, 4), (0, 20), (1, 0), (2, 0), (2, 7)] {
            if size == 8 && before > 0 && behind > 0 && !is_whole_between_others {
                continue;
            }
            let before = before * size;
            let ended = AtomicBool::new(false);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let to = target.as_ptr().cast::<u8>().cast_mut();
                    let begun = Instant::now();
                    for round in 0.. {
                        let from = [&new, &old][round % 2].as_ptr().wrapping_add(round / 2 % 8);
                        let len = before + size + behind;
                        // SAFETY: inside both; atomic numbers may be changed at any time.
                        let copied = unsafe { copy(from, to.add(at - before), len) };
                        assert_eq!(copied, Ok(()));
                        if round % 64 == 0 && begun.elapsed() > TIME {
                            break;
                        }
                    }
                    ended.store(true, Ordering::Release);
                });
                let number = target.as_ptr().cast::<u8>().wrapping_add(at);
                while !ended.load(Ordering::Acquire) {
                    // SAFETY: aligned, and inside.
                    let seen = unsafe {
                        match size {
                            2 => u64::from((*number.cast::<AtomicU16>()).load(Ordering::Relaxed)),
                            4 => u64::from((*number.cast::<AtomicU32>()).load(Ordering::Relaxed)),
                            _ => (*number.cast::<AtomicU64>()).load(Ordering::Relaxed),
                        }
                    };
                    let all = u64::MAX >> (64 - 8 * size);
                    assert!(seen == 0 || seen == all, "{seen:x} of {size} at {at}");
                }
            });
        }
    }
}
