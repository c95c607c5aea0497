//! Another process of this host, and access to its memory.
//!
//! The kernel decides whether this process may access the memory of another (`ptrace_may_access`):
//! it must be of the same user, in no other container, and no security module may forbid it. Every
//! connection tries it by reading a record that the peer has made for us
//! ([`challenge`](super::challenge)). This also detects a process identifier that means another
//! process in our PID namespace.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use crate::descriptor::{self, OwnedFd};
use crate::kernel;
use crate::kernel::process::Pid;
use crate::lock::Mutex;
use crate::process::PerProcess;
use rustix::io::Errno;

use super::challenge::{ChallengeRecord, RECORD_LEN};
use super::cma::{CopyError, Direction, RemoteProcess, WriteBatch};
use super::exported_keys::TABLE_LEN;
use super::kernel_copies::KernelCopies;
use super::memfd::GrowingMapping;
use super::peer_map::PeerMap;
use super::ready_bitmap_file::PeerBitmaps;
use super::remote_keys::{CopySection, RemoteKeys, RemoteRange};
use crate::device::Access;
use crate::device::soft::engine::ZERO_TIME;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange};
use crate::device::soft::mem::key_table::Fault;
use crate::device::soft::mem::scope::Scope;

/// The process at the other end of a local socket: the one that connected, or that listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Credentials {
    /// Process identifier; 0 if the process is not visible in our PID namespace.
    pub pid: u32,
    /// Effective user of the process.
    pub uid: u32,
}

impl Credentials {
    /// Asks the kernel.
    pub fn of(socket: impl AsFd) -> Result<Credentials, Errno> {
        let (pid, uid) = kernel::peer_credentials(socket)?;
        Ok(Credentials { pid, uid })
    }
}

/// A process whose memory we have read. It has not proved yet that it can read ours.
pub(crate) struct VerifiedPeer {
    pid: Pid,
    record: ChallengeRecord,
    access: PeerAccess,
}

/// How the memory of a verified process is accessed.
enum PeerAccess {
    /// There are connections with the process.
    Known(Arc<Peer>),
    /// There are none: a descriptor of the process, as in [`Peer`], and its memory.
    New(Option<OwnedFd>, RemoteProcess),
}

/// A process with which there are connections.
pub(crate) struct Peer {
    /// The process descriptor, which is readable once the process has exited. The kernel has none before Linux 5.3:
    /// then the file with the memory of the process tells that.
    pidfd: Option<OwnedFd>,
    /// Whether the process is known to have exited.
    exited: AtomicBool,
    /// When it was last checked that the process has not exited, in [`kernel::ticks`]: a process
    /// identifier is reused some time.
    checked: AtomicU64,
    /// The memory of the process, by copies of the kernel.
    process: RemoteProcess,
    /// The keys of the process.
    keys: GrowingMapping,
    /// The ready bitmaps of the process.
    bitmaps: PeerBitmaps,
    /// The registered memory of the process, if that is in a file.
    mapped: OnceLock<PeerMap>,
    /// How much the kernel has copied from and to its regions that are not in the file.
    kernel_copies: KernelCopies,
}

/// Where memory of a peer is that a key has opened.
pub(super) enum RemotePlace {
    /// Our address of the memory, which is mapped here.
    Mapped(*mut u8),
    /// The address in the memory of the process, no part of whose region is mapped here.
    InProcess(u64),
}

/// Peers by process identifier and [`ChallengeRecord::process`], which tells a process from others
/// that have the same identifier at another time.
type Peers = BTreeMap<(i32, u64), Weak<Peer>>;

/// The processes with which there are connections.
static PEERS: PerProcess<Mutex<Peers>> = PerProcess::new(Mutex::default);

/// A process that has sent the address of a challenge in its memory.
pub(crate) struct MemoryProof {
    pid: Pid,
    /// The process descriptor, as in [`Peer`].
    pidfd: Option<OwnedFd>,
    /// Address of the challenge in that process.
    addr: u64,
}

