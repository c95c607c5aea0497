//! Copies between our memory and that of the peer by this end alone: RDMA operations, and the parts of
//! long messages.

use std::ptr::with_exposed_provenance_mut;
use std::time::Duration;

use super::close_reason::CloseReason;
use super::cma::{CopyError, Direction};
use super::coalesced_writes::is_short;
use super::conn::{SendWait, ShmConn};
use super::peer::RemotePlace;
use super::remote_keys::{CopySection, RemoteAddress, RemoteRange};
use super::segment::{EndPhase, SharedSegment};
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, Sge, WcStatus};
use crate::handle::Guard;

/// The most bytes of one access to the peer's memory: to deregister memory waits for the end of
/// an access.
const SECTION_LEN: u64 = 1 << 20;

/// How soon a connection is served again that waits for memory of the peer which moves.
const MOVE_CHECK: Duration = Duration::from_millis(1);

/// A copy between our memory and that of the peer.
pub(super) struct Copy<'a> {
    pub way: Direction,
    /// Where our bytes begin.
    pub local: Cursor<'a>,
    /// Where those of the peer do, and the key that has to open them for `need`.
    pub remote: Remote,
    /// What the address of those of the peer is.
    pub kind: RemoteAddress,
    pub len: u64,
    pub need: Access,
}

/// Who has made a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CopiedBy {
    /// This process, wholly or in part, in the peer's memory file.
    Us,
    /// The kernel: no part of the region is in the file.
    Kernel,
}

/// Why a copy was not made, or only in part.
pub(super) enum CopyRefusal {
    /// The peer does not permit any access in this phase.
    Phase(EndPhase),
    /// The caller has no reason to copy any more.
    Void,
    /// The key does not open the memory.
    Key,
    /// The copy has failed.
    Failed(CopyError),
}

impl Copy<'_> {
    /// Makes the copy, part by part, each in a copy section, while `is_wanted`, which is asked in
    /// each section. `sections` is the count of our sections. What is left is there to be copied later if memory of the
    /// peer moves.
    ///
    /// # Safety
    /// The local segments are registered memory that holds `len` bytes from the cursor on, which may
    /// be read for a write and written for a read.
    #[inline(always)]
    pub unsafe fn make(
        &mut self,
        segment: &SharedSegment,
        sections: &mut u32,
        mut is_wanted: impl FnMut() -> bool,
    ) -> Result<CopiedBy, CopyRefusal> {
        let mut by = CopiedBy::Us;
        let (theirs, peer) = (segment.theirs(), segment.peer());
        let scope = theirs.scope();
        while self.len > 0 {
            let n = self.len.min(SECTION_LEN);
            let Remote { addr, rkey } = self.remote;
            let section = segment.ours().copy_guard.begin(sections, rkey);
            match theirs.phase() {
                EndPhase::Open => {}
                phase => return Err(CopyRefusal::Phase(phase)),
            }
            if !is_wanted() {
                return Err(CopyRefusal::Void);
            }
            let table = peer.keys();
            let range = RemoteRange {
                kind: self.kind,
                addr,
                len: n,
            };
            let Ok((at, run)) = table.check(&section, scope, range, self.need) else {
                return Err(CopyRefusal::Key);
            };
            // SAFETY: the caller's promise, in this section for the memory of the peer.
            unsafe { peer.copy(self.way, self.local, at, n, run) }.map_err(CopyRefusal::Failed)?;
            if run.is_empty() {
                by = CopiedBy::Kernel;
            }
            self.len -= n;
            if self.len > 0 {
                self.local.advance(n);
                self.remote.addr = addr.checked_add(n).ok_or(CopyRefusal::Key)?;
            }
        }
        Ok(by)
    }
}

/// What a key of the peer has to permit.
#[inline(always)]
fn needed(way: Direction) -> Access {
    match way {
        Direction::Write => Access::REMOTE_WRITE,
        Direction::Read => Access::REMOTE_READ,
    }
}

