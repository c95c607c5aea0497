//! Sockets: how they are made, the options of TCP connections, and their addresses.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::kernel;
use crate::kernel::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};
use rustix::io::Errno;

use crate::descriptor::{self, OwnedFd};
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
    let (kind, protocol) = (SocketType::STREAM, Some(ipproto::TCP));
    descriptor::open(|| kernel::net::socket_with(family, kind, FLAGS, protocol))
}

/// A UDP socket that does not block.
pub(super) fn udp(ipv6: bool) -> Result<OwnedFd, Errno> {
    let family = if ipv6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let (kind, protocol) = (SocketType::DGRAM, Some(ipproto::UDP));
    descriptor::open(|| kernel::net::socket_with(family, kind, FLAGS, protocol))
}

/// Accepts the next connection of a listening socket, which does not block; nor does the new one.
pub(super) fn accept(listening: impl AsFd) -> Result<OwnedFd, Errno> {
    descriptor::open(|| kernel::net::accept_with(listening, FLAGS))
}

/// Whether an error means that there is no descriptor, or no memory, for another socket.
pub(super) fn is_out_of_resources(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
    )
}

/// Whether an error of a write means that the socket takes the bytes later: it has no room, or the
/// system no memory, at the moment.
pub(super) fn is_passing(error: Errno) -> bool {
    matches!(
        error,
        Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM
    )
}

/// The longest time between retransmissions, or probes of a closed window, that a socket has
/// (`TCP_RTO_MAX_MS`), in milliseconds; Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Sets the options of a TCP connection. None is worth failing for.
///
/// A peer whose host is gone is noticed on an idle connection by keepalive probes within
/// [`Params::timeout`]; with data under way, see
/// [`liveness`](super::transport::tcp::liveness).
pub(super) fn tune(fd: impl AsFd, params: &Params) {
    let fd = fd.as_fd();
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let keepalive = Keepalive::of(params.timeout);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, keepalive.idle);
    let _ = sockopt::set_tcp_keepintvl(fd, keepalive.interval);
    let _ = sockopt::set_tcp_keepcnt(fd, keepalive.probes);
    // The default is two minutes, for which a closed window would hide that the peer is gone.
    let rto_max = (params.timeout / 4).clamp(RTO_MAX.0, RTO_MAX.1);
    let rto_max = rto_max.as_millis() as libc::c_int;
    kernel::set_int(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, rto_max);
    if let Some(name) = &params.congestion
        && let Err(error) = sockopt::set_tcp_congestion(fd, name)
    {
        log::warn!("congestion control {name}: {error}");
    }
}

/// The shortest and the longest value that the kernel takes for [`TCP_RTO_MAX_MS`].
const RTO_MAX: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));

/// When the kernel probes an idle connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Keepalive {
    /// The idle time before the first probe.
    idle: Duration,
    /// The time from one probe to the next.
    interval: Duration,
    /// Number of probes without an answer that end the connection.
    probes: u32,
}

impl Keepalive {
    /// The connection ends `timeout` after the peer has gone, to the second.
    fn of(timeout: Duration) -> Keepalive {
        let seconds = timeout.as_secs();
        let idle = (seconds / 3).max(1);
        let interval = (seconds / 12).max(1);
        Keepalive {
            idle: Duration::from_secs(idle),
            interval: Duration::from_secs(interval),
            probes: (seconds - idle).div_ceil(interval).max(1) as u32,
        }
    }
}

/// Limits how long the connection may take to be established, and the peer to acknowledge what is
/// sent to it; `None` takes the limit away.
///
/// Only until data flows: the limit also ends the connection to a peer whose window is closed.
pub(super) fn limit_set_up(fd: impl AsFd, timeout: Option<Duration>) {
    let timeout = timeout.map_or(0, |timeout| timeout.as_millis());
    let _ = sockopt::set_tcp_user_timeout(fd, u32::try_from(timeout).unwrap_or(u32::MAX));
}

/// What the kernel has counted on a TCP connection. Times are in milliseconds before now.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentCounters {
    /// Number of segments, data or an end of the stream, that are sent and not acknowledged.
    pub unacknowledged: u32,
    /// Number of bytes that the kernel has and has not sent.
    pub unsent: u32,
    /// Number of probes of a closed window since the last acknowledgement.
    pub probes: u8,
    /// When data was last sent or sent again.
    pub last_data_sent: u32,
    /// When the last acknowledgement arrived.
    pub last_ack_received: u32,
    /// Number of times that the kernel has waited in vain for an acknowledgement since the last one
    /// that arrived, and has tried to send again. What it cannot send (the link is down), and the
    /// end of the stream, do not count for `last_data_sent`.
    pub timeouts: u8,
    /// Number of segments that have arrived, whether they acknowledge something or not.
    pub segments_in: u32,
}

impl SegmentCounters {
    /// Whether the peer has yet to acknowledge something.
    pub fn is_outstanding(&self) -> bool {
        self.unacknowledged > 0 || self.unsent > 0
    }

    /// Whether something that asks for an answer was sent since the last acknowledgement.
    pub fn owes_answer(&self) -> bool {
        let sent = self.unacknowledged != 0 && self.last_data_sent < self.last_ack_received;
        sent || self.probes != 0
    }
}

/// How many bytes of data a TCP segment to the peer has at most, as far as the kernel knows the path. `None` if it does
/// not say.
pub(super) fn segment_size(fd: impl AsFd) -> Option<usize> {
    let (info, _) = kernel::tcp_info(fd).ok()?;
    (info.tcpi_snd_mss > 0).then_some(info.tcpi_snd_mss as usize)
}

