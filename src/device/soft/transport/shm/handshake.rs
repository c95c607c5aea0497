//! The handshake of two processes of a host that are connected by a local socket
//! ([`socket`](super::socket)). Its messages precede those that TCP has as well.
//!
//! ```text
//! initiator                                         responder
//! hello: address of a challenge            ------>  reads the challenge
//! reads the challenge                      <------  hello: answer, address of a challenge
//! files: answer, segment, files            ------>
//! request                                  ------>  (iwarp::mpa, as over TCP)
//!                                          <------  files
//! ```
//!
//! The files of a process are its keys ([`exported_keys`]), its ready bitmaps
//! ([`ready_bitmap_file`]) and, if it keeps registered memory in a file, that file
//! ([`mod@mapped`]).
//!
//! # Who gets the files
//!
//! The names of local sockets belong to the network namespace, as ports do: any process may have
//! bound one, and any process may connect to one. The user of a process is not proof enough: a
//! process in another user namespace, or one that was started with more rights than its user has,
//! may not access our memory although it is of the same user. So no file is sent before both
//! conditions hold:
//!
//! * The peer has answered our challenge ([`challenge`](super::challenge)) with the number that is
//!   in our memory only. The kernel has permitted the peer to read that, so the peer does not need
//!   our files to read or write our memory.
//! * The kernel has permitted us to read a challenge in the process that it names at the other end
//!   of the socket (`SO_PEERCRED`), and the challenge was made for us. So we can work with it.
//!
//! Each end verifies both before it sends a file, so neither has to trust the other first. A
//! process that relays messages between two others appears to each of them as itself: each would
//! read the memory of the relay. The relay cannot have our challenge read by a permitted process
//! either: that process reads it only over a socket that leads to us, and only if it was made for
//! that process. If a socket is not in the hands of the process that the kernel names (a child
//! inherits a socket, and a socket can be passed on), its holder cannot answer; and if the
//! identifier of that process has been reused, the new process has no challenge for us. A process
//! that has passed the handshake may pass on what it got, as it may pass on what it reads in our
//! memory.
//!
//! # Want of room
//!
//! A responder that has too many connections whose request is not whole drops the oldest ones
//! ([`incomplete`](crate::device::soft::cm)). It says so before it closes the socket, and the initiator
//! tries again a little later: it may be an honest one that had no processor for a while. So does a responder that
//! cannot send its files for the moment.
//!
//! The first read in another process takes as long as that process likes, so a thread of its own
//! does it ([`verifier`](super::verifier)).
//!
//! Every file is sent with the fewest rights: keys and the sleep states of bitmap owners are
//! sealed so that only their owner can write them.

mod message;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use self::message::{
    CLOSED, FILES_UNDER_WAY, FilesMessage, HelloMessage, NO_DESCRIPTORS, NOT_SENT,
    VERSION_MISMATCH, dropped_before_files, dropped_before_hello, first_hello, from_wire, receive,
    receive_files, second_hello, send,
};
pub(crate) use self::message::{MAGIC, Purpose};
use super::challenge::Challenge;
use super::exported_keys;
use super::mapped;
use super::peer::{Credentials, MemoryProof, Peer, VerifiedPeer};
use super::ready_bitmap_file;
use super::segment::{NewSegment, SharedSegment};
use super::socket::BUSY;
use super::verifier::PendingProof;
use crate::descriptor::{self, OwnedFd};
use crate::kernel;

/// Why two processes do not share memory, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShmRefusal {
    /// The reason, in words for the user.
    what: &'static str,
    /// The error of the kernel, if one is the reason.
    error: Option<Errno>,
}

impl fmt::Display for ShmRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        self.error.map_or(Ok(()), |error| write!(f, " ({error})"))
    }
}

impl ShmRefusal {
    /// A reason other than an error of the kernel.
    pub const fn new(what: &'static str) -> ShmRefusal {
        ShmRefusal { what, error: None }
    }

    /// A function that adds the error of the kernel to a reason, for `map_err`.
    pub fn of(what: &'static str) -> impl FnOnce(Errno) -> ShmRefusal {
        move |error| ShmRefusal {
            what,
            error: Some(error),
        }
    }

