//! A kernel that a test moves step by step: every call goes to the [`Kernel`] that the thread has
//! [installed](install). The functions have the names and the arguments of those that they stand
//! for, as far as the soft device uses them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::{Add, Sub};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;

/// A name that a socket is bound to, or connects to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// An address and a port.
    Inet(SocketAddr),
    /// A name in the abstract socket namespace.
    Local(Vec<u8>),
}

/// The options of sockets that the library sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketOption {
    /// `TCP_KEEPIDLE`.
    KeepIdle(Duration),
    /// `TCP_KEEPINTVL`.
    KeepInterval(Duration),
    /// `TCP_KEEPCNT`.
    KeepCount(u32),
    /// `TCP_USER_TIMEOUT`; zero for none.
    UserTimeout(Duration),
    /// `SO_LINGER`.
    Linger(Option<Duration>),
    /// `SO_REUSEADDR` or `IPV6_V6ONLY`.
    Sharing,
    /// Any other, without an effect here.
    Other,
}

/// What the library asks a kernel for. Each function is the system call of its name; all of them
/// return at once.
pub trait Kernel {
    /// The time since the simulation began.
    fn now(&mut self) -> Duration;
    /// A random number.
    fn random(&mut self) -> Result<u64, Errno>;
    /// Number of descriptors that the process may have.
    fn descriptor_limit(&mut self) -> u64;
    /// The addresses of the host.
    fn addresses(&mut self) -> Vec<SocketAddr>;
    /// A thread is started; the kernel keeps the body, to be run at a later step, or drops the body
    /// of a thread that never ends.
    fn start_thread(&mut self, name: &str, body: Box<dyn FnOnce()>) -> Result<(), Errno>;

    /// A stream socket that does not block.
    fn socket(&mut self, local: bool) -> Result<RawFd, Errno>;
    /// Gives a socket a name.
    fn bind(&mut self, fd: RawFd, name: Name) -> Result<(), Errno>;
    /// Makes a socket one that listens.
    fn listen(&mut self, fd: RawFd) -> Result<(), Errno>;
    /// The next connection of a socket that listens.
    fn accept(&mut self, fd: RawFd) -> Result<RawFd, Errno>;
    /// Begins to connect a socket.
    fn connect(&mut self, fd: RawFd, name: Name) -> Result<(), Errno>;
    /// The address of a socket, or of its `peer`.
    fn address(&mut self, fd: RawFd, peer: bool) -> Result<SocketAddr, Errno>;
    /// Sets an option.
    fn set_option(&mut self, fd: RawFd, option: SocketOption) -> Result<(), Errno>;
    /// `SO_ERROR`.
    fn socket_error(&mut self, fd: RawFd) -> Result<Option<Errno>, Errno>;
    /// `TCP_INFO`.
    fn tcp_info(&mut self, fd: RawFd) -> Result<libc::tcp_info, Errno>;
    /// `TIOCOUTQ`.
    fn unacknowledged_bytes(&mut self, fd: RawFd) -> Result<usize, Errno>;
    /// Writes bytes to a stream, the parts one after the other.
    fn send(&mut self, fd: RawFd, parts: &[&[u8]]) -> Result<usize, Errno>;
    /// Reads bytes of a stream, or copies them only (`peek`).
    fn recv(&mut self, fd: RawFd, to: &mut [u8], peek: bool) -> Result<usize, Errno>;
    /// Sends bytes over a local socket, and copies of descriptors with them.
    fn send_files(&mut self, fd: RawFd, bytes: &[u8], files: &[RawFd]) -> Result<usize, Errno>;
    /// Reads bytes of a local socket, and the descriptors that were sent with them.
    fn recv_files(&mut self, fd: RawFd, to: &mut [u8]) -> Result<(usize, Vec<RawFd>), Errno>;
    /// Ends the stream of this end.
    fn shutdown(&mut self, fd: RawFd) -> Result<(), Errno>;
    /// Closes a descriptor.
    fn close(&mut self, fd: RawFd);

    /// An epoll instance.
    fn epoll_create(&mut self) -> Result<RawFd, Errno>;
    /// Adds or changes (`new`) what is watched of a descriptor; no events remove it.
    fn epoll_control(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        new: bool,
        watched: Option<(u64, u32)>,
    ) -> Result<(), Errno>;
    /// The events that are there, up to `most`: data and flags.
    fn epoll_wait(
        &mut self,
        epoll: RawFd,
        most: usize,
        event: &mut dyn FnMut(u64, u32),
    ) -> Result<(), Errno>;
    /// An eventfd.
    fn eventfd(&mut self) -> Result<RawFd, Errno>;
    /// Sets an eventfd, or clears it.
    fn eventfd_set(&mut self, fd: RawFd, set: bool);
    /// A timer.
    fn timerfd(&mut self) -> Result<RawFd, Errno>;
    /// Has a timer expire after `delay`.
    fn timerfd_set(&mut self, fd: RawFd, delay: Duration);
}

