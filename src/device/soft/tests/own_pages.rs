//! Registered pages that hold objects of the library, beside what a program has allocated there: programs
//! register whole pages around it.

use super::*;
use crate::device::soft::transport::shm::mapped;

/// What moves them would wait for itself if it needed what is on them.
#[test]
fn the_pages_of_what_moves_pages_move() {
    // Memory of the C library for other threads than the first one does not move.
    let one_heap = [("MALLOC_ARENA_MAX", "1")];
    let name = "own_pages::the_pages_of_what_moves_pages_move";
    alone_with(&one_heap, name, moves);
}

fn moves() {
    if let Err(why) = mapped::enable() {
        eprintln!("\nskipped: the_pages_of_what_moves_pages_move: {why}");
        return;
    }
    // A thread that waits for itself ends in no other way.
    // SAFETY: ends this process, which is for this test alone.
    unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
    let memory = mapped::registry::current().unwrap();
    let page = rustix::param::page_size() as u64;
    let at = std::ptr::from_ref(memory).expose_provenance() as u64;
    let start = at & !(page - 1);
    let len = (at + size_of_val(memory) as u64).next_multiple_of(page) - start;
    let mapped = mapped::register(start, len, Some).unwrap();
    assert_eq!((mapped.start, mapped.end), (start, start + len));
    mapped::release(start, len);
    assert!(memory.lock().in_file.is_empty());
}
