//! The kernel that the process runs on.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, PidfdFlags};

use super::call::call;
use crate::marked_call;
pub use rustix::{fs, io, mm, net, process, time};
pub use std::process::id as process_id;
pub use std::time::Instant;

/// Closes a descriptor that nothing uses any more. Not by `close(2)` of the C library, which is a
/// point at which a thread is cancelled.
#[inline(always)]
pub fn close(fd: RawFd) {
    // SAFETY: of the caller, and not used any more. If there is no such descriptor nothing happens.
    let _ = unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Sends a message, as `sendmsg(2)` does.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// The message names memory that is alive for the call.
#[inline(always)]
pub unsafe fn send_message(
    fd: impl AsFd,
    message: &libc::msghdr,
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    let message = std::ptr::from_ref(message).expose_provenance();
    // SAFETY: the caller's promise; the kernel only reads the memory.
    unsafe { call(libc::SYS_sendmsg, [fd, message, flags as usize, 0, 0, 0]) }
}

/// Reads what a socket has into several ranges of memory, and does not wait, as `recvmsg(2)` does.
/// Returns the number of bytes.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// The ranges are memory that may be changed; where none is mapped the kernel fails.
#[inline]
pub unsafe fn receive_message(fd: impl AsFd, ranges: &[libc::iovec]) -> Result<usize, Errno> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_ptr().cast_mut();
    message.msg_iovlen = ranges.len() as _;
    let at = (&raw mut message).expose_provenance();
    let flags = libc::MSG_DONTWAIT as usize;
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_recvmsg, [fd, at, flags, 0, 0, 0]) }
}

/// The most files of a message.
const MAX_FILES: usize = 5;

/// Sends bytes, and files with them, over a local socket.
///
/// # Errors
/// Of the kernel.
pub fn send_with_files(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Receives bytes, and files with them if there may be some: those that were sent otherwise are
/// closed.
///
/// # Errors
/// Of the kernel; `MFILE` if it had no descriptors for some of the files.
pub fn receive_with_files(
    socket: impl AsFd,
    bytes: &mut [u8],
    has_files: bool,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = match has_files {
        true => RecvAncillaryBuffer::new(&mut space),
        false => RecvAncillaryBuffer::default(),
    };
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let mut files = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            files.extend(rights);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    match has_files && is_cut && files.len() < MAX_FILES {
        true => Err(Errno::MFILE),
        false => Ok((received.bytes, files)),
    }
}

/// The error of the last call of the C library.
fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Sets an option of a socket whose value is an integer. A kernel without the option changes
/// nothing.
pub fn set_int(fd: impl AsFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the value is an int, which lives during the call.
    unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        );
    }
}

/// What the kernel knows of a TCP connection, and how many bytes of that it has written.
///
/// # Errors
/// Of the kernel.
pub fn tcp_info(fd: impl AsFd) -> Result<(libc::tcp_info, usize), Errno> {
    // SAFETY: all zero is valid for a structure of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes up to `len` bytes to the structure, which is that long.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok((info, len as usize)),
        _ => Err(last_error()),
    }
}

/// Number of bytes that were written to a TCP connection and that the peer has not acknowledged.
///
/// # Errors
/// Of the kernel.
pub fn unacknowledged_bytes(fd: impl AsFd) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the call writes an integer.
    match unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes.max(0) as usize),
        _ => Err(last_error()),
    }
}

/// The process at the other end of a local socket: its identifier, which is 0 if the process is not
/// visible in our PID namespace, and its effective user.
///
/// # Errors
/// Of the kernel.
pub fn peer_credentials(socket: impl AsFd) -> Result<(u32, u32), Errno> {
    let none = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // Not by rustix, whose process identifiers are never 0.
    let found = socket_option(socket, libc::SO_PEERCRED, none)?;
    Ok((u32::try_from(found.pid).unwrap_or(0), found.uid))
}

/// Reads an option of a local socket, with `answer` for the kernel to overwrite.
fn socket_option<T>(socket: impl AsFd, option: libc::c_int, mut answer: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, to) = (socket.as_fd().as_raw_fd(), (&raw mut answer).cast());
    // SAFETY: room for the answer, which consists of numbers.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, to, &mut len) } {
        0 => Ok(answer),
        _ => Err(last_error()),
    }
}

/// The limit of the process for a resource; `None` without a limit, and where the kernel does not say: a sandbox may
/// forbid the question.
pub fn limit_of(resource: process::Resource) -> Option<u64> {
    let mut limits = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    let at = (&raw mut limits).expose_provenance();
    // SAFETY: the kernel only writes the structure.
    let _ = unsafe { call(libc::SYS_prlimit64, [0, resource as usize, 0, at, 0, 0]) };
    (limits.rlim_cur != libc::RLIM64_INFINITY).then_some(limits.rlim_cur)
}

/// A process descriptor of the process at the other end of a local socket, which has that
/// identifier.
///
/// # Errors
/// Of the kernel.
pub fn peer_process(socket: impl AsFd, pid: Pid) -> Result<OwnedFd, Errno> {
    /// Since Linux 6.5. It gives the process that made the connection, even if another process has
    /// the identifier by now.
    const SO_PEERPIDFD: libc::c_int = 77;
    match socket_option(socket, SO_PEERPIDFD, -1) {
        // SAFETY: a new descriptor, which is ours.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(Errno::NOPROTOOPT) => rustix::process::pidfd_open(pid, PidfdFlags::empty()),
        Err(error) => Err(error),
    }
}

