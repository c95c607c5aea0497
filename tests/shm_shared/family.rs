//! Children.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dat_core::testing::device::*;

use super::ends::*;
use super::{alone, is_possible};

/// Runs `f` in a child that `make` makes; gives its wait status.
fn child(make: impl FnOnce() -> libc::pid_t, f: impl FnOnce() -> bool) -> i32 {
    let pid = make();
    assert!(pid >= 0);
    if pid == 0 {
        let good = f();
        // SAFETY: a child that hangs dies of the signal; it leaves without the parent's exit.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child, a place for the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn fork() -> libc::pid_t {
    // SAFETY: the children of these tests look at memory, and leave.
    unsafe { libc::fork() }
}

/// All of a part has one value; needs no memory for that.
fn all_are(memory: &Memory, offset: usize, len: usize, value: u8) -> bool {
    // SAFETY: inside the mapping.
    (offset..offset + len).all(|i| unsafe { memory.at(i).read_volatile() } == value)
}

fn fill(memory: &Memory, offset: usize, len: usize, value: u8) {
    // SAFETY: inside the mapping.
    (offset..offset + len).for_each(|i| unsafe { memory.at(i).write_volatile(value) });
}

/// What the child writes is its own, and what happens to the parent's memory afterwards is the
/// parent's.
#[test]
fn a_child_has_its_own_copy() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let memory = Memory::new(600 * page());
    let len = memory.len();
    let mr = b.register(memory.addr() + 10, len - 20);
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    for round in 1..10u8 {
        fill(&memory, 0, len, round);
        let status = child(
            || {
                let pid = fork();
                if pid > 0 {
                    // The parent's memory changes, by itself and by a peer.
                    fill(&memory, 0, len / 2, 100);
                    let (addr, rkey) = (memory.addr() + len as u64 / 2, mr.rkey());
                    let bytes = vec![101; 1 << 20];
                    assert_eq!(a.write(&bytes, Remote { addr, rkey }), WcStatus::Success);
                    // SAFETY: our own pipe.
                    unsafe { libc::write(ends[1], [1u8].as_ptr().cast(), 1) };
                }
                pid
            },
            || {
                let mut byte = 0u8;
                // SAFETY: as above.
                unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
                let good = all_are(&memory, 0, len, round);
                fill(&memory, 0, len, 200);
                // And a child of the child.
                let grandchild = child(fork, || {
                    let good = all_are(&memory, 0, len, 200);
                    fill(&memory, 0, len, 201);
                    good
                });
                good && grandchild == 0 && all_are(&memory, 0, len, 200)
            },
        );
        assert_eq!(status, 0);
        assert!(all_are(&memory, 0, len / 2, 100));
        assert!(all_are(&memory, len / 2, 1 << 20, 101));
        assert_eq!(is_shared(memory.addr() + len as u64 / 2), is_possible());
    }
    drop(mr);
    assert!(all_are(&memory, 0, len / 2, 100));
    assert_eq!(file_size(), 0);
    // SAFETY: our own descriptors.
    ends.iter().for_each(|fd| unsafe { _ = libc::close(*fd) });
}

/// Forks while memory moves to and fro, and while others write to it.
#[test]
fn forks_and_moves_at_once() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(256 * page());
    // The first half is for a thread that counts.
    let half = memory.len() / 2;
    fill(&memory, half, half, 42);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let mr = b.register(memory.addr(), memory.len());
                assert_eq!(is_shared(memory.addr()), is_possible());
                drop(mr);
            }
        });
        let counter = scope.spawn(|| {
            // SAFETY: inside the mapping, and aligned.
            let word = |i: usize| unsafe { AtomicU64::from_ptr(memory.at(i * 8).cast()) };
            let mut count = 0;
            while !stop.load(Ordering::Acquire) {
                for i in 0..half / 8 {
                    assert_eq!(word(i).swap(count + 1, Ordering::Relaxed), count);
                }
                count += 1;
            }
        });
        for _ in 0..25 {
            let status = child(fork, || {
                let good = all_are(&memory, half, half, 42);
                fill(&memory, 0, memory.len(), 1);
                good
            });
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Release);
        mover.join().unwrap();
        counter.join().unwrap();
    });
    assert!(all_are(&memory, half, half, 42));
}

/// A child past the handlers of `fork` misses the memory: it does not share it.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_child_that_nobody_was_told_of() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(8 * page());
    fill(&memory, 0, memory.len(), 3);
    let mr = b.register(memory.addr(), memory.len());
    let status = child(
        // SAFETY: as fork does it; the child looks at memory, and leaves or dies.
        || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
        || {
            fill(&memory, 0, memory.len(), 4);
            true
        },
    );
    if is_possible() {
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
    } else {
        assert_eq!(status, 0);
    }
    assert!(all_are(&memory, 0, memory.len(), 3));
    drop(mr);
}

/// Other programs are started as ever, whichever way.
#[test]
fn other_programs() {
    use std::os::unix::process::CommandExt;
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(8 * page());
    fill(&memory, 0, memory.len(), 3);
    let mr = b.register(memory.addr(), memory.len());
    let mut command = std::process::Command::new("true");
    assert!(command.status().unwrap().success());
    // SAFETY: does nothing; it is here so that there is a fork.
    unsafe { command.pre_exec(|| Ok(())) };
    assert!(command.status().unwrap().success());
    assert_eq!(is_shared(memory.addr()), is_possible());
    drop(mr);
    assert!(all_are(&memory, 0, memory.len(), 3));
}
