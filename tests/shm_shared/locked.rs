//! A program that locks all memory that it maps (`mlockall(2)`), as programs for real time do.

use std::fs;
use std::path::Path;

use dat_core::testing::device::*;

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

/// The initiator, in a process of its own.
#[test]
fn initiator() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let Some(_alone) = alone() else {
        return;
    };
    // If the kernel fills the window after all, this process is the one that is killed for it.
    let _ = fs::write(Path::new("/proc/self/oom_score_adj"), "1000");
    let (mut target, end) = Target::start();
    // All of the region is there.
    target.ask("sum");
    let before = target.blocks();
    assert!(before > 0);
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

/// The window in which it reaches a peer's memory does not fill the peer's file.
#[test]
fn the_memory_of_a_peer_stays_as_it_is() {
    let Some(_alone) = alone() else {
        return;
    };
    let mut command = itself::command("locked::initiator");
    let output = command.env(ROLE, "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    if text.contains(FORBIDDEN) {
        skip::skip(FORBIDDEN);
    }
}
