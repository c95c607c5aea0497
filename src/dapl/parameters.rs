//! The parameters in the field `ia_params` of an entry of `dat.conf` that every device of our provider
//! shares.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::rules::Rules;
use crate::device::Device;
use crate::device::params::{Key, unknown, wrong_value};
use crate::environment;

/// The parameters.
pub const KEYS: &[Key] = &[RULES, COUNTERS];

const RULES: Key = Key {
    name: "rules",
    values: "programs|pages",
    default: "programs",
    help: "programs: whatever existing DAT libraries accept is accepted; pages: the letter of the \
           man pages holds.",
};

const COUNTERS: Key = Key {
    name: "counters",
    values: "off|on",
    default: "off",
    help: "Counters of the IA, its endpoints and its EVDs, for dat_ib_query_counters of DAT 2.0 and \
           for dat-top.",
};

/// The environment variable that says of all IAs whether they have counters, and whether dat-top may
/// read the process.
const VARIABLE: &str = "DAT_COUNTERS";

/// The values of the parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// Whose rules hold.
    pub rules: Rules,
    /// Whether the IA has counters.
    pub counters: bool,
    /// Whether readers see the figures of the IA.
    pub shown: bool,
}

/// Splits the parameters of a field into those of the provider and those of the device.
fn split(field: &str, of_device: &[Key]) -> Result<(Parameters, String), String> {
    let mut own = Parameters::default();
    let mut rest = Vec::new();
    for word in field.split_whitespace() {
        match word.split_once('=') {
            Some(("rules", "programs")) => own.rules = Rules::Programs,
            Some(("rules", "pages")) => own.rules = Rules::Pages,
            Some(("rules", value)) => return Err(wrong_value(&RULES, value)),
            Some(("counters", "off")) => own.counters = false,
            Some(("counters", "on")) => own.counters = true,
            Some(("counters", value)) => return Err(wrong_value(&COUNTERS, value)),
            Some((key, _)) if !of_device.iter().any(|k| k.name == key) => {
                return Err(unknown(key, of_device.iter().chain(KEYS)));
            }
            _ => rest.push(word),
        }
    }
    Ok((own, rest.join(" ")))
}

impl Parameters {
    /// The same as the value of [`VARIABLE`] has it.
    ///
    /// # Errors
    /// A message about an unknown value.
    fn with_variable(self, value: Option<&OsStr>) -> Result<Self, String> {
        let (counters, shown) = match value.map(OsStr::as_bytes) {
            None | Some(b"") => (self.counters, self.counters),
            Some(b"off") => (self.counters, false),
            Some(b"states") => (self.counters, true),
            Some(b"on") => (true, true),
            Some(_) => return Err(format!("{VARIABLE} is off, states or on")),
        };
        Ok(Parameters {
            counters,
            shown,
            ..self
        })
    }
}

/// Opens the device of an entry of `dat.conf` with this field `ia_params`.
///
/// # Errors
/// A message for the log that describes the fault of the parameters or the machine.
pub fn open<D: Device>(field: &str) -> Result<(Arc<D>, Parameters), String> {
    let (own, rest) = split(field, D::KEYS)?;
    let value = environment::variable(VARIABLE);
    let own = own.with_variable(value.as_deref()).unwrap_or_else(|why| {
        log::error!("{why}");
        own
    });
    Ok((D::open(&rest)?, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{soft, verbs};

    fn own(rules: Rules, counters: bool) -> Parameters {
        Parameters {
            rules,
            counters,
            shown: false,
        }
    }

    #[test]
    fn the_variable_is_for_all_entries() {
        let of = |counters, value: Option<&str>| {
            let own = own(Rules::Programs, counters).with_variable(value.map(OsStr::new));
            own.map(|own| (own.counters, own.shown))
        };
        assert_eq!(of(false, None), Ok((false, false)));
        assert_eq!(of(true, None), Ok((true, true)));
        assert_eq!(of(true, Some("off")), Ok((true, false)));
        assert_eq!(of(false, Some("states")), Ok((false, true)));
        assert_eq!(of(false, Some("on")), Ok((true, true)));
        assert!(of(true, Some("all")).is_err());
    }

    #[test]
    fn what_is_left_is_for_the_device() {
        let keys = soft::params::KEYS;
        let pages = split("lo 0 crc=off rules=pages path=tcp counters=on", keys);
        assert_eq!(
            pages,
            Ok((own(Rules::Pages, true), "lo 0 crc=off path=tcp".into()))
        );
        let programs = split("eth0  0", verbs::tuning::KEYS);
        assert_eq!(programs, Ok((own(Rules::Programs, false), "eth0 0".into())));
        assert_eq!(split("rules=programs counters=off", keys), split("", keys));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("lo rules=mine", "programs|pages"),
            ("lo rules=", "programs|pages"),
            ("lo rule=pages", "route_timeout, rules, counters"),
            ("lo counters=yes", "off|on"),
            ("lo crc=off", "known: retry"),
        ] {
            let error = split(text, verbs::tuning::KEYS).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
