//! The addresses of this host that the parameters of an IA name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::netif::{Interface, interface_index, interfaces, is_same_address, scope_of, with_scope};

/// The address that a name stands for: that of a network interface, of whose addresses the best by
/// [`rank`] is taken, or the address itself, or one of the addresses of a host name. An IPv6 address
/// may have a scope, as in `fe80::1%eth0`.
///
/// # Errors
/// What is wrong with the name, for the log. All addresses are of this host.
pub(crate) fn named_address(name: &str) -> Result<SocketAddr, String> {
    let all = interfaces();
    if let Some((ip, scope)) = parse_address(name)? {
        return own_address(&all, name, ip, scope);
    }
    let of_interface = all.iter().filter(|i| i.name == name).map(|i| i.address);
    if let Some(best) = of_interface.min_by_key(rank) {
        return Ok(best);
    }
    if interface_index(name).is_some() {
        return Err(format!("network interface {name} has no address"));
    }
    host_address(&all, name)
}

/// An address in text, and the number of its scope: `fe80::1%eth0`, `fe80::1%2`. `None` if the text is
/// no address.
///
/// # Errors
/// There is no such scope.
fn parse_address(text: &str) -> Result<Option<(IpAddr, Option<u32>)>, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Some((ip.to_canonical(), None)));
    }
    let Some((address, scope)) = text.split_once('%') else {
        return Ok(None);
    };
    let Ok(ip) = address.parse() else {
        return Ok(None);
    };
    let number = scope.parse().ok().or_else(|| interface_index(scope));
    let number = number.ok_or_else(|| format!("no network interface \"{scope}\""))?;
    Ok(Some((IpAddr::V6(ip), Some(number))))
}

/// That address of this host, which the parameters call `name`. An address without a scope has that of
/// the one interface with it.
fn own_address(
    all: &[Interface],
    name: &str,
    ip: IpAddr,
    scope: Option<u32>,
) -> Result<SocketAddr, String> {
    let fits = |a: &SocketAddr| a.ip() == ip && scope.is_none_or(|scope| scope == scope_of(*a));
    let mut listed = all.iter().filter(|i| fits(&i.address));
    match (listed.next(), listed.next()) {
        (Some(one), Some(other)) if one.address != other.address => Err(format!(
            "{name} is an address of more than one interface: {name}%{}, {name}%{}",
            one.name, other.name
        )),
        (Some(one), _) => Ok(one.address),
        (None, _) => {
            let address = with_scope(ip, 0, scope.unwrap_or(0));
            match ip.is_loopback() || is_local(address) {
                true => Ok(address),
                false => Err(format!("{name} is no address of this machine")),
            }
        }
    }
}

/// The address of this host that belongs to a host name, as OFED's files have them (`svr1-ib0`). One
/// that other hosts can reach is preferred.
fn host_address(all: &[Interface], name: &str) -> Result<SocketAddr, String> {
    let unknown = || format!("no network interface, address or host \"{name}\"");
    // RFC 1123, section 2.1. A lookup can take long, and names of RDMA devices are not worth one.
    let is_host_name = !name.starts_with('-')
        && name.len() <= 253
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    if !is_host_name {
        return Err(unknown());
    }
    let found = look_up(name).map_err(|error| format!("{}: {error}", unknown()))?;
    let own = found.iter().filter_map(|address| {
        let ip = address.ip().to_canonical();
        let scope = Some(scope_of(*address)).filter(|scope| *scope != 0);
        own_address(all, name, ip, scope).ok()
    });
    own.min_by_key(|a| (a.ip().is_loopback(), rank(a)))
        .ok_or_else(|| {
            let ips: Vec<String> = found.iter().map(|a| a.ip().to_string()).collect();
            format!(
                "{name} is {}, not an address of this machine",
                ips.join(", ")
            )
        })
}

/// The addresses of a host, each once.
#[cfg(not(dat_sim))]
fn look_up(name: &str) -> std::io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> =
        std::net::ToSocketAddrs::to_socket_addrs(&(name, 0))?.collect();
    found.dedup();
    Ok(found)
}

/// The simulated host has no name service.
#[cfg(dat_sim)]
fn look_up(_name: &str) -> std::io::Result<Vec<SocketAddr>> {
    Err(std::io::ErrorKind::NotFound.into())
}

/// The rank of link-local addresses.
const LINK_LOCAL: u8 = 2;

/// The order in which addresses are preferred: IPv4 first, then IPv6, and link-local addresses last.
pub(crate) fn rank(address: &SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) if !a.ip().is_unicast_link_local() => 1,
        SocketAddr::V6(_) => LINK_LOCAL,
    }
}

