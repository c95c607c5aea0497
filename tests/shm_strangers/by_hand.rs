//! What a process of another user namespace can do that wants to share memory with the library: ask,
//! answer, pass messages on, and have memory that takes for ever to read.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags};

use crate::shm_peer::{
    self, HELLO_LEN, Record, files_message, loopback, memory, name, number_in, sealed, sizes,
    word_at,
};

/// How long a stranger waits for a message.
const PERSISTENCE: Duration = Duration::from_secs(20);

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// An old one: the first message carries the files.
    Two,
    /// The one of the library.
    Four,
}

fn send(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd]) {
    shm_peer::send(socket, bytes, files, SendFlags::empty());
}

/// The next message and its files; nothing at the end of the stream, or if no message arrives.
fn receive(socket: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    socket.set_read_timeout(Some(PERSISTENCE)).unwrap();
    shm_peer::receive(socket, RecvFlags::empty()).unwrap_or_default()
}

impl Version {
    /// The first message of an end, without a fault; `answer` is the number in the record of the
    /// peer.
    fn hello(self, record: &Record, answer: u64, port: u32) -> Vec<u8> {
        let at = record.address();
        let addresses = [loopback(); 2];
        match self {
            Version::Two => {
                let mut bytes = b"libdat.2".to_vec();
                bytes.extend((at + 8).to_ne_bytes());
                bytes.extend(record.number.to_ne_bytes());
                bytes.extend(7u32.to_ne_bytes());
                bytes.extend(port.to_ne_bytes());
                bytes.extend(addresses.concat());
                bytes
            }
            Version::Four => shm_peer::hello(at, answer, port, 0, addresses),
        }
    }
}

/// The record for the process at the other end.
fn record_for(socket: &UnixStream) -> Record {
    Record::new(0x5eed, 0x1234, peer(socket))
}

/// The process at the other end; 0 if it has no number in this process namespace.
fn peer(socket: &UnixStream) -> u32 {
    let mut found = [0u32; 3];
    let mut len = size_of_val(&found) as u32;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = found.as_mut_ptr().cast();
    // SAFETY: room for the answer, which is three numbers.
    unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &mut len) };
    found[0]
}

/// Files of these sizes.
fn memories(lens: &[u64]) -> Vec<OwnedFd> {
    lens.iter().map(|len| memory(*len, sealed())).collect()
}

/// The files of an initiator of the second version.
fn files_of_two() -> Vec<OwnedFd> {
    memories(&[sizes()[0], 1 << 27, 20_480])
}

/// An address whose memory takes for ever to read, as that of a file system in user space may;
/// `None` where a process cannot have such memory.
fn tar_pit() -> Option<u64> {
    // SAFETY: makes a descriptor, which stays open.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as libc::c_int;
    let null = std::ptr::null_mut();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses; it stays.
    let at = unsafe { rustix::mm::mmap_anonymous(null, 1 << 16, protection, flags) }.ok()?;
    let mut api = [0xaa_u64, 0, 0];
    // Start, length, mode (faults of missing pages), and what can be done there.
    let mut register = [at.expose_provenance() as u64, 1 << 16, 1, 0];
    // SAFETY: the structures of `UFFDIO_API` and `UFFDIO_REGISTER`.
    let done = unsafe {
        fd >= 0
            && libc::ioctl(fd, 0xc018_aa3f_u64 as _, api.as_mut_ptr()) == 0
            && libc::ioctl(fd, 0xc020_aa00_u64 as _, register.as_mut_ptr()) == 0
    };
    done.then(|| at.expose_provenance() as u64 + 8)
}

/// Asks for a port, with a record where it takes for ever to read it. Returns the sockets, or `None`
/// where that is not possible.
pub fn ask_from_tar_pit(port: u64, times: usize) -> Option<Vec<UnixStream>> {
    let at = tar_pit()?;
    let ask = |version: Version| {
        let socket = UnixStream::connect_addr(&name(port)).unwrap();
        let mut hello = version.hello(&record_for(&socket), 0, port as u32);
        hello[8..16].copy_from_slice(&at.to_ne_bytes());
        match version {
            Version::Two => send(&socket, &hello, &files_of_two()),
            Version::Four => send(&socket, &hello, &[]),
        }
        socket
    };
    let both = [Version::Two, Version::Four].into_iter().cycle();
    Some(both.take(times).map(ask).collect())
}

/// Asks for a port, as a peer that shares memory does. Returns the files of the library, and the error
/// with which the kernel has refused to read its memory.
pub fn ask(port: u64, version: Version) -> (Vec<OwnedFd>, Option<Errno>) {
    ask_with(port, version, &sizes())
}

/// The same with files of other sizes, where they are those of the fourth version.
pub fn ask_with(port: u64, version: Version, lens: &[u64]) -> (Vec<OwnedFd>, Option<Errno>) {
    let socket = UnixStream::connect_addr(&name(port)).unwrap();
    let record = record_for(&socket);
    let hello = version.hello(&record, 0, port as u32);
    if version == Version::Two {
        send(&socket, &hello, &files_of_two());
        return (receive(&socket).1, None);
    }
    send(&socket, &hello, &[]);
    let (bytes, mut files) = receive(&socket);
    let mut refused = None;
    if !bytes.is_empty() {
        assert_eq!((bytes.len(), files.len()), (HELLO_LEN, 0));
        assert_eq!(word_at(&bytes, 16), record.number);
        let found = number_in(peer(&socket), word_at(&bytes, 8));
        refused = found.err();
        send(&socket, &files_message(found.unwrap_or(1)), &memories(lens));
        files.extend(receive(&socket).1);
    }
    (files, refused)
}

/// Answers a library that asks, as far as possible, and returns the same as [`ask`].
pub fn answer(socket: &UnixStream) -> (Vec<OwnedFd>, Option<Errno>) {
    let (bytes, mut files) = receive(socket);
    let at = word_at(&bytes, 8);
    let version = if bytes.starts_with(b"libdat.2") {
        Version::Two
    } else {
        Version::Four
    };
    // The second version has the address of the number, the fourth that of the record.
    let at = at - if version == Version::Two { 8 } else { 0 };
    let found = number_in(peer(socket), at);
    let record = record_for(socket);
    send(socket, &version.hello(&record, found.unwrap_or(1), 0), &[]);
    files.extend(receive(socket).1);
    (files, found.err())
}

/// Passes the messages of two libraries on to each other, and returns the files that were with them.
pub fn relay(socket: &UnixStream, other: &UnixStream) -> Vec<OwnedFd> {
    std::thread::scope(|s| {
        let pass = |from: &UnixStream, to: &UnixStream| {
            let mut files = Vec::new();
            loop {
                let (bytes, new) = receive(from);
                files.extend(new);
                if bytes.is_empty() {
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    return files;
                }
                send(to, &bytes, &[]);
            }
        };
        let back = s.spawn(move || pass(other, socket));
        let mut files = pass(socket, other);
        files.extend(back.join().unwrap());
        files
    })
}
