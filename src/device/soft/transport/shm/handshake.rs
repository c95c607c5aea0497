//! How two processes of a host that have found each other ([`door`](crate::device::soft::transport::shm::socket)) get to know
//! each other: a few messages before the frames that TCP has as well.
//!
//! ```text
//! initiator                                    responder
//! hello: where its number is          ------>  reads the number
//! reads the number                    <------  hello: what it has read, and where its own is
//! what it has read, the rings, files  ------>
//! request                             ------>  (iwarp::mpa, as over TCP)
//!                                     <------  its files
//! ```
//!
//! The files of a process are its keys ([`exported_keys`]), its bitmaps of ready connections ([`ready_bitmap_file`]) and, if it keeps
//! registered memory in one, that ([`mod@mapped`]).
//!
//! # Who gets them
//!
//! Names are those of the network namespace, as ports are: anybody can have taken one, and
//! anybody can come to a door. The user of a process says little, since a process in another
//! user namespace, or one that was started with more rights than its user has, is kept out of
//! our memory although it is the same user's. So nothing is shown before
//!
//! * the other side has told a number that is in our memory alone. Whoever can tell it was let
//!   in by the kernel ([`probe`](crate::device::soft::transport::shm::challenge)), and needs none of our files to read our memory
//!   or to write to it;
//! * the kernel has let us read such a number in the process that it names at the other end of
//!   the socket (`SO_PEERCRED`), and that number was there for us. So we can work with it.
//!
//! Each side finds both before it gives anything, and the responder needs no more trust than the
//! initiator. One that relays between two processes is seen by both as itself: each would read
//! its memory, not that of the other. It cannot have our number read by somebody who is let in:
//! he reads it only over a socket that leads to us, and only if it is for him. If a socket
//! is in other hands than those of the process that the kernel names (a child inherits one, and
//! it can be passed on) the one who has it can tell nothing; and a process identifier that was
//! given to somebody else meanwhile leads to a process that has no number for us.
//! What a process with whom all this was done passes on is its own affair: it could pass on our
//! memory as well.
//!
//! The first look at a process is at a stranger, who decides how long it takes: a thread of its
//! own looks ([`scout`](crate::device::soft::transport::shm::verifier)).
//!
//! Whoever gets a file gets it with the least rights: keys, and what owners of boards say, are
//! sealed against everybody's writing but ours.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::challenge::Challenge;
use super::exported_keys;
use super::mapped;
use super::peer::{Credentials, MemoryProof, Peer, VerifiedPeer};
use super::ready_bitmap_file;
use super::segment::{NewSegment, SharedSegment};
use super::verifier::PendingProof;

/// Changes with anything that two processes have to agree on.
pub(crate) const MAGIC: [u8; 8] = *b"libdat.3";

/// What both sides say first.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct HelloMessage {
    magic: [u8; 8],
    /// Where the number is that the other side is to tell.
    probe_at: u64,
    /// The number that was read of the other side; 0 from the initiator, who has read none yet.
    answer: u64,
    /// Of the connection as the initiator sees it.
    port: u32,
    zero: u32,
    source: [u8; 16],
    target: [u8; 16],
}

/// What goes with the files.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct FilesMessage {
    magic: [u8; 8],
    /// The number that was read of the other side; 0 from the responder, who has told it.
    answer: u64,
}

/// Files that go with it, at most.
const FILES: usize = 5;

/// Why two processes do not share memory, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShmRefusal {
    what: &'static str,
    error: Option<Errno>,
}

impl fmt::Display for ShmRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        self.error.map_or(Ok(()), |error| write!(f, " ({error})"))
    }
}

impl ShmRefusal {
    /// Without an error of the kernel.
    pub const fn new(what: &'static str) -> ShmRefusal {
        ShmRefusal { what, error: None }
    }

    pub fn of(what: &'static str) -> impl FnOnce(Errno) -> ShmRefusal {
        move |error| ShmRefusal {
            what,
            error: Some(error),
        }
    }
}

/// How far two processes are in getting to know each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incomplete {
    /// The other side is to say something.
    AwaitingPeer,
    /// We look into its memory, and are told when that is over. Meanwhile it has nothing to say.
    Verifying,
    /// They will not.
    Refused(ShmRefusal),
}

impl From<ShmRefusal> for Incomplete {
    fn from(why: ShmRefusal) -> Incomplete {
        Incomplete::Refused(why)
    }
}

/// The two ends of a connection, as the initiator sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndAddresses {
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

/// A number of ours for the process at the other end.
fn probe_for(socket: impl AsFd) -> Result<Challenge, ShmRefusal> {
    Credentials::of(socket)
        .and_then(|peer| Challenge::new(peer.pid))
        .map_err(ShmRefusal::of("no number for it"))
}

