//! `rustix::net`.

pub use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, ipproto,
};

use super::{AsFd, Errno, Name, NewFd, SocketAddr, ask, raw};

/// What a socket can be bound to.
pub trait SocketName {
    /// As the simulated kernel knows it.
    fn name(&self) -> Name;
}

impl SocketName for SocketAddr {
    fn name(&self) -> Name {
        Name::Inet(*self)
    }
}

impl SocketName for SocketAddrUnix {
    fn name(&self) -> Name {
        Name::Local(self.abstract_name().unwrap_or_default().to_vec())
    }
}

/// See [`Kernel::socket`](super::Kernel::socket).
pub fn socket_with(
    family: AddressFamily,
    _kind: SocketType,
    _flags: SocketFlags,
    _protocol: Option<Protocol>,
) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.socket(family == AddressFamily::UNIX)).map(NewFd)
}

/// See [`Kernel::accept`](super::Kernel::accept).
pub fn accept_with(fd: impl AsFd, _flags: SocketFlags) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.accept(raw(fd))).map(NewFd)
}

/// See [`Kernel::bind`](super::Kernel::bind).
pub fn bind(fd: impl AsFd, name: &impl SocketName) -> Result<(), Errno> {
    ask(|kernel| kernel.bind(raw(fd), name.name()))
}

/// See [`Kernel::listen`](super::Kernel::listen).
pub fn listen(fd: impl AsFd, _backlog: i32) -> Result<(), Errno> {
    ask(|kernel| kernel.listen(raw(fd)))
}

/// See [`Kernel::connect`](super::Kernel::connect).
pub fn connect(fd: impl AsFd, name: &impl SocketName) -> Result<(), Errno> {
    ask(|kernel| kernel.connect(raw(fd), name.name()))
}

/// See [`Kernel::address`](super::Kernel::address).
pub fn getsockname(fd: impl AsFd) -> Result<SocketAddr, Errno> {
    ask(|kernel| kernel.address(raw(fd), false))
}

/// See [`Kernel::address`](super::Kernel::address).
pub fn getpeername(fd: impl AsFd) -> Result<Option<SocketAddr>, Errno> {
    ask(|kernel| kernel.address(raw(fd), true)).map(Some)
}

/// See [`Kernel::send`](super::Kernel::send).
pub fn send(fd: impl AsFd, bytes: &[u8], _flags: SendFlags) -> Result<usize, Errno> {
    ask(|kernel| kernel.send(raw(fd), &[bytes]))
}

/// See [`Kernel::recv`](super::Kernel::recv).
pub fn recv(fd: impl AsFd, to: &mut [u8], flags: RecvFlags) -> Result<((), usize), Errno> {
    let peek = flags.contains(RecvFlags::PEEK);
    ask(|kernel| kernel.recv(raw(fd), to, peek)).map(|n| ((), n))
}

/// The simulated kernel has no datagrams.
pub fn sendto(
    _fd: impl AsFd,
    _bytes: &[u8],
    _flags: SendFlags,
    _to: &SocketAddr,
) -> Result<usize, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// See [`sendto`].
pub fn recvfrom(
    _fd: impl AsFd,
    _to: &mut [u8],
    _flags: RecvFlags,
) -> Result<((), usize, Option<SocketAddr>), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// See [`Kernel::shutdown`](super::Kernel::shutdown).
pub fn shutdown(fd: impl AsFd, _how: Shutdown) -> Result<(), Errno> {
    ask(|kernel| kernel.shutdown(raw(fd)))
}

/// `rustix::net::sockopt`.
pub mod sockopt {
    use std::time::Duration;

    use super::super::{AsFd, Errno, SocketOption, ask, raw};

    fn set(fd: impl AsFd, option: SocketOption) -> Result<(), Errno> {
        ask(|kernel| kernel.set_option(raw(fd), option))
    }

    /// `TCP_NODELAY`.
    pub fn set_tcp_nodelay(fd: impl AsFd, _on: bool) -> Result<(), Errno> {
        set(fd, SocketOption::Other)
    }

    /// `SO_KEEPALIVE`.
    pub fn set_socket_keepalive(fd: impl AsFd, _on: bool) -> Result<(), Errno> {
        set(fd, SocketOption::Other)
    }

    /// `TCP_KEEPIDLE`.
    pub fn set_tcp_keepidle(fd: impl AsFd, time: Duration) -> Result<(), Errno> {
        set(fd, SocketOption::KeepIdle(time))
    }

    /// `TCP_KEEPINTVL`.
    pub fn set_tcp_keepintvl(fd: impl AsFd, time: Duration) -> Result<(), Errno> {
        set(fd, SocketOption::KeepInterval(time))
    }

    /// `TCP_KEEPCNT`.
    pub fn set_tcp_keepcnt(fd: impl AsFd, count: u32) -> Result<(), Errno> {
        set(fd, SocketOption::KeepCount(count))
    }

    /// `TCP_USER_TIMEOUT`, in milliseconds.
    pub fn set_tcp_user_timeout(fd: impl AsFd, time: u32) -> Result<(), Errno> {
        let time = Duration::from_millis(time.into());
        set(fd, SocketOption::UserTimeout(time))
    }

    /// `TCP_CONGESTION`.
    pub fn set_tcp_congestion(fd: impl AsFd, _name: &str) -> Result<(), Errno> {
        set(fd, SocketOption::Other)
    }

    /// `SO_REUSEADDR`.
    pub fn set_socket_reuseaddr(fd: impl AsFd, _on: bool) -> Result<(), Errno> {
        set(fd, SocketOption::Sharing)
    }

    /// `IPV6_V6ONLY`.
    pub fn set_ipv6_v6only(fd: impl AsFd, _on: bool) -> Result<(), Errno> {
        set(fd, SocketOption::Sharing)
    }

    /// `SO_LINGER`.
    pub fn set_socket_linger(fd: impl AsFd, time: Option<Duration>) -> Result<(), Errno> {
        set(fd, SocketOption::Linger(time))
    }

    /// `SO_SNDBUF`.
    pub fn socket_send_buffer_size(fd: impl AsFd) -> Result<usize, Errno> {
        Ok(ask(|kernel| kernel.send_buffer_size(raw(fd))))
    }

    /// `SO_ERROR`.
    pub fn socket_error(fd: impl AsFd) -> Result<Result<(), Errno>, Errno> {
        let error = ask(|kernel| kernel.socket_error(raw(fd)))?;
        Ok(error.map_or(Ok(()), Err))
    }
}