impl MemoryProof {
    /// The process at the other end of a socket, with the address that it has sent.
    ///
    /// # Errors
    /// The error of the kernel, and `ESRCH` if the process is not visible in our PID namespace.
    pub fn new(socket: impl AsFd, addr: u64) -> Result<MemoryProof, Errno> {
        let pid = Credentials::of(&socket)?.pid;
        let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
        let pidfd = match descriptor::open(|| kernel::peer_process(&socket, pid)) {
            // A filter of system calls may be older than this one.
            Err(Errno::NOSYS | Errno::PERM) => None,
            pidfd => Some(pidfd?),
        };
        Ok(MemoryProof { pid, pidfd, addr })
    }

    /// Whether there are connections with that process.
    pub fn is_of_known_peer(&self) -> bool {
        let pid = self.pid.as_raw_nonzero().get();
        let all = PEERS.lock();
        let mut same = all.iter().filter(|((other, _), _)| *other == pid);
        same.any(|(_, peer)| peer.upgrade().is_some_and(|peer| !peer.is_gone()))
    }

    /// Reads the challenge, which may take as long as the process likes.
    ///
    /// # Errors
    /// The error of the kernel, and `ESRCH` if there is no challenge for this process.
    pub fn read_challenge(self) -> Result<VerifiedPeer, Errno> {
        let MemoryProof { pid, pidfd, addr } = self;
        let mut process = RemoteProcess::new(pid);
        let bytes = process.read::<RECORD_LEN>(addr)?;
        let record = ChallengeRecord::parse(&bytes).ok_or(Errno::SRCH)?;
        let known = Peer::find(pid, &record);
        if known.is_none() {
            process.open_file(addr, &bytes);
            if pidfd.is_none() && !process.has_file() {
                return Err(Errno::NOSYS);
            }
        }
        // After all accesses by the process identifier, so that all were to this process: the
        // identifier is not reused before the process has exited.
        let has_exited = match &known {
            Some(peer) => peer.has_exited(),
            None => has_exited(pidfd.as_ref(), &process),
        };
        if has_exited {
            return Err(Errno::SRCH);
        }
        let access = match known {
            Some(peer) => PeerAccess::Known(peer),
            None => PeerAccess::New(pidfd, process),
        };
        Ok(VerifiedPeer {
            pid,
            record,
            access,
        })
    }
}

impl VerifiedPeer {
    /// The number in its challenge, which is our answer.
    pub fn number(&self) -> u64 {
        self.record.number
    }

    /// Maps the files that the process has sent, with its keys, the sleep states of its ready
    /// bitmaps and their bits, unless that was done for another connection.
    pub fn open(self, [keys, owner_state, ready_bits]: [OwnedFd; 3]) -> Result<Arc<Peer>, Errno> {
        let VerifiedPeer {
            pid,
            record,
            access,
        } = self;
        let (pidfd, mut process) = match access {
            PeerAccess::Known(peer) => return Ok(peer),
            PeerAccess::New(pidfd, process) => (pidfd, process),
        };
        // Another connection with the process may have been set up meanwhile.
        let mut all = PEERS.lock();
        all.retain(|_, peer| peer.strong_count() > 0);
        if let Some(peer) = Peer::find_in(&all, pid, &record) {
            return Ok(peer);
        }
        let bitmaps = PeerBitmaps::open(&[owner_state, ready_bits])?;
        // SAFETY: the peer has both, and the bitmaps are never replaced.
        process.watch(unsafe { bitmaps.mark() });
        let peer = Arc::new(Peer {
            pidfd,
            process,
            exited: AtomicBool::new(false),
            // Long ago.
            checked: AtomicU64::new(kernel::ticks().wrapping_sub(kernel::SOME_MILLISECONDS)),
            keys: GrowingMapping::open(keys, TABLE_LEN)?,
            bitmaps,
            mapped: OnceLock::new(),
            kernel_copies: KernelCopies::default(),
        });
        all.insert(id(pid, &record), Arc::downgrade(&peer));
        Ok(peer)
    }
}

