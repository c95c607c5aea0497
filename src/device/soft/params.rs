//! The `ia_params` field of a `dat.conf` entry of this device, and the address that it names.
//!
//! ```text
//! [netdev | address] [key=value ...]
//! ```
//!
//! A bare number behind the interface or address is ignored: entries that were written for other
//! providers have a port number there (`"eth0 0"`).

use std::net::SocketAddr;
use std::time::Duration;

use crate::device::local_address::{default_address, named_address};
use crate::device::params::{Key, unknown, wrong_value};

/// The longest spin that can be set, in microseconds.
const MAX_SPIN: u64 = 1000;
/// The linger time that holds if none is set, in seconds.
const LINGER: u64 = 300;
/// The longest linger time that can be set, in seconds.
const MAX_LINGER: u64 = 86400;
/// The time without an answer that holds if none is set, in seconds.
const TIMEOUT: u64 = 60;
/// The longest time without an answer that can be set, in seconds.
const MAX_TIMEOUT: u64 = 86400;

/// The parameters of this device.
pub const KEYS: &[Key] = &[
    Key {
        name: "crc",
        values: "on|off",
        default: "on",
        help: "Checksums on TCP connections; off only takes effect if the peer agrees.",
    },
    Key {
        name: "completion",
        values: "acknowledged|sent",
        default: "acknowledged",
        help: "When a request over TCP completes: once the peer has finished it, or, if either end has this set, once it is handed to TCP. The latter does not tell which request the peer has refused, and does not wait for the peer.",
    },
    Key {
        name: "path",
        values: "auto|shm|tcp",
        default: "auto",
        help: "How peers of this host are reached: the shortest way, or in any case through shared memory, or over TCP.",
    },
    Key {
        name: "memory",
        values: "private|shared|eager",
        default: "private",
        help: "Whether registered memory moves to where peers of this host can map it: never, once they have used it so much that the move pays, or when it is registered.",
    },
    Key {
        name: "ptracer",
        values: "any|none",
        default: "any",
        help: "Where kernel.yama.ptrace_scope is 1: whether all processes of the user may reach the memory of this one once a peer of this host has connected, as shared memory needs it, or none but its ancestors.",
    },
    Key {
        name: "congestion",
        values: "NAME",
        default: "that of the system",
        help: "Congestion control algorithm of TCP connections, such as cubic.",
    },
    Key {
        name: "linger",
        values: "1 to 86400",
        default: "300",
        help: "Seconds that the peer has, after a graceful disconnect, to post receives for messages that are on their way; then the connection is broken.",
    },
    Key {
        name: "timeout",
        values: "2 to 86400",
        default: "60",
        help: "Seconds after which a TCP connection is broken whose peer answers nothing, not even that it cannot receive.",
    },
    Key {
        name: "spin",
        values: "0 to 1000",
        default: "30, and 0 on a machine with one processor",
        help: "Microseconds for which a consumer that waits polls before it sleeps, if polls have lately found events.",
    },
];

/// How peers are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// Within the process where possible, otherwise over TCP.
    Auto,
    /// Through shared memory where the peer is on this host, otherwise over TCP.
    Shm,
    /// Always over TCP.
    Tcp,
}

/// Where registered memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Where the program has allocated it.
    Private,
    /// In a file that peers of the host can map, once they have used it so much that the move pays:
    /// see [`mapped`](crate::device::soft::transport::shm::mapped).
    Shared,
    /// In that file from the registration on.
    Eager,
}

impl Memory {
    /// The value of the parameter.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Private => "private",
            Memory::Shared => "shared",
            Memory::Eager => "eager",
        }
    }
}

/// The parameters of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    /// The address of the adapter; the port is 0.
    pub address: SocketAddr,
    /// Whether listeners are bound to `address` alone, because the entry names it.
    pub bound: bool,
    /// Whether checksums are requested for connections over TCP.
    pub crc: bool,
    /// Whether requests over TCP wait for the acknowledgement of the peer before they complete.
    pub acknowledge: bool,
    /// How peers are reached.
    pub path: Path,
    /// Where registered memory is. Private if all peers are reached over TCP.
    pub memory: Memory,
    /// Whether processes of the same user may be let in where Yama keeps them out, once a peer is one
    /// of them.
    pub may_be_traced: bool,
    /// Congestion control algorithm of connections over TCP; `None` for that of the system.
    pub congestion: Option<String>,
    /// How long the peer of a connection that was ended gracefully may take to post receives for
    /// what was sent.
    pub linger: Duration,
    /// How long the host of a peer may leave everything unanswered, over TCP.
    pub timeout: Duration,
    /// How long a consumer that waits polls before it sleeps; `None` for the default.
    pub spin: Option<Duration>,
}

impl Params {
    /// Whether peers may map registered memory.
    pub fn shares_memory(&self) -> bool {
        self.memory != Memory::Private
    }

