//! Sections of several threads.

use super::*;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

#[test]
fn retire_waits_for_the_section() {
    let freed = Arc::new(AtomicBool::new(false));
    let guard = pin();
    let nested = pin();
    let flag = freed.clone();
    retire(move || flag.store(true, Ordering::SeqCst));
    drop(nested);
    assert!(!freed.load(Ordering::SeqCst));
    drop(guard);
    // Sections of other tests of this process may hold it back for a moment.
    while !freed.load(Ordering::SeqCst) {
        synchronize();
        collect();
    }
}

#[test]
fn the_plain_way_is_for_an_outermost_section_without_work() {
    // The record of the thread.
    drop(pin());
    if fences_needed() {
        assert!(pin_plainly().is_none());
        return;
    }
    // Garbage of other tests of this process may be left for a moment.
    let guard = loop {
        match pin_plainly() {
            Some(guard) => break guard,
            None => sweep(),
        }
    };
    assert!(pin_plainly().is_none());
    assert!(guard.end_plainly().is_ok());
    let guard = pin();
    let called = Arc::new(AtomicBool::new(false));
    let flag = called.clone();
    outside(move || flag.store(true, Ordering::SeqCst));
    let Err(guard) = guard.end_plainly() else {
        panic!("the section has a call to make");
    };
    assert!(!called.load(Ordering::SeqCst));
    drop(guard);
    assert!(called.load(Ordering::SeqCst));
}

#[test]
fn patience_ends() {
    let patience = Patience::default();
    assert!(patience.is_over(1));
    patience.begin(10);
    assert!(!patience.is_over(4));
    assert!(!patience.is_over(5));
    assert!(patience.is_over(16));
    assert_eq!(patience.length(), 10);
    assert_eq!(
        (patience.note(5), patience.note(6), patience.note(7)),
        (0, 5, 6)
    );
}

#[test]
fn sweep_frees_what_a_section_has_delayed() {
    let freed = Arc::new(AtomicBool::new(false));
    let (pinned, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|s| {
        s.spawn(|| {
            let guard = pin();
            pinned.wait();
            go.wait();
            drop(guard);
        });
        pinned.wait();
        let flag = freed.clone();
        retire(move || flag.store(true, Ordering::SeqCst));
        sweep();
        assert!(!freed.load(Ordering::SeqCst));
        go.wait();
    });
    // As above.
    while !freed.load(Ordering::SeqCst) {
        sweep();
    }
}

#[test]
fn outside_waits_for_the_end_of_the_section() {
    let ran = std::rc::Rc::new(Cell::new(0));
    let again = ran.clone();
    outside(move || again.set(again.get() + 1));
    assert_eq!(ran.get(), 1);
    let guard = pin();
    let again = ran.clone();
    outside(move || {
        synchronize();
        again.set(again.get() + 1);
    });
    assert_eq!(ran.get(), 1);
    drop(guard);
    assert_eq!(ran.get(), 2);
}

#[test]
fn synchronize_waits_for_other_threads() {
    let inside = Arc::new(AtomicBool::new(false));
    let leave = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicBool::new(false));
    let thread = {
        let (inside, leave, left) = (inside.clone(), leave.clone(), left.clone());
        std::thread::spawn(move || {
            let guard = pin();
            inside.store(true, Ordering::SeqCst);
            while !leave.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            left.store(true, Ordering::SeqCst);
            drop(guard);
        })
    };
    while !inside.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let waiter = std::thread::spawn(move || {
        synchronize();
        assert!(left.load(Ordering::SeqCst));
    });
    leave.store(true, Ordering::SeqCst);
    waiter.join().unwrap();
    thread.join().unwrap();
}

/// Readers follow a pointer that a writer replaces repeatedly: none may see a freed value.
#[test]
fn readers_never_see_freed_memory() {
    const LIVE: usize = 0x600d;
    let current = Arc::new(AtomicPtr::new(Box::into_raw(Box::new(AtomicUsize::new(
        LIVE,
    )))));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (current, stop) = (current.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _guard = pin();
                    // SAFETY: reachable inside a section, so not freed yet.
                    let value = unsafe { &*current.load(Ordering::Acquire) };
                    assert_eq!(value.load(Ordering::Relaxed), LIVE);
                }
            })
        })
        .collect();
    for _ in 0..2000 {
        let new = Box::into_raw(Box::new(AtomicUsize::new(LIVE)));
        let old = current.swap(new, Ordering::AcqRel) as usize;
        retire(move || {
            // SAFETY: made by `Box::into_raw`, unreachable, and no section sees it.
            let old = unsafe { Box::from_raw(old as *mut AtomicUsize) };
            old.store(0, Ordering::Relaxed);
        });
    }
    stop.store(true, Ordering::Relaxed);
    for r in readers {
        r.join().unwrap();
    }
    // SAFETY: the last value, no reader is left.
    drop(unsafe { Box::from_raw(current.load(Ordering::Relaxed)) });
}
