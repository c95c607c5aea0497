//! A kernel that a test moves step by step: every call goes to the [`Kernel`] that the thread has
//! [installed](install). The functions have the names and the arguments of those that they stand
//! for, as far as the soft device uses them.

pub mod event;
pub mod fs;
pub mod io;
pub mod mm;
pub mod net;
pub mod time;

pub use rustix::process;
pub use time::{SOME_MICROSECONDS, SOME_MILLISECONDS, ticks};

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
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

/// What is done with a memory file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileCall {
    /// `ftruncate`.
    Resize,
    /// `fallocate`.
    Allocate,
    /// `F_ADD_SEALS`.
    Seal,
    /// `fstat`, `fstatfs` or `F_GET_SEALS`.
    Query,
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
    /// The identifier of the process; 0 for none.
    fn process_id(&mut self) -> u32;
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
    /// Reads bytes of a local socket, and the descriptors that were sent with them; without room
    /// for descriptors the kernel closes these.
    fn recv_files(
        &mut self,
        fd: RawFd,
        to: &mut [u8],
        has_files: bool,
    ) -> Result<(usize, Vec<RawFd>), Errno>;
    /// Ends the stream of this end.
    fn shutdown(&mut self, fd: RawFd) -> Result<(), Errno>;
    /// `SO_SNDBUF`.
    fn send_buffer_size(&mut self, fd: RawFd) -> usize;
    /// Whether a TCP socket of the host listens on a port.
    fn is_listened_on(&mut self, port: u16) -> bool;
    /// Closes a descriptor.
    fn close(&mut self, fd: RawFd);
    /// Another descriptor of the same file.
    fn duplicate(&mut self, fd: RawFd) -> Result<RawFd, Errno>;

    /// The process at the other end of a local socket: its identifier and its user.
    fn peer_credentials(&mut self, fd: RawFd) -> Result<(u32, u32), Errno>;
    /// A descriptor of that process.
    fn peer_process(&mut self, fd: RawFd) -> Result<RawFd, Errno>;
    /// Whether the process of a descriptor has exited.
    fn has_exited(&mut self, fd: RawFd) -> Result<bool, Errno>;
    /// Copies between memory of this process and ranges of another one, to that process if `write`.
    ///
    /// # Safety
    /// The local ranges are memory that may be read, or changed if this is no write.
    unsafe fn process_vm(
        &mut self,
        write: bool,
        process: u32,
        local: &[libc::iovec],
        remote: &[libc::iovec],
    ) -> Result<usize, Errno>;

    /// An empty memory file.
    fn memory_file(&mut self, name: &CStr, flags: fs::MemfdFlags) -> Result<RawFd, Errno>;
    /// A descriptor of the real kernel with which a call about a memory file is to be executed. It
    /// belongs to the simulated kernel.
    fn real_file(&mut self, fd: RawFd, call: FileCall) -> Result<RawFd, Errno>;
    /// A descriptor of the same memory file for reading only.
    fn open_for_reading(&mut self, fd: RawFd) -> Result<RawFd, Errno>;
    /// Maps a part of a memory file, or zeros without a file, at `hint` or elsewhere.
    fn map(
        &mut self,
        hint: *mut c_void,
        len: usize,
        protection: mm::ProtFlags,
        file: Option<(RawFd, u64)>,
    ) -> Result<*mut c_void, Errno>;
    /// Unmaps what was mapped at that address.
    ///
    /// # Safety
    /// Nothing refers to that memory any more.
    unsafe fn unmap(&mut self, at: *mut c_void, len: usize);

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
        .map(|part| match part.iov_len {
            // The address of an empty part may be any.
            0 => &[][..],
            // SAFETY: the caller's promise.
            len => unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), len) },
        })
        .collect();
    ask(|kernel| kernel.send(raw(fd), &parts))
}

/// See [`Kernel::recv`].
///
/// # Safety
/// The ranges are memory that may be changed.
pub unsafe fn receive_message(fd: impl AsFd, ranges: &[libc::iovec]) -> Result<usize, Errno> {
    let mut bytes = vec![0; ranges.iter().map(|range| range.iov_len).sum()];
    let n = ask(|kernel| kernel.recv(raw(fd), &mut bytes, false))?;
    let mut left = &bytes[..n];
    for range in ranges {
        let (now, later) = left.split_at(range.iov_len.min(left.len()));
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), range.iov_base.cast(), now.len()) };
        left = later;
    }
    Ok(n)
}

/// A simulated process shows no mappings.
pub fn own_mappings() -> Option<std::os::fd::OwnedFd> {
    None
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
    let (n, files) = ask(|kernel| kernel.recv_files(raw(socket), bytes, has_files))?;
    Ok((n, files.into_iter().map(NewFd).collect()))
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

/// See [`Kernel::process_id`]. A thread without a kernel is in no process.
pub fn process_id() -> u32 {
    KERNEL.with(|place| {
        let mut kernel = place.borrow_mut();
        kernel.as_mut().map_or(0, |kernel| kernel.process_id())
    })
}

/// See [`Kernel::is_listened_on`].
pub fn is_listened_on(port: u16) -> bool {
    ask(|kernel| kernel.is_listened_on(port))
}

/// See [`Kernel::peer_credentials`].
pub fn peer_credentials(socket: impl AsFd) -> Result<(u32, u32), Errno> {
    ask(|kernel| kernel.peer_credentials(raw(socket)))
}

/// Whether the process of a descriptor has exited; nothing else is waited for in this way.
///
/// # Errors
/// Of the kernel.
pub fn is_readable(fd: impl AsFd, _limit: &event::Timespec) -> Result<bool, Errno> {
    ask(|kernel| kernel.has_exited(raw(fd)))
}

/// See [`Kernel::peer_process`].
pub fn peer_process(socket: impl AsFd, _pid: rustix::process::Pid) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.peer_process(raw(socket))).map(NewFd)
}

/// See [`Kernel::process_vm`].
///
/// # Safety
/// See [`Kernel::process_vm`].
pub unsafe fn process_vm(
    write: bool,
    pid: rustix::process::Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    let pid = pid.as_raw_nonzero().get() as u32;
    // SAFETY: the caller's promise.
    ask(|kernel| unsafe { kernel.process_vm(write, pid, local, remote) })
}

/// The same, unless one of the bits of `mask` is set in `word`.
///
/// # Safety
/// As for [`process_vm`].
pub unsafe fn process_vm_unless(
    (word, mask): (&std::sync::atomic::AtomicU32, u32),
    write: bool,
    pid: rustix::process::Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    if word.load(std::sync::atomic::Ordering::Acquire) & mask != 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: the caller's promise.
    unsafe { process_vm(write, pid, local, remote) }
}

/// There is no such file.
pub fn process_memory(_pid: rustix::process::Pid) -> Result<NewFd, Errno> {
    Err(Errno::NOENT)
}

/// No file can be read so.
///
/// # Safety
/// None is needed.
pub unsafe fn read_at(
    _fd: impl AsFd,
    _to: *mut u8,
    _len: usize,
    _offset: u64,
) -> Result<usize, Errno> {
    Err(Errno::BADF)
}

/// The limit of descriptors; the other limits are those of the process.
pub fn limit_of(resource: process::Resource) -> Option<u64> {
    match resource {
        process::Resource::Nofile => Some(ask(|kernel| kernel.descriptor_limit())),
        other => process::getrlimit(other).current,
    }
}