    /// Whether another attempt, a little later, may succeed.
    pub fn is_passing(&self) -> bool {
        [BUSY, FILES_UNDER_WAY].contains(self)
    }

    /// Whether no more is known than that the peer does not answer, takes no message, or is gone.
    pub fn is_silence(&self) -> bool {
        [CLOSED, NOT_SENT, NO_ANSWER.what, PEER_GONE.what].contains(&self.what)
    }
}

/// Why there is no shared memory with a process that does not answer in time.
pub(crate) const NO_ANSWER: ShmRefusal =
    ShmRefusal::new("the process that holds the name of the port does not answer");
/// Why there is no shared memory with a process that has ended the connection.
pub(crate) const PEER_GONE: ShmRefusal =
    ShmRefusal::new("the process that holds the name of the port has ended the connection");

/// Why a handshake is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incomplete {
    /// The peer is to send a message.
    AwaitingPeer,
    /// The challenge of the peer is being read. The peer sends nothing meanwhile, and `wake` is called
    /// at the end.
    Verifying,
    /// The two processes share no memory.
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
    /// The initiator; port 0 is one that is not known.
    pub source: SocketAddr,
    /// Where the initiator connects to.
    pub target: SocketAddr,
}

/// Makes a challenge for the process at the other end.
fn challenge_for(socket: impl AsFd) -> Result<Challenge, ShmRefusal> {
    Credentials::of(socket)
        .and_then(|peer| Challenge::new(peer.pid))
        .map_err(ShmRefusal::of("no challenge can be made"))
}

/// Starts to read the challenge of the peer.
fn read_challenge(
    socket: impl AsFd,
    hello: &HelloMessage,
    wake: impl FnOnce() + Send + 'static,
) -> Result<PendingProof, ShmRefusal> {
    MemoryProof::new(socket, hello.challenge_addr)
        .and_then(|proof| PendingProof::new(proof, wake))
        .map_err(ShmRefusal::of(NOT_PERMITTED))
}

/// The result of reading the challenge of the peer.
fn verified(pending: &PendingProof) -> Result<VerifiedPeer, Incomplete> {
    let result = pending.take().ok_or(Incomplete::Verifying)?;
    Ok(result.map_err(ShmRefusal::of(NOT_PERMITTED))?)
}

const NOT_PERMITTED: &str = "this process may not access the memory of the peer";

/// Checks that the peer has read our challenge.
fn check_answer(challenge: &Challenge, answer: u64) -> Result<(), ShmRefusal> {
    match challenge.matches(answer) {
        true => Ok(()),
        false => Err(ShmRefusal::new(
            "the peer may not access the memory of this process",
        )),
    }
}

/// How far one end is in the handshake.
enum Stage {
    /// The hello of the peer has not arrived, or the handshake is over.
    AwaitingHello,
    /// The challenge of the peer is being read.
    Verifying(PendingProof),
    /// The initiator has sent its files.
    FilesSent(NewSegment, VerifiedPeer),
    /// The responder has sent its hello.
    HelloSent(Challenge, VerifiedPeer),
}

/// The handshake of the initiator.
pub(crate) struct ActiveHandshake {
    /// Whether to send the file with our registered memory, if there is one.
    share: bool,
    /// The challenge for the responder.
    challenge: Challenge,
    stage: Stage,
}

impl ActiveHandshake {
    /// Sends the first message.
    pub fn send(
        socket: impl AsFd,
        ends: &EndAddresses,
        purpose: Purpose,
        share: bool,
    ) -> Result<ActiveHandshake, ShmRefusal> {
        let challenge = challenge_for(&socket)?;
        send(&socket, &first_hello(&challenge, ends, purpose), &[]).map_err(|why| {
            let left = receive(&socket, |_: &HelloMessage| false);
            unless_dropped(why, left.err())
        })?;
        Ok(ActiveHandshake {
            share: share && purpose == Purpose::Connection,
            challenge,
            stage: Stage::AwaitingHello,
        })
    }

