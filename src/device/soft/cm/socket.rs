//! TCP sockets: making them, and the options that all connections have.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::device::soft::params::Params;

/// A TCP socket that does not block.
pub(crate) fn tcp(ipv6: bool) -> Result<OwnedFd, Errno> {
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

/// Gives a socket that is going to connect its address. The port comes with the destination, and
/// serves for others as well: one that were taken now would be nobody else's, and stay so for a
/// minute after the end.
pub(super) fn bind_address(fd: &OwnedFd, mut address: SocketAddr) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the option is an int, which lives during the call. A system without it takes a port.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
    address.set_port(0);
    rustix::net::bind(fd, &address)
}

/// The local address of a socket.
pub(crate) fn local(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd)
        .ok()?
        .try_into()
        .ok()
        .map(plain)
}

/// The address of the peer.
pub(crate) fn remote(fd: impl AsFd) -> Option<SocketAddr> {
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
