//! The messages of the handshake, and how they and their files are sent over a local socket.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use crate::kernel;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EndAddresses, Incomplete, ShmRefusal};
use crate::descriptor::OwnedFd;
use crate::device::soft::transport::shm::challenge::Challenge;
use crate::device::soft::transport::shm::socket::send_now;

/// Version of the protocol, which includes the layout of everything that two processes share.
pub(crate) const MAGIC: [u8; 8] = *b"libdat.6";

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
pub(super) const VERSION_MISMATCH: ShmRefusal =
    ShmRefusal::new("the peer uses another version of the shared-memory protocol");
const NOT_SENT: &str = "no message can be sent to the peer";
const CLOSED: &str = "the peer has closed the connection";

/// The address in a hello.
pub(super) fn from_wire(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// The address for a hello.
fn to_wire(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A hello with these addresses, which only the initiator sends.
pub(super) fn hello(
    challenge: &Challenge,
    answer: u64,
    ends: Option<&EndAddresses>,
) -> HelloMessage {
    HelloMessage {
        magic: MAGIC,
        challenge_addr: challenge.addr(),
        answer,
        port: ends.map_or(0, |e| e.target.port().into()),
        source_port: ends.map_or(0, |e| e.source.port().into()),
        source: ends.map_or([0; 16], |e| to_wire(e.source.ip())),
        target: ends.map_or([0; 16], |e| to_wire(e.target.ip())),
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
        Err(error) => Err(ShmRefusal::of(NOT_SENT)(error)),
    }
}

/// Receives a message, and its files if it has some; the kernel closes any that were sent with
/// another one.
fn receive_with<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    magic: impl FnOnce(&T) -> [u8; 8],
    has_files: bool,
) -> Result<(T, Vec<OwnedFd>), Incomplete> {
    let mut message = T::new_zeroed();
    match kernel::receive_with_files(socket, message.as_mut_bytes(), has_files) {
        Err(Errno::INTR | Errno::AGAIN) => Err(Incomplete::AwaitingPeer),
        Err(error) => Err(ShmRefusal::of(CLOSED)(error).into()),
        Ok((0, _)) => Err(ShmRefusal::new(CLOSED).into()),
        Ok((n, files)) if n == size_of::<T>() && magic(&message) == MAGIC => {
            Ok((message, files.into_iter().map(OwnedFd::from).collect()))
        }
        Ok(_) => Err(VERSION_MISMATCH.into()),
    }
}

/// Receives a message without files.
pub(super) fn receive<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    magic: impl FnOnce(&T) -> [u8; 8],
) -> Result<T, Incomplete> {
    receive_with(socket, magic, false).map(|(message, _)| message)
}

/// Receives the files of the peer, and its answer to our challenge.
pub(super) fn receive_files(socket: impl AsFd) -> Result<(u64, Vec<OwnedFd>), Incomplete> {
    let (message, files) = receive_with(socket, |files: &FilesMessage| files.magic, true)?;
    Ok((message.answer, files))
}
