//! Where the DAT libraries are, how a program gets at their functions at run time, and their
//! addresses as text.

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

use dat_core::abi::common::DAT_IA_ADDRESS_PTR;
use dat_core::error::Version;

/// Opens the library of a version. Provider libraries that it loads find it in the global
/// scope, so a process opens one version only.
///
/// # Errors
///
/// What the loader says.
pub fn open(version: Version) -> Result<NonNull<c_void>, String> {
    let mut said = String::new();
    for path in candidates(version) {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
            continue;
        };
        // SAFETY: a C string; constructors of a DAT library do nothing dangerous.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        match NonNull::new(handle) {
            Some(handle) => return Ok(handle),
            None => said = last_error(),
        }
    }
    Err(said)
}

/// The address of a function of a library from [`open`].
///
/// # Errors
///
/// What the loader says.
pub fn symbol(library: NonNull<c_void>, name: &CStr) -> Result<NonNull<c_void>, String> {
    // SAFETY: a library that is never closed, and a C string.
    let symbol = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    NonNull::new(symbol).ok_or_else(last_error)
}

/// The name of a version's library for the loader.
pub fn soname(version: Version) -> &'static str {
    match version {
        Version::V1 => "libdat.so.1",
        Version::V2 => "libdat2.so.2",
    }
}

/// Where the library may be: beside this program as it was built, in the tree that it is
/// installed in, in the loader's search path.
fn candidates(version: Version) -> Vec<PathBuf> {
    let name = soname(version);
    let built = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
    let mut paths = Vec::new();
    if let Ok(program) = env::current_exe()
        && let Some(directory) = program.parent()
    {
        paths.push(directory.join(built));
        if let Some(prefix) = directory.parent() {
            let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
            for lib in ["lib", "lib64", &multiarch] {
                paths.push(prefix.join(lib).join(name));
            }
        }
    }
    paths.push(name.into());
    paths
}

/// An address as text, with its scope and without a port; `None` if there is none or it is of another family.
///
/// # Safety
///
/// `address` is NULL or a socket address of its family's size.
pub unsafe fn address_text(address: DAT_IA_ADDRESS_PTR) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not NULL; every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this type; it may be aligned as bytes are.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_string())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(match address.sin6_scope_id {
                0 => ip.to_string(),
                scope => format!("{ip}%{scope}"),
            })
        }
        _ => None,
    }
}

/// What the loader says of the last failure.
fn last_error() -> String {
    // SAFETY: no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not NULL, so a C string until the next call of this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use std::ptr;

    #[test]
    fn addresses_as_text() {
        // SAFETY: zero bytes are a value of the type.
        let mut v4: libc::sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
        v4.sin_family = libc::AF_INET as libc::sa_family_t;
        v4.sin_addr.s_addr = u32::from(Ipv4Addr::new(192, 0, 2, 7)).to_be();
        // SAFETY: zero bytes are a value of the type.
        let mut v6: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
        v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        v6.sin6_addr.s6_addr = Ipv6Addr::LOCALHOST.octets();
        // SAFETY: locals of their family's type, or NULL.
        unsafe {
            let text = address_text(ptr::from_mut(&mut v4).cast());
            assert_eq!(text.as_deref(), Some("192.0.2.7"));
            let text = address_text(ptr::from_mut(&mut v6).cast());
            assert_eq!(text.as_deref(), Some("::1"));
            v6.sin6_scope_id = 3;
            let text = address_text(ptr::from_mut(&mut v6).cast());
            assert_eq!(text.as_deref(), Some("::1%3"));
            v4.sin_family = libc::AF_UNIX as libc::sa_family_t;
            assert_eq!(address_text(ptr::from_mut(&mut v4).cast()), None);
            assert_eq!(address_text(ptr::null_mut()), None);
        }
    }

    #[test]
    fn the_library_beside_the_program_comes_first() {
        let first = |version| candidates(version)[0].file_name().unwrap().to_owned();
        assert_eq!(first(Version::V1), "libdat.so");
        assert_eq!(first(Version::V2), "libdat2.so");
        let last = candidates(Version::V2).pop().unwrap();
        assert_eq!(last.to_str(), Some("libdat2.so.2"));
    }
}
