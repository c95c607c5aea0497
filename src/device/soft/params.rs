//! The `ia_params` field of a `dat.conf` entry of this device, and the address that it names.
//!
//! ```text
//! [netdev | address] [key=value ...]
//! ```
//!
//! A bare number behind the interface or address is ignored: entries that were written for other
//! providers have a port number there (`"eth0 0"`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::device::params::{Key, unknown, wrong_value};

/// The longest spin that can be set, in microseconds.
const MAX_SPIN: u64 = 1000;
/// The linger time that holds if none is set, in seconds.
const LINGER: u64 = 300;
/// The longest linger time that can be set, in seconds.
const MAX_LINGER: u64 = 86400;

/// The parameters of this device.
pub const KEYS: &[Key] = &[
    Key {
        name: "crc",
        values: "on|off",
        default: "on",
        help: "Checksums on TCP connections; off only takes effect if the peer agrees.",
    },
    Key {
        name: "path",
        values: "auto|shm|tcp",
        default: "auto",
        help: "How peers of this host are reached: the shortest way, or in any case through shared memory, or over TCP.",
    },
    Key {
        name: "memory",
        values: "private|shared",
        default: "private",
        help: "Whether registered memory moves to where peers of this host can map it.",
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
    /// In a file that peers of the host can map: see
    /// [`mapped`](crate::device::soft::transport::shm::mapped).
    Shared,
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
    /// How peers are reached.
    pub path: Path,
    /// Where registered memory is.
    pub memory: Memory,
    /// Congestion control algorithm of connections over TCP; `None` for that of the system.
    pub congestion: Option<String>,
    /// How long the peer of a connection that was ended gracefully may take to post receives for
    /// what was sent.
    pub linger: Duration,
    /// How long a consumer that waits polls before it sleeps; `None` for the default.
    pub spin: Option<Duration>,
}

impl Params {
    /// Whether peers may map registered memory.
    pub fn shares_memory(&self) -> bool {
        self.memory == Memory::Shared && self.path != Path::Tcp
    }

    /// Parses the field.
    ///
    /// # Errors
    /// What is wrong with the field, in words for the log. The caller adds the file and line.
    pub fn parse(text: &str) -> Result<Params, String> {
        let (mut crc, mut path, mut congestion, mut spin) = (true, Path::Auto, None, None);
        let mut memory = Memory::Private;
        let mut linger = LINGER;
        let mut name = None;
        let mut port = None;
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("crc", "on")) => crc = true,
                Some(("crc", "off")) => crc = false,
                Some(("path", "auto")) => path = Path::Auto,
                Some(("path", "shm")) => path = Path::Shm,
                Some(("path", "tcp")) => path = Path::Tcp,
                Some(("memory", "private")) => memory = Memory::Private,
                Some(("memory", "shared")) => memory = Memory::Shared,
                Some(("congestion", value)) if !value.is_empty() => {
                    congestion = Some(value.to_owned());
                }
                Some(("linger", value)) => match value.parse() {
                    Ok(seconds @ 1..=MAX_LINGER) => linger = seconds,
                    _ => return Err(wrong_key("linger", value)),
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
            path,
            memory,
            congestion,
            linger: Duration::from_secs(linger),
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

/// The address that the name of an interface, or an address itself, stands for; the port is 0.
///
/// # Errors
/// What is wrong with the name, in words for the log.
pub(crate) fn named_address(name: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, 0));
    }
    let all = interfaces();
    if !all.iter().any(|i| i.name == name) && !interface_exists(name) {
        return Err(format!("no network interface or address \"{name}\""));
    }
    all.iter()
        .filter(|i| i.name == name)
        .min_by_key(|i| rank(&i.address))
        .map(|i| i.address)
        .ok_or_else(|| format!("network interface {name} has no address"))
}

/// The order in which the addresses of an interface are preferred, lowest first: IPv4 before IPv6,
/// and link-local addresses last.
pub(crate) fn rank(address: &SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) if !a.ip().is_unicast_link_local() => 1,
        SocketAddr::V6(_) => 2,
    }
}

