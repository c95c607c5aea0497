//! How the queue pairs of a device send and connect: parameters of `dat.conf`, and the variables of the
//! environment by which users set the same for OpenFabrics' providers.

use std::time::Duration;

use crate::device::params::{Key, wrong_value};
use crate::environment;

/// The most bytes that a request can carry by itself.
pub(super) const MAX_INLINE: u32 = 64;
/// The largest value of the fields of three and of five bits (InfiniBand architecture, 9.7.5.2.8).
const MAX_RETRY: u32 = 7;
const MAX_TIMER: u32 = 31;
/// Sizes of packets, in the order of their codes from 1 on (`enum ibv_mtu`).
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// How long addresses and routes are resolved.
const RESOLVE_MS: u32 = 10_000;
/// The longest time that can be set, in milliseconds.
const MAX_RESOLVE_MS: u32 = 3_600_000;
/// How often OpenFabrics' provider tries again to resolve if nothing is said.
const RESOLVE_RETRIES: u32 = 15;

/// The parameters of this kind.
pub const KEYS: &[Key] = &[
    Key {
        name: "retry",
        values: "0..7",
        default: "7",
        help: "How often the device repeats a request that is not acknowledged.",
    },
    Key {
        name: "rnr_retry",
        values: "0..7",
        default: "7",
        help: "How often the device repeats a message for which the peer has no receive \
               buffer; 7 is without end.",
    },
    Key {
        name: "ack_timer",
        values: "0..31",
        default: "that of the connection manager",
        help: "How long the device waits for an acknowledgement: 4.096 us times two to the power of \
               this; 0 is without end.",
    },
    Key {
        name: "rnr_timer",
        values: "0..31",
        default: "12",
        help: "How long a sender waits before it repeats a message for which this end has no receive \
               buffer, as a code of the InfiniBand architecture (table 45); 12 is 0.64 ms.",
    },
    Key {
        name: "mtu",
        values: "256|512|1024|2048|4096",
        default: "that of the path",
        help: "The most bytes of a packet, where the path has larger ones; the same at both ends.",
    },
    Key {
        name: "tclass",
        values: "0..255",
        default: "that of the path",
        help: "Traffic class of the packets (RoCE: type of service).",
    },
    Key {
        name: "inline",
        values: "0..64",
        default: "64",
        help: "Messages up to this many bytes are written into the request itself.",
    },
    Key {
        name: "arp_timeout",
        values: "1..3600000",
        default: "10000",
        help: "Milliseconds for which the address of a peer is resolved, if the call allows as many.",
    },
    Key {
        name: "route_timeout",
        values: "1..3600000",
        default: "10000",
        help: "Milliseconds for which the route to a peer is resolved, if the call allows as many.",
    },
];

/// The variables of OpenFabrics' providers that have a counterpart here. A parameter in `dat.conf`
/// comes first.
pub const VARIABLES: &[Key] = &[
    variable("DAPL_ACK_RETRY", "retry; larger values are 7"),
    variable("DAPL_RNR_RETRY", "rnr_retry; larger values are 7"),
    variable("DAPL_ACK_TIMER", "ack_timer"),
    variable("DAPL_RNR_TIMER", "rnr_timer"),
    variable("DAPL_IB_MTU", "mtu"),
    variable("DAPL_TCLASS", "tclass"),
    variable("DAPL_MAX_INLINE", "inline; larger values are 64"),
    variable("DAPL_CM_ARP_TIMEOUT_MS", "arp_timeout, of one try"),
    variable("DAPL_CM_ARP_RETRY_COUNT", "how often that is tried again"),
    variable("DAPL_CM_ROUTE_TIMEOUT_MS", "route_timeout, of one try"),
    variable("DAPL_CM_ROUTE_RETRY_COUNT", "how often that is tried again"),
];

const fn variable(name: &'static str, help: &'static str) -> Key {
    Key {
        name,
        values: "number",
        default: "not set",
        help,
    }
}

