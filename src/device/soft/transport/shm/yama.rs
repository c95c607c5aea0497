//! Yama, a security module that many distributions have switched on
//! (`Documentation/admin-guide/LSM/Yama.rst` of the kernel).
//!
//! With `kernel.yama.ptrace_scope` at 1 a process may reach the memory of its descendants alone, and of
//! processes that have named it, or all processes, as their tracer (`PR_SET_PTRACER`, `prctl(2)`). What
//! the kernel checks otherwise, the user above all, holds in each case.

use crate::process::PerProcess;

/// Whether this process has asked Yama for its exception.
static EXCEPTION: PerProcess<bool> = PerProcess::new(make_exception);

/// Lets processes of the same user reach the memory of this one where Yama forbids that. To be called
/// once a peer of the same user is there: until then the process is as closed as any other.
///
/// The exception is one for all processes. A process can have no more than one: an exception for one
/// peer would end that for the peer before.
pub(crate) fn permit_peers() {
    let _ = *EXCEPTION;
}

#[cfg(not(dat_sim))]
fn make_exception() -> bool {
    let scope = std::fs::read("/proc/sys/kernel/yama/ptrace_scope");
    if !scope.is_ok_and(|scope| scope.trim_ascii() == b"1") {
        return false;
    }
    // SAFETY: two numbers, as the call takes them.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        log::debug!("no exception from kernel.yama.ptrace_scope=1: {error}");
    }
    result == 0
}

/// The simulated kernel permits every access.
#[cfg(dat_sim)]
fn make_exception() -> bool {
    false
}
