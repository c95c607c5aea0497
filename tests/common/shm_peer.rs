//! A peer made by hand that sets up a connection through shared memory: its messages and files, and
//! the record that proves who it is. Every part can be wrong.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use dat_core::testing::device::soft::transport::shm::ring::Ring;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The version of the protocol.
pub const MAGIC: [u8; 8] = *b"libdat10";

/// Bytes of the first message of an end.
pub const HELLO_LEN: usize = 72;

/// Bytes of the files of an initiator: the segment, the keys, the sleep states with the mutex of the process behind them, and the bits.
pub fn sizes() -> [u64; 4] {
    // Two states of an end, of three pairs of cache lines each, before the rings.
    let segment = 2 * 384 + 2 * size_of::<Ring>();
    [
        segment.next_multiple_of(4096) as u64,
        1 << 14,
        2 * 4096,
        65_536,
    ]
}

/// What each process reads in the memory of the other.
#[repr(C)]
pub struct Record {
    pub magic: [u8; 8],
    /// The number that the reader sends back.
    pub number: u64,
    /// A number of the process that has the record.
    pub process: u64,
    /// The process identifier of the reader.
    pub reader: u32,
    zero: u32,
}

impl Record {
    /// A record without a fault.
    pub fn new(number: u64, process: u64, reader: u32) -> Record {
        Record {
            magic: MAGIC,
            number,
            process,
            reader,
            zero: 0,
        }
    }

    /// Where another process reads the record.
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }
}

/// The number in the record at an address of a process, or why the kernel refuses the read.
pub fn number_in(process: u32, at: u64) -> Result<u64, Errno> {
    let mut record = [0u8; size_of::<Record>()];
    let local = libc::iovec {
        iov_base: record.as_mut_ptr().cast(),
        iov_len: record.len(),
    };
    let remote = libc::iovec {
        iov_base: at as *mut libc::c_void,
        iov_len: record.len(),
    };
    // SAFETY: as much as is asked for may be written.
    let read = unsafe { libc::process_vm_readv(process as i32, &local, 1, &remote, 1, 0) };
    if read == record.len() as isize {
        Ok(word_at(&record, 8))
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::FAULT))
    }
}

/// The first message of an end: where its record is, the number in the record of the peer, and the
/// port that the initiator asks for, in the fields of the message in their order.
pub fn hello(at: u64, answer: u64, port: u32, zero: u32, addresses: [[u8; 16]; 2]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(at.to_ne_bytes());
    bytes.extend(answer.to_ne_bytes());
    bytes.extend(port.to_ne_bytes());
    bytes.extend(zero.to_ne_bytes());
    bytes.extend(addresses.concat());
    // The scopes, which these addresses have not.
    bytes.extend([0; 8]);
    bytes
}

/// The loopback address in a message.
pub fn loopback() -> [u8; 16] {
    Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()
}

/// The message that carries the files, with the number in the record of the peer.
pub fn files_message(answer: u64) -> Vec<u8> {
    [MAGIC, answer.to_ne_bytes()].concat()
}

/// The word at an offset of a message; 0 if the message is shorter.
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

/// The name of the local socket of a port of the loopback address.
pub fn name(port: u64) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("libdat/{port}@127.0.0.1")).unwrap()
}

/// Sends a message with files, unless the other end is closed.
pub fn send(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd], flags: SendFlags) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let iov = [IoSlice::new(bytes)];
    let flags = flags | SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &iov, &mut control, flags);
}

/// Receives what has arrived at once, bytes and files; no bytes at the end of the stream.
pub fn receive(socket: &UnixStream, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let arrived = rustix::net::recvmsg(socket, &mut iov, &mut control, flags);
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    bytes.truncate(arrived?.bytes);
    Ok((bytes, files))
}

/// A file in memory with these seals.
pub fn memory(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"peer", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The seals of a file of the protocol: its size stays.
pub fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW
}
