//! The messages of the handshake, and how they and their files are sent over a local socket.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use crate::kernel;
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{EndAddresses, Incomplete, ShmRefusal};
use crate::descriptor::{self, OwnedFd};
use crate::device::netif;
use crate::device::soft::transport::shm::challenge::Challenge;
use crate::device::soft::transport::shm::socket::{BUSY, send_now};

/// Version of the protocol, which includes the layout of everything that two processes share. A process with addresses
/// of 32 bits could not reach the memory of one with 64.
pub(crate) const MAGIC: [u8; 8] = match size_of::<usize>() {
    4 => *b"lib32t10",
    _ => *b"libdat10",
};
/// The magic of an initiator that wants the memory for datagrams. Versions of this library that have no
/// shared memory for datagrams do not know it, and refuse.
const DATAGRAMS_MAGIC: [u8; 8] = match size_of::<usize>() {
    4 => *b"lib32tU9",
    _ => *b"libdatU9",
};

/// The magic of a message of a responder that drops the connection for want of room: the initiator may try again.
/// Versions of this library that do not know it take it for one of another version.
const DROPPED_MAGIC: [u8; 8] = *b"libdat d";

/// What two processes are to share memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A connection of two queue pairs.
    Connection,
    /// The datagrams of two devices.
    Datagrams,
}

impl Purpose {
    /// What an initiator that has this purpose begins its hello with.
    fn magic(self) -> [u8; 8] {
        match self {
            Purpose::Connection => MAGIC,
            Purpose::Datagrams => DATAGRAMS_MAGIC,
        }
    }

    /// The purpose of the initiator that has sent this hello.
    pub(super) fn of(hello: &HelloMessage) -> Option<Purpose> {
        let all = [Purpose::Connection, Purpose::Datagrams];
        all.into_iter()
            .find(|purpose| purpose.magic() == hello.magic)
    }
}

/// The first message of both ends.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
pub(super) struct HelloMessage {
    pub magic: [u8; 8],
    /// Address of the sender's challenge, in the sender's memory.
    pub challenge_addr: u64,
    /// The number in the receiver's challenge; 0 from the initiator, which has read none yet.
    pub answer: u64,
    /// The port to which the initiator connects; 0 from the responder.
    pub port: u32,
    /// The port of the initiator; 0 from the responder, and from an initiator that has none.
    pub source_port: u32,
    /// IPv6 or mapped IPv4 address of the initiator; zeros from the responder.
    pub source: [u8; 16],
    /// IPv6 or mapped IPv4 address to which the initiator connects; zeros from the responder.
    pub target: [u8; 16],
    /// The scopes of these addresses, which are those of the network namespace that both ends are in; 0 for
    /// an address without.
    pub source_scope: u32,
    pub target_scope: u32,
}

/// The message that carries the files.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
pub(super) struct FilesMessage {
    pub magic: [u8; 8],
    /// The number in the receiver's challenge; 0 from the responder, which has sent it before.
    pub answer: u64,
}

/// A message of the peer has an unknown format.
pub(super) const VERSION_MISMATCH: ShmRefusal = ShmRefusal::new(
    "the peer uses another version of the shared-memory protocol, or addresses of another size",
);
/// The kernel lets the processes of a user have so many files under way between them as one of them may have open.
/// That passes when the receivers take theirs.
pub(super) const FILES_UNDER_WAY: ShmRefusal =
    ShmRefusal::new("too many files of this user are under way between processes");
pub(super) const NO_DESCRIPTORS: &str = "no descriptors are left for the files of the peer";
pub(super) const NOT_SENT: &str = "no message can be sent to the peer";
pub(super) const CLOSED: &str = "the peer has closed the connection";

/// The address in a hello.
pub(super) fn from_wire(bytes: [u8; 16], port: u16, scope: u32) -> SocketAddr {
    netif::with_scope(Ipv6Addr::from(bytes).to_canonical(), port, scope)
}

