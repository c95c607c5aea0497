//! All settings of users, in one table: `dat-info --env` prints it, and a test compares the manual
//! page with it. Each device has the table of its own parameters, and the provider the table of
//! those that all devices share.

use crate::dapl::parameters;
use crate::device::params::Key;
use crate::device::{soft, verbs};

/// A variable of the environment or a parameter in `dat.conf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// The variables of the environment.
pub const ENVIRONMENT: &[Setting] = &[
    Setting {
        name: "DAT_OVERRIDE",
        kind: "path",
        default: "not set",
        help: "the only configuration file to read; if it cannot be read, no IA is registered",
    },
    Setting {
        name: "DAT_FALLBACK",
        kind: "off|soft",
        default: "off",
        help: "soft: the soft provider serves every IA name that no entry can serve",
    },
    Setting {
        name: "DAT_COUNTERS",
        kind: "off|states|on",
        default: "as counters= of the entry",
        help: "what dat-top can read of the process: nothing, the states of its objects, or their \
               counters too",
    },
    Setting {
        name: "DAT_DBG_TYPE",
        kind: "bit mask",
        default: "1",
        help: "what is logged: 0x01 errors (always), 0x02 general, 0x04 static registry, \
               0x08 dynamic registry, 0x10 calls of providers, 0x20 calls of programs, \
               0x40 steps of connections, 0xff all",
    },
    Setting {
        name: "DAT_DBG_DEST",
        kind: "bit mask",
        default: "1",
        help: "where the log goes: 1 standard error, 2 syslog; errors always go to standard error",
    },
    Setting {
        name: "DAT_TRACE",
        kind: "off|calls|summary",
        default: "off",
        help: "calls: a line for each DAT call of the program, and a table of all at its exit; \
               summary: the table alone (see dat-trace)",
    },
    Setting {
        name: "DAT_TRACE_FILE",
        kind: "path",
        default: "not set",
        help: "the file that DAT_TRACE appends to, instead of standard error; %p in it is the number \
               of the process",
    },
];

/// All settings, under headings.
pub fn all() -> Vec<(&'static str, Vec<Setting>)> {
    let settings = |keys: &[Key]| {
        let settings = keys.iter().map(|key| Setting {
            name: key.name,
            kind: key.values,
            default: key.default,
            help: key.help,
        });
        settings.collect()
    };
    vec![
        ("Environment variables", ENVIRONMENT.to_vec()),
        (
            "Parameters of builtin:soft and builtin:verbs in dat.conf",
            settings(parameters::KEYS),
        ),
        (
            "Parameters of builtin:soft in dat.conf",
            settings(soft::params::KEYS),
        ),
        (
            "Parameters of builtin:verbs in dat.conf",
            settings(verbs::tuning::KEYS),
        ),
        (
            "Environment variables of OpenFabrics' providers, as builtin:verbs takes them",
            settings(verbs::tuning::VARIABLES),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_page_has_every_setting() {
        let page = include_str!("../man/dat.conf.5");
        for setting in all().into_iter().flat_map(|(_, settings)| settings) {
            assert!(page.contains(setting.name), "{} is missing", setting.name);
        }
    }
}