/// How queue pairs send and connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tuning {
    /// Transport retries.
    pub retry: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// Time-out of acknowledgements, as an exponent; `None` for that of the connection manager.
    pub ack_timer: Option<u8>,
    /// Code of the time after which a peer repeats a message that has had no receive.
    pub rnr_timer: u8,
    /// Code of the largest size of packets; `None` for that of the path.
    pub mtu: Option<i32>,
    /// Traffic class; `None` for that of the path.
    pub tclass: Option<u8>,
    /// The most bytes of a message that are written into its request.
    pub inline: u32,
    /// The longest time for which an address is resolved.
    pub arp_timeout: Duration,
    /// The longest time for which a route is resolved.
    pub route_timeout: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        let resolve = Duration::from_millis(RESOLVE_MS.into());
        Tuning {
            retry: MAX_RETRY as u8,
            rnr_retry: MAX_RETRY as u8,
            ack_timer: None,
            rnr_timer: 12,
            mtu: None,
            tclass: None,
            inline: MAX_INLINE,
            arp_timeout: resolve,
            route_timeout: resolve,
        }
    }
}

impl Tuning {
    /// What the variables of the environment say.
    pub fn of_environment() -> Tuning {
        let value = |name: &str| environment::variable(name)?.into_string().ok();
        Tuning::of_variables(value)
    }

    /// What the variables say. One that is no number has no effect.
    fn of_variables(value: impl Fn(&str) -> Option<String>) -> Tuning {
        let number = |name: &str| {
            let text = value(name)?;
            let number = parse_number(text.trim());
            if number.is_none() {
                log::error!("builtin:verbs: {name} is not a number: \"{text}\"");
            }
            number
        };
        let at_most = |name: &str, most: u32| number(name).map(|n| n.min(most));
        let resolve = |one: &str, retries: &str| {
            let tries = number(retries).unwrap_or(RESOLVE_RETRIES).saturating_add(1);
            Some(number(one)?.saturating_mul(tries).clamp(1, MAX_RESOLVE_MS))
        };
        let mut tuning = Tuning::default();
        for (key, value) in [
            ("retry", at_most("DAPL_ACK_RETRY", MAX_RETRY)),
            ("rnr_retry", at_most("DAPL_RNR_RETRY", MAX_RETRY)),
            ("ack_timer", number("DAPL_ACK_TIMER")),
            ("rnr_timer", number("DAPL_RNR_TIMER")),
            ("mtu", number("DAPL_IB_MTU")),
            ("tclass", number("DAPL_TCLASS")),
            ("inline", at_most("DAPL_MAX_INLINE", MAX_INLINE)),
            (
                "arp_timeout",
                resolve("DAPL_CM_ARP_TIMEOUT_MS", "DAPL_CM_ARP_RETRY_COUNT"),
            ),
            (
                "route_timeout",
                resolve("DAPL_CM_ROUTE_TIMEOUT_MS", "DAPL_CM_ROUTE_RETRY_COUNT"),
            ),
        ] {
            if let Some(value) = value
                && let Some(Err(error)) = tuning.set(key, &value.to_string())
            {
                log::error!("builtin:verbs: variables of the environment: {error}");
            }
        }
        tuning
    }

    /// Sets a parameter; `None` if there is none of this name.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let key = KEYS.iter().find(|key| key.name == name)?;
        let result = self.set_number(name, value.parse().ok());
        Some(result.ok_or_else(|| wrong_value(key, value)))
    }

    /// `None` if the parameter cannot have the value.
    fn set_number(&mut self, name: &str, value: Option<u32>) -> Option<()> {
        let value = value?;
        let up_to = |most: u32| (value <= most).then_some(value as u8);
        let millis = || {
            let time = Duration::from_millis(value.into());
            (1..=MAX_RESOLVE_MS).contains(&value).then_some(time)
        };
        match name {
            "retry" => self.retry = up_to(MAX_RETRY)?,
            "rnr_retry" => self.rnr_retry = up_to(MAX_RETRY)?,
            "ack_timer" => self.ack_timer = Some(up_to(MAX_TIMER)?),
            "rnr_timer" => self.rnr_timer = up_to(MAX_TIMER)?,
            "mtu" => {
                let index = MTUS.iter().position(|mtu| *mtu == value)?;
                self.mtu = Some(index as i32 + 1);
            }
            "tclass" => self.tclass = Some(up_to(255)?),
            "inline" => self.inline = up_to(MAX_INLINE)?.into(),
            "arp_timeout" => self.arp_timeout = millis()?,
            "route_timeout" => self.route_timeout = millis()?,
            _ => return None,
        }
        Some(())
    }
}

