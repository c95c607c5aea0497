//! The protocol by hand: a process that wants to share memory with another, and what it gets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// How long a stranger goes on if nobody ends the connection.
const PERSISTENCE: Duration = Duration::from_secs(20);

/// A version of the protocol, as a stranger speaks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// An old one: the descriptors come with the first message.
    Two,
    Four,
}

/// A number for the other side to read, where the fourth version has it.
#[repr(C)]
pub struct Word {
    tag: [u8; 8],
    number: u64,
    process: u64,
    reader: u32,
    zero: u32,
}

/// All that has come at once: bytes and descriptors.
pub type Came = (Vec<u8>, Vec<OwnedFd>);

pub fn name(port: u64) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("libdat/{port}@127.0.0.1")).unwrap()
}

pub fn say(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let iov = [IoSlice::new(bytes)];
    // Whoever it is said to may have gone.
    let _ = rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::NOSIGNAL);
}

/// What comes next; nothing at the end of the stream, or if nothing comes.
pub fn hear(socket: &UnixStream) -> Came {
    socket.set_read_timeout(Some(PERSISTENCE)).unwrap();
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let came = rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC);
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    bytes.truncate(came.map_or(0, |came| came.bytes));
    (bytes, files)
}

/// A file in memory, as the library makes them.
pub fn memory(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"stranger", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

pub fn number_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).unwrap_or(&[0; N]).try_into().unwrap()
}

/// What the kernel answers when we read that process's memory.
pub fn read(process: i32, at: u64) -> Result<u64, Errno> {
    let mut word = [0u64; 4];
    let local = libc::iovec {
        iov_base: word.as_mut_ptr().cast(),
        iov_len: 32,
    };
    let remote = libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: 32,
    };
    // SAFETY: as much as is asked for may be written.
    match unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) } {
        32 => Ok(word[1]),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

impl Version {
    /// The first message of a side, as honest as it can be; `answer` is what it has read.
    fn hello(self, word: &Word, answer: u64, port: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = std::ptr::from_ref(word).expose_provenance() as u64;
        match self {
            Version::Two => {
                bytes.extend(b"libdat.2");
                bytes.extend((at + 8).to_ne_bytes());
                bytes.extend(word.number.to_ne_bytes());
                bytes.extend(7u32.to_ne_bytes());
                bytes.extend(port.to_ne_bytes());
            }
            Version::Four => {
                bytes.extend(b"libdat.4");
                bytes.extend(at.to_ne_bytes());
                bytes.extend(answer.to_ne_bytes());
                bytes.extend(port.to_ne_bytes());
                bytes.extend([0; 4]);
            }
        }
        for _ in 0..2 {
            let home = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
            bytes.extend(home.octets());
        }
        bytes
    }

    /// The second message of the initiator.
    fn shown(answer: u64) -> Vec<u8> {
        let mut bytes = b"libdat.4".to_vec();
        bytes.extend(answer.to_ne_bytes());
        bytes
    }
}

/// What the other side reads of us, if it is asked to.
pub fn word_for(socket: &UnixStream) -> Word {
    Word {
        tag: *b"libdat.4",
        number: 0x5eed,
        process: 0x1234,
        // Somebody that cannot be seen from here is nobody.
        reader: peer(socket) as u32,
        zero: 0,
    }
}

/// The process at the other end, 0 if there is none in this process namespace.
pub fn peer(socket: &UnixStream) -> i32 {
    let mut found = [0i32; 3];
    let mut len = size_of_val(&found) as u32;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = found.as_mut_ptr().cast();
    // SAFETY: room for the answer, which is three numbers.
    unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &mut len) };
    found[0]
}

/// An address whose memory takes for ever to read, as that of a file system in user space may;
/// `None` where a process cannot have such memory.
fn tar_pit() -> Option<u64> {
    // SAFETY: makes a descriptor, which nobody closes.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as libc::c_int;
    let null = std::ptr::null_mut();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses; it stays.
    let at = unsafe { rustix::mm::mmap_anonymous(null, 1 << 16, protection, flags) }.ok()?;
    let mut api = [0xaa_u64, 0, 0];
    // Start, length, mode (whoever touches what is missing), and what can be done there.
    let mut register = [at.expose_provenance() as u64, 1 << 16, 1, 0];
    // SAFETY: the structures of `UFFDIO_API` and `UFFDIO_REGISTER`.
    let done = unsafe {
        fd >= 0
            && libc::ioctl(fd, 0xc018_aa3f_u64 as _, api.as_mut_ptr()) == 0
            && libc::ioctl(fd, 0xc020_aa00_u64 as _, register.as_mut_ptr()) == 0
    };
    done.then(|| at.expose_provenance() as u64 + 8)
}

