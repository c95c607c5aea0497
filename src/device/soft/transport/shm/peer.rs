//! Another process of this host, and the way into its memory.
//!
//! The kernel decides whether there is one (`ptrace_may_access`): the same user, no container
//! in between, no security module against it. It is tried out while the connection is made, on
//! a word that the peer has there for us ([`probe`](crate::device::soft::transport::shm::challenge)), so that a process identifier
//! which means somebody else in our namespace is found out, too.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering, fence};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::challenge::{ChallengeRecord, WORD};
use super::cma::{Direction, Failure, RemoteProcess};
use super::exported_keys::TABLE_LEN;
use super::memfd::Grown;
use super::peer_map::PeerMap;
use super::ready_bitmap_file::PeerBitmaps;
use super::remote_keys::{CopySection, RemoteKeys};
use crate::device::Access;
use crate::device::soft::engine::ZERO_TIME;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange};
use crate::device::soft::mem::key_table::Fault;

/// Who is at the other end of a local socket: the process that connected, or that listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Credentials {
    /// 0 if it is in a process namespace that we do not see.
    pub pid: u32,
    pub uid: u32,
}

impl Credentials {
    /// As the kernel says. Not by rustix, whose process identifiers are never 0.
    pub fn of(socket: impl AsFd) -> Result<Credentials, Errno> {
        let none = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let found = ask(socket, libc::SO_PEERCRED, none)?;
        Ok(Credentials {
            pid: u32::try_from(found.pid).unwrap_or(0),
            uid: found.uid,
        })
    }
}

/// What the kernel knows of the other end of a local socket.
fn ask<T>(socket: impl AsFd, option: libc::c_int, mut answer: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, to) = (socket.as_fd().as_raw_fd(), (&raw mut answer).cast());
    // SAFETY: room for the answer, which is plain numbers.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, to, &mut len) } {
        0 => Ok(answer),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}

/// A descriptor of the process at the other end of a socket, whose identifier that is.
fn open_process(socket: impl AsFd, pid: Pid) -> Result<OwnedFd, Errno> {
    /// Since Linux 6.5: of that very process, whoever has its identifier by now.
    const SO_PEERPIDFD: libc::c_int = 77;
    match ask(socket, SO_PEERPIDFD, -1) {
        // SAFETY: it was just made for us.
        Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(Errno::NOPROTOOPT) => rustix::process::pidfd_open(pid, PidfdFlags::empty()),
        Err(error) => Err(error),
    }
}

/// A process whose memory we have read, and that has not told us of its own yet.
pub(crate) struct VerifiedPeer {
    pid: Pid,
    word: ChallengeRecord,
    way: Met,
}

enum Met {
    /// We have connections with it.
    Known(Arc<Peer>),
    /// A descriptor of the process, and the way into its memory.
    New(OwnedFd, RemoteProcess),
}

/// See the module.
pub(crate) struct Peer {
    /// Readable when the process has ended.
    end: OwnedFd,
    gone: AtomicBool,
    /// When it was last looked at: a process identifier goes to another process some time.
    looked: AtomicI64,
    foreign: RemoteProcess,
    keys: Grown,
    salt: u32,
    bitmaps: PeerBitmaps,
    /// Its registered memory, if it is in a file.
    mirror: OnceLock<PeerMap>,
}

/// By identifier, and what tells the process from others that have it at another time.
type Peers = HashMap<(i32, u64), Weak<Peer>>;

/// Processes that we have connections with.
static PEERS: LazyLock<Mutex<Peers>> = LazyLock::new(Mutex::default);

/// A process that says where in its memory a word for us is.
pub(crate) struct MemoryProof {
    pid: Pid,
    /// A descriptor of it.
    end: OwnedFd,
    at: u64,
}

