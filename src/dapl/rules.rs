//! Which rules hold where existing libraries accept more than the man pages, and programs rely on
//! that. The table in dat.conf(5) lists the differences between `rules=pages` and the default; the
//! methods of [`Rules`] and their callers implement them.

use std::sync::Arc;

use crate::device::params::{Key, unknown, wrong_value};
use crate::device::{Access, Device};

/// The parameters of an entry of `dat.conf` that every device of our provider shares.
pub const KEYS: &[Key] = &[RULES];

const RULES: Key = Key {
    name: "rules",
    values: "programs|pages",
    default: "programs",
    help: "programs: whatever existing DAT libraries accept is accepted; pages: the letter of the \
           man pages holds.",
};

/// Whose rules hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rules {
    /// Whatever existing libraries accept is accepted.
    #[default]
    Programs,
    /// The letter of the man pages.
    Pages,
}

impl Rules {
    /// Whether the letter of the man pages holds.
    #[inline]
    pub fn are_pages(self) -> bool {
        self == Rules::Pages
    }

    /// The access to a region that was registered for `access`. By the rules of programs local write
    /// includes local read: no adapter distinguishes them, and programs send from memory that they
    /// registered for local write alone.
    pub fn local_access(self, mut access: Access) -> Access {
        if self == Rules::Programs && access.contains(Access::LOCAL_WRITE) {
            access |= Access::LOCAL_READ;
        }
        access
    }
}

/// Splits the parameters of a field into those of the provider and those of the device.
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
/// A message for the log that describes the fault of the parameters or the machine.
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
