//! The parameters in the field `ia_params` of an entry of `dat.conf` that every device of our provider
//! shares.

use std::sync::Arc;

use super::rules::Rules;
use crate::device::Device;
use crate::device::params::{Key, unknown, wrong_value};

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
    help: "Counters of the IA, its endpoints and its EVDs, for dat_ib_query_counters of DAT 2.0.",
};

/// The values of the parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// Whose rules hold.
    pub rules: Rules,
    /// Whether the IA has counters.
    pub counters: bool,
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

/// Opens the device of an entry of `dat.conf` with this field `ia_params`.
///
/// # Errors
/// A message for the log that describes the fault of the parameters or the machine.
pub fn open<D: Device>(field: &str) -> Result<(Arc<D>, Parameters), String> {
    let (own, rest) = split(field, D::KEYS)?;
    Ok((D::open(&rest)?, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{soft, verbs};

    fn own(rules: Rules, counters: bool) -> Parameters {
        Parameters { rules, counters }
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
