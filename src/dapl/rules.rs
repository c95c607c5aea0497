//! Whose rules hold where the man pages refuse what the libraries accept that programs were
//! written for. dat.conf(5) has the table of what differs; what it says of `rules=pages` and of
//! the default is decided by the methods of [`Rules`] and where they are called.

use std::sync::Arc;

use crate::device::params::{Key, unknown, wrong_value};
use crate::device::{Access, Device};

/// The parameters of an entry of `dat.conf` that every device of our provider shares.
pub const KEYS: &[Key] = &[RULES];

const RULES: Key = Key {
    name: "rules",
    values: "programs|pages",
    default: "programs",
    help: "Whether what the libraries of others accept is accepted, or the letter of the man \
           pages holds.",
};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rules {
    /// What existing libraries accept is accepted.
    #[default]
    Programs,
    /// The letter of the man pages.
    Pages,
}

impl Rules {
    /// The letter of the man pages holds.
    #[inline]
    pub fn are_pages(self) -> bool {
        self == Rules::Pages
    }

    /// What a region allows that was registered for `access`: to programs, local write brings
    /// local read. No adapter tells them apart, and programs send from memory that they
    /// registered for local write alone.
    pub fn local_access(self, mut access: Access) -> Access {
        if self == Rules::Programs && access.contains(Access::LOCAL_WRITE) {
            access |= Access::LOCAL_READ;
        }
        access
    }
}

/// Takes our parameters out of the field; gives what is left for the device.
fn split(field: &str, of_device: &[Key]) -> Result<(Rules, String), String> {
    let mut rules = Rules::default();
    let mut rest = Vec::new();
    for word in field.split_whitespace() {
        match word.split_once('=') {
            Some(("rules", "programs")) => rules = Rules::Programs,
            Some(("rules", "pages")) => rules = Rules::Pages,
            Some(("rules", value)) => return Err(wrong_value(&RULES, value)),
            Some((key, _)) if !of_device.iter().any(|k| k.name == key) => {
                return Err(unknown(key, of_device.iter().chain(KEYS)));
            }
            _ => rest.push(word),
        }
    }
    Ok((rules, rest.join(" ")))
}

/// Opens the device of an entry of `dat.conf` with this field `ia_params`.
///
/// # Errors
/// A message for the log that says what is wrong with the parameters or the machine.
pub fn open<D: Device>(field: &str) -> Result<(Arc<D>, Rules), String> {
    let (rules, rest) = split(field, D::KEYS)?;
    Ok((D::open(&rest)?, rules))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{soft, verbs};

    #[test]
    fn what_is_left_is_for_the_device() {
        let keys = soft::params::KEYS;
        let pages = split("lo 0 crc=off rules=pages path=tcp", keys);
        assert_eq!(pages, Ok((Rules::Pages, "lo 0 crc=off path=tcp".into())));
        let programs = split("eth0  0", verbs::params::KEYS);
        assert_eq!(programs, Ok((Rules::Programs, "eth0 0".into())));
        assert_eq!(split("rules=programs", keys), split("", keys));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("lo rules=mine", "programs|pages"),
            ("lo rules=", "programs|pages"),
            ("lo rule=pages", "rnr_retry, rules"),
            ("lo crc=off", "known: retry"),
        ] {
            let error = split(text, verbs::params::KEYS).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn local_write_and_local_read() {
        let both = Access::LOCAL_WRITE | Access::LOCAL_READ;
        assert_eq!(Rules::Programs.local_access(Access::LOCAL_WRITE), both);
        let write = Access::LOCAL_WRITE;
        assert_eq!(Rules::Pages.local_access(write), write);
        let remote = Access::REMOTE_READ;
        assert_eq!(Rules::Programs.local_access(remote), remote);
    }
}