/// The address of an entry that names none: the first IPv4 address of an interface that is up and
/// is not a loopback interface, or else that of the loopback interface. The port is 0.
fn default_address() -> SocketAddr {
    interfaces()
        .iter()
        .find(|i| i.up && !i.loopback && i.address.is_ipv4())
        .map_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |i| i.address)
}

/// Whether `ip` is an address of this host.
pub(super) fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || interfaces().iter().any(|i| i.address.ip() == ip)
}

/// An address of a network interface.
pub(crate) struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The address; the port is 0.
    pub address: SocketAddr,
    /// Whether the interface is up.
    pub up: bool,
    /// Whether the interface is a loopback interface.
    pub loopback: bool,
}

/// Whether there is an interface of that name, with or without an address.
fn interface_exists(name: &str) -> bool {
    std::ffi::CString::new(name).is_ok_and(|name| {
        // SAFETY: a string that ends with NUL.
        unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
    })
}

/// Every address of every interface, in the order of the system.
pub(crate) fn interfaces() -> Vec<Interface> {
    let mut list = std::ptr::null_mut();
    let mut found = Vec::new();
    // SAFETY: a valid place for the result.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut next = list;
    // SAFETY: null or a node of the list, which lives until it is freed below.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ifa_next;
        // SAFETY: null or the address of the node.
        let Some(address) = (unsafe { socket_address(node.ifa_addr) }) else {
            continue;
        };
        // SAFETY: the name of a node is a C string.
        let name = unsafe { std::ffi::CStr::from_ptr(node.ifa_name) };
        found.push(Interface {
            name: name.to_string_lossy().into_owned(),
            address,
            up: node.ifa_flags & libc::IFF_UP as u32 != 0,
            loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
        });
    }
    // SAFETY: from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// An IPv4 or IPv6 address with port 0; `None` for other families.
///
/// # Safety
/// `sa` is null or points to a socket address of the length that its family has.
unsafe fn socket_address(sa: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: null or at least the family can be read.
    match i32::from(unsafe { sa.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says so; the copy needs no alignment.
            let sin = unsafe { sa.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Some(SocketAddr::from((ip, 0)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin = unsafe { sa.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
            let address = SocketAddrV6::new(ip, 0, 0, sin.sin6_scope_id);
            Some(SocketAddr::V6(address))
        }
        _ => None,
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
        assert_eq!((p.path, p.memory), (Path::Tcp, Memory::Shared));
        assert_eq!(p.congestion.as_deref(), Some("cubic"));
        assert_eq!(p.spin, None);
        let p = Params::parse("lo spin=50").unwrap();
        assert_eq!(p.spin, Some(Duration::from_micros(50)));
        assert_eq!(p.linger, Duration::from_secs(300));
        let p = Params::parse("lo linger=86400").unwrap();
        assert_eq!(p.linger, Duration::from_secs(86400));
    }

    #[test]
    fn the_field_may_be_empty() {
        let p = Params::parse("").unwrap();
        assert!(!p.bound && p.crc && p.memory == Memory::Private);
        assert_eq!(p.address.port(), 0);
        assert!(is_own_address(p.address.ip()));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("no-such-netdev", "no-such-netdev"),
            ("lo lo", "unexpected"),
            ("lo 0 0", "unexpected"),
            ("crc=maybe", "on|off"),
            ("path=", "auto|shm|tcp"),
            ("memory=mine", "private|shared"),
            ("congestion=", "NAME"),
            ("linger=0", "1 to 86400"),
            ("linger=86401", "1 to 86400"),
            ("spin=", "0 to 1000"),
            ("spin=1001", "0 to 1000"),
            ("speed=9", "known: crc"),
        ] {
            let error = Params::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn own_addresses() {
        assert!(is_own_address("127.0.0.9".parse().unwrap()));
        assert!(is_own_address("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_own_address("192.0.2.255".parse().unwrap()));
    }
}
