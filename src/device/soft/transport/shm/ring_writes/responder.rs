//! The end that executes the writes, and other requests that take no receive.

use super::{NO_KEY, Target};
use crate::device::soft::mem::copy;
use crate::device::soft::mem::key_table::{self, Fault};
use crate::device::soft::qp::state::QpState;
use crate::device::soft::transport::shm::close_reason::CloseReason;
use crate::device::soft::transport::shm::conn::ShmConn;
use crate::device::soft::transport::shm::doorbell::WakeOn;
use crate::device::soft::transport::shm::ring::{CELLS, CellFlags, Kind, Piece, TARGET_LEN};
use crate::device::{Access, Remote};
use crate::handle::{Guard, pin};

/// The counters of consumed cells are published each time that so many were.
const PUBLISH: usize = 8;

/// What is done with the writes in the next cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Taken {
    /// There are none.
    #[default]
    Nothing,
    /// They are executed.
    Executed,
    /// Their cells are consumed only: the initiator has withdrawn them, or one before has failed.
    Skipped,
}

impl ShmConn {
    /// Executes the requests that are next in the ring.
    #[cold]
    pub(in super::super) fn execute_requests(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        if self.rx.starved || !me.is_up() {
            return Ok(());
        }
        let next = self.rx.consumer.peek(self.segment.rx_ring())?;
        match next.filter(|piece| piece.kind.is_request()) {
            Some(piece) => self.execute_request(piece, me, guard),
            None => Ok(()),
        }
    }

    /// Executes the atomic operation that is next in the ring, or RDMA writes up to what is none.
    pub(in super::super) fn execute_request(
        &mut self,
        piece: Piece,
        me: &mut QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        self.rx.check_between_messages()?;
        match piece.kind {
            Kind::Atomic => self.execute_atomic(&piece, me, guard),
            _ => self.execute_writes(piece, me, guard),
        }
    }

    /// Executes the RDMA writes in the next cells, which are between two messages, or consumes the cells only; no
    /// more than a ring has, however many the peer sends. This is the first one.
    ///
    /// # Errors
    /// [`CloseReason::Fault`] if the peer has violated the protocol.
    #[inline(never)]
    fn execute_writes(
        &mut self,
        first: Piece,
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        let (rx, ring) = (&mut self.rx, self.segment.rx_ring());
        let claim = self.segment.rx_claim();
        let (mut next, mut count) = (Some(first), 0_usize);
        while let Some(piece) = next {
            let number = rx.consumer.next_cell();
            if piece.flags.contains(CellFlags::FIRST) {
                rx.writes = match claim.take(number) {
                    true => Taken::Executed,
                    false => Taken::Skipped,
                };
            }
            // SAFETY: a cell has as many bytes, at any alignment.
            let read = |from: *const u8| unsafe { from.cast::<Target>().read_unaligned() };
            let [addr, key] = rx.consumer.in_cell(ring, read);
            let rkey = key as u32;
            let to = Remote { addr, rkey };
            match rx.writes {
                _ if rkey == NO_KEY => {}
                Taken::Nothing => return Err(CloseReason::Fault),
                Taken::Skipped => {}
                Taken::Executed => {
                    let write = |from| execute_write(from, &piece, to, me, guard);
                    if rx.consumer.payload(ring, &piece, write).is_err() {
                        claim.fail(number);
                        rx.writes = Taken::Skipped;
                    }
                }
            }
            rx.consumer.advance(&piece);
            count += 1;
            if count.is_multiple_of(PUBLISH) {
                rx.consumer.publish(ring);
            }
            next = match count < CELLS {
                true => rx.consumer.peek(ring)?,
                false => None,
            };
            next = next.filter(|piece| piece.kind.is_write());
        }
        rx.consumer.publish(ring);
        // The initiator waits for just that.
        self.notify_peer(WakeOn::ROOM);
        Ok(())
    }

    /// Executes the writes of the peer, if they are next in the ring, while this end waits for the peer to execute
    /// its own: the peer may wait for just that.
    #[inline]
    pub(super) fn execute_writes_of_peer(&mut self, me: &QpState) -> Result<(), CloseReason> {
        let next = self.rx.consumer.peek(self.segment.rx_ring())?;
        match next.filter(|piece| piece.kind.is_write()) {
            Some(piece) if me.receiving && me.is_up() => {
                self.rx.check_between_messages()?;
                self.execute_writes(piece, me, &pin::pin())?;
                self.segment.set_next(&self.rx.consumer);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Executes the RDMA write in a cell, whose payload begins at `from`.
#[inline(always)]
fn execute_write(
    from: *const u8,
    piece: &Piece,
    to: Remote,
    me: &QpState,
    guard: &Guard,
) -> Result<(), Fault> {
    let skip = match piece.kind.has_data() {
        true => 0,
        false => TARGET_LEN,
    };
    let (from, len) = (from.wrapping_add(skip), piece.len - skip);
    let (scope, need) = (me.id.scope(), Access::REMOTE_WRITE);
    let at = key_table::resolve(to.rkey, scope, to.addr, len as u64, need, guard)?;
    // SAFETY: registered for this, for as long as the section lasts; the payload is as long as the piece. The peer may
    // change it meanwhile, and spoils its own write then.
    unsafe { copy::tail_last(from, at as *mut u8, len) }.map_err(|_| Fault::Access)
}