/// The address for a hello.
fn to_wire(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The hello of the initiator.
pub(super) fn first_hello(
    challenge: &Challenge,
    ends: &EndAddresses,
    purpose: Purpose,
) -> HelloMessage {
    HelloMessage {
        magic: purpose.magic(),
        challenge_addr: challenge.addr(),
        answer: 0,
        port: ends.target.port().into(),
        source_port: ends.source.port().into(),
        source: to_wire(ends.source.ip()),
        target: to_wire(ends.target.ip()),
        source_scope: netif::scope_of(ends.source),
        target_scope: netif::scope_of(ends.target),
    }
}

/// The hello of the responder.
pub(super) fn second_hello(challenge: &Challenge, answer: u64) -> HelloMessage {
    HelloMessage {
        magic: MAGIC,
        challenge_addr: challenge.addr(),
        answer,
        port: 0,
        source_port: 0,
        source: [0; 16],
        target: [0; 16],
        source_scope: 0,
        target_scope: 0,
    }
}

/// What the responder sends in place of its hello if it drops the connection for want of room.
pub(super) fn dropped_before_hello() -> HelloMessage {
    HelloMessage {
        magic: DROPPED_MAGIC,
        ..HelloMessage::new_zeroed()
    }
}

/// The same in place of its files.
pub(super) fn dropped_before_files() -> FilesMessage {
    FilesMessage {
        magic: DROPPED_MAGIC,
        answer: 0,
    }
}

/// Sends a message and files.
pub(super) fn send<T: IntoBytes + Immutable>(
    socket: impl AsFd,
    message: &T,
    files: &[Option<&OwnedFd>],
) -> Result<(), ShmRefusal> {
    let files: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
    match send_now(|| kernel::send_with_files(&socket, message.as_bytes(), &files)) {
        Ok(n) if n == size_of::<T>() => Ok(()),
        Ok(_) => Err(ShmRefusal::new(NOT_SENT)),
        Err(Errno::TOOMANYREFS) => Err(FILES_UNDER_WAY),
        Err(error) => Err(ShmRefusal::of(NOT_SENT)(error)),
    }
}

/// Receives a message, and its files if it has some; the kernel closes any that were sent with
/// another one.
fn receive_with<T: FromBytes + IntoBytes + Immutable>(
    socket: impl AsFd,
    is_known: impl FnOnce(&T) -> bool,
    has_files: bool,
) -> Result<(T, Vec<OwnedFd>), Incomplete> {
    let mut message = T::new_zeroed();
    let received = descriptor::opening(|| {
        let (n, files) = kernel::receive_with_files(socket, message.as_mut_bytes(), has_files)?;
        Ok((n, files.into_iter().map(OwnedFd::from).collect()))
    });
    match received {
        Err(Errno::INTR | Errno::AGAIN) => Err(Incomplete::AwaitingPeer),
        Err(error @ Errno::MFILE) => Err(ShmRefusal::of(NO_DESCRIPTORS)(error).into()),
        Err(error) => Err(ShmRefusal::of(CLOSED)(error).into()),
        Ok((0, _)) => Err(ShmRefusal::new(CLOSED).into()),
        Ok((n, _)) if n != size_of::<T>() => Err(VERSION_MISMATCH.into()),
        Ok((_, files)) if is_known(&message) => Ok((message, files)),
        Ok(_) if message.as_bytes().starts_with(&DROPPED_MAGIC) => Err(BUSY.into()),
        Ok(_) => Err(VERSION_MISMATCH.into()),
    }
}

/// Receives a message without files, of a format that `is_known`.
pub(super) fn receive<T: FromBytes + IntoBytes + Immutable>(
    socket: impl AsFd,
    is_known: impl FnOnce(&T) -> bool,
) -> Result<T, Incomplete> {
    receive_with(socket, is_known, false).map(|(message, _)| message)
}

/// Receives the files of the peer, and its answer to our challenge.
pub(super) fn receive_files(socket: impl AsFd) -> Result<(u64, Vec<OwnedFd>), Incomplete> {
    let (message, files) = receive_with(socket, |files: &FilesMessage| files.magic == MAGIC, true)?;
    Ok((message.answer, files))
}