impl MemoryProof {
    /// The process at the other end of a socket, and that address.
    ///
    /// # Errors
    /// What the kernel says, and `ESRCH` if we do not see it.
    pub fn new(socket: impl AsFd, at: u64) -> Result<MemoryProof, Errno> {
        let pid = Credentials::of(&socket)?.pid;
        let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        let end = open_process(&socket, pid)?;
        Ok(MemoryProof { pid, end, at })
    }

    /// Whether we have connections with that process.
    pub fn is_at_peer(&self) -> bool {
        let pid = self.pid.as_raw_nonzero().get();
        let all = PEERS.lock();
        let mut same = all.iter().filter(|((other, _), _)| *other == pid);
        same.any(|(_, peer)| peer.upgrade().is_some_and(|peer| !peer.is_gone()))
    }

    /// Looks, which may take time.
    ///
    /// # Errors
    /// What the kernel says, and `ESRCH` if there is nothing for us.
    pub fn look(self) -> Result<VerifiedPeer, Errno> {
        let MemoryProof { pid, end, at } = self;
        let bytes = RemoteProcess::read::<WORD>(pid, at)?;
        let word = ChallengeRecord::parse(&bytes).ok_or(Errno::SRCH)?;
        let foreign = match Peer::known(pid, &word) {
            Some(peer) => Err(peer),
            None => Ok(RemoteProcess::open(pid, at, &bytes)),
        };
        // After all that was asked of it, so that it was this process that was asked: only one
        // that has ended gives its identifier to another.
        if is_over(&end) {
            return Err(Errno::SRCH);
        }
        let way = match foreign {
            Ok(foreign) => Met::New(end, foreign),
            Err(peer) => Met::Known(peer),
        };
        Ok(VerifiedPeer { pid, word, way })
    }
}

impl VerifiedPeer {
    /// The number that it has there for us.
    pub fn number(&self) -> u64 {
        self.word.number
    }

    /// The process as a peer, whose files those with its keys and its boards are.
    pub fn meet(self, [keys, owner_state, marks]: [OwnedFd; 3]) -> Result<Arc<Peer>, Errno> {
        let VerifiedPeer { pid, word, way } = self;
        let (end, foreign) = match way {
            Met::Known(peer) => return Ok(peer),
            Met::New(end, foreign) => (end, foreign),
        };
        // Another connection with it may have come up meanwhile.
        let mut all = PEERS.lock();
        all.retain(|_, peer| peer.strong_count() > 0);
        if let Some(peer) = Peer::among(&all, pid, &word) {
            return Ok(peer);
        }
        let peer = Arc::new(Peer {
            end,
            foreign,
            gone: AtomicBool::new(false),
            looked: AtomicI64::new(0),
            keys: Grown::open(keys, TABLE_LEN)?,
            salt: word.salt,
            bitmaps: PeerBitmaps::open(&[owner_state, marks])?,
            mirror: OnceLock::new(),
        });
        all.insert(name(pid, &word), Arc::downgrade(&peer));
        Ok(peer)
    }
}

/// Whether the process of a descriptor has ended, with all its threads.
fn is_over(end: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
    matches!(poll(&mut fds, Some(&ZERO_TIME)), Ok(1))
}

fn name(pid: Pid, word: &ChallengeRecord) -> (i32, u64) {
    (pid.as_raw_nonzero().get(), word.process)
}

/// The keys of a peer, of which there may be more than we know.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a>(&'a Peer);

impl<'a> Keys<'a> {
    #[inline]
    fn known(self) -> RemoteKeys<'a> {
        RemoteKeys {
            // SAFETY: slots are made of atomics, which are only read here.
            slots: unsafe { self.0.keys.as_slice::<KeyEntry>() },
            salt: self.0.salt,
        }
    }

    /// See [`RemoteKeys::check`].
    #[inline]
    pub fn check(
        self,
        visit: &CopySection<'_>,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<MappedRange, Fault> {
        let known = self.known();
        match known.check(visit, key, pd, addr, len, need) {
            Err(Fault::Key) if self.look().slots.len() > known.slots.len() => {
                self.known().check(visit, key, pd, addr, len, need)
            }
            result => result,
        }
    }

    /// The keys that there are now.
    #[cold]
    fn look(self) -> RemoteKeys<'a> {
        let _ = self.0.keys.look();
        self.known()
    }
}

