//! The kernel that the process runs on.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

pub use rustix::{event, io, net, process, time};
pub use std::time::Instant;

/// Closes a descriptor that nothing uses any more. Not by `close(2)` of the C library, which is a
/// point at which a thread is cancelled.
#[inline(always)]
pub fn close(fd: RawFd) {
    // SAFETY: of the caller, and not used any more. If there is no such descriptor nothing happens.
    unsafe { libc::syscall(libc::SYS_close, fd) };
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
    let fd = fd.as_fd().as_raw_fd();
    // The function of the C library is a point at which a thread is cancelled.
    // SAFETY: the caller's promise; the kernel only reads the memory.
    let n = unsafe { libc::syscall(libc::SYS_sendmsg, fd, std::ptr::from_ref(message), flags) };
    usize::try_from(n).map_err(|_| last_error())
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
/// Of the kernel.
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
    Ok((received.bytes, files))
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

/// A random number that cannot be predicted.
///
/// # Errors
/// The kernel gives none, such as under a filter of system calls.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // SAFETY: so many bytes may be written.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Errno::IO),
    }
}
