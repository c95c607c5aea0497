//! TCP sockets: making them, and the options that all connections have.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::params::Params;

/// A TCP socket that does not block.
pub(super) fn tcp(ipv6: bool) -> Result<OwnedFd, Errno> {
    let family = if ipv6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Sets the options of a connection. None is worth failing for.
///
/// A peer that is gone without a word shows within a minute on an idle connection. With data
/// under way it is up to the system: a limit of ours (`TCP_USER_TIMEOUT`) would also hit a
/// peer that merely posts no receives.
pub(super) fn tune(fd: impl AsFd, params: &Params) {
    let fd = fd.as_fd();
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, Duration::from_secs(20));
    let _ = sockopt::set_tcp_keepintvl(fd, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(fd, 6);
    if let Some(name) = &params.congestion
        && let Err(error) = sockopt::set_tcp_congestion(fd, name)
    {
        log::warn!("congestion control {name}: {error}");
    }
}

/// The local address of a socket.
pub(super) fn local(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd)
        .ok()?
        .try_into()
        .ok()
        .map(plain)
}

/// The address of the peer.
pub(super) fn remote(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(fd)
        .ok()
        .flatten()?
        .try_into()
        .ok()
        .map(plain)
}

/// IPv4 addresses of a dual-stack socket as such.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}