/// Asks for a port, and has a number where it takes for ever to read it. Gives the sockets, or
/// nothing where that is not possible.
pub fn ask_from_tar_pit(port: u64, times: usize) -> Option<Vec<UnixStream>> {
    let at = tar_pit()?;
    let ask = |version: Version| {
        let socket = UnixStream::connect_addr(&name(port)).unwrap();
        let mut hello = version.hello(&word_for(&socket), 0, port as u32);
        hello[8..16].copy_from_slice(&at.to_ne_bytes());
        match version {
            Version::Two => say(&socket, &hello, &[WIRE, 1 << 27, 20_480].map(memory)),
            Version::Four => say(&socket, &hello, &[]),
        }
        socket
    };
    let both = [Version::Two, Version::Four].into_iter().cycle();
    Some(both.take(times).map(ask).collect())
}

/// Bytes of the memory of a connection.
const WIRE: u64 = 118_784;

/// The files of an initiator of the fourth version: the memory of the connection, its keys, what
/// it says, and the marks.
pub const FILES: [u64; 4] = [WIRE, 1 << 14, 4096, 16384];

/// Asks for a port, as a peer that shares memory does. Gives the descriptors that came, and what
/// the kernel said to a look at the other side's memory.
pub fn ask(port: u64, version: Version) -> (Vec<OwnedFd>, Option<Errno>) {
    ask_with(port, version, &FILES)
}

/// The same with files of other sizes, where they are those of the fourth version.
pub fn ask_with(port: u64, version: Version, lens: &[u64]) -> (Vec<OwnedFd>, Option<Errno>) {
    let socket = UnixStream::connect_addr(&name(port)).unwrap();
    let word = word_for(&socket);
    let hello = version.hello(&word, 0, port as u32);
    if version == Version::Two {
        say(&socket, &hello, &[WIRE, 1 << 27, 20_480].map(memory));
        return (hear(&socket).1, None);
    }
    say(&socket, &hello, &[]);
    let (bytes, mut files) = hear(&socket);
    let mut refused = None;
    if !bytes.is_empty() {
        assert_eq!((bytes.len(), files.len()), (64, 0));
        assert_eq!(number_at(&bytes, 16), word.number.to_ne_bytes());
        let at = u64::from_ne_bytes(number_at(&bytes, 8));
        let found = read(peer(&socket), at);
        refused = found.err();
        let mine: Vec<OwnedFd> = lens.iter().map(|len| memory(*len)).collect();
        say(&socket, &Version::shown(found.unwrap_or(1)), &mine);
        files.extend(hear(&socket).1);
    }
    (files, refused)
}

/// Answers whoever asks, as far as it can, and gives the same as [`ask`].
pub fn answer(socket: &UnixStream) -> (Vec<OwnedFd>, Option<Errno>) {
    let (bytes, mut files) = hear(socket);
    let at = u64::from_ne_bytes(number_at(&bytes, 8));
    let version = if bytes.starts_with(b"libdat.2") {
        Version::Two
    } else {
        Version::Four
    };
    // The address of the number itself, before; now that of what it is in.
    let at = at - if version == Version::Two { 8 } else { 0 };
    let found = read(peer(socket), at);
    let word = word_for(socket);
    say(socket, &version.hello(&word, found.unwrap_or(1), 0), &[]);
    files.extend(hear(socket).1);
    (files, found.err())
}

/// Passes on what two say to each other, and gives the descriptors that came.
pub fn relay(socket: &UnixStream, other: &UnixStream) -> Vec<OwnedFd> {
    std::thread::scope(|s| {
        let pass = |from: &UnixStream, to: &UnixStream| {
            let mut files = Vec::new();
            loop {
                let (bytes, new) = hear(from);
                files.extend(new);
                if bytes.is_empty() {
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    return files;
                }
                say(to, &bytes, &[]);
            }
        };
        let back = s.spawn(move || pass(other, socket));
        let mut files = pass(socket, other);
        files.extend(back.join().unwrap());
        files
    })
}