/// Copies between memory of ours and ranges of another process, to that process if `write`; returns
/// the number of bytes.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// The local ranges are memory of ours that may be changed, if this is a read.
#[inline(always)]
pub unsafe fn process_vm(
    write: bool,
    pid: Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    let (number, arguments) = process_vm_call(write, pid, local, remote);
    // SAFETY: the caller's promise; the kernel checks the remote ranges.
    unsafe { call(number, arguments) }
}

/// The number and the arguments of the system call of [`process_vm`].
#[inline(always)]
fn process_vm_call(
    write: bool,
    pid: Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> (libc::c_long, [usize; 6]) {
    let number = match write {
        true => libc::SYS_process_vm_writev,
        false => libc::SYS_process_vm_readv,
    };
    let pid = pid.as_raw_nonzero().get() as usize;
    let (local, locals) = (local.as_ptr().expose_provenance(), local.len());
    let (remote, remotes) = (remote.as_ptr().expose_provenance(), remote.len());
    (number, [pid, local, locals, remote, remotes, 0])
}

/// [`process_vm`], unless one of the bits of `mask` is set in `word`: `ESRCH` then.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// The local ranges are memory of ours that may be changed, if this is a read.
#[inline(always)]
pub unsafe fn process_vm_unless(
    (word, mask): (&AtomicU32, u32),
    write: bool,
    pid: Pid,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    let (number, arguments) = process_vm_call(write, pid, local, remote);
    // SAFETY: the caller's promise; the kernel checks the remote ranges.
    match unsafe { marked_call::make_unless(word, mask, number, arguments) } {
        Some(result @ 0..) => Ok(result as usize),
        Some(error) => Err(Errno::from_raw_os_error(-error as i32)),
        None => Err(Errno::SRCH),
    }
}

/// The memory of another process as a file to be read, `/proc/PID/mem`. The file stays that of the memory which
/// the process has now: reads return nothing when the process has exited or executes another program.
///
/// # Errors
/// Of the kernel.
pub fn process_memory(pid: Pid) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/{}/mem", pid.as_raw_nonzero());
    fs::open(
        path,
        fs::OFlags::RDONLY | fs::OFlags::CLOEXEC,
        fs::Mode::empty(),
    )
}

/// Reads `len` bytes at `offset` of a file to memory of ours, and returns the number of bytes.
///
/// # Errors
/// Of the kernel, also if the memory cannot be changed.
///
/// # Safety
/// The memory may be changed.
#[inline]
pub unsafe fn read_at(fd: impl AsFd, to: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
    let (fd, to) = (fd.as_fd().as_raw_fd() as usize, to.expose_provenance());
    // An argument of 32 bits has half of an offset.
    let high = match size_of::<usize>() {
        4 => (offset >> 32) as usize,
        _ => 0,
    };
    // SAFETY: the caller's promise; the kernel fails where no memory is mapped.
    unsafe { call(libc::SYS_pread64, [fd, to, len, offset as usize, high, 0]) }
}

/// Whether a TCP socket of this network namespace listens on the port, as far as the system
/// shows. The listener does not notice the question.
pub fn is_listened_on(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| File::open(path).ok())
        .any(|file| has_listener(BufReader::new(file), port))
}

/// Searches a table of the system for a listener. The table begins with a heading, and has
/// listeners before all other sockets.
fn has_listener(table: impl BufRead, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table
        .lines()
        .skip(1)
        .map_while(Result::ok)
        .map_while(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1)?;
            let (_, number) = local.rsplit_once(':')?;
            let state = fields.nth(1)?;
            (state == LISTEN).then(|| u16::from_str_radix(number, 16).ok())
        })
        .any(|number| number == Some(port))
}

/// The file with the mappings of this process, `/proc/self/maps`, if that can be opened.
pub fn own_mappings() -> Option<OwnedFd> {
    File::open("/proc/self/maps").ok().map(OwnedFd::from)
}

/// A random number that cannot be predicted.
///
/// # Errors
/// The kernel gives none, such as under a filter of system calls where there is no `/dev/urandom` either.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0u8; 8];
    let (to, length) = ((&raw mut bytes).expose_provenance(), bytes.len());
    let flags = libc::GRND_NONBLOCK as usize;
    // The function of the C library is of glibc 2.25.
    // SAFETY: so many bytes may be written.
    match unsafe { call(libc::SYS_getrandom, [to, length, flags, 0, 0, 0]) } {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        // The system call is of Linux 3.17. While a system starts an older kernel than 5.4 would wait for minutes.
        _ => random_from_file(),
    }
}

/// [`random`] of a kernel that has a file for that alone.
#[cold]
fn random_from_file() -> Result<u64, Errno> {
    let flags = fs::OFlags::RDONLY | fs::OFlags::CLOEXEC;
    let file = fs::open(c"/dev/urandom", flags, fs::Mode::empty())?;
    let mut bytes = [0u8; 8];
    match io::read(&file, &mut bytes)? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
             0: 0100007F:1267 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:1268 00000000:0000 0A 00000000:00000000\n   \
             2: 0100007F:1269 0100007F:1267 01 00000000:00000000\n";
        let has = |port| has_listener(table.as_bytes(), port);
        assert!(has(0x1267) && has(0x1268));
        assert!(!has(0x1269) && !has(1));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_listened_on(listener.local_addr().unwrap().port()));
    }
}