/// Begins a look at the number of the other side.
fn look(
    socket: impl AsFd,
    hello: &HelloMessage,
    wake: impl FnOnce() + Send + 'static,
) -> Result<PendingProof, ShmRefusal> {
    MemoryProof::new(socket, hello.probe_at)
        .and_then(|look| PendingProof::new(look, wake))
        .map_err(ShmRefusal::of(OUT_OF_REACH))
}

/// What the look has found.
fn reached(finding: &PendingProof) -> Result<VerifiedPeer, Incomplete> {
    let found = finding.take().ok_or(Incomplete::Verifying)?;
    Ok(found.map_err(ShmRefusal::of(OUT_OF_REACH))?)
}

const OUT_OF_REACH: &str = "its memory cannot be reached";

/// The other side's answer, if it has read our number.
fn prove(probe: &Challenge, answer: u64) -> Result<(), ShmRefusal> {
    match probe.is(answer) {
        true => Ok(()),
        false => Err(ShmRefusal::new("it cannot reach our memory")),
    }
}

/// How far one side is.
enum Stage {
    /// The other side has not said hello.
    Fresh,
    /// We look into its memory.
    Looking(PendingProof),
    /// The initiator has shown its files.
    FilesMessage(NewSegment, VerifiedPeer),
    /// The responder has answered.
    Answered(Challenge, VerifiedPeer),
}

/// What the initiator has of a connection that comes up.
pub(crate) struct ActiveHandshake {
    /// Whether our registered memory is for this connection, if it is in a file.
    share: bool,
    probe: Challenge,
    stage: Stage,
}

impl ActiveHandshake {
    /// Sends the first message.
    pub fn send(
        socket: impl AsFd,
        ends: &EndAddresses,
        share: bool,
    ) -> Result<ActiveHandshake, ShmRefusal> {
        let probe = probe_for(&socket)?;
        send(socket, &hello(&probe, 0, Some(ends)), &[])?;
        Ok(ActiveHandshake {
            share,
            probe,
            stage: Stage::Fresh,
        })
    }

    /// Goes on with what the responder has said. `None` if it has been shown our files: then it
    /// can be told what we want, while its own are on their way. `wake` is for
    /// [`Incomplete::Verifying`].
    ///
    /// # Errors
    /// [`Incomplete::AwaitingPeer`] for its next message. Otherwise there is another way to go.
    pub fn advance(
        &mut self,
        socket: impl AsFd,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<Option<Arc<SharedSegment>>, Incomplete> {
        if let Stage::Fresh = self.stage {
            let hello: HelloMessage = receive(&socket, |hello: &HelloMessage| hello.magic)?;
            prove(&self.probe, hello.answer)?;
            self.stage = Stage::Looking(look(&socket, &hello, wake)?);
        }
        if let Stage::Looking(finding) = &self.stage {
            let reached = reached(finding)?;
            let (memory, blank) =
                NewSegment::create().map_err(ShmRefusal::of("no memory to share"))?;
            show(&socket, reached.number(), Some(&memory), self.share)?;
            self.stage = Stage::FilesMessage(blank, reached);
            return Ok(None);
        }
        let (_, fds) = take(&socket)?;
        match std::mem::replace(&mut self.stage, Stage::Fresh) {
            Stage::FilesMessage(blank, reached) => {
                Ok(Some(blank.with(meet(reached, fds.into_iter())?, 0)))
            }
            _ => Err(VERSION_MISMATCH.into()),
        }
    }
}

/// What the responder has of a connection that comes up.
pub(crate) struct PassiveHandshake {
    /// As of an [`ActiveHandshake`].
    share: bool,
    /// Once the initiator has said hello.
    ends: Option<EndAddresses>,
    stage: Stage,
}

impl PassiveHandshake {
    /// Before the initiator has said anything.
    pub fn new(share: bool) -> PassiveHandshake {
        PassiveHandshake {
            share,
            ends: None,
            stage: Stage::Fresh,
        }
    }

    /// Between which ends the initiator says that the connection is, if it has.
    pub fn ends(&self) -> Option<EndAddresses> {
        self.ends
    }

