//! How two processes of a host find each other: a name in the abstract socket namespace for
//! every port that is listened on, and two messages before the frames that TCP has as well.
//!
//! ```text
//! initiator                                    responder
//! who it is, the rings, its files     ------>  may it be reached?
//! may it be reached?                  <------  who it is, its files
//! request                             ------>  (iwarp::mpa, as over TCP)
//! ```
//!
//! The files of a process are its keys ([`published`]) and, if it keeps registered memory in one,
//! that ([`share`]).
//!
//! Names are those of the network namespace, as ports are. A process of another user that took
//! the name is found out by its credentials, and then it is as if nobody had it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::boards;
use super::peer::{Peer, Probe};
use super::published;
use super::share;
use super::wire::{Blank, Wire};
use crate::device::soft::keys;

/// Changes with anything that two processes have to agree on.
const MAGIC: [u8; 8] = *b"libdat.3";

/// What both sides say first.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Hello {
    magic: [u8; 8],
    probe_at: u64,
    probe: u64,
    salt: u32,
    /// Of the connection as the initiator sees it.
    port: u32,
    source: [u8; 16],
    target: [u8; 16],
}

const HELLO: usize = size_of::<Hello>();
/// Files that go with it, at most.
const FILES: usize = 5;

/// The two ends of a connection, as the initiator sees them.
#[derive(Clone, Copy, Debug)]
pub(in crate::device::soft) struct Ends {
    pub source: IpAddr,
    pub target: SocketAddr,
}

fn plain(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The name for a port; on all addresses if `None`.
fn name(address: Option<IpAddr>, port: u16) -> Result<SocketAddrUnix, Errno> {
    let address = address.map_or("*".into(), |ip| ip.to_canonical().to_string());
    SocketAddrUnix::new_abstract_name(format!("libdat/{port}@{address}").as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// A socket that hears those of this host who want the port.
pub(in crate::device::soft) fn listen(
    address: Option<IpAddr>,
    port: u16,
) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(address, port)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

/// A socket to whoever listens on the port, if it is a process of the same user.
pub(in crate::device::soft) fn call(target: SocketAddr) -> Result<OwnedFd, Errno> {
    for address in [Some(target.ip()), None] {
        let socket = socket()?;
        match rustix::net::connect(&socket, &name(address, target.port())?) {
            Ok(()) if is_kin(&socket) => return Ok(socket),
            Ok(()) | Err(Errno::CONNREFUSED) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::CONNREFUSED)
}

/// Whether the process at the other end is one of the same user.
pub(in crate::device::soft) fn is_kin(socket: impl AsFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// What the initiator keeps between the two messages.
pub(in crate::device::soft) struct Offer(Blank);

impl Offer {
    /// Sends the first message.
    pub fn send(socket: impl AsFd, ends: &Ends) -> Result<Offer, Errno> {
        let (memory, blank) = Blank::create()?;
        let keys = published::file()?;
        let [said, marks] = &*boards::files()?;
        let share = share::file();
        let files = [
            Some(&memory),
            Some(&*keys),
            Some(said),
            Some(marks),
            share.as_deref(),
        ];
        send(socket, &hello(Some(ends)), &files)?;
        Ok(Offer(blank))
    }

    /// Takes the answer; [`Errno::AGAIN`] while there is none.
    pub fn answered(self, socket: impl AsFd) -> Result<Arc<Wire>, (Errno, Offer)> {
        let met = receive(&socket).and_then(|(hello, fds)| meet(&socket, &hello, fds.into_iter()));
        match met {
            Ok(peer) => Ok(self.0.with(peer, 0)),
            Err(error) => Err((error, self)),
        }
    }
}

/// Takes the first message and answers it; [`Errno::AGAIN`] while there is none. An error is
/// the end: the initiator goes another way.
pub(in crate::device::soft) fn answer(socket: impl AsFd) -> Result<(Arc<Wire>, Ends), Errno> {
    let (theirs, fds) = receive(&socket)?;
    let mut fds = fds.into_iter();
    let blank = Blank::open(&fds.next().ok_or(Errno::PROTO)?)?;
    let peer = meet(&socket, &theirs, fds)?;
    let keys = published::file()?;
    let [said, marks] = &*boards::files()?;
    let share = share::file();
    send(
        &socket,
        &hello(None),
        &[Some(&*keys), Some(said), Some(marks), share.as_deref()],
    )?;
    let port = u16::try_from(theirs.port).map_err(|_| Errno::PROTO)?;
    let ends = Ends {
        source: plain(theirs.source),
        target: SocketAddr::new(plain(theirs.target), port),
    };
    Ok((blank.with(peer, 1), ends))
}

fn hello(ends: Option<&Ends>) -> Hello {
    let probe = Probe::own();
    Hello {
        magic: MAGIC,
        probe_at: probe.at,
        probe: probe.number,
        salt: keys::salt(),
        port: ends.map_or(0, |e| e.target.port().into()),
        source: ends.map_or([0; 16], |e| mapped(e.source)),
        target: ends.map_or([0; 16], |e| mapped(e.target.ip())),
    }
}

/// `files` are its keys, its boards and, if it has it, the file with its registered memory.
fn meet(
    socket: impl AsFd,
    hello: &Hello,
    mut files: impl Iterator<Item = OwnedFd>,
) -> Result<Arc<Peer>, Errno> {
    let mut file = || files.next().ok_or(Errno::PROTO);
    let known = [file()?, file()?, file()?];
    let probe = Probe {
        at: hello.probe_at,
        number: hello.probe,
    };
    let pid = sockopt::socket_peercred(socket)?.pid;
    let peer = Peer::meet(pid, probe, hello.salt, known)?;
    if let Some(memory) = files.next() {
        peer.show(memory)?;
    }
    match files.next() {
        None => Ok(peer),
        Some(_) => Err(Errno::PROTO),
    }
}

fn send(socket: impl AsFd, hello: &Hello, files: &[Option<&OwnedFd>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let iov = [IoSlice::new(hello.as_bytes())];
    match rustix::net::sendmsg(socket, &iov, &mut control, flags)? {
        HELLO => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

fn receive(socket: impl AsFd) -> Result<(Hello, Vec<OwnedFd>), Errno> {
    let mut bytes = [0; HELLO];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let n = match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
        Err(Errno::INTR) => return Err(Errno::AGAIN),
        result => result?.bytes,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let hello = Hello::read_from_bytes(&bytes).map_err(|_| Errno::PROTO)?;
    if n != HELLO || hello.magic != MAGIC {
        return Err(Errno::PROTO);
    }
    Ok((hello, fds))
}