thread_local! {
    /// The kernel of this thread.
    static KERNEL: RefCell<Option<Box<dyn Kernel>>> = const { RefCell::new(None) };
}

/// Gives this thread a kernel, or takes the kernel away; returns the one that the thread had.
pub fn install(kernel: Option<Box<dyn Kernel>>) -> Option<Box<dyn Kernel>> {
    KERNEL.with(|place| place.replace(kernel))
}

/// Asks the kernel of this thread.
fn ask<R>(call: impl FnOnce(&mut dyn Kernel) -> R) -> R {
    KERNEL.with(|place| {
        let mut kernel = place.borrow_mut();
        call(&mut **kernel.as_mut().expect("the thread has a simulated kernel"))
    })
}

/// A descriptor that nothing owns yet.
fn raw(fd: impl AsFd) -> RawFd {
    fd.as_fd().as_raw_fd()
}

/// A new descriptor, which the drop closes.
#[derive(Debug)]
pub struct NewFd(RawFd);

impl NewFd {
    /// The number of the descriptor, which the caller closes.
    pub fn into_raw_fd(self) -> RawFd {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for NewFd {
    fn drop(&mut self) {
        close(self.0);
    }
}

impl AsFd for NewFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the reference lives, as far as the simulated kernel goes.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// A reading of the simulated clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instant(Duration);

impl Instant {
    /// The time of the kernel of this thread.
    pub fn now() -> Instant {
        Instant(ask(|kernel| kernel.now()))
    }

    /// The time that has passed since.
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }

    /// The time from `earlier` to this; zero if that is later.
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// The time from `earlier` to this; zero if that is later.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// A later time.
    pub fn checked_add(&self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// See [`Kernel::close`]. A thread without a kernel has no descriptors.
pub fn close(fd: RawFd) {
    KERNEL.with(|place| {
        if let Some(kernel) = &mut *place.borrow_mut() {
            kernel.close(fd);
        }
    });
}

/// See [`Kernel::random`].
pub fn random() -> Result<u64, Errno> {
    ask(|kernel| kernel.random())
}

/// See [`Kernel::addresses`].
pub fn addresses() -> Vec<SocketAddr> {
    ask(|kernel| kernel.addresses())
}

/// See [`Kernel::start_thread`].
pub fn start_thread(name: &str, body: Box<dyn FnOnce()>) -> Result<(), Errno> {
    ask(|kernel| kernel.start_thread(name, body))
}

/// See [`Kernel::send`].
///
/// # Safety
/// The message names memory that is alive for the call.
pub unsafe fn send_message(
    fd: impl AsFd,
    message: &libc::msghdr,
    _flags: libc::c_int,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
    let parts: Vec<&[u8]> = parts
        .iter()
        // SAFETY: the caller's promise; an empty part may have any address.
        .map(|part| match part.iov_len {
            0 => &[][..],
            len => unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), len) },
        })
        .collect();
    ask(|kernel| kernel.send(raw(fd), &parts))
}

/// Options that have no effect here.
pub fn set_int(_fd: impl AsFd, _level: libc::c_int, _option: libc::c_int, _value: libc::c_int) {}

/// See [`Kernel::send_files`].
pub fn send_with_files(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let files: Vec<RawFd> = files.iter().map(raw).collect();
    ask(|kernel| kernel.send_files(raw(socket), bytes, &files))
}

/// See [`Kernel::recv_files`].
pub fn receive_with_files(
    socket: impl AsFd,
    bytes: &mut [u8],
    has_files: bool,
) -> Result<(usize, Vec<NewFd>), Errno> {
    let (n, files) = ask(|kernel| kernel.recv_files(raw(socket), bytes))?;
    let files: Vec<NewFd> = files.into_iter().map(NewFd).collect();
    Ok((n, if has_files { files } else { Vec::new() }))
}

/// See [`Kernel::tcp_info`].
pub fn tcp_info(fd: impl AsFd) -> Result<(libc::tcp_info, usize), Errno> {
    let info = ask(|kernel| kernel.tcp_info(raw(fd)))?;
    Ok((info, size_of_val(&info)))
}

/// See [`Kernel::unacknowledged_bytes`].
pub fn unacknowledged_bytes(fd: impl AsFd) -> Result<usize, Errno> {
    ask(|kernel| kernel.unacknowledged_bytes(raw(fd)))
}

/// `rustix::io`.
pub mod io {
    use super::{AsFd, Errno, ask, raw};

    /// Sets an eventfd.
    pub fn write(fd: impl AsFd, _bytes: &[u8]) -> Result<usize, Errno> {
        ask(|kernel| kernel.eventfd_set(raw(fd), true));
        Ok(8)
    }

    /// Clears an eventfd.
    pub fn read(fd: impl AsFd, _bytes: &mut [u8]) -> Result<usize, Errno> {
        ask(|kernel| kernel.eventfd_set(raw(fd), false));
        Ok(8)
    }
}

/// `rustix::process`.
pub mod process {
    pub use rustix::process::*;

    use super::ask;

