//! A child process inherits the marks of threads that it does not have. In a test program of its
//! own: no other thread may hold a lock in the moment of the fork.

use std::sync::atomic::{AtomicBool, Ordering};

use dat_core::testing::handle::pin;

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

    // SAFETY: the child takes no lock that the other thread may hold, and does not return.
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