/// Whether a process has exited, with all its threads. Without a descriptor of the process the file with its memory is
/// open.
fn has_exited(pidfd: Option<&OwnedFd>, process: &RemoteProcess) -> bool {
    match pidfd {
        Some(pidfd) => kernel::is_readable(pidfd, &ZERO_TIME) == Ok(true),
        None => process.is_over(),
    }
}

/// The key of a process in [`PEERS`].
fn id(pid: Pid, record: &ChallengeRecord) -> (i32, u64) {
    (pid.as_raw_nonzero().get(), record.process)
}

/// The keys of a peer. The table may have grown since its size was last read.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a>(&'a Peer);

impl<'a> Keys<'a> {
    /// The keys in a table of the size that was last read.
    #[inline]
    fn current(self) -> RemoteKeys<'a> {
        RemoteKeys {
            // SAFETY: entries are made of atomics, which are only read here.
            entries: unsafe { self.0.keys.as_slice::<KeyEntry>() },
        }
    }

    /// See [`RemoteKeys::check`].
    #[inline]
    pub fn check(
        self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        let current = self.current();
        match current.check(section, scope, range, need) {
            Err(Fault::Key) if self.refresh().entries.len() > current.entries.len() => {
                self.current().check(section, scope, range, need)
            }
            result => result,
        }
    }

    /// Reads the size of the table, and returns the keys.
    #[cold]
    fn refresh(self) -> RemoteKeys<'a> {
        let _ = self.0.keys.refresh();
        self.current()
    }
}

impl Peer {
    fn find_in(all: &Peers, pid: Pid, record: &ChallengeRecord) -> Option<Arc<Peer>> {
        let known = all.get(&id(pid, record)).and_then(Weak::upgrade);
        known.filter(|peer| !peer.is_gone())
    }

    /// The process, if there are connections with it.
    fn find(pid: Pid, record: &ChallengeRecord) -> Option<Arc<Peer>> {
        Peer::find_in(&PEERS.lock(), pid, record)
    }

    /// Uses the file that the peer has sent with its registered memory, if this is the first one.
    /// A peer may make the file after its first connection.
    pub fn set_memory_file(&self, memory: OwnedFd) -> Result<(), Errno> {
        if self.mapped.get().is_none() {
            let _ = self.mapped.set(PeerMap::open(memory)?);
        }
        Ok(())
    }

