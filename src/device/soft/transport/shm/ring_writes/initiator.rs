//! The end that posts the writes.

use super::{MOST_IN_CELL, NO_KEY, Target};
use crate::device::soft::mem::copy;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::transport::shm::close_reason::CloseReason;
use crate::device::soft::transport::shm::coalesced_writes::{RANGE_COST, ShortWrite, short_write};
use crate::device::soft::transport::shm::conn::{SendWait, ShmConn, Tx};
use crate::device::soft::transport::shm::doorbell::WakeOn;
use crate::device::soft::transport::shm::remote_keys::{RemoteAddress, RemoteRange};
use crate::device::soft::transport::shm::ring::{CellFlags, Kind, TARGET_LEN, Violation};
use crate::device::soft::transport::shm::segment::EndPhase;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, Sge, WcStatus};
use crate::handle::Guard;
use crate::kernel::{SOME_MICROSECONDS, ticks};

/// The most writes in the ring that are not completed: half of its cells.
const MOST: u64 = 64;
/// How often the end of writes is checked for at once, by an initiator that waits for one or has posted another
/// request behind them.
const CHECKS: u32 = 256;
/// How long the initiator waits for one write before the kernel makes it, in [`ticks`]: about as long as that takes.
const MOMENT: u64 = SOME_MICROSECONDS / 4;
/// How often the kernel makes the next writes after the peer did not take some, at most.
const MOST_OWED: u32 = 1024;

/// The writes in the ring that are not completed, and what is known of the peer.
#[derive(Debug, Default)]
pub(crate) struct RingWrites {
    /// Those that are not completed, if there are some.
    batch: Option<Batch>,
    /// Number of the cell behind those that were withdrawn last.
    withdrawn: u64,
    /// How often the kernel is to make writes that could go into the ring.
    owed: u32,
    /// How often that was to be the last time.
    penalty: u32,
    /// Number of the request behind the newest one that is no short write.
    behind_other: u64,
    /// Whether the next writes are not to wait for the peer.
    pub by_kernel_only: bool,
    /// Whether the peer has about a second to take writes.
    #[cfg(test)]
    pub is_patient: bool,
}

/// Writes of one claim.
#[derive(Debug)]
struct Batch {
    /// Number of the first cell.
    first: u64,
    /// Number of the cell behind the last one.
    end: u64,
    /// Number of the oldest cell that was not consumed when that was last read.
    next: u64,
    /// When the cells were filled: a count of [`ticks`].
    begun: u64,
    /// The key of the first write.
    rkey: u32,
    /// What the kernel would have been busy with, as bytes that it copies.
    cost: u64,
}

impl RingWrites {
    /// The cell that has to be consumed for anything to be done.
    pub fn awaited_cell(&self) -> Option<u64> {
        self.batch.as_ref().map(|batch| batch.next)
    }

    /// Whether the peer does not take writes that it was offered at that time, in [`ticks`]. It has `limit`.
    fn is_late(&self, begun: u64, limit: u64) -> bool {
        #[cfg(test)]
        let limit = match self.is_patient {
            true => 256 * crate::kernel::SOME_MILLISECONDS,
            false => limit,
        };
        ticks().wrapping_sub(begun) >= limit
    }

    /// See [`CHECKS`].
    fn checks(&self) -> u32 {
        #[cfg(test)]
        if self.is_patient {
            return u32::MAX;
        }
        CHECKS
    }

    /// The peer has not taken the writes up to that cell.
    fn withdrawn(&mut self, end: u64) {
        self.withdrawn = end;
        self.penalty = (self.penalty * 2).clamp(1, MOST_OWED);
        self.owed = self.penalty;
    }
}

impl Tx {
    /// The peer has executed the writes in the ring, up to one that has failed.
    fn writes_executed(&mut self) {
        self.writes.batch = None;
        self.writes.penalty /= 2;
        self.need = None;
    }
}

