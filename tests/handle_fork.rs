//! A child process inherits the marks of threads that it does not have, and locks that they hold.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dat_core::testing::handle::{self, Object, pin};

static INSIDE: AtomicBool = AtomicBool::new(false);
static LEAVE: AtomicBool = AtomicBool::new(false);

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn a_forked_child_does_not_wait_for_threads_it_does_not_have() {
    let other = std::thread::spawn(|| {
        let _guard = pin::pin();
        INSIDE.store(true, Ordering::Release);
        wait_for(&LEAVE);
    });
    wait_for(&INSIDE);
    // This thread has a record too, whose mark the child must keep.
    drop(pin::pin());

    // SAFETY: the child does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a hanging child dies of the signal.
        unsafe { libc::alarm(20) };
        pin::synchronize();
        // It works on as well: its own sections count.
        drop(pin::pin());
        pin::synchronize();
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(7) };
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: our own child, a valid place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    LEAVE.store(true, Ordering::Release);
    other.join().unwrap();
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "status {status:#x}"
    );
    // The parent's marks are untouched by what the child did.
    pin::synchronize();
}

#[repr(align(64))]
struct Thing;

// SAFETY: no other type of this program has the tag; aligned to 64.
unsafe impl Object for Thing {
    const TAG: usize = 63;
}

fn insert() -> *mut c_void {
    static TABLE: u64 = 1;
    handle::insert(std::ptr::from_ref(&TABLE).cast(), Arc::new(Thing)).unwrap()
}

fn is_valid(handle: *mut c_void) -> bool {
    handle::get_shared::<Thing>(handle).is_some()
}

fn remove(handle: *mut c_void) -> bool {
    let guard = pin::pin();
    handle::get::<Thing>(handle, &guard).is_some_and(|thing| handle::remove(handle, thing))
}

#[test]
fn handles_of_the_parent_are_invalid_in_a_child_which_makes_others() {
    let stop = AtomicBool::new(false);
    let inherited = insert();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(remove(insert()));
                }
            });
        }
        let fork = || {
            // SAFETY: the child does not return.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a hanging child dies of the signal.
                unsafe { libc::alarm(20) };
                let invalid = !is_valid(inherited) && handle::table_of(inherited).is_none();
                let ours = handle::is_ours(inherited);
                let new: Vec<_> = (0..300).map(|_| insert()).collect();
                let others = !new.contains(&inherited) && !is_valid(inherited);
                let valid = new.iter().all(|handle| is_valid(*handle));
                let removed = new.into_iter().all(remove);
                let well = invalid && ours && others && valid && removed;
                // SAFETY: leaves without running anything of the parent's.
                unsafe { libc::_exit(if well { 7 } else { 8 }) };
            }
            let mut status = 0;
            // SAFETY: our own child, a valid place for the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        };
        let bad = (0..200).map(|_| fork()).find(|status| *status != 7 << 8);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(bad, None);
    });
    assert!(is_valid(inherited) && remove(inherited));
}
