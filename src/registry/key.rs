//! The key by which a provider is found: IA name, API version, thread safety.

use std::ffi::{CStr, CString, c_char};
use std::fmt;

use crate::abi::common::{DAT_FALSE, DAT_NAME_MAX_LENGTH, DAT_PROVIDER_INFO, DAT_TRUE};

/// The key of both registries. All four parts are compared exactly, as in every existing library,
/// although the man pages describe other rules for the minor version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Name of the interface adapter, at most 255 bytes.
    pub name: CString,
    /// Major version of the DAT API.
    pub major: u32,
    /// Minor version of the DAT API.
    pub minor: u32,
    /// Whether the provider is thread-safe.
    pub thread_safe: bool,
}

impl Key {
    /// The key in a `DAT_PROVIDER_INFO`; `None` if its name has no end.
    ///
    /// # Safety
    ///
    /// `info` is valid for a read.
    pub unsafe fn from_info(info: *const DAT_PROVIDER_INFO) -> Option<Key> {
        // SAFETY: the caller's promise. The fields have no invalid values.
        let info = unsafe { info.read() };
        // SAFETY: the array is in a local, and `bounded` reads only that array.
        let name = unsafe { bounded(info.ia_name.as_ptr()) }?;
        Some(Key {
            name: name.to_owned(),
            major: info.dapl_version_major,
            minor: info.dapl_version_minor,
            thread_safe: info.is_thread_safe != DAT_FALSE,
        })
    }

    /// The `DAT_PROVIDER_INFO` of this key.
    pub fn to_info(&self) -> DAT_PROVIDER_INFO {
        let mut ia_name = [0; DAT_NAME_MAX_LENGTH];
        let room = DAT_NAME_MAX_LENGTH - 1;
        for (to, &from) in ia_name[..room].iter_mut().zip(self.name.as_bytes()) {
            *to = from as c_char;
        }
        DAT_PROVIDER_INFO {
            ia_name,
            dapl_version_major: self.major,
            dapl_version_minor: self.minor,
            is_thread_safe: if self.thread_safe {
                DAT_TRUE
            } else {
                DAT_FALSE
            },
        }
    }

    /// The key with the other value of thread safety.
    pub fn with_other_safety(&self) -> Key {
        Key {
            thread_safe: !self.thread_safe,
            ..self.clone()
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}' u{}.{} {}threadsafe",
            self.name.to_string_lossy(),
            self.major,
            self.minor,
            if self.thread_safe { "" } else { "non" },
        )
    }
}

/// The C string at `name` if it ends within 256 bytes, the terminating NUL included. Reads no
/// byte beyond the end.
///
/// # Safety
///
/// `name` is valid for reads up to its NUL or of 256 bytes, whichever ends first, for `'a`.
pub unsafe fn bounded<'a>(name: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise; strnlen reads nothing after the NUL.
    let length = unsafe { libc::strnlen(name, DAT_NAME_MAX_LENGTH) };
    if length == DAT_NAME_MAX_LENGTH {
        return None;
    }
    // SAFETY: `length` bytes and a NUL were just found there.
    let bytes = unsafe { std::slice::from_raw_parts(name.cast(), length + 1) };
    CStr::from_bytes_with_nul(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key {
            name: CString::new(name).unwrap(),
            major: 2,
            minor: 1,
            thread_safe: true,
        }
    }

    #[test]
    fn info_and_back() {
        for name in ["", "ib0", &"n".repeat(255)] {
            let info = key(name).to_info();
            // SAFETY: a local.
            assert_eq!(unsafe { Key::from_info(&info) }, Some(key(name)));
        }
        let mut info = key("a").to_info();
        info.is_thread_safe = 7;
        // SAFETY: a local.
        assert_eq!(unsafe { Key::from_info(&info) }, Some(key("a")));
        info.ia_name = [b'x' as c_char; DAT_NAME_MAX_LENGTH];
        // SAFETY: a local.
        assert_eq!(unsafe { Key::from_info(&info) }, None);
    }

    #[test]
    fn the_name_of_an_info_has_an_end() {
        let info = key(&"n".repeat(300)).to_info();
        assert_eq!(info.ia_name[DAT_NAME_MAX_LENGTH - 2..], [b'n' as c_char, 0]);
    }

    #[test]
    fn keys_differ_in_every_part() {
        let a = key("a");
        for b in [
            key("b"),
            a.with_other_safety(),
            Key {
                major: 3,
                ..a.clone()
            },
            Key {
                minor: 0,
                ..a.clone()
            },
        ] {
            assert_ne!(a, b);
        }
        assert_eq!(a.to_string(), "`a' u2.1 threadsafe");
    }
}