    /// The keys of the peer.
    #[inline]
    pub fn keys(&self) -> Keys<'_> {
        Keys(self)
    }

    /// Whether memory of the peer is mapped here, or may be later.
    #[inline]
    pub fn has_mappable_memory(&self) -> bool {
        self.mapped.get().is_some()
    }

    /// The kernel has copied `len` bytes from or to what `key` opens. Returns the key of its region if the
    /// peer is to move that to where this process maps it.
    #[inline]
    pub fn kernel_has_copied(&self, key: u32, len: u64) -> Option<u32> {
        self.mapped.get()?;
        let (region, size) = self.keys().current().promotable(key)?;
        self.kernel_copies.add(region, len, size).then_some(region)
    }

    /// The ready bitmaps of the peer.
    #[inline]
    pub fn bitmaps(&self) -> &PeerBitmaps {
        &self.bitmaps
    }

    /// The process identifier.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Whether the process has exited, with all its threads.
    pub fn has_exited(&self) -> bool {
        if self.exited.load(Ordering::Relaxed) {
            return true;
        }
        let exited = has_exited(self.pidfd.as_ref(), &self.process);
        if exited {
            self.exited.store(true, Ordering::Relaxed);
        }
        exited
    }

    /// Whether the process has exited or executes another program. Threads of the old one may be about to end.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.bitmaps.is_owner_gone() || self.has_exited()
    }

    /// Whether the process identifier still means this process. The kernel does not reuse an identifier before it has
    /// used all others, so a check every few milliseconds is enough. That the process executes another program is found
    /// by each copy ([`RemoteProcess::watch`]).
    #[inline]
    fn is_alive(&self) -> bool {
        let now = kernel::ticks();
        // The difference is large if the counter has begun anew.
        if now.wrapping_sub(self.checked.load(Ordering::Relaxed)) < kernel::SOME_MILLISECONDS {
            return !self.exited.load(Ordering::Relaxed);
        }
        self.checked.store(now, Ordering::Relaxed);
        !self.has_exited()
    }

    /// Whether some of these bytes, which the kernel is to copy in the copy section of the caller, move at the moment:
    /// then the kernel would have the caller wait for the peer.
    #[inline]
    pub fn is_moving(&self, at: u64, len: u64) -> bool {
        self.bitmaps.moving().has(at, len)
    }

    /// Whether any bytes of the peer move.
    pub fn has_moving_pages(&self) -> bool {
        self.bitmaps.moving().has_any()
    }

    /// Makes writes to memory that is not in the peer's file by one system call, as far as they can be
    /// made, and returns the number of bytes.
    ///
    /// # Safety
    /// The local segments are registered memory, which may be read.
    pub unsafe fn write_all(&self, writes: &WriteBatch) -> u64 {
        if !self.is_alive() {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { self.process.write_all(writes) }.unwrap_or(0)
    }

    /// Where a range of the peer is that the key of the copy section opens, if all of it is in one extent of the
    /// peer's file, or no part of its region is in the file. `None` is no verdict: what is rare is not looked for
    /// here. What is mapped stays so even when the process has exited, so that is no reason to ask for it: the
    /// end of the socket says so.
    #[inline(always)]
    pub fn place_of(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
        direction: Direction,
    ) -> Option<RemotePlace> {
        let keys = self.keys().current();
        let (at, mapped) = keys.check_in_place(section, scope, range, need).ok()?;
        if mapped.is_empty() {
            return (!self.is_moving(at, range.len)).then_some(RemotePlace::InProcess(at));
        }
        if !mapped.holds(at, range.len) {
            return None;
        }
        let (ours, contiguous) = self.mapped.get()?.at(at, direction)?;
        (range.len <= contiguous).then_some(RemotePlace::Mapped(ours))
    }

    /// Our address of a range of the peer that the key of the copy section opens for writing, if we have written there
    /// before. `None` is no verdict, as with [`Peer::place_of`]. No call is made.
    #[inline(always)]
    pub fn writable_place_of(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
    ) -> Option<*mut u8> {
        let keys = self.keys().current();
        let (at, mapped) = keys
            .check_in_place(section, scope, range, Access::REMOTE_WRITE)
            .ok()?;
        if !mapped.holds(at, range.len) {
            return None;
        }
        let (ours, contiguous) = self.mapped.get()?.writable_at(at)?;
        (range.len <= contiguous).then_some(ours)
    }

    /// Copies `len` bytes between one local segment and the address `remote` of the peer by one system call.
    /// False if that does not copy all of them, for whatever reason.
    ///
    /// # Safety
    /// As [`Peer::copy`].
    #[inline(always)]
    pub unsafe fn copy_at_once(
        &self,
        direction: Direction,
        local: *mut u8,
        remote: u64,
        len: u64,
    ) -> bool {
        // SAFETY: the caller's promise.
        self.is_alive()
            && unsafe { self.process.copy_at_once(direction, local, remote, len) }
            && !self.bitmaps.is_owner_gone()
    }

    /// Copies `len` bytes between local segments and the address `remote` of the peer, of which
    /// those in `range` are in the peer's file. The last bytes of a write become visible last:
    /// programs wait for an RDMA write by polling its end.
    ///
    /// # Safety
    /// The local segments are registered memory of at least that length, which may be read for
    /// a write and written for a read.
    #[inline]
    pub unsafe fn copy(
        &self,
        direction: Direction,
        local: Cursor<'_>,
        remote: u64,
        len: u64,
        range: MappedRange,
    ) -> Result<(), CopyError> {
        if !self.is_alive() {
            return Err(CopyError::PeerExited);
        }
        let copied = if range.is_empty() {
            if self.is_moving(remote, len) {
                return Err(CopyError::Moving);
            }
            // SAFETY: the caller's promise.
            unsafe { self.process.copy(direction, local, remote, len, true) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.copy_mapped(direction, local, remote, len, range) }
        };
        // What was read may be of another program, and what could not be written to as well.
        if self.bitmaps.is_owner_gone() {
            return Err(CopyError::PeerExited);
        }
        copied
    }

    /// The same for a region of which a part is in the peer's file, in the same section.
    ///
    /// # Safety
    /// As [`Peer::copy`].
    #[inline]
    unsafe fn copy_mapped(
        &self,
        direction: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        range: MappedRange,
    ) -> Result<(), CopyError> {
        let peer_map = self.mapped.get();
        let mut left = len;
        while left > 0 {
            let last_of = |end: u64| left.min(end - remote);
            let (at, n) = match peer_map {
                Some(_) if remote < range.start => (None, last_of(range.start)),
                Some(peer_map) if remote < range.end => match peer_map.at(remote, direction) {
                    Some((at, contiguous)) => (Some(at), last_of(range.end).min(contiguous)),
                    None => (None, left),
                },
                _ => (None, left),
            };
            let is_end = n == left;
            match at {
                // SAFETY: the bytes are in the file, and we may copy from or to the segments.
                Some(at) => unsafe {
                    match direction {
                        Direction::Write if is_end => copy::gather_tail_last(local, at, n),
                        Direction::Write => copy::gather(local, at, n as usize).map(|_| ()),
                        Direction::Read => copy::scatter(at, n as usize, local),
                    }
                }
                .map_err(|fault| CopyError::from_fault(fault, direction))?,
                None if self.is_moving(remote, n) => return Err(CopyError::Moving),
                // SAFETY: the caller's promise.
                None => unsafe { self.process.copy(direction, local, remote, n, is_end) }?,
            }
            // The parts become visible in their order.
            fence(Ordering::Release);
            local.advance(n);
            remote = remote.wrapping_add(n);
            left -= n;
        }
        Ok(())
    }
}

