//! Variables of the environment. Everything of ours that is set there is read here.

use std::env;
use std::ffi::OsString;

/// Whether the program has more rights than the user who has started it (set-uid, set-gid, file
/// capabilities; `AT_SECURE`). What that user chooses, such as the environment and the working
/// directory, must not decide then what the program loads, reads or writes.
pub fn is_secure() -> bool {
    // SAFETY: no preconditions; the kernel gives every process the value.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable if it is set; nothing is in a [secure](is_secure) program.
pub fn variable(name: &str) -> Option<OsString> {
    if is_secure() {
        return None;
    }
    env::var_os(name)
}