/// See [`SegmentCounters`]. `None` if the kernel does not count these.
pub(super) fn segment_counters(fd: impl AsFd) -> Option<SegmentCounters> {
    let (info, len) = kernel::tcp_info(fd).ok()?;
    let needed = std::mem::offset_of!(libc::tcp_info, tcpi_notsent_bytes) + size_of::<u32>();
    (len >= needed).then_some(SegmentCounters {
        unacknowledged: info.tcpi_unacked,
        unsent: info.tcpi_notsent_bytes,
        probes: info.tcpi_probes,
        last_data_sent: info.tcpi_last_data_sent,
        last_ack_received: info.tcpi_last_ack_recv,
        timeouts: info.tcpi_retransmits,
        segments_in: info.tcpi_segs_in,
    })
}

/// Binds a socket that is going to connect to an address; the port of `address` is ignored. The
/// port is chosen when the socket connects, and one port serves for several destinations. A port
/// that were chosen now would be taken from all others, and stay so for a minute after the end of
/// the connection.
pub(super) fn bind_address(fd: &OwnedFd, mut address: SocketAddr) -> Result<(), Errno> {
    // A system without the option takes a port.
    kernel::set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    address.set_port(0);
    kernel::net::bind(fd, &address)
}

/// Appends to `buffer` what has arrived, up to `missing` bytes; gives the number of bytes
/// received, which is 0 at the end of the stream.
///
/// # Errors
/// `EAGAIN` if nothing has arrived, or another error of the system. The buffer is as before then.
pub(super) fn receive(fd: impl AsFd, buffer: &mut Vec<u8>, missing: usize) -> Result<usize, Errno> {
    let len = buffer.len();
    buffer.resize(len + missing, 0);
    let received = kernel::net::recv(fd, &mut buffer[len..], RecvFlags::DONTWAIT);
    let received = received.map(|(_, n)| n);
    buffer.truncate(len + received.unwrap_or(0));
    received
}

/// Whether a read of the socket returns something at once: bytes, the end of the stream or an error.
pub(super) fn is_readable(fd: impl AsFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let read = kernel::net::recv(fd, &mut [0u8; 1], flags);
    !matches!(read, Err(Errno::AGAIN | Errno::INTR))
}

/// Whether bytes have arrived that were not read.
pub(super) fn has_unread(fd: impl AsFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    kernel::net::recv(fd, &mut [0u8; 1], flags).is_ok_and(|(_, n)| n > 0)
}

/// Whether the peer of a socket that has nothing to receive still holds its end open.
pub(super) fn is_open(fd: impl AsFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match kernel::net::recv(fd, &mut [0u8; 1], flags) {
        Ok((_, n)) => n > 0,
        Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Receives a datagram; gives its length and its sender.
///
/// # Errors
/// `EAGAIN` if none has arrived, or another error of the system.
pub(super) fn receive_datagram(
    fd: impl AsFd,
    buffer: &mut [u8],
) -> Result<(usize, Option<SocketAddr>), Errno> {
    let (_, n, from) = kernel::net::recvfrom(fd, buffer, RecvFlags::DONTWAIT)?;
    let from = from.and_then(|from| from.try_into().ok());
    Ok((n, from.map(canonical)))
}

/// The local address of a socket.
pub(crate) fn local(fd: impl AsFd) -> Option<SocketAddr> {
    kernel::net::getsockname(fd)
        .ok()?
        .try_into()
        .ok()
        .map(canonical)
}

/// The address of the peer.
pub(crate) fn remote(fd: impl AsFd) -> Option<SocketAddr> {
    kernel::net::getpeername(fd)
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
        assert!(is_open(&receiver) && !has_unread(&receiver));
        sender.write_all(b"123").unwrap();
        receiver.peek(&mut [0]).unwrap();
        assert!(is_open(&receiver) && has_unread(&receiver));
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(2));
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(1));
        assert_eq!(buffer, b"0123");
        drop(sender);
        receiver.peek(&mut [0]).unwrap();
        assert_eq!(receive(&receiver, &mut buffer, 2), Ok(0));
        assert_eq!(buffer, b"0123");
        assert!(!is_open(&receiver) && !has_unread(&receiver));
    }

    #[test]
    fn keepalive_ends_an_idle_connection_at_the_timeout() {
        for seconds in (2..=200).chain([3600, 86400]) {
            let Keepalive {
                idle,
                interval,
                probes,
            } = Keepalive::of(Duration::from_secs(seconds));
            let end = (idle + interval * probes).as_secs();
            assert!(
                (seconds..seconds + seconds / 12 + 1).contains(&end),
                "{seconds}: {end}"
            );
            // What the kernel takes.
            assert!(idle.as_secs() <= 32767 && probes <= 127, "{seconds}");
        }
    }

    #[test]
    fn the_kernel_counts_what_is_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        assert!(!segment_counters(&sender).unwrap().is_outstanding());
        // More than both buffers hold: the window of the receiver closes.
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[0; 1 << 16]).is_ok() {}
        assert!(segment_counters(&sender).unwrap().is_outstanding());
        assert!(segment_counters(&receiver).unwrap().segments_in > 1);
    }

    #[test]
    fn ipv4_addresses_of_a_dual_stack_socket_are_plain() {
        let mapped = "[::ffff:10.0.0.1]:4711".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:4711".parse().unwrap());
        let ipv6 = "[fe80::1]:4711".parse().unwrap();
        assert_eq!(canonical(ipv6), ipv6);
    }
}