/// The address of an IA whose parameters name none: the one from which the host sends by its default
/// route. Without a default route the best by [`rank`] of the interfaces that are up and no loopback
/// interfaces, and the loopback address if there is none, or only link-local ones: most programs take
/// IPv4 addresses alone.
pub(crate) fn default_address() -> SocketAddr {
    let all = interfaces();
    let usable = || {
        let usable = all.iter().filter(|i| i.up && !i.loopback);
        usable.map(|i| i.address).filter(|a| rank(a) < LINK_LOCAL)
    };
    let best = usable().min_by_key(rank);
    let routed = || {
        let source = default_source(best?.is_ipv6())?;
        usable().find(|a| a.ip() == source)
    };
    routed()
        .or(best)
        .unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// The address from which the host would send to another network. Nothing is sent: the kernel chooses
/// the address when the socket gets its peer.
#[cfg(not(dat_sim))]
fn default_source(is_ipv6: bool) -> Option<IpAddr> {
    use std::net::{Ipv6Addr, UdpSocket};
    // A reserved address (RFC 1112, section 4) and one for documentation (RFC 9637): no network has
    // them, so that the default route leads there.
    let (any, far): (IpAddr, IpAddr) = match is_ipv6 {
        false => (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(240, 0, 0, 1).into(),
        ),
        true => (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1).into(),
        ),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The simulated host has one network.
#[cfg(dat_sim)]
fn default_source(_is_ipv6: bool) -> Option<IpAddr> {
    None
}

/// Whether an address is one of this host; its port means nothing.
pub(crate) fn is_own_address(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback() || is_listed(&interfaces(), address)
}

fn is_listed(all: &[Interface], address: SocketAddr) -> bool {
    all.iter().any(|i| is_same_address(i.address, address))
}

/// Whether the system takes an address that no interface lists for one of this host, as it may be
/// configured to: sockets can be bound to it.
#[cfg(not(dat_sim))]
fn is_local(address: SocketAddr) -> bool {
    let is_single = match address.ip() {
        IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_multicast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
    };
    is_single && std::net::UdpSocket::bind(address).is_ok()
}

/// The addresses of the simulated host are all listed.
#[cfg(dat_sim)]
fn is_local(_address: SocketAddr) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            up: true,
            loopback: false,
        }
    }

    #[test]
    fn own_addresses() {
        assert!(is_own_address("127.0.0.9:1".parse().unwrap()));
        assert!(is_own_address("[::ffff:127.0.0.1]:1".parse().unwrap()));
        assert!(!is_own_address("240.0.0.1:1".parse().unwrap()));
        assert!(is_own_address(default_address()));
    }

    #[test]
    fn names_stand_for_addresses() {
        let address = |name| named_address(name).map(|a| a.to_string());
        assert_eq!(address("lo").as_deref(), Ok("127.0.0.1:0"));
        assert_eq!(address("::1").as_deref(), Ok("[::1]:0"));
        assert_eq!(address("::ffff:127.0.0.1").as_deref(), Ok("127.0.0.1:0"));
        for (name, error) in [
            (
                "no_such_netdev",
                "no network interface, address or host \"no_such_netdev\"",
            ),
            (
                "fe80::1%no_such_netdev",
                "no network interface \"no_such_netdev\"",
            ),
            ("240.0.0.1", "240.0.0.1 is no address of this machine"),
        ] {
            assert_eq!(address(name), Err(error.into()));
        }
    }

    /// Every interface may have the same link-local address.
    #[test]
    fn scopes_distinguish_addresses() {
        let all = [
            interface("one", "[fe80::1%2]:0"),
            interface("two", "[fe80::1%3]:0"),
            interface("two", "[fe80::2%3]:0"),
        ];
        let find = |text: &str, scope| {
            let found = own_address(&all, text, text.parse().unwrap(), scope);
            found.map(|a| a.to_string())
        };
        assert_eq!(find("fe80::1", Some(3)).as_deref(), Ok("[fe80::1%3]:0"));
        assert_eq!(find("fe80::2", None).as_deref(), Ok("[fe80::2%3]:0"));
        // Another host may have it, on another network.
        let listed = |text: &str| is_listed(&all, text.parse().unwrap());
        assert!(listed("[fe80::2%3]:1") && listed("[fe80::2]:1") && !listed("[fe80::2%2]:1"));
        let error = find("fe80::1", None).unwrap_err();
        assert!(error.ends_with("fe80::1%one, fe80::1%two"), "{error}");
    }

    #[test]
    fn ipv4_is_preferred_and_link_local_comes_last() {
        let rank = |text: &str| rank(&text.parse().unwrap());
        assert!(rank("10.0.0.1:0") < rank("[2001:db8::1]:0"));
        assert!(rank("[2001:db8::1]:0") < rank("[fe80::1]:0"));
    }
}