    /// Parses the field.
    ///
    /// # Errors
    /// What is wrong with the field, in words for the log. The caller adds the file and line.
    pub fn parse(text: &str) -> Result<Params, String> {
        let (mut crc, mut path, mut congestion, mut spin) = (true, Path::Auto, None, None);
        let mut acknowledge = true;
        let mut may_be_traced = true;
        let mut memory = Memory::Private;
        let (mut linger, mut timeout) = (LINGER, TIMEOUT);
        let mut name = None;
        let mut port = None;
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("crc", "on")) => crc = true,
                Some(("crc", "off")) => crc = false,
                Some(("completion", "acknowledged")) => acknowledge = true,
                Some(("completion", "sent")) => acknowledge = false,
                Some(("path", "auto")) => path = Path::Auto,
                Some(("path", "shm")) => path = Path::Shm,
                Some(("path", "tcp")) => path = Path::Tcp,
                Some(("memory", "private")) => memory = Memory::Private,
                Some(("memory", "shared")) => memory = Memory::Shared,
                Some(("memory", "eager")) => memory = Memory::Eager,
                Some(("ptracer", "any")) => may_be_traced = true,
                Some(("ptracer", "none")) => may_be_traced = false,
                Some(("congestion", value)) if !value.is_empty() => {
                    congestion = Some(value.to_owned());
                }
                Some(("linger", value)) => match value.parse() {
                    Ok(seconds @ 1..=MAX_LINGER) => linger = seconds,
                    _ => return Err(wrong_key("linger", value)),
                },
                Some(("timeout", value)) => match value.parse() {
                    Ok(seconds @ 2..=MAX_TIMEOUT) => timeout = seconds,
                    _ => return Err(wrong_key("timeout", value)),
                },
                Some(("spin", value)) => match value.parse() {
                    Ok(micros @ 0..=MAX_SPIN) => spin = Some(Duration::from_micros(micros)),
                    _ => return Err(wrong_key("spin", value)),
                },
                Some((key, value)) => return Err(wrong_key(key, value)),
                None if name.is_none() => name = Some(word),
                None if port.is_none() && word.parse::<u32>().is_ok() => port = Some(word),
                None => {
                    return Err(format!(
                        "unexpected \"{word}\" behind the interface or address"
                    ));
                }
            }
        }
        let address = match name {
            Some(name) => named_address(name)?,
            None => default_address(),
        };
        Ok(Params {
            address,
            bound: name.is_some(),
            crc,
            acknowledge,
            path,
            memory: match path {
                Path::Tcp => Memory::Private,
                Path::Auto | Path::Shm => memory,
            },
            may_be_traced,
            congestion,
            linger: Duration::from_secs(linger),
            timeout: Duration::from_secs(timeout),
            spin,
        })
    }
}

/// The message for a parameter that is unknown, or has a value that it cannot have.
fn wrong_key(key: &str, value: &str) -> String {
    match KEYS.iter().find(|k| k.name == key) {
        Some(k) => wrong_value(k, value),
        None => unknown(key, KEYS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        let p = Params::parse("127.0.0.1 crc=off").unwrap();
        assert_eq!(p.address, "127.0.0.1:0".parse().unwrap());
        assert!(p.bound && !p.crc && p.path == Path::Auto);
        assert_eq!(
            Params::parse("::1").unwrap().address,
            "[::1]:0".parse().unwrap()
        );
        let p = Params::parse("lo 0 path=tcp congestion=cubic memory=shared").unwrap();
        assert_eq!(p.address, "127.0.0.1:0".parse().unwrap());
        // No peer could map the memory.
        assert_eq!((p.path, p.memory), (Path::Tcp, Memory::Private));
        for memory in [Memory::Private, Memory::Shared, Memory::Eager] {
            let p = Params::parse(&format!("lo memory={}", memory.name())).unwrap();
            assert_eq!(p.memory, memory);
        }
        assert_eq!(p.congestion.as_deref(), Some("cubic"));
        assert_eq!(p.spin, None);
        assert!(p.acknowledge);
        assert!(!Params::parse("lo completion=sent").unwrap().acknowledge);
        let p = Params::parse("lo spin=50").unwrap();
        assert_eq!(p.spin, Some(Duration::from_micros(50)));
        assert_eq!(p.linger, Duration::from_secs(300));
        assert_eq!(p.timeout, Duration::from_secs(60));
        let p = Params::parse("lo timeout=2").unwrap();
        assert_eq!(p.timeout, Duration::from_secs(2));
        let p = Params::parse("lo linger=86400").unwrap();
        assert_eq!(p.linger, Duration::from_secs(86400));
    }

    #[test]
    fn the_field_may_be_empty() {
        let p = Params::parse("").unwrap();
        assert!(!p.bound && p.crc && p.memory == Memory::Private);
        assert_eq!(p.address.port(), 0);
        assert!(crate::device::local_address::is_own_address(p.address));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("no_such_netdev", "no_such_netdev"),
            ("lo lo", "unexpected"),
            ("lo 0 0", "unexpected"),
            ("crc=maybe", "on|off"),
            ("completion=late", "acknowledged|sent"),
            ("path=", "auto|shm|tcp"),
            ("memory=mine", "private|shared"),
            ("ptracer=", "any|none"),
            ("congestion=", "NAME"),
            ("linger=0", "1 to 86400"),
            ("linger=86401", "1 to 86400"),
            ("timeout=1", "2 to 86400"),
            ("timeout=86401", "2 to 86400"),
            ("timeout=soon", "2 to 86400"),
            ("spin=", "0 to 1000"),
            ("spin=1001", "0 to 1000"),
            ("speed=9", "known: crc"),
        ] {
            let error = Params::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