impl ShmConn {
    /// A request was queued. Whatever is not a short write is executed as soon as without the ring.
    pub(in super::super) fn queued_behind_writes(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let newest = me.sq.tail().wrapping_sub(1);
        let is_short_write = short_write(me, newest).is_some();
        if !is_short_write {
            self.tx.writes.behind_other = newest + 1;
        }
        if self.tx.writes.batch.is_none() || is_short_write && !me.sq.is_full() {
            return Ok(());
        }
        self.hurry_writes(me, up)
    }

    /// Waits for a moment until the writes in the ring are executed, and withdraws them then, if the peer does not
    /// execute them.
    pub(in super::super) fn hurry_writes(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        for _ in 0..self.tx.writes.checks() {
            if self.complete_writes(me, up)? {
                return Ok(());
            }
            self.execute_writes_of_peer(me)?;
            std::hint::spin_loop();
        }
        self.withdraw_writes()?;
        Ok(())
    }

    /// Puts the oldest requests into the ring, if several are short writes that the kernel would make, and both ends
    /// poll. False if none were.
    #[inline]
    pub(in super::super) fn put_writes_into_ring(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        let several = self.writes.by_kernel && me.sq.len() >= 2 && me.is_up();
        let tries = several && self.is_awake() && self.tries_ring();
        if !tries || !self.put_all_into_ring(me, guard)? {
            return Ok(false);
        }
        if self.tx.writes.behind_other > me.sq.head() {
            self.hurry_writes(me, up)?;
        }
        Ok(true)
    }

    #[inline(never)]
    fn put_all_into_ring(&mut self, me: &QpState, guard: &Guard) -> Result<bool, Violation> {
        let head = me.sq.head();
        let first = match self.ring_write(me, head, guard) {
            Some(first) if self.takes_writes(first.to, first.len)? => first,
            _ => return Ok(false),
        };
        let number = self.offer_writes(first.len)?;
        let (rkey, mut cost) = (first.to.rkey, 0);
        let (mut write, mut count) = (Some(first), 0);
        while let Some(next) = write
            && self.fill_with_write(&next, count == 0)?
        {
            count += 1;
            cost += u64::from(next.len) + RANGE_COST;
            write = (count < MOST)
                .then(|| self.ring_write(me, head + count, guard))
                .flatten();
        }
        if count == 0 {
            return Ok(false);
        }
        self.await_writes(Batch {
            first: number,
            next: number,
            end: number + count,
            begun: ticks(),
            rkey,
            cost,
        });
        Ok(true)
    }