    /// Goes on with what the initiator has said; `wake` as of [`ActiveHandshake::advance`].
    ///
    /// # Errors
    /// [`Incomplete::AwaitingPeer`] for its next message. Otherwise it is the end: the initiator goes another
    /// way.
    pub fn advance(
        &mut self,
        socket: impl AsFd,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<(Arc<SharedSegment>, EndAddresses), Incomplete> {
        if let Stage::Fresh = self.stage {
            let theirs: HelloMessage = receive(&socket, |hello: &HelloMessage| hello.magic)?;
            let port = u16::try_from(theirs.port).map_err(|_| VERSION_MISMATCH)?;
            self.ends = Some(EndAddresses {
                source: plain(theirs.source),
                target: SocketAddr::new(plain(theirs.target), port),
            });
            self.stage = Stage::Looking(look(&socket, &theirs, wake)?);
        }
        if let Stage::Looking(finding) = &self.stage {
            let reached = reached(finding)?;
            let probe = probe_for(&socket)?;
            send(&socket, &hello(&probe, reached.number(), None), &[])?;
            self.stage = Stage::Answered(probe, reached);
        }
        let (answer, fds) = take(&socket)?;
        match (std::mem::replace(&mut self.stage, Stage::Fresh), self.ends) {
            (Stage::Answered(probe, reached), Some(ends)) => {
                prove(&probe, answer)?;
                let mut fds = fds.into_iter();
                let memory = fds.next().ok_or(VERSION_MISMATCH)?;
                let blank = NewSegment::open(&memory)
                    .map_err(ShmRefusal::of("its memory is not as agreed"))?;
                let peer = meet(reached, fds)?;
                show(&socket, 0, None, self.share)?;
                Ok((blank.with(peer, 1), ends))
            }
            _ => Err(VERSION_MISMATCH.into()),
        }
    }
}

fn hello(probe: &Challenge, answer: u64, ends: Option<&EndAddresses>) -> HelloMessage {
    HelloMessage {
        magic: MAGIC,
        probe_at: probe.at(),
        answer,
        port: ends.map_or(0, |e| e.target.port().into()),
        zero: 0,
        source: ends.map_or([0; 16], |e| mapped(e.source)),
        target: ends.map_or([0; 16], |e| mapped(e.target.ip())),
    }
}

/// `files` are the peer's keys, its boards and, if it has it, the file with its registered
/// memory.
fn meet(
    reached: VerifiedPeer,
    mut files: impl Iterator<Item = OwnedFd>,
) -> Result<Arc<Peer>, ShmRefusal> {
    let mut file = || files.next().ok_or(VERSION_MISMATCH);
    let known = [file()?, file()?, file()?];
    let unfit = "its files are not as agreed";
    let peer = reached.meet(known).map_err(ShmRefusal::of(unfit))?;
    if let Some(memory) = files.next() {
        peer.show(memory).map_err(ShmRefusal::of(unfit))?;
    }
    match files.next() {
        None => Ok(peer),
        Some(_) => Err(VERSION_MISMATCH),
    }
}

/// Gives the other side our files, and what we have read of it.
fn show(
    socket: impl AsFd,
    answer: u64,
    memory: Option<&OwnedFd>,
    share: bool,
) -> Result<(), ShmRefusal> {
    let limited = "no files to share";
    let keys = exported_keys::file().map_err(ShmRefusal::of(limited))?;
    let bitmaps = ready_bitmap_file::files().map_err(ShmRefusal::of(limited))?;
    let share = share.then(mapped::file).flatten();
    let [owner_state, marks] = &*bitmaps;
    let files = [
        memory,
        Some(&keys),
        Some(owner_state),
        Some(marks),
        share.as_deref(),
    ];
    let shown = FilesMessage {
        magic: MAGIC,
        answer,
    };
    send(socket, &shown, &files)
}

/// What is said is not what was agreed on.
const VERSION_MISMATCH: ShmRefusal = ShmRefusal::new("it speaks another language");

fn send<T: IntoBytes + Immutable>(
    socket: impl AsFd,
    message: &T,
    files: &[Option<&OwnedFd>],
) -> Result<(), ShmRefusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(VERSION_MISMATCH);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let iov = [IoSlice::new(message.as_bytes())];
    match rustix::net::sendmsg(socket, &iov, &mut control, flags) {
        Ok(n) if n == size_of::<T>() => Ok(()),
        Ok(_) => Err(ShmRefusal::new("it takes no message")),
        Err(error) => Err(ShmRefusal::of("it takes no message")(error)),
    }
}

/// A message and its files. All that is not taken of them is closed.
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
        Err(error) => Err(ShmRefusal::of("it has ended the connection")(error).into()),
        Ok(came) if came.bytes == 0 => Err(ShmRefusal::new("it has ended the connection").into()),
        Ok(came) if came.bytes == size_of::<T>() && magic(&message) == MAGIC => Ok(message),
        Ok(_) => Err(VERSION_MISMATCH.into()),
    }
}

/// A message without files: the kernel takes none for us.
fn receive<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    magic: impl FnOnce(&T) -> [u8; 8],
) -> Result<T, Incomplete> {
    receive_with(socket, magic, &mut RecvAncillaryBuffer::default())
}

/// The answer of the other side, and its files.
fn take(socket: impl AsFd) -> Result<(u64, Vec<OwnedFd>), Incomplete> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let shown: FilesMessage =
        receive_with(socket, |shown: &FilesMessage| shown.magic, &mut control)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((shown.answer, fds))
}
