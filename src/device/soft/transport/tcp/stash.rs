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
use super::rx_extended::deliver_immediate;
use super::rx_place::{deliver, write};
use super::tx_frame::{Answer, Response};
use crate::device::soft::iwarp::extensions::{AtomicRequest, Immediate};
use crate::device::soft::iwarp::mpa::Rtr;
use crate::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use crate::device::soft::iwarp::wire::{UNTAGGED_HDR, WireError};
use crate::device::soft::qp::deliver::Placement;
use crate::device::soft::qp::state::{QpState, Supply};
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// What may wait for receives, in bytes; each segment counts its entry, too.
const STASH: usize = 256 * 1024;
const STASH_ENTRY: usize = size_of::<Stashed>();
/// The same once the peer has ended its stream: what is behind these may be an end that does not wait for
/// receives.
const STASH_AT_END: usize = 1024 * 1024;
/// And so many segments: the memory of the queue doubles whenever it is full, which no peer is to bring about
/// for a few bytes each.
const ENTRIES_AT_END: usize = if cfg!(test) { 3072 } else { 8192 };

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
    Atomic(AtomicRequest),
    /// The end of an RDMA write with immediate data, for a receive.
    Immediate {
        data: Immediate,
        solicited: bool,
    },
}

impl Purpose {
    /// Whether it is to be answered.
    fn is_read(&self) -> bool {
        matches!(self, Purpose::Read(_) | Purpose::Atomic(_))
    }

    /// Whether it needs a receive.
    fn is_message(&self) -> bool {
        matches!(self, Purpose::Send(_) | Purpose::Immediate { .. })
    }
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
    /// Number of reads and atomic operations in it.
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

    /// Whether nothing more may be put in although the peer has ended its stream.
    #[cold]
    pub fn is_full_at_end(&self) -> bool {
        self.bytes >= STASH_AT_END || self.entries.len() >= ENTRIES_AT_END
    }

    /// The number of the oldest request that waits.
    #[inline]
    pub fn oldest(&self) -> Option<u32> {
        self.entries.front().map(|stashed| stashed.number)
    }

    /// Number of reads and atomic operations that wait.
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
        self.reads += usize::from(stashed.purpose.is_read());
        self.entries.push_back(stashed);
        Ok(())
    }

    fn pop(&mut self) -> Option<Stashed> {
        let stashed = self.entries.pop_front()?;
        self.bytes -= stashed.payload.len() + STASH_ENTRY;
        self.reads -= usize::from(stashed.purpose.is_read());
        Some(stashed)
    }
}

impl TcpConn {
    /// Whether this segment, which is no message, waits behind one.
    #[inline]
    pub(super) fn waits_in_order(&self, segment: &Segment) -> bool {
        self.acks.agreed && !self.rx.stash.is_empty() && segment.is_request()
    }

    /// Whether the peer may have one more read or atomic operation that waits for its answer.
    ///
    /// # Errors
    /// It has as many as both ends have agreed on.
    pub(super) fn admit_read(&self) -> Result<(), CloseReason> {
        let extra = usize::from(!self.rx.begun && self.rtr == Some(Rtr::READ));
        let waiting = self.tx.responses.len() + self.rx.stash.reads();
        if waiting >= usize::from(self.ird) + extra {
            return Err(CloseReason::Protocol(WireError::DDP_NO_BUFFER, None));
        }
        Ok(())
    }

    /// A read of the peer, which waits behind a message if it `waits`.
    pub(super) fn read_request(
        &mut self,
        msn: u32,
        waits: bool,
        fpdu: &[u8],
        payload: &[u8],
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        let request = ReadRequest::parse(payload).map_err(|e| CloseReason::Protocol(e, None))?;
        self.admit_read()?;
        let response = Response { msn, request };
        let used = if waits {
            self.stash(Purpose::Read(response), fpdu, &[])
        } else {
            self.answer_later(response, me, guard)
        };
        self.request_arrived(true, used)
    }

    /// Queues the answer to a read of the peer. Between two ends of ours a read that is refused fails
    /// now: no request behind it has an effect.
    fn answer_later(
        &mut self,
        response: Response,
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        if self.acks.agreed {
            response.source(0, response.request.size, me, guard)?;
        }
        self.tx.responses.push_back(Answer::Read(response));
        Ok(())
    }

    /// Answers the reads before a request that changes memory, so that they have the bytes of before, and before
    /// a message of which the consumer learns: the memory that they read may be freed then. As far as the socket takes
    /// them.
    pub(super) fn answer_reads(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let mut responses = self.tx.responses.iter();
        if !responses.any(|answer| matches!(answer, Answer::Read(_))) {
            return Ok(());
        }
        let Self {
            tx, watch, acks, ..
        } = self;
        tx.transmit(me, watch, acks, self.crc, guard, up)
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
            if first.purpose.is_message() && !is_supplied(me, up)? {
                break;
            }
            let Some(stashed) = self.rx.stash.pop() else {
                break;
            };
            let answers_first = match &stashed.purpose {
                Purpose::Write { .. } | Purpose::Atomic(_) | Purpose::Immediate { .. } => true,
                Purpose::Send(part) => part.last,
                Purpose::Read(_) => false,
            };
            if answers_first {
                self.answer_reads(me, guard, up)?;
            }
            let used = match stashed.purpose {
                Purpose::Send(part) => {
                    deliver(part, Payload::Bytes(&stashed.payload), me, guard, up)
                }
                Purpose::Write { stag, to } => write(stag, to, &stashed.payload, me, guard),
                Purpose::Read(response) => self.answer_later(response, me, guard),
                Purpose::Atomic(request) => self.execute_atomic(request, me, guard),
                Purpose::Immediate { data, solicited } => {
                    deliver_immediate(data, solicited, me, up)
                }
            };
            if let Err(why) = used {
                self.acks.failed = Some(stashed.number);
                self.acks.finished = stashed.number;
                self.answer_earlier_reads(me, guard, up)?;
                return Err(why.about(&stashed.header));
            }
        }
        if self.rx.paused && !self.rx.is_full() {
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
