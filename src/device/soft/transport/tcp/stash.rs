//! What was read and waits for receives: messages of the peer, and between two ends of ours the
//! requests behind them.
//!
//! Requests are executed in their order, as over loopback: an RDMA operation behind a message that
//! waits is executed after that message is in its receive. A peer without acknowledgements has seen
//! its message complete, and may rely on the effect of the RDMA operations behind it at once.

use std::collections::VecDeque;

use super::close_reason::{CloseReason, header_of};
use super::conn::TcpConn;
use super::rx::append;
use super::rx_direct::Payload;
use super::rx_place::{deliver, write};
use super::tx_frame::Response;
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::wire::{UNTAGGED_HDR, WireError};
use crate::device::soft::qp::deliver::Placement;
use crate::device::soft::qp::state::{QpState, Supply};
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// What may wait for receives, in bytes; each segment counts its entry, too.
const STASH: usize = 256 * 1024;
const STASH_ENTRY: usize = size_of::<Stashed>();

/// What a segment that waits is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// A message, for a receive.
    Send(Placement),
    /// The memory that an RDMA write names.
    Write {
        stag: u32,
        to: u64,
    },
    Read(Response),
}

/// A segment that waits.
struct Stashed {
    purpose: Purpose,
    /// The header of the segment, for a Terminate.
    header: [u8; UNTAGGED_HDR],
    /// The number of its request among the requests of the peer.
    number: u32,
    payload: Vec<u8>,
}

/// See the module. The first entry is of a message.
#[derive(Default)]
pub(super) struct Stash {
    entries: VecDeque<Stashed>,
    /// Bytes of the payloads, and [`STASH_ENTRY`] for each.
    bytes: usize,
    /// Number of read requests in it.
    reads: usize,
}

impl Stash {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether nothing more may be put in.
    pub fn is_full(&self) -> bool {
        self.bytes >= STASH
    }

    /// The number of the oldest request that waits.
    #[inline]
    pub fn oldest(&self) -> Option<u32> {
        self.entries.front().map(|stashed| stashed.number)
    }

    /// Number of reads that wait.
    pub fn reads(&self) -> usize {
        self.reads
    }

    pub fn clear(&mut self) {
        *self = Stash::default();
    }

    fn push(&mut self, stashed: Stashed) -> Result<(), CloseReason> {
        let reserved = self.entries.try_reserve(1);
        reserved.map_err(|_| CloseReason::NoMemory)?;
        self.bytes += stashed.payload.len() + STASH_ENTRY;
        self.reads += usize::from(matches!(stashed.purpose, Purpose::Read(_)));
        self.entries.push_back(stashed);
        Ok(())
    }

    fn pop(&mut self) -> Option<Stashed> {
        let stashed = self.entries.pop_front()?;
        self.bytes -= stashed.payload.len() + STASH_ENTRY;
        self.reads -= usize::from(matches!(stashed.purpose, Purpose::Read(_)));
        Some(stashed)
    }
}

impl TcpConn {
    /// Whether this segment, which is no message, waits behind one.
    #[inline]
    pub(super) fn waits_in_order(&self, segment: &Segment) -> bool {
        self.acks.agreed && !self.rx.stash.is_empty() && segment.is_request()
    }

    /// Queues the answer to a read of the peer. Between two ends of ours a read that is refused fails
    /// now: no request behind it has an effect.
    pub(super) fn answer_later(
        &mut self,
        response: Response,
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        if self.acks.agreed {
            response.check(0, response.request.size, me, guard)?;
        }
        self.tx.responses.push_back(response);
        Ok(())
    }

    /// Has the segment at the start of `fpdu` wait.
    pub(super) fn stash(
        &mut self,
        purpose: Purpose,
        fpdu: &[u8],
        payload: &[u8],
    ) -> Result<(), CloseReason> {
        let mut copy = Vec::new();
        append(&mut copy, payload)?;
        self.rx.stash.push(Stashed {
            purpose,
            header: header_of(fpdu),
            number: self.acks.arrived,
            payload: copy,
        })
    }

    /// A receive was posted: uses what waits for it.
    pub(crate) fn drain(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        while let Some(first) = self.rx.stash.entries.front() {
            if matches!(first.purpose, Purpose::Send(_)) && !is_supplied(me, up)? {
                break;
            }
            let Some(stashed) = self.rx.stash.pop() else {
                break;
            };
            if matches!(stashed.purpose, Purpose::Write { .. }) && !self.tx.responses.is_empty() {
                // A read before it has the bytes of before, as far as the socket takes them.
                let Self {
                    tx, watch, acks, ..
                } = self;
                tx.transmit(me, watch, acks, self.crc, guard, up)?;
            }
            let used = match stashed.purpose {
                Purpose::Send(part) => {
                    deliver(part, Payload::Bytes(&stashed.payload), me, guard, up)
                }
                Purpose::Write { stag, to } => write(stag, to, &stashed.payload, me, guard),
                Purpose::Read(response) => self.answer_later(response, me, guard),
            };
            if let Err(why) = used {
                self.acks.failed = Some(stashed.number);
                self.acks.finished = stashed.number;
                self.answer_earlier_reads(me, guard, up)?;
                return Err(why.about(&stashed.header));
            }
        }
        if self.rx.paused && !self.rx.stash.is_full() {
            self.rx.paused = false;
            self.use_kept(true, me, guard, up)?;
        }
        Ok(())
    }
}

/// Whether the next message has a receive.
pub(super) fn is_supplied(me: &mut QpState, up: &mut Upcalls) -> Result<bool, CloseReason> {
    match me.supply(up) {
        Supply::Ready => Ok(true),
        Supply::Empty => Ok(false),
        Supply::Excess => Err(CloseReason::Protocol(WireError::DDP_NO_BUFFER, None)),
    }
}
