//! Short RDMA writes to memory that peers do not map, many by one system call.
//!
//! A system call that copies costs half a microsecond to two, and a fourth of that for each further range. So
//! writes that are posted one right after the other wait in the send queue until a consumer polls, as
//! requests over TCP do ([`coalesce`](crate::device::soft::transport::coalesce)), and those to the same
//! region go together. Those that adjoin each other there are one range. If both ends poll they go through the
//! [ring](super::ring_writes) instead.

use std::time::Duration;

use super::close_reason::CloseReason;
use super::cma::WriteBatch;
use super::conn::{Budget, ShmConn};
use super::remote_keys::{RemoteAddress, RemoteRange};
use super::segment::EndPhase;
use crate::device::attempt::Phase;
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::{Op, Transfer};
use crate::device::soft::transport::coalesce::{CoalescePolicy, Verdict};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, SendOp, Sge};
use crate::handle::Guard;
use crate::kernel::Instant;

/// The longest write that goes together with others, in bytes.
const LONGEST: u32 = 4096;
/// What a further range in a system call costs, as bytes that the kernel copies.
pub(super) const RANGE_COST: u64 = 4096;

/// What the kernel's copy of a short write takes on a slow machine. The time of a write is asked for once, before the
/// copy, and the next write may be close behind the copy's end.
const COPY: Duration = Duration::from_micros(3);

/// How many writes are made at once after others have waited in vain, at most: a write that waits
/// wakes the thread of the engine, which costs as much as a dozen writes.
const MOST_OWED: u32 = 65_536;

/// When the writes of a connection are made.
#[derive(Debug, Default)]
pub(super) struct CoalescedWrites {
    /// Which writes wait.
    pub policy: CoalescePolicy,
    /// Since when the write waits that is about to be queued, if it is the first to wait.
    begun: Option<Instant>,
    /// Whether the kernel made the last RDMA operation.
    pub by_kernel: bool,
}

/// A short write.
pub(super) struct ShortWrite<'a> {
    pub to: Remote,
    pub sges: &'a [Sge],
    pub len: u32,
}

/// Whether a write of so many bytes is a short one.
#[inline]
pub(super) fn is_short(len: u32) -> bool {
    (1..=LONGEST).contains(&len)
}

/// The request with this number, if it is a short write.
#[inline]
pub(super) fn short_write(me: &QpState, number: u64) -> Option<ShortWrite<'_>> {
    let (request, sges) = me.sq.get(number)?;
    match request.op {
        Op::Transfer(SendOp::RdmaWrite(to)) if is_short(request.len) => {
            let len = request.len;
            Some(ShortWrite { to, sges, len })
        }
        _ => None,
    }
}

impl ShmConn {
    /// Coalesces the next writes from the first on, at whatever pace they come.
    #[cfg(test)]
    pub fn expect_burst(&mut self) {
        self.writes.policy.expect_burst(Instant::now());
    }

    /// Whether a transfer that was just posted, while none is queued before it, waits for others.
    #[inline(never)]
    pub(super) fn writes_later(&mut self, transfer: &Transfer<'_>) -> bool {
        if !matches!(transfer.op, SendOp::RdmaWrite(_)) || transfer.len > LONGEST {
            return false;
        }
        let mut now = None;
        let clock = || *now.insert(Instant::now());
        match self.writes.policy.posted(transfer.len, clock) {
            Verdict::Send => {
                // Without a time the policy needs none for those that follow.
                if let Some(now) = now {
                    self.writes.policy.sent(now + COPY);
                }
                false
            }
            Verdict::Begin(now) => {
                self.writes.begun = Some(now);
                true
            }
            Verdict::Join => true,
        }
    }

    /// The transfer that was to wait, or was executed in part, could not be queued.
    pub fn not_queued(&mut self) -> Result<(), CloseReason> {
        self.writes.begun = None;
        self.writes.policy.flushed();
        self.tx.reached = 0;
        match self.tx.sent > 0
            || self.tx.announced
            || self.tx.offer.is_some()
            || self.tx.filled.is_some()
            || self.tx.atomic.is_some()
            || self.tx.writes.awaited_cell().is_some()
        {
            true => Err(CloseReason::Fault),
            false => Ok(()),
        }
    }

    /// A request was queued.
    pub fn posted_send(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.queued_behind_writes(me, up)?;
        if self.waits_for_others(me, up) {
            return Ok(());
        }
        self.run(Budget::Nothing, me, guard, up)
    }

