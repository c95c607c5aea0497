//! Another process of this host, and the way into its memory.
//!
//! The kernel decides whether there is one (`ptrace_may_access`): the same user, no container
//! in between, no security module against it. It is tried out while the connection is made, on
//! a number that the peer has told over its socket, so that a process identifier which means
//! somebody else in our namespace is found out, too.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::boards::Theirs;
use super::foreign::{Failure, Foreign, Way};
use super::memory::Grown;
use super::mirror::Mirror;
use super::published::TABLE_LEN;
use super::table::{Table, Visit};
use crate::device::Access;
use crate::device::soft::copy::{self, Cursor};
use crate::device::soft::keys::Fault;
use crate::device::soft::slot::{Run, Slot};

/// Where a number of ours is, and the number: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Probe {
    pub at: u64,
    pub number: u64,
}

/// That number, and the process whose it is: a child has one of its own.
static NUMBER: AtomicU64 = AtomicU64::new(0);
static NUMBER_OF: Mutex<u32> = Mutex::new(0);

impl Probe {
    /// Ours.
    pub fn own() -> Probe {
        let mut of = NUMBER_OF.lock();
        let pid = std::process::id();
        if *of != pid {
            // A child has the random state of its parent.
            let seed = (pid, std::time::SystemTime::now());
            NUMBER.store(RandomState::new().hash_one(seed), Ordering::SeqCst);
            *of = pid;
        }
        Probe {
            at: NUMBER.as_ptr() as u64,
            number: NUMBER.load(Ordering::SeqCst),
        }
    }
}

/// See the module.
pub(super) struct Peer {
    /// Readable when the process has ended.
    end: OwnedFd,
    gone: AtomicBool,
    /// When it was last looked at: a process identifier goes to another process some time.
    looked: AtomicI64,
    foreign: Foreign,
    keys: Grown,
    salt: u32,
    boards: Theirs,
    /// Its registered memory, if it is in a file.
    mirror: OnceLock<Mirror>,
}

/// By identifier and number of the probe.
type Peers = HashMap<(i32, u64), Weak<Peer>>;

/// Processes that we have connections with.
static PEERS: LazyLock<Mutex<Peers>> = LazyLock::new(Mutex::default);

/// The keys of a peer, of which there may be more than we know.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a>(&'a Peer);

impl<'a> Keys<'a> {
    #[inline]
    fn known(self) -> Table<'a> {
        Table {
            // SAFETY: slots are made of atomics, which are only read here.
            slots: unsafe { self.0.keys.as_slice::<Slot>() },
            salt: self.0.salt,
        }
    }

    /// See [`Table::check`].
    #[inline]
    pub fn check(
        self,
        visit: &Visit<'_>,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Run, Fault> {
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
    fn look(self) -> Table<'a> {
        let _ = self.0.keys.look();
        self.known()
    }
}

impl Peer {
    /// The process `pid`, if it lets us in. The files are those with its keys and its boards.
    pub fn meet(
        pid: Pid,
        probe: Probe,
        salt: u32,
        [keys, said, marks]: [OwnedFd; 3],
    ) -> Result<Arc<Peer>, Errno> {
        let mut all = PEERS.lock();
        all.retain(|_, peer| peer.strong_count() > 0);
        let name = (pid.as_raw_nonzero().get(), probe.number);
        let known = all.get(&name).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|peer| peer.salt == salt) {
            return Ok(known);
        }
        let peer = Peer {
            end: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
            foreign: Foreign::open(pid, probe.at, probe.number)?,
            gone: AtomicBool::new(false),
            looked: AtomicI64::new(0),
            keys: Grown::open(keys, TABLE_LEN)?,
            salt,
            boards: Theirs::open(&[said, marks])?,
            mirror: OnceLock::new(),
        };
        // After the descriptor was made, so that it names the process that was asked.
        if peer.is_gone() {
            return Err(Errno::SRCH);
        }
        let peer = Arc::new(peer);
        all.insert(name, Arc::downgrade(&peer));
        Ok(peer)
    }

    /// It has given the file with its registered memory. One that is known has it already, or
    /// has made it since.
    pub fn show(&self, memory: OwnedFd) -> Result<(), Errno> {
        if self.mirror.get().is_none() {
            let _ = self.mirror.set(Mirror::open(memory)?);
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
    pub fn boards(&self) -> &Theirs {
        &self.boards
    }

    /// Whether it has ended, with all its threads.
    pub fn is_gone(&self) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return true;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN)];
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = matches!(poll(&mut fds, Some(&zero)), Ok(1));
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
        way: Way,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        run: Run,
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
                Some(mirror) if remote < run.end => match mirror.at(remote) {
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
                        Way::Write if is_end => copy::gather_tail_last(local, at, n),
                        Way::Write => _ = copy::gather(local, at, n as usize),
                        Way::Read => copy::scatter(at, n as usize, local),
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
