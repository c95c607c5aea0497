//! The network interfaces of this host and their addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
#[cfg(not(dat_sim))]
use std::net::{Ipv6Addr, SocketAddrV6};

use super::DeviceError;

/// An address of a network interface.
pub(crate) struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The address; the port is 0.
    pub address: SocketAddr,
    /// The interface is up.
    pub up: bool,
    /// The interface is a loopback interface.
    pub loopback: bool,
}

/// Every address of every interface, in the order of the system.
#[cfg(not(dat_sim))]
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

/// The addresses of the simulated host.
#[cfg(dat_sim)]
pub(crate) fn interfaces() -> Vec<Interface> {
    let addresses = crate::kernel::addresses().into_iter();
    let interface = |address| Interface {
        name: "sim".into(),
        address,
        up: true,
        loopback: false,
    };
    addresses.map(interface).collect()
}

/// An IPv4 or IPv6 address with port 0; `None` for other families.
///
/// # Safety
/// `sa` is null or a socket address as long as its family has it.
#[cfg(not(dat_sim))]
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

/// The address that a name stands for: the name is an address of this host, or that of a network
/// interface, of whose addresses the best by [`rank`] is taken.
///
/// # Errors
/// What is wrong with the name, for the log.
pub(crate) fn named_address(name: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return match is_own_address(ip) || is_local(ip) {
            true => Ok(SocketAddr::new(ip, 0)),
            false => Err(format!("{ip} is no address of this machine")),
        };
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

/// The order in which addresses are preferred: IPv4 first, then IPv6, and link-local addresses last.
pub(crate) fn rank(address: &SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) if !a.ip().is_unicast_link_local() => 1,
        SocketAddr::V6(_) => 2,
    }
}

/// The first IPv4 address of an interface that is up and no loopback interface; the loopback
/// address if there is none.
pub(crate) fn default_address() -> SocketAddr {
    interfaces()
        .iter()
        .find(|i| i.up && !i.loopback && i.address.is_ipv4())
        .map_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |i| i.address)
}

/// Whether `ip` is an address of this host.
pub(crate) fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || interfaces().iter().any(|i| i.address.ip() == ip)
}

/// Whether the system takes an address that no interface lists for one of this host, as it may be
/// configured to: sockets can be bound to it.
#[cfg(not(dat_sim))]
fn is_local(ip: IpAddr) -> bool {
    let single = match ip {
        IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_multicast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
    };
    single && std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// The addresses of the simulated host are all listed.
#[cfg(dat_sim)]
fn is_local(_ip: IpAddr) -> bool {
    false
}

/// Whether the system has a network interface of this name, with or without an address.
fn interface_exists(name: &str) -> bool {
    std::ffi::CString::new(name).is_ok_and(|name| {
        // SAFETY: a string that ends with NUL.
        unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
    })
}

/// An address with another port; an IPv6 address keeps its scope.
pub(crate) fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Refuses an address that no single peer has.
///
/// # Errors
/// [`DeviceError::BadAddress`].
pub(crate) fn check_remote(remote: SocketAddr) -> Result<(), DeviceError> {
    let ip = remote.ip();
    if ip.is_multicast() || ip.is_unspecified() {
        return Err(DeviceError::BadAddress);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses() {
        assert!(is_own_address("127.0.0.9".parse().unwrap()));
        assert!(is_own_address("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_own_address("192.0.2.255".parse().unwrap()));
        assert!(is_own_address(default_address().ip()));
    }

    #[test]
    fn names_stand_for_addresses() {
        let address = |name| named_address(name).map(|a| a.to_string());
        assert_eq!(address("lo").as_deref(), Ok("127.0.0.1:0"));
        assert_eq!(address("::1").as_deref(), Ok("[::1]:0"));
        let error = address("no-such-netdev").unwrap_err();
        assert!(error.contains("no-such-netdev"), "{error}");
    }

    #[test]
    fn ipv4_is_preferred_and_link_local_comes_last() {
        let rank = |text: &str| rank(&text.parse().unwrap());
        assert!(rank("10.0.0.1:0") < rank("[2001:db8::1]:0"));
        assert!(rank("[2001:db8::1]:0") < rank("[fe80::1]:0"));
    }

    #[test]
    fn another_port_leaves_the_scope() {
        let at = |text: &str| at_port(text.parse().unwrap(), 4711).to_string();
        assert_eq!(at("[fe80::1%3]:0"), "[fe80::1%3]:4711");
        assert_eq!(at("10.0.0.1:1"), "10.0.0.1:4711");
    }

    #[test]
    fn peers_have_an_address_of_their_own() {
        let check = |text: &str| check_remote(text.parse().unwrap());
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1"] {
            assert_eq!(check(text), Err(DeviceError::BadAddress), "{text}");
        }
        assert_eq!(check("127.0.0.1:0"), Ok(()));
        assert_eq!(check("[fe80::1%3]:0"), Ok(()));
    }
}