    /// The request with this number, if it is a write that may go into the ring.
    fn ring_write<'a>(
        &self,
        me: &'a QpState,
        number: u64,
        guard: &Guard,
    ) -> Option<ShortWrite<'a>> {
        let end = me.close_at.unwrap_or(me.sq.tail());
        let write = short_write(me, number).filter(|_| number < end)?;
        let local = key_table::check_all(write.sges, me.id.pd, Access::LOCAL_READ, guard);
        (local.is_ok() && write.to.rkey != NO_KEY).then_some(write)
    }

    /// Executes a single write through the ring, if the peer takes it at once. `None` if the write is to be executed
    /// without the ring.
    #[inline(never)]
    pub(in super::super) fn write_through_ring(
        &mut self,
        me: &QpState,
        to: Remote,
        len: u32,
        sges: &[Sge],
    ) -> Result<Option<Outcome>, CloseReason> {
        if to.rkey == NO_KEY || !self.takes_writes(to, len)? {
            return Ok(None);
        }
        let number = self.offer_writes(len)?;
        if !self.fill_with_write(&ShortWrite { to, sges, len }, true)? {
            return Ok(None);
        }
        let begun = ticks();
        // Before the peer is looked at: whatever it does then, the write is known to be in the ring.
        self.await_writes(Batch {
            first: number,
            next: number,
            end: number + 1,
            begun,
            rkey: to.rkey,
            cost: len.into(),
        });
        for _ in 0..self.tx.writes.checks() {
            if self.tx.producer.consumed(self.segment.tx_ring())? > number {
                self.tx.writes_executed();
                if self.segment.tx_claim().failed(number)?.is_some() {
                    return Ok(Some(Outcome::Failed(WcStatus::RemoteAccess)));
                }
                self.kernel_has_copied(to.rkey, len.into());
                return Ok(Some(Outcome::Done));
            }
            if self.tx.writes.is_late(begun, MOMENT) {
                break;
            }
            self.execute_writes_of_peer(me)?;
            std::hint::spin_loop();
        }
        Ok(match self.withdraw_writes()? {
            true => None,
            false => Some(Outcome::Wait),
        })
    }

    /// Whether it is worth a try that the next writes go through the ring: the peer seems to poll.
    #[inline]
    pub(in super::super) fn tries_ring(&mut self) -> bool {
        let writes = &mut self.tx.writes;
        if writes.owed > 0 {
            writes.owed -= 1;
            return false;
        }
        !writes.by_kernel_only && !self.segment.theirs().doorbell.is_armed()
    }

    /// Whether a write goes through the ring, and perhaps others behind it: the peer has consumed what was
    /// withdrawn, and the kernel would make the write otherwise.
    #[inline]
    fn takes_writes(&mut self, to: Remote, len: u32) -> Result<bool, Violation> {
        let (withdrawn, ring) = (self.tx.writes.withdrawn, self.segment.tx_ring());
        Ok(self.theirs().phase() == EndPhase::Open
            && self.tx.producer.has_consumed(ring, withdrawn)?
            && self.is_made_by_kernel(to, len))
    }

    /// Whether the peer permits a write to memory that is not mapped here.
    fn is_made_by_kernel(&mut self, to: Remote, len: u32) -> bool {
        let segment = &*self.segment;
        let guard = &segment.ours().copy_guard;
        let section = guard.begin(&mut self.tx.sections, to.rkey);
        let range = RemoteRange {
            kind: RemoteAddress::OfKey,
            addr: to.addr,
            len: len.into(),
        };
        let (keys, scope) = (segment.peer().keys(), segment.theirs().scope());
        let found = keys.check(&section, scope, range, Access::REMOTE_WRITE);
        found.is_ok_and(|(_, run)| run.is_empty())
    }

    /// Offers the peer the writes in the next cells, of which the first has so many bytes. Returns the number of its
    /// cell.
    fn offer_writes(&mut self, len: u32) -> Result<u64, Violation> {
        let (tx, ring, len) = (&mut self.tx, self.segment.tx_ring(), len as usize);
        if len > MOST_IN_CELL && tx.producer.has_cell(ring)? {
            let room = tx.producer.chunk(ring, len)?;
            // The data of a write is in one piece: what is left up to the end of the ring is skipped.
            if (1..len).contains(&room) {
                fill_target(tx.producer.in_cell(ring), [0, NO_KEY.into()]);
                let flags = CellFlags::empty();
                tx.producer.publish(ring, Kind::LongWrite, flags, room);
            }
        }
        let number = self.tx.producer.next_cell();
        self.segment.tx_claim().offer(number);
        Ok(number)
    }

    /// Fills a cell with a write. False if there is no room, or its data cannot be read.
    #[inline]
    fn fill_with_write(
        &mut self,
        write: &ShortWrite<'_>,
        is_first: bool,
    ) -> Result<bool, Violation> {
        let (tx, ring, len) = (&mut self.tx, self.segment.tx_ring(), write.len as usize);
        let (kind, skip) = match len <= MOST_IN_CELL {
            true => (Kind::Write, TARGET_LEN),
            false => (Kind::LongWrite, 0),
        };
        let has_room = tx.producer.has_cell(ring)?
            && (kind == Kind::Write || tx.producer.chunk(ring, len)? == len);
        if !has_room {
            return Ok(false);
        }
        let to = tx.producer.payload(ring, kind).wrapping_add(skip);
        // SAFETY: from registered memory, for as long as the section lasts, into a place that holds as much.
        let copied = unsafe { copy::gather_for_peer(write.sges, to, len) };
        // The kernel's copy finds that again, and the request fails.
        if copied.is_err() {
            return Ok(false);
        }
        let target = [write.to.addr, write.to.rkey.into()];
        fill_target(tx.producer.in_cell(ring), target);
        let mut flags = CellFlags::empty();
        flags.set(CellFlags::FIRST, is_first);
        tx.producer.publish(ring, kind, flags, skip + len);
        Ok(true)
    }

    /// The requests at the head of the queue are in the ring.
    fn await_writes(&mut self, batch: Batch) {
        self.tx.writes.batch = Some(batch);
        self.tx.need = Some(SendWait::Writes);
        self.notify_peer(WakeOn::CELLS);
    }

    /// Completes the writes in the ring that the peer has executed. False if some are left; they are
    /// withdrawn if the peer does not take them.
    #[inline]
    pub(in super::super) fn complete_writes(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        match self.tx.writes.batch {
            None => Ok(true),
            Some(_) => self.complete_executed(me, up),
        }
    }

    #[inline(never)]
    fn complete_executed(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        let (tx, segment) = (&mut self.tx, &self.segment);
        let Some(batch) = &mut tx.writes.batch else {
            return Ok(true);
        };
        let consumed = tx.producer.consumed(segment.tx_ring())?.min(batch.end);
        if consumed <= batch.next {
            let (is_begun, begun) = (batch.next > batch.first, batch.begun);
            let limit = if self.is_awake() {
                SOME_MICROSECONDS
            } else {
                0
            };
            let is_late = self.tx.writes.is_late(begun, limit);
            return Ok(!is_begun && is_late && self.withdraw_writes()?);
        }
        let failed = segment.tx_claim().failed(batch.first)?;
        let failed = failed.map(|cell| batch.first + u64::from(cell));
        let failed = failed.filter(|cell| *cell < consumed);
        let executed = failed.unwrap_or(consumed).checked_sub(batch.next);
        let executed = executed.ok_or(Violation)?;
        batch.next = consumed;
        let is_over = consumed == batch.end;
        let (rkey, cost) = (batch.rkey, batch.cost);
        if is_over || failed.is_some() {
            tx.writes_executed();
        }
        for _ in 0..executed {
            if let Some(request) = me.sq.pop() {
                me.complete(&request, WcStatus::Success, up);
            }
        }
        if failed.is_some() {
            return Err(CloseReason::Request(WcStatus::RemoteAccess));
        }
        if is_over {
            self.kernel_has_copied(rkey, cost);
        }
        Ok(is_over)
    }

    /// Takes the writes in the ring back. False if the peer executes them.
    #[cold]
    fn withdraw_writes(&mut self) -> Result<bool, Violation> {
        let Some(batch) = &self.tx.writes.batch else {
            return Ok(true);
        };
        let end = batch.end;
        let is_ours = self.segment.tx_claim().withdraw(batch.first)?;
        if is_ours {
            self.tx.writes.batch = None;
            self.tx.writes.withdrawn(end);
            self.tx.need = None;
        }
        Ok(is_ours)
    }

    /// The connection ends: the writes that the peer has executed complete, and others are not executed unless the peer
    /// is about to.
    pub(in super::super) fn end_writes(&mut self, me: &mut QpState, up: &mut Upcalls) {
        match self.complete_writes(me, up) {
            Err(CloseReason::Request(status)) => {
                if let Some(request) = me.sq.pop() {
                    me.complete(&request, status, up);
                }
            }
            // What the peer has made of the segment is of no importance any more.
            Ok(_) | Err(_) => {
                let _ = self.withdraw_writes();
            }
        }
        self.tx.writes.batch = None;
    }
}

/// Fills a cell with a target.
#[inline(always)]
fn fill_target(cell: *mut u8, target: Target) {
    // SAFETY: the cell is free, and holds more, at any alignment.
    unsafe { cell.cast::<Target>().write_unaligned(target) };
}