impl Peer {
    fn among(all: &Peers, pid: Pid, word: &ChallengeRecord) -> Option<Arc<Peer>> {
        let known = all.get(&name(pid, word)).and_then(Weak::upgrade);
        known.filter(|peer| peer.salt == word.salt && !peer.is_gone())
    }

    /// The process, if we have connections with it.
    fn known(pid: Pid, word: &ChallengeRecord) -> Option<Arc<Peer>> {
        Peer::among(&PEERS.lock(), pid, word)
    }

    /// It has given the file with its registered memory. One that is known has it already, or
    /// has made it since.
    pub fn show(&self, memory: OwnedFd) -> Result<(), Errno> {
        if self.mirror.get().is_none() {
            let _ = self.mirror.set(PeerMap::open(memory)?);
        }
        Ok(())
    }

    /// Its keys.
    #[inline]
    pub fn table(&self) -> Keys<'_> {
        Keys(self)
    }

    /// Its boards.
    #[inline]
    pub fn bitmaps(&self) -> &PeerBitmaps {
        &self.bitmaps
    }

    /// Whether it has ended, with all its threads.
    pub fn is_gone(&self) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return true;
        }
        let gone = is_over(&self.end);
        if gone {
            self.gone.store(true, Ordering::Relaxed);
        }
        gone
    }

    /// Whether the process identifier still means the process. It is not given to another
    /// before all others have been; so it is enough to look every few milliseconds.
    fn is_there(&self) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now
            .tv_sec
            .wrapping_mul(1_000_000_000)
            .wrapping_add(now.tv_nsec);
        if self.looked.load(Ordering::Relaxed) == now {
            return !self.gone.load(Ordering::Relaxed);
        }
        self.looked.store(now, Ordering::Relaxed);
        !self.is_gone()
    }

    /// Copies `len` bytes, of which those in `run` are in the file of the peer. The last ones of
    /// a write become visible last: programs wait for an RDMA write by looking at its end.
    ///
    /// # Safety
    /// The local segments are registered memory of at least that length, which may be read for
    /// a write and written for a read.
    #[inline]
    pub unsafe fn copy(
        &self,
        way: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        run: MappedRange,
    ) -> Result<(), Failure> {
        let mirror = self.mirror.get().filter(|_| run.start < run.end);
        // SAFETY: the caller's promise.
        if mirror.is_none() && unsafe { self.foreign.try_short(way, local, remote, len) } {
            return Ok(());
        }
        if !self.is_there() {
            return Err(Failure::Gone);
        }
        let mut left = len;
        while left > 0 {
            let last_of = |end: u64| left.min(end - remote);
            let (at, n) = match mirror {
                Some(_) if remote < run.start => (None, last_of(run.start)),
                Some(mirror) if remote < run.end => match mirror.at(remote, way) {
                    Some((at, room)) => (Some(at), last_of(run.end).min(room)),
                    None => (None, left),
                },
                _ => (None, left),
            };
            let is_end = n == left;
            match at {
                // SAFETY: the bytes are in the file, and we may copy from or to the segments.
                Some(at) => unsafe {
                    match way {
                        Direction::Write if is_end => copy::gather_tail_last(local, at, n),
                        Direction::Write => _ = copy::coalesce(local, at, n as usize),
                        Direction::Read => copy::scatter(at, n as usize, local),
                    }
                },
                // SAFETY: the caller's promise.
                None => unsafe { self.foreign.copy(way, local, remote, n, is_end) }?,
            }
            // What comes behind becomes visible later.
            fence(Ordering::Release);
            local.advance(n);
            remote = remote.wrapping_add(n);
            left -= n;
        }
        Ok(())
    }
}