/// Begins a copy section for a range that a consumer names, unless the peer does not permit any access. `sections` is the
/// count of our sections.
#[inline(always)]
fn enter<'a>(
    segment: &'a SharedSegment,
    sections: &mut u32,
    Remote { addr, rkey }: Remote,
    len: u64,
) -> Option<(CopySection<'a>, RemoteRange)> {
    let section = segment.ours().copy_guard.begin(sections, rkey);
    let kind = RemoteAddress::OfKey;
    (segment.theirs().phase() == EndPhase::Open)
        .then_some((section, RemoteRange { kind, addr, len }))
}

impl ShmConn {
    /// The kernel has copied so many bytes from or to what a key of the peer opens. A region that the
    /// kernel copies from and to so much is moved by the peer to where this end maps it.
    #[inline]
    pub(super) fn kernel_has_copied(&self, key: u32, len: u64) {
        if self.segment.peer().has_mappable_memory() {
            self.count_copy(key, len);
        }
    }

    /// [`ShmConn::kernel_has_copied`] where the peer has memory that can be mapped.
    #[inline(never)]
    fn count_copy(&self, key: u32, len: u64) {
        if let Some(region) = self.segment.peer().kernel_has_copied(key, len) {
            self.ours().ask_for_promotion(region);
            self.wake_peer();
        }
    }

    /// Whether the last RDMA operation was made by this process in memory that is mapped here.
    #[inline(always)]
    pub fn copies_writes(&self) -> bool {
        !self.writes.by_kernel
    }

    /// Executes an RDMA write of one segment to memory that is mapped here, as those before it; false if that takes
    /// more than a copy, or has failed. [`ShmConn::write`] begins anew then.
    ///
    /// # Safety
    /// The segment is registered memory, which may be read.
    #[inline(always)]
    pub unsafe fn write_plainly(&mut self, to: Remote, from: &Sge) -> bool {
        let len = u64::from(from.len);
        if self.lifecycle.is_closed() || self.writes.by_kernel || len == 0 || len > SECTION_LEN {
            return false;
        }
        self.tx.need = None;
        let segment = &*self.segment;
        let Some((section, range)) = enter(segment, &mut self.tx.sections, to, len) else {
            return false;
        };
        let scope = segment.theirs().scope();
        let Some(at) = segment.peer().writable_place_of(&section, scope, range) else {
            return false;
        };
        let own = with_exposed_provenance_mut::<u8>(from.addr as usize);
        // SAFETY: the caller's promise; the key of the copy section opens that range of the peer, which is mapped.
        unsafe { copy::tail_last(own, at, len as usize) }.is_ok()
    }

    /// Executes an RDMA write.
    #[inline]
    pub(super) fn write(
        &mut self,
        me: &QpState,
        to: Remote,
        len: u32,
        sges: &[Sge],
    ) -> Result<Outcome, CloseReason> {
        if self.writes.by_kernel
            && is_short(len)
            && self.tries_ring()
            && let Some(outcome) = self.write_through_ring(me, to, len, sges)?
        {
            return Ok(outcome);
        }
        self.reach(Direction::Write, to, len, sges)
    }

    /// Executes an RDMA operation.
    #[inline(never)]
    pub(super) fn reach(
        &mut self,
        way: Direction,
        remote: Remote,
        len: u32,
        sges: &[Sge],
    ) -> Result<Outcome, CloseReason> {
        self.tx.need = None;
        if let [local] = sges
            && let Some(by) = self.reach_at_once(way, remote, len, local)
        {
            self.reached(by, remote.rkey, len);
            return Ok(Outcome::Done);
        }
        self.reach_anywhere(way, remote, len, sges)
    }

    /// An RDMA operation was executed.
    #[inline(always)]
    fn reached(&mut self, by: CopiedBy, rkey: u32, len: u32) {
        self.writes.by_kernel = by == CopiedBy::Kernel;
        if by == CopiedBy::Kernel {
            self.kernel_has_copied(rkey, len.into());
        }
    }