/// A number as C has it: decimal, or hexadecimal with `0x`.
fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Names the variables of OpenFabrics' providers that are set and have no effect here, once.
pub(super) fn name_ignored_variables() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for name in ignored(environment::names("DAPL_")) {
            log::info!("builtin:verbs: {name} has no effect, see dat.conf(5)");
        }
    });
}

fn ignored(names: Vec<String>) -> impl Iterator<Item = String> {
    let is_taken = |name: &String| VARIABLES.iter().any(|v| v.name == name);
    names.into_iter().filter(move |name| !is_taken(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Tuning {
        Tuning::of_variables(|name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_as_scripts_set_them() {
        assert_eq!(of(&[]), Tuning::default());
        let t = of(&[
            ("DAPL_ACK_RETRY", "10"),
            ("DAPL_ACK_TIMER", "20"),
            ("DAPL_RNR_RETRY", "0x6"),
            ("DAPL_RNR_TIMER", "28"),
            ("DAPL_IB_MTU", "2048"),
            ("DAPL_TCLASS", "106"),
            ("DAPL_MAX_INLINE", "400"),
            ("DAPL_CM_ARP_TIMEOUT_MS", "8000"),
            ("DAPL_CM_ARP_RETRY_COUNT", "25"),
            ("DAPL_CM_ROUTE_TIMEOUT_MS", "20000"),
        ]);
        assert_eq!((t.retry, t.rnr_retry), (7, 6));
        assert_eq!((t.ack_timer, t.rnr_timer), (Some(20), 28));
        assert_eq!((t.mtu, t.tclass, t.inline), (Some(4), Some(106), 64));
        assert_eq!(t.arp_timeout, Duration::from_secs(208));
        assert_eq!(t.route_timeout, Duration::from_secs(320));
    }

    #[test]
    fn variables_that_mean_nothing() {
        for variables in [
            [("DAPL_ACK_TIMER", "soon")],
            [("DAPL_ACK_TIMER", "32")],
            [("DAPL_IB_MTU", "1500")],
            [("DAPL_TCLASS", "-1")],
            [("DAPL_CM_ARP_RETRY_COUNT", "3")],
        ] {
            assert_eq!(of(&variables), Tuning::default(), "{variables:?}");
        }
    }

    #[test]
    fn variables_without_effect() {
        let names = ["DAPL_UCM_REP_TIME", "DAPL_ACK_TIMER"];
        let names = names.into_iter().map(str::to_owned).collect();
        assert_eq!(ignored(names).collect::<Vec<_>>(), ["DAPL_UCM_REP_TIME"]);
    }

    #[test]
    fn every_parameter_has_its_limits() {
        for (key, least, most, wrong) in [
            ("retry", "0", "7", "8"),
            ("rnr_retry", "0", "7", "8"),
            ("ack_timer", "0", "31", "32"),
            ("rnr_timer", "0", "31", "32"),
            ("mtu", "256", "4096", "1500"),
            ("tclass", "0", "255", "256"),
            ("inline", "0", "64", "65"),
            ("arp_timeout", "1", "3600000", "0"),
            ("route_timeout", "1", "3600000", "3600001"),
        ] {
            let mut tuning = Tuning::default();
            assert_eq!(tuning.set(key, least), Some(Ok(())), "{key}");
            assert_eq!(tuning.set(key, most), Some(Ok(())), "{key}");
            for value in [wrong, "x", "-1"] {
                let error = tuning.set(key, value).unwrap().unwrap_err();
                assert!(error.starts_with(key) && error.contains(value), "{error}");
            }
        }
        assert_eq!(Tuning::default().set("speed", "9"), None);
        assert_eq!(KEYS.len(), 9);
    }
}
