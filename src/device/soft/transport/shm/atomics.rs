//! Atomic operations, and RDMA writes with immediate data.
//!
//! The process that has the memory executes an atomic operation: so the operations of all peers and
//! the instructions of its own program are atomic for each other, wherever the memory is. The initiator
//! sends the request in a cell of the ring and waits for the [response](super::atomic_response), which is not in the other
//! ring: there it could be behind a message that waits for a receive.
//!
//! The initiator writes the data of an RDMA write with immediate data as that of any other, and then
//! sends the number in a cell, which takes a receive of the peer.

use super::close_reason::CloseReason;
use super::cma::Direction;
use super::conn::{SendWait, ShmConn};
use super::doorbell::WakeOn;
use super::ring::{CellFlags, IMMEDIATE_LEN, Kind, Piece, REQUEST_LEN};
use crate::device::soft::mem::atomic;
use crate::device::soft::qp::deliver;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{AtomicOp, Remote, WcStatus, WrFlags};
use crate::handle::Guard;

/// Kinds of operations in the cell of a request.
const FETCH_ADD: u64 = 1;
const COMPARE_SWAP: u64 = 2;

/// The words of the cell of a request.
type Words = [u64; REQUEST_LEN / 8];

/// The words that request an operation.
fn request(word: Remote, op: AtomicOp) -> Words {
    let (kind, first, second) = match op {
        AtomicOp::FetchAdd { add } => (FETCH_ADD, add, 0),
        AtomicOp::CompareSwap { compare, swap } => (COMPARE_SWAP, compare, swap),
    };
    [word.addr, u64::from(word.rkey) | kind << 32, first, second]
}

/// The request in the words of a cell. `None` if there is no such operation.
fn operation(words: Words) -> Option<(Remote, AtomicOp)> {
    let [addr, key_and_kind, first, second] = words;
    let op = match key_and_kind >> 32 {
        FETCH_ADD => AtomicOp::FetchAdd { add: first },
        COMPARE_SWAP => AtomicOp::CompareSwap {
            compare: first,
            swap: second,
        },
        _ => return None,
    };
    let rkey = key_and_kind as u32;
    Some((Remote { addr, rkey }, op))
}

// The initiator.
impl ShmConn {
    /// Executes an atomic operation, or goes on with it.
    #[inline(never)]
    pub(super) fn atomic(
        &mut self,
        transfer: &Transfer<'_>,
        word: Remote,
        op: AtomicOp,
    ) -> Result<Outcome, CloseReason> {
        let Some(number) = self.tx.atomic else {
            return self.request_atomic(word, op);
        };
        let Some(result) = self.segment.tx_response().get(number)? else {
            return Ok(Outcome::Wait);
        };
        self.tx.atomic = None;
        self.tx.need = None;
        Ok(match result {
            // SAFETY: the local segments are registered, for as long as the section of the caller
            // lasts, and hold as much.
            Ok(before) => match unsafe { atomic::store_result(before, transfer.sges) } {
                Ok(()) => Outcome::Done,
                Err(_) => Outcome::Failed(WcStatus::LocalProtection),
            },
            Err(status) => Outcome::Failed(status),
        })
    }

    fn request_atomic(&mut self, word: Remote, op: AtomicOp) -> Result<Outcome, CloseReason> {
        let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
        if !tx.producer.has_cell(ring)? {
            tx.need = Some(SendWait::Cell);
            return Ok(Outcome::Wait);
        }
        let number = tx.producer.next_cell();
        self.segment.tx_response().clear();
        let to = tx.producer.payload(ring, Kind::Atomic);
        // SAFETY: the cell is free, and holds more, at any alignment.
        unsafe { to.cast::<Words>().write_unaligned(request(word, op)) };
        tx.producer
            .publish(ring, Kind::Atomic, CellFlags::LAST, REQUEST_LEN);
        tx.atomic = Some(number);
        tx.need = Some(SendWait::Response);
        self.notify_peer(WakeOn::CELLS);
        Ok(Outcome::Wait)
    }

    /// Executes an RDMA write with immediate data.
    #[inline(never)]
    pub(super) fn write_immediate(
        &mut self,
        transfer: &Transfer<'_>,
        to: Remote,
        imm: u32,
    ) -> Result<Outcome, CloseReason> {
        // Before the data, so that they are written once.
        if !self.tx.producer.has_cell(self.segment.tx_ring())? {
            self.tx.need = Some(SendWait::Cell);
            return Ok(Outcome::Wait);
        }
        if transfer.len > 0 {
            let outcome = self.reach(Direction::Write, to, transfer.len, transfer.sges)?;
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
        }
        let mut marks = CellFlags::LAST;
        let solicited = transfer.flags.contains(WrFlags::SOLICITED);
        marks.set(CellFlags::SOLICITED, solicited);
        let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
        let place = tx.producer.payload(ring, Kind::Immediate);
        // SAFETY: the cell is free, and holds more, at any alignment.
        unsafe {
            place
                .cast::<[u32; 2]>()
                .write_unaligned([imm, transfer.len])
        };
        tx.producer
            .publish(ring, Kind::Immediate, marks, IMMEDIATE_LEN);
        tx.need = None;
        self.notify_peer(WakeOn::CELLS);
        Ok(Outcome::Done)
    }
}

// The peer of the initiator.
impl ShmConn {
    /// Executes the request in the next cell.
    ///
    /// # Errors
    /// [`CloseReason::Fault`] if there is no such operation.
    #[inline(never)]
    pub(super) fn execute_atomic(
        &mut self,
        piece: &Piece,
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        let (consumer, ring) = (&self.rx.consumer, self.segment.rx_ring());
        let number = consumer.next_cell();
        // SAFETY: the cell of a request has as many bytes, at any alignment.
        let read = |from: *const u8| unsafe { from.cast::<Words>().read_unaligned() };
        let words = consumer.payload(ring, piece, read);
        let (word, op) = operation(words).ok_or(CloseReason::Fault)?;
        let result = atomic::execute(op, word, me.id.scope(), guard);
        self.segment.rx_response().set(number, result);
        self.consume(piece);
        // The initiator waits for the response.
        self.notify_peer(WakeOn::ROOM);
        Ok(())
    }

    /// Completes a receive for the immediate data in the next cell.
    ///
    /// # Errors
    /// [`CloseReason::Fault`] if there is no receive.
    #[inline(never)]
    pub(super) fn take_immediate(
        &mut self,
        piece: &Piece,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        // SAFETY: the cell of immediate data has as many bytes, at any alignment.
        let read = |from: *const u8| unsafe { from.cast::<[u32; 2]>().read_unaligned() };
        let [imm, len] = (self.rx.consumer).payload(self.segment.rx_ring(), piece, read);
        let solicited = piece.flags.contains(CellFlags::SOLICITED);
        deliver::deliver_immediate(imm, len, solicited, me, up).map_err(|_| CloseReason::Fault)?;
        self.consume(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_pass_through_a_cell() {
        let word = Remote {
            addr: u64::MAX - 7,
            rkey: u32::MAX,
        };
        let operations = [
            AtomicOp::FetchAdd { add: u64::MAX },
            AtomicOp::CompareSwap {
                compare: 1 << 63,
                swap: 7,
            },
        ];
        for op in operations {
            assert_eq!(operation(request(word, op)), Some((word, op)));
        }
        for kind in [0, 3, u64::from(u32::MAX)] {
            assert_eq!(operation([8, kind << 32 | 5, 1, 2]), None);
        }
    }
}