    /// The limit of descriptors; the other limits are those of the process.
    pub fn getrlimit(resource: Resource) -> Rlimit {
        match resource {
            Resource::Nofile => Rlimit {
                current: Some(ask(|kernel| kernel.descriptor_limit())),
                maximum: None,
            },
            other => rustix::process::getrlimit(other),
        }
    }
}

/// `rustix::time`.
pub mod time {
    pub use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
    };

    use super::{AsFd, Duration, Errno, NewFd, ask, raw};

    /// The simulated clock.
    pub fn clock_gettime(_clock: ClockId) -> Timespec {
        let now = ask(|kernel| kernel.now());
        Timespec {
            tv_sec: now.as_secs() as i64,
            tv_nsec: now.subsec_nanos().into(),
        }
    }

    /// See [`Kernel::timerfd`](super::Kernel::timerfd).
    pub fn timerfd_create(_clock: TimerfdClockId, _flags: TimerfdFlags) -> Result<NewFd, Errno> {
        ask(|kernel| kernel.timerfd()).map(NewFd)
    }

    /// See [`Kernel::timerfd_set`](super::Kernel::timerfd_set).
    pub fn timerfd_settime(
        fd: impl AsFd,
        _flags: TimerfdTimerFlags,
        value: &Itimerspec,
    ) -> Result<(), Errno> {
        let value = value.it_value;
        let delay = Duration::new(value.tv_sec as u64, value.tv_nsec as u32);
        ask(|kernel| kernel.timerfd_set(raw(fd), delay));
        Ok(())
    }
}

/// `rustix::event`.
pub mod event {
    pub use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

    use super::{Errno, NewFd, ask};

    /// See [`Kernel::eventfd`](super::Kernel::eventfd).
    pub fn eventfd(_value: u32, _flags: EventfdFlags) -> Result<NewFd, Errno> {
        ask(|kernel| kernel.eventfd()).map(NewFd)
    }

    /// Nothing is ready for who waits in this way.
    pub fn poll(_fds: &mut [PollFd<'_>], _timeout: Option<&Timespec>) -> Result<usize, Errno> {
        Ok(0)
    }

    /// `rustix::event::epoll`.
    pub mod epoll {
        use std::mem::MaybeUninit;

        pub use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags};

        use super::super::{AsFd, Errno, NewFd, ask, raw};
        use super::Timespec;

        /// See [`Kernel::epoll_create`](crate::kernel::Kernel::epoll_create).
        pub fn create(_flags: CreateFlags) -> Result<NewFd, Errno> {
            ask(|kernel| kernel.epoll_create()).map(NewFd)
        }

        /// Has an epoll instance watch a descriptor (`new`), or watch it in another way.
        fn watch(
            epoll: impl AsFd,
            source: impl AsFd,
            new: bool,
            data: EventData,
            events: EventFlags,
        ) -> Result<(), Errno> {
            let watched = Some((data.u64(), events.bits()));
            ask(|kernel| kernel.epoll_control(raw(epoll), raw(source), new, watched))
        }

        /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
        pub fn add(
            epoll: impl AsFd,
            source: impl AsFd,
            data: EventData,
            events: EventFlags,
        ) -> Result<(), Errno> {
            watch(epoll, source, true, data, events)
        }

        /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
        pub fn modify(
            epoll: impl AsFd,
            source: impl AsFd,
            data: EventData,
            events: EventFlags,
        ) -> Result<(), Errno> {
            watch(epoll, source, false, data, events)
        }

        /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
        pub fn delete(epoll: impl AsFd, source: impl AsFd) -> Result<(), Errno> {
            ask(|kernel| kernel.epoll_control(raw(epoll), raw(source), false, None))
        }

        /// See [`Kernel::epoll_wait`](crate::kernel::Kernel::epoll_wait).
        pub fn wait<'a>(
            epoll: impl AsFd,
            events: &'a mut [MaybeUninit<Event>],
            _timeout: Option<&Timespec>,
        ) -> Result<(&'a mut [Event], &'a mut [MaybeUninit<Event>]), Errno> {
            let mut len = 0;
            ask(|kernel| {
                kernel.epoll_wait(raw(epoll), events.len(), &mut |data, flags| {
                    events[len].write(Event {
                        flags: EventFlags::from_bits_retain(flags),
                        data: EventData::new_u64(data),
                    });
                    len += 1;
                })
            })?;
            let (written, rest) = events.split_at_mut(len);
            // SAFETY: written above.
            Ok((unsafe { written.assume_init_mut() }, rest))
        }
    }
}

/// `rustix::net`.
pub mod net {
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
        pub fn socket_send_buffer_size(_fd: impl AsFd) -> Result<usize, Errno> {
            Ok(200 * 1024)
        }

        /// `SO_ERROR`.
        pub fn socket_error(fd: impl AsFd) -> Result<Result<(), Errno>, Errno> {
            let error = ask(|kernel| kernel.socket_error(raw(fd)))?;
            Ok(error.map_or(Ok(()), Err))
        }
    }
}