    /// Processes the messages of the responder. `None` once our files are sent: then the request can
    /// be sent, while the files of the responder are still to arrive. `wake` is for
    /// [`Incomplete::Verifying`].
    ///
    /// # Errors
    /// See [`Incomplete`].
    pub fn advance(
        &mut self,
        socket: impl AsFd,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<Option<Arc<SharedSegment>>, Incomplete> {
        match self.process(&socket, wake) {
            // Who drops the connection takes back its challenge, too.
            Err(Incomplete::Refused(why)) if !why.is_passing() => {
                let last = receive_files(&socket).err();
                Err(unless_dropped(why, last).into())
            }
            result => result,
        }
    }

    /// [`ActiveHandshake::advance`] without a look at why the responder may have gone.
    fn process(
        &mut self,
        socket: impl AsFd,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<Option<Arc<SharedSegment>>, Incomplete> {
        if let Stage::AwaitingHello = self.stage {
            let hello: HelloMessage =
                receive(&socket, |hello: &HelloMessage| hello.magic == MAGIC)?;
            check_answer(&self.challenge, hello.answer)?;
            self.stage = Stage::Verifying(read_challenge(&socket, &hello, wake)?);
        }
        if let Stage::Verifying(pending) = &self.stage {
            let verified = verified(pending)?;
            let (file, segment) =
                NewSegment::create().map_err(ShmRefusal::of("shared memory cannot be created"))?;
            require_descriptors(&file)?;
            send_files(&socket, verified.number(), Some(&file), self.share)?;
            self.stage = Stage::FilesSent(segment, verified);
            return Ok(None);
        }
        let (_, fds) = receive_files(&socket)?;
        match std::mem::replace(&mut self.stage, Stage::AwaitingHello) {
            Stage::FilesSent(segment, verified) => {
                let peer = open_peer(verified, fds.into_iter())?;
                Ok(Some(segment.into_segment(peer, 0)))
            }
            _ => Err(VERSION_MISMATCH.into()),
        }
    }
}

/// Why there is no shared memory with a responder, for `why` as it seems, if `last` is what its last message has led to.
fn unless_dropped(why: ShmRefusal, last: Option<Incomplete>) -> ShmRefusal {
    match last {
        Some(Incomplete::Refused(BUSY)) => BUSY,
        _ => why,
    }
}

/// The handshake of the responder.
pub(crate) struct PassiveHandshake {
    /// Whether to send the file with our registered memory, if there is one.
    share: bool,
    /// The addresses in the initiator's hello, once that has arrived.
    ends: Option<EndAddresses>,
    /// What the initiator wants the memory for, once its hello has arrived.
    purpose: Purpose,
    stage: Stage,
}

impl PassiveHandshake {
    /// A handshake in which no message has arrived.
    pub fn new(share: bool) -> PassiveHandshake {
        PassiveHandshake {
            share,
            ends: None,
            purpose: Purpose::Connection,
            stage: Stage::AwaitingHello,
        }
    }

    /// The addresses in the initiator's hello, if that has arrived.
    pub fn ends(&self) -> Option<EndAddresses> {
        self.ends
    }

    /// What the initiator wants the memory for, if its hello has arrived.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Tells the initiator that its connection is dropped for want of room.
    pub fn drop_for_others(&self, socket: impl AsFd) {
        // Who is gone does not need to know.
        let _ = match self.stage {
            Stage::HelloSent(..) => send(socket, &dropped_before_files(), &[]),
            _ => send(socket, &dropped_before_hello(), &[]),
        };
    }

    /// Processes the messages of the initiator. `wake` is for [`Incomplete::Verifying`].
    ///
    /// # Errors
    /// See [`Incomplete`].
    pub fn advance(
        &mut self,
        socket: impl AsFd,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<(Arc<SharedSegment>, EndAddresses), Incomplete> {
        if let Stage::AwaitingHello = self.stage {
            let is_known = |hello: &HelloMessage| Purpose::of(hello).is_some();
            let theirs: HelloMessage = receive(&socket, is_known)?;
            self.purpose = Purpose::of(&theirs).ok_or(VERSION_MISMATCH)?;
            let port = |port| u16::try_from(port).map_err(|_| VERSION_MISMATCH);
            self.ends = Some(EndAddresses {
                source: from_wire(
                    theirs.source,
                    port(theirs.source_port)?,
                    theirs.source_scope,
                ),
                target: from_wire(theirs.target, port(theirs.port)?, theirs.target_scope),
            });
            self.stage = Stage::Verifying(read_challenge(&socket, &theirs, wake)?);
        }
        if let Stage::Verifying(pending) = &self.stage {
            let verified = verified(pending)?;
            let challenge = challenge_for(&socket)?;
            send(&socket, &second_hello(&challenge, verified.number()), &[])?;
            self.stage = Stage::HelloSent(challenge, verified);
        }
        let (answer, fds) = receive_files(&socket)?;
        match (
            std::mem::replace(&mut self.stage, Stage::AwaitingHello),
            self.ends,
        ) {
            (Stage::HelloSent(challenge, verified), Some(ends)) => {
                check_answer(&challenge, answer)?;
                let mut fds = fds.into_iter();
                let file = fds.next().ok_or(VERSION_MISMATCH)?;
                let segment = NewSegment::open(&file).map_err(ShmRefusal::of(INVALID_FILES))?;
                let peer = open_peer(verified, fds)?;
                let share = self.share && self.purpose == Purpose::Connection;
                send_files(&socket, 0, None, share).inspect_err(|why| {
                    if why.is_passing() {
                        let _ = send(&socket, &dropped_before_files(), &[]);
                    }
                })?;
                Ok((segment.into_segment(peer, 1), ends))
            }
            _ => Err(VERSION_MISMATCH.into()),
        }
    }
}

/// The most files of a responder: see [`open_peer`].
const MOST_FILES: usize = 4;

/// Maps the files of the peer: its keys, its ready bitmaps and, if it has sent that, the file with
/// its registered memory.
fn open_peer(
    verified: VerifiedPeer,
    mut files: impl Iterator<Item = OwnedFd>,
) -> Result<Arc<Peer>, ShmRefusal> {
    let mut file = || files.next().ok_or(VERSION_MISMATCH);
    let required = [file()?, file()?, file()?];
    let peer = verified
        .open(required)
        .map_err(ShmRefusal::of(INVALID_FILES))?;
    if let Some(memory) = files.next() {
        peer.set_memory_file(memory)
            .map_err(ShmRefusal::of(INVALID_FILES))?;
    }
    match files.next() {
        None => Ok(peer),
        Some(_) => Err(VERSION_MISMATCH),
    }
}

/// Refuses shared memory if this process has not as many descriptors left as the files of the responder need. They
/// arrive behind the request: its consumer would have a connection to accept that is not to be, and then
/// another one over TCP.
fn require_descriptors(any: impl AsFd) -> Result<(), ShmRefusal> {
    let mut descriptors = [const { None::<OwnedFd> }; MOST_FILES];
    for descriptor in &mut descriptors {
        let another = descriptor::open(|| kernel::io::fcntl_dupfd_cloexec(&any, 0));
        *descriptor = Some(another.map_err(ShmRefusal::of(NO_DESCRIPTORS))?);
    }
    Ok(())
}

/// Sends our files, with `segment` first if there is one, and our answer to the peer's challenge.
fn send_files(
    socket: impl AsFd,
    answer: u64,
    segment: Option<&OwnedFd>,
    share: bool,
) -> Result<(), ShmRefusal> {
    let limited = "files in shared memory cannot be created";
    let keys = exported_keys::file().map_err(ShmRefusal::of(limited))?;
    let bitmaps = ready_bitmap_file::files().map_err(ShmRefusal::of(limited))?;
    let memory = share.then(mapped::file).flatten();
    let [owner_state, ready_bits] = &*bitmaps;
    let files = [
        segment,
        Some(&keys),
        Some(owner_state),
        Some(ready_bits),
        memory.as_deref(),
    ];
    let message = FilesMessage {
        magic: MAGIC,
        answer,
    };
    send(socket, &message, &files)
}

/// A file of the peer has another size than expected, or is not sealed, or cannot be mapped.
const INVALID_FILES: &str = "the shared memory of the peer cannot be mapped";
