//! Sockets: how they are made, the options of TCP connections, and their addresses.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::descriptor::OwnedFd;
use crate::device::soft::params::Params;

/// Flags of all sockets: no child inherits them, and none of them blocks.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A TCP socket that does not block.
pub(crate) fn tcp(ipv6: bool) -> Result<OwnedFd, Errno> {
    let family = if ipv6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP))
        .map(OwnedFd::from)
}

/// Accepts the next connection of a listening socket; the new socket does not block.
pub(super) fn accept(listening: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listening, FLAGS).map(OwnedFd::from)
}

/// Whether an error means that there is no descriptor, or no memory, for another socket.
pub(super) fn is_out_of_resources(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
    )
}

/// Sets the options of a TCP connection. None is worth failing for.
///
/// A peer whose host is gone is noticed within a minute on an idle connection. With data under way
/// that is up to the system: a limit of ours (`TCP_USER_TIMEOUT`) would also hit a peer that
/// merely posts no receives.
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

/// Binds a socket that is going to connect to an address; the port of `address` is ignored. The
/// port is chosen when the socket connects, and one port serves for several destinations. A port
/// that were chosen now would be taken from all others, and stay so for a minute after the end of
/// the connection.
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

/// Appends to `buffer` what has arrived, up to `missing` bytes; gives the number of bytes
/// received, which is 0 at the end of the stream.
///
/// # Errors
/// `EAGAIN` if nothing has arrived, or another error of the system. The buffer is as before then.
pub(super) fn receive(fd: impl AsFd, buffer: &mut Vec<u8>, missing: usize) -> Result<usize, Errno> {
    let len = buffer.len();
    buffer.resize(len + missing, 0);
    let received = rustix::net::recv(fd, &mut buffer[len..], RecvFlags::DONTWAIT);
    let received = received.map(|(_, n)| n);
    buffer.truncate(len + received.unwrap_or(0));
    received
}

/// Whether the peer of a socket that has nothing to receive still holds its end open.
pub(super) fn is_open(fd: impl AsFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match rustix::net::recv(fd, &mut [0u8; 1], flags) {
        Ok((_, n)) => n > 0,
        Err(error) => error == Errno::AGAIN,
    }
}

/// The local address of a socket.
pub(crate) fn local(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd)
        .ok()?
        .try_into()
        .ok()
        .map(canonical)
}

/// The address of the peer.
pub(crate) fn remote(fd: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(fd)
        .ok()
        .flatten()?
        .try_into()
        .ok()
        .map(canonical)
}

/// Turns an IPv4 address that a dual-stack socket has in IPv6 form into an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_has_arrived_is_appended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let mut buffer = b"0".to_vec();
        assert_eq!(receive(&receiver, &mut buffer, 4), Err(Errno::AGAIN));
        assert_eq!(buffer, b"0");
        assert!(is_open(&receiver));
        sender.write_all(b"123").unwrap();
        receiver.peek(&mut [0]).unwrap();
        assert!(is_open(&receiver));
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(2));
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(1));
        assert_eq!(buffer, b"0123");
        drop(sender);
        receiver.peek(&mut [0]).unwrap();
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(0));
        assert_eq!(buffer, b"0123");
        assert!(!is_open(&receiver));
    }

    #[test]
    fn ipv4_addresses_of_a_dual_stack_socket_are_plain() {
        let mapped = "[::ffff:10.0.0.1]:4711".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:4711".parse().unwrap());
        let ipv6 = "[fe80::1]:4711".parse().unwrap();
        assert_eq!(canonical(ipv6), ipv6);
    }
}