#[cfg(all(test, not(dat_sim)))]
mod tests {
    use super::*;
    use crate::process::tests::{WELL, allow_no_descriptor, status_of_child};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Tells a process from others that have not been forked by it.
    static SECRET: [u8; 16] = *b"exits are found.";

    /// The descriptor of a process, and its memory.
    fn process(pid: Pid) -> (OwnedFd, RemoteProcess) {
        let mut memory = RemoteProcess::new(pid);
        memory.open_file(SECRET.as_ptr().expose_provenance() as u64, &SECRET);
        assert!(memory.has_file());
        (pidfd_open(pid, PidfdFlags::empty()).unwrap().into(), memory)
    }

    /// Whether the process has exited, by its descriptor and without that.
    fn both_ways((pidfd, memory): &(OwnedFd, RemoteProcess)) -> [bool; 2] {
        [Some(pidfd), None].map(|pidfd| has_exited(pidfd, memory))
    }

    /// A program that needs no more files may have lowered the number of its descriptors to none.
    #[test]
    fn exits_are_noticed_without_a_right_to_have_descriptors() {
        let status = status_of_child(|| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            // SAFETY: the child waits, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(ours);
                let _ = theirs.read(&mut [0]);
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            let (own, exits) = (process(getpid()), process(Pid::from_raw(child).unwrap()));
            allow_no_descriptor();
            let before = [&own, &exits].map(both_ways);
            drop(ours);
            let wait = |options| {
                // SAFETY: a child of ours, and all zero is a value of a structure of integers.
                unsafe {
                    let mut how = std::mem::zeroed();
                    libc::waitid(libc::P_PID, child as u32, &mut how, libc::WEXITED | options)
                }
            };
            assert_eq!(wait(libc::WNOWAIT), 0);
            let unreaped = [&own, &exits].map(both_ways);
            assert_eq!(wait(0), 0);
            let after = [&own, &exits].map(both_ways);
            before == [[false; 2]; 2] && [unreaped, after] == [[[false; 2], [true; 2]]; 2]
        });
        assert_eq!(status, WELL);
    }
}
