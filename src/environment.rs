//! Variables of the environment. All variables that the libraries read are read here.

use std::env;
use std::ffi::OsString;

/// Whether the program has more rights than the user who has started it (set-uid, set-gid, file
/// capabilities; `AT_SECURE`). The environment and the working directory, which that user chooses,
/// must not influence then what the program loads, reads or writes.
pub fn is_secure() -> bool {
    // SAFETY: no preconditions; the kernel gives every process the value.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable, if it is set and the program is not [secure](is_secure).
pub fn variable(name: &str) -> Option<OsString> {
    if is_secure() {
        return None;
    }
    env::var_os(name)
}

/// The names of the variables that begin so, unless the program is [secure](is_secure).
pub fn names(prefix: &str) -> Vec<String> {
    if is_secure() {
        return Vec::new();
    }
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}