    /// Whether the request that was queued last waits for others.
    fn waits_for_others(&mut self, me: &QpState, up: &mut Upcalls) -> bool {
        if !self.writes.policy.waits() || me.attempt.phase != Phase::Connected {
            return false;
        }
        if let Some(now) = self.writes.begun.take() {
            if self.writes.policy.enters_list() {
                self.watch.schedule_send(self.target.clone(), now, up);
            }
        } else {
            let newest = me.sq.tail().wrapping_sub(1);
            let Some(write) = short_write(me, newest) else {
                return false;
            };
            if self.writes.policy.posted(write.len, Instant::now) == Verdict::Send {
                return false;
            }
        }
        !me.sq.is_full()
    }

    /// Makes the writes that wait for others, if there are some.
    pub fn flush_coalesced(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.writes.policy.waits() {
            self.run(Budget::Nothing, me, guard, up)?;
        }
        Ok(())
    }

    /// Nobody may poll from now on, or the connection may end: the writes that wait for others or for the peer are made
    /// at once, by the kernel if the peer has not taken them.
    pub fn send_posted(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let are_in_ring = self.tx.writes.awaited_cell().is_some();
        if !are_in_ring && !self.writes.policy.waits() {
            return Ok(());
        }
        if are_in_ring {
            self.hurry_writes(me, up)?;
        }
        self.tx.writes.by_kernel_only = true;
        let sent = self.run(Budget::Nothing, me, guard, up);
        self.tx.writes.by_kernel_only = false;
        sent
    }

    /// The engine has the connection no longer in its list of those with coalesced requests, which are
    /// made. `late`: see [`Coalescer::send_coalesced`](crate::device::soft::upcalls::Coalescer).
    pub fn left_coalesced_list(
        &mut self,
        late: bool,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let policy = &mut self.writes.policy;
        let wrong = policy.left_list(late) || policy.is_alone();
        match late {
            true => self.send_posted(me, guard, up),
            false => self.flush_coalesced(me, guard, up),
        }?;
        if wrong {
            self.writes.policy.was_wrong(MOST_OWED);
        }
        Ok(())
    }

    /// Makes the oldest requests, if several are short writes to the same region that the kernel copies,
    /// by one system call. Returns how many; the others are executed one by one, and so is one that
    /// fails.
    #[inline]
    pub(super) fn write_several(&mut self, me: &QpState, guard: &Guard) -> usize {
        let head = me.sq.head();
        if !self.writes.by_kernel || me.sq.len() < 2 || !me.is_up() {
            return 0;
        }
        let key = |number| Some(short_write(me, number)?.to.rkey);
        match (key(head), key(head + 1)) {
            (Some(first), Some(second)) if first == second => self.write_all_of(first, me, guard),
            _ => 0,
        }
    }

    /// The same for this key.
    #[inline(never)]
    fn write_all_of(&mut self, rkey: u32, me: &QpState, guard: &Guard) -> usize {
        let head = me.sq.head();
        let end = me.close_at.unwrap_or(me.sq.tail());
        let segment = &self.segment;
        let (theirs, peer) = (segment.theirs(), segment.peer());
        let mut batch = WriteBatch::new();
        let section = (segment.ours().copy_guard).begin(&mut self.tx.sections, rkey);
        if theirs.phase() != EndPhase::Open {
            return 0;
        }
        let (table, scope) = (peer.keys(), theirs.scope());
        // The address in the memory of the peer.
        let allowed = |write: &ShortWrite<'_>| {
            let range = RemoteRange {
                kind: RemoteAddress::OfKey,
                addr: write.to.addr,
                len: write.len.into(),
            };
            let (at, run) = table
                .check(&section, scope, range, Access::REMOTE_WRITE)
                .ok()?;
            let local = key_table::check_all(write.sges, me.id.pd, Access::LOCAL_READ, guard);
            let is_still = !peer.is_moving(at, write.len.into());
            (run.is_empty() && is_still && local.is_ok()).then_some(at)
        };
        let mut count = 0u64;
        while head + count < end
            && let Some(write) = short_write(me, head + count)
            && write.to.rkey == rkey
            && let Some(at) = allowed(&write)
            && batch.push(Cursor::new(write.sges), at, write.len.into())
        {
            count += 1;
        }
        if count < 2 {
            return 0;
        }
        // SAFETY: the segments were checked in this read-side section, and hold as much.
        let written = unsafe { peer.write_all(&batch) };
        drop(section);
        // The last one may have been made in part.
        let (mut whole, mut left) = (0, written);
        while whole < count
            && let Some(write) = short_write(me, head + whole)
            && let Some(rest) = left.checked_sub(write.len.into())
        {
            left = rest;
            whole += 1;
        }
        self.kernel_has_copied(rkey, written + whole.saturating_sub(1) * RANGE_COST);
        whole as usize
    }
}
