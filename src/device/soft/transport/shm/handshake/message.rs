//! The messages of the handshake, and how they and their files are sent over a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EndAddresses, Incomplete, ShmRefusal};
use crate::descriptor::OwnedFd;
use crate::device::soft::transport::shm::challenge::Challenge;

/// Version of the protocol, which includes the layout of everything that two processes share.
pub(crate) const MAGIC: [u8; 8] = *b"libdat.4";

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
    /// Always 0.
    zero: u32,
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

/// The most files of a message.
const MAX_FILES: usize = 5;

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
        zero: 0,
        source: ends.map_or([0; 16], |e| to_wire(e.source)),
        target: ends.map_or([0; 16], |e| to_wire(e.target.ip())),
    }
}

/// Sends a message and files.
pub(super) fn send<T: IntoBytes + Immutable>(
    socket: impl AsFd,
    message: &T,
    files: &[Option<&OwnedFd>],
) -> Result<(), ShmRefusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(VERSION_MISMATCH);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let iov = [IoSlice::new(message.as_bytes())];
    match rustix::net::sendmsg(socket, &iov, &mut control, flags) {
        Ok(n) if n == size_of::<T>() => Ok(()),
        Ok(_) => Err(ShmRefusal::new(NOT_SENT)),
        Err(error) => Err(ShmRefusal::of(NOT_SENT)(error)),
    }
}

/// Receives a message, and its files in `control`, which closes those that are not taken out.
fn receive_with<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    magic: impl FnOnce(&T) -> [u8; 8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> Result<T, Incomplete> {
    let mut message = T::new_zeroed();
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut iov = [IoSliceMut::new(message.as_mut_bytes())];
    match rustix::net::recvmsg(socket, &mut iov, control, flags) {
        Err(Errno::INTR | Errno::AGAIN) => Err(Incomplete::AwaitingPeer),
        Err(error) => Err(ShmRefusal::of(CLOSED)(error).into()),
        Ok(received) if received.bytes == 0 => Err(ShmRefusal::new(CLOSED).into()),
        Ok(received) if received.bytes == size_of::<T>() && magic(&message) == MAGIC => Ok(message),
        Ok(_) => Err(VERSION_MISMATCH.into()),
    }
}

/// Receives a message without files: the kernel closes any that were sent.
pub(super) fn receive<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    magic: impl FnOnce(&T) -> [u8; 8],
) -> Result<T, Incomplete> {
    receive_with(socket, magic, &mut RecvAncillaryBuffer::default())
}

/// Receives the files of the peer, and its answer to our challenge.
pub(super) fn receive_files(socket: impl AsFd) -> Result<(u64, Vec<OwnedFd>), Incomplete> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let files: FilesMessage =
        receive_with(socket, |files: &FilesMessage| files.magic, &mut control)?;
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            fds.extend(rights.map(OwnedFd::from));
        }
    }
    Ok((files.answer, fds))
}