    /// Executes an RDMA operation of one local segment in one copy section, by one copy. `None` if that is not
    /// possible, or has failed: the operation is to be executed by [`ShmConn::reach_anywhere`] then, which finds
    /// out why.
    #[inline(always)]
    fn reach_at_once(
        &mut self,
        way: Direction,
        remote: Remote,
        len: u32,
        local: &Sge,
    ) -> Option<CopiedBy> {
        let n = u64::from(len);
        if n == 0 || n > SECTION_LEN || len > local.len {
            return None;
        }
        let (segment, peer) = (&*self.segment, self.segment.peer());
        let (section, range) = enter(segment, &mut self.tx.sections, remote, n)?;
        let scope = segment.theirs().scope();
        let place = peer.place_of(&section, scope, range, needed(way), way)?;
        let own = with_exposed_provenance_mut::<u8>(local.addr as usize);
        // SAFETY: the local segment is registered, for as long as the section of the caller lasts, and holds
        // as much; the key of the copy section opens that range of the peer, which is mapped here or in the
        // memory of the process.
        unsafe {
            match (place, way) {
                (RemotePlace::Mapped(at), Direction::Write) => {
                    copy::tail_last(own, at, len as usize).ok()?;
                }
                (RemotePlace::Mapped(at), Direction::Read) => {
                    copy::plain(at, own, len as usize).ok()?;
                }
                (RemotePlace::InProcess(at), _) => {
                    let is_done = peer.copy_at_once(way, own, at, n);
                    return is_done.then_some(CopiedBy::Kernel);
                }
            }
        }
        Some(CopiedBy::Us)
    }

    /// [`ShmConn::reach`] for any memory.
    #[inline(never)]
    fn reach_anywhere(
        &mut self,
        way: Direction,
        remote: Remote,
        len: u32,
        sges: &[Sge],
    ) -> Result<Outcome, CloseReason> {
        let (len64, reached) = (u64::from(len), self.tx.reached);
        let mut copy = Copy {
            way,
            local: Cursor::at(sges, reached),
            remote: Remote {
                addr: remote.addr.wrapping_add(reached),
                ..remote
            },
            kind: RemoteAddress::OfKey,
            len: len64 - reached,
            need: needed(way),
        };
        // SAFETY: the local segments are registered, for as long as the section of the caller
        // lasts, and hold `len` bytes.
        let copied = unsafe { copy.make(&self.segment, &mut self.tx.sections, || true) };
        match copied {
            Ok(by) => {
                self.tx.reached = 0;
                self.reached(by, remote.rkey, len);
                Ok(Outcome::Done)
            }
            Err(CopyRefusal::Failed(CopyError::Moving)) => {
                self.tx.reached = len64 - copy.len;
                self.tx.need = Some(SendWait::Move);
                Ok(Outcome::Wait)
            }
            Err(CopyRefusal::Phase(EndPhase::Fresh)) => {
                self.tx.need = Some(SendWait::Consent);
                Ok(Outcome::Wait)
            }
            // The peer has ended the connection, which this end notices soon.
            Err(CopyRefusal::Phase(_) | CopyRefusal::Void) => Ok(Outcome::Wait),
            Err(CopyRefusal::Failed(CopyError::Local)) => {
                Ok(Outcome::Failed(WcStatus::LocalProtection))
            }
            Err(CopyRefusal::Key | CopyRefusal::Failed(CopyError::Remote)) => {
                Ok(Outcome::Failed(WcStatus::RemoteAccess))
            }
            Err(CopyRefusal::Failed(CopyError::PeerExited)) => Err(CloseReason::Lost),
        }
    }

    /// Has the connection served again soon: it waits for memory of the peer that moves, which takes a moment, or as long as
    /// the peer is stopped. Consumers that poll do not wait for that.
    #[cold]
    pub(super) fn check_move_later(&mut self) {
        if self.move_check.is_none() {
            let target = self.target.clone();
            let recheck = move |up: &mut Upcalls| target.recheck(up);
            self.move_check = Some(self.watch.timer(MOVE_CHECK, recheck));
        }
    }

    /// A timer of the connection has run out.
    pub fn recheck(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        self.move_check = None;
        self.messages_arrived::<true>(me, guard, up)
    }
}
