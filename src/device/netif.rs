//! The network interfaces of this host and their addresses.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
#[cfg(not(dat_sim))]
use std::net::{Ipv4Addr, Ipv6Addr};

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

/// The number of the network interface of this name, with or without an address.
pub(crate) fn interface_index(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a string that ends with NUL.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// An address with another port; an IPv6 address keeps its scope.
pub(crate) fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The number of the interface that a link-local address belongs to, which is its scope; 0 for an address
/// without.
pub(crate) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

/// An address with a scope; 0 is none.
pub(crate) fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    }
}

/// Whether two addresses are the same but for their ports. Interfaces may have the same link-local address, so
/// that the scopes have to be the same too, where both addresses have one.
pub(crate) fn is_same_address(one: SocketAddr, other: SocketAddr) -> bool {
    let scopes = (scope_of(one), scope_of(other));
    one.ip().to_canonical() == other.ip().to_canonical()
        && (scopes.0 == scopes.1 || scopes.0 == 0 || scopes.1 == 0)
}

/// An address without its port, in text: `10.0.0.1`, `fe80::1%2`.
pub(crate) fn address_text(address: SocketAddr) -> String {
    let ip = address.ip().to_canonical();
    match scope_of(address) {
        0 => ip.to_string(),
        scope => format!("{ip}%{scope}"),
    }
}

/// The address of a peer, as the IA with the address `local` reaches it: a link-local address
/// without a scope has that of the IA.
///
/// # Errors
/// [`DeviceError::BadAddress`] for an address that no single peer has.
pub(crate) fn peer_address(
    remote: SocketAddr,
    local: SocketAddr,
) -> Result<SocketAddr, DeviceError> {
    let ip = remote.ip();
    if ip.is_multicast() || ip.is_unspecified() {
        return Err(DeviceError::BadAddress);
    }
    match (remote, local) {
        (SocketAddr::V6(mut peer), SocketAddr::V6(own))
            if peer.scope_id() == 0 && peer.ip().is_unicast_link_local() =>
        {
            peer.set_scope_id(own.scope_id());
            Ok(peer.into())
        }
        _ => Ok(remote),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_leaves_the_scope() {
        let at = |text: &str| at_port(text.parse().unwrap(), 4711).to_string();
        assert_eq!(at("[fe80::1%3]:0"), "[fe80::1%3]:4711");
        assert_eq!(at("10.0.0.1:1"), "10.0.0.1:4711");
    }

    #[test]
    fn interfaces_may_have_the_same_address() {
        let same =
            |one: &str, other: &str| is_same_address(one.parse().unwrap(), other.parse().unwrap());
        assert!(same("[fe80::1%3]:1", "[fe80::1%3]:2"));
        assert!(!same("[fe80::1%3]:1", "[fe80::1%4]:1"));
        assert!(!same("[fe80::1%3]:1", "[fe80::2%3]:1"));
        assert!(same("[fe80::1%3]:1", "[fe80::1]:1"));
        assert!(same("[fe80::1]:1", "[fe80::1%3]:1"));
        assert!(same("[::ffff:10.0.0.1]:1", "10.0.0.1:2"));
        assert!(!same("10.0.0.1:1", "10.0.0.2:1"));
    }

    #[test]
    fn addresses_in_text_have_their_scope() {
        for (ip, scope, text) in [
            ("fe80::1", 3, "fe80::1%3"),
            ("fe80::1", 0, "fe80::1"),
            ("10.0.0.1", 3, "10.0.0.1"),
            ("::ffff:10.0.0.1", 0, "10.0.0.1"),
        ] {
            let address = with_scope(ip.parse().unwrap(), 4711, scope);
            assert_eq!(address.port(), 4711);
            assert_eq!(address_text(address), text);
        }
    }

    #[test]
    fn peers_have_an_address_of_their_own() {
        let from = |text: &str, own: &str| {
            peer_address(text.parse().unwrap(), own.parse().unwrap()).map(|a| a.to_string())
        };
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1"] {
            assert_eq!(
                from(text, "[::1]:0"),
                Err(DeviceError::BadAddress),
                "{text}"
            );
        }
        for (peer, own, reached) in [
            ("127.0.0.1:5", "10.0.0.1:0", "127.0.0.1:5"),
            ("[fe80::1%3]:5", "[fe80::2%4]:0", "[fe80::1%3]:5"),
            ("[fe80::1]:5", "[fe80::2%4]:0", "[fe80::1%4]:5"),
            ("[fe80::1]:5", "10.0.0.1:0", "[fe80::1]:5"),
            ("[2001:db8::1]:5", "[fe80::2%4]:0", "[2001:db8::1]:5"),
        ] {
            assert_eq!(from(peer, own).as_deref(), Ok(reached));
        }
    }
}
