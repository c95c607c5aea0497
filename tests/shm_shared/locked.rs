//! A program that locks all memory that it maps (`mlockall(2)`), as programs for real time do.

use std::fs;
use std::path::Path;

use dat_core::testing::device::*;

use super::ends::End;
use super::two::{Target, views};
use super::{alone, itself, skip};

const ROLE: &str = "LIBDAT_TEST_LOCKED";
const FORBIDDEN: &str = "this user may not lock a window of 4 GiB (RLIMIT_MEMLOCK)";
/// 1 MiB, in blocks of a file: more than what a page here and there takes.
const SOME: u64 = 2048;

/// Locks what this process maps from now on. False if it may not, or not so much.
fn lock_the_future() -> bool {
    // SAFETY: a window without access, which is given back.
    unsafe {
        if libc::mlockall(libc::MCL_FUTURE) != 0 {
            return false;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let window = libc::mmap(std::ptr::null_mut(), 1 << 32, libc::PROT_NONE, flags, -1, 0);
        window != libc::MAP_FAILED && libc::munmap(window, 1 << 32) == 0
    }
}

/// The memory that this process has locked, in KiB.
fn locked() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

/// Locks what this process has mapped. False if it may not, or not so much.
fn lock_the_present() -> bool {
    // SAFETY: the contents stay as they are.
    unsafe { libc::mlockall(libc::MCL_CURRENT) == 0 }
}

/// A target, of whose region all is there, and an initiator in this process, which is one of its own. `None` in that of
/// the tests.
fn start() -> Option<(Target, End)> {
    std::env::var_os(ROLE)?;
    // If the kernel fills the window after all, this process is the one that is killed for it.
    let _ = fs::write(Path::new("/proc/self/oom_score_adj"), "1000");
    let (mut target, end) = Target::start();
    target.ask("sum");
    assert!(target.blocks() > 0);
    Some((target, end))
}

/// The initiator that locks before it has a window, in a process of its own.
#[test]
fn initiator() {
    let Some((mut target, end)) = start() else {
        return;
    };
    let before = target.blocks();
    if !lock_the_future() {
        println!("{FORBIDDEN}");
        return;
    }
    let mut inside = target.remote;
    inside.addr += 8192;
    assert_eq!(end.read(inside, 100), [0; 100]);
    assert_eq!(views(), "r--s");
    assert!(target.blocks() < before + SOME);
    assert_eq!(end.write(&[1], inside), WcStatus::Success);
    assert_eq!(views(), "rw-s");
    assert!(target.blocks() < before + SOME);
    assert!(locked() < 1 << 22, "{} KiB are locked", locked());
    target.end();
}

/// The initiator that has a window when it locks, in a process of its own.
#[test]
fn initiator_with_a_window() {
    let Some((mut target, end)) = start() else {
        return;
    };
    let before = target.blocks();
    let mut inside = target.remote;
    inside.addr += 8192;
    assert_eq!(end.read(inside, 100), [0; 100]);
    for expected in ["r--s", "rw-s"] {
        assert_eq!(views(), expected);
        if !lock_the_present() {
            println!("{FORBIDDEN}");
            return;
        }
        assert!(target.blocks() < before + SOME);
        assert_eq!(end.write(&[1], inside), WcStatus::Success);
        assert_eq!(end.read(inside, 2), [1, 0]);
    }
    target.end();
}

/// The window in which it reaches a peer's memory does not fill the peer's file.
#[test]
fn the_memory_of_a_peer_stays_as_it_is() {
    runs("locked::initiator");
}

/// The same if the window is there already.
#[test]
fn the_memory_of_a_peer_stays_as_it_is_with_a_window() {
    runs("locked::initiator_with_a_window");
}

/// Runs an initiator.
fn runs(initiator: &str) {
    let Some(_alone) = alone() else {
        return;
    };
    let mut command = itself::command(initiator);
    let output = command.env(ROLE, "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    if text.contains(FORBIDDEN) {
        skip::skip(FORBIDDEN);
    }
}
