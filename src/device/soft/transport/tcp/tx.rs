//! Sending: requests and read responses become FPDUs, straight from the consumer's memory.
//!
//! FPDUs are built in batches and handed to the socket in one call. What it did not take is
//! built again later, but for the rest of an FPDU that it took in part: that is kept in a
//! buffer. So the only state is a position, and the unsent rest of one FPDU.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::kernel;
use crate::kernel::Instant;
use crate::kernel::net::SendFlags;
use rustix::io::Errno;

use crate::device::soft::engine::Watch;
use crate::device::soft::iwarp::acknowledge::Acknowledge;
use crate::device::soft::iwarp::sequence::TxSequence;
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::state::{QpState, local_access};
use crate::device::soft::socket;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{SendOp, WcStatus};
use crate::handle::Guard;

use super::acknowledge::Acks;
use super::batch::{FrameError, SendBatch};
use super::call_length::{CallLength, LONG_FRAME};
use super::close_reason::CloseReason;
use super::tx_frame::{Answer, Counting, Finishes, Longest, Position, answer, transfer};

/// What one call to the kernel is given at most, unless it is to be [longer](super::call_length).
const BATCH_BYTES: usize = 256 * 1024;
const BATCH_FRAMES: usize = 64;
const BATCH_PARTS: usize = 900;
/// After so many bytes the other connections have their turn, and timers: a socket whose peer is as fast as this thread is
/// never full.
const TURN_BYTES: usize = 2 << 20;
/// How often a batch that the kernel cannot read is built again in a row.
const MOST_FAULTS: u32 = 8;

/// The sending half of a connection.
pub(crate) struct Tx {
    pub(super) at: Position,
    pub responses: VecDeque<Answer>,
    /// Requests that are reads or atomic operations, sent and not answered, with their sequence numbers.
    pub reads: VecDeque<(u64, u32)>,
    /// Bytes that are sent before anything else.
    pub(super) pending: Vec<u8>,
    /// How many of them did.
    sent: usize,
    /// The peer may be sent to.
    pub open: bool,
    /// Nothing more is to be sent, or can be.
    pub closed: bool,
    /// The error, other than that the stream has ended, for which the socket takes nothing any more.
    pub lost: Option<Errno>,
    /// The socket is full, or the connection has had its turn.
    pub blocked: bool,
    /// Writes to the socket so far.
    pub writes: u64,
    /// No further request is begun: the consumer of the peer has ended the connection.
    pub stopped: bool,
    /// The longest payloads that the peer takes.
    pub(super) longest: Longest,
    /// How much of long FPDUs the next call is given.
    pub(super) call: CallLength,
}

struct Frame {
    /// Where it ends in the batch.
    end: usize,
    /// The request that it is a part of; none for a response.
    request: Option<u64>,
    after: Position,
    finishes: Finishes,
    /// Whether the count of finished requests is in it.
    acknowledges: bool,
}

/// FPDUs for one call to the kernel, and what they mean.
#[derive(Default)]
pub(super) struct Round {
    pub batch: SendBatch,
    frames: Vec<Frame>,
}

thread_local! {
    /// The memory of a round, used again by every call of a thread.
    static ROUND: Cell<Option<Box<Round>>> = const { Cell::new(None) };
}

/// Takes the memory for a round.
#[inline]
pub(super) fn take_round() -> Box<Round> {
    let kept = ROUND.try_with(Cell::take);
    kept.ok().flatten().unwrap_or_default()
}

/// Keeps the memory of a round for the next one.
#[inline]
pub(super) fn put_round(round: Box<Round>) {
    let _ = ROUND.try_with(|cell| cell.set(Some(round)));
}

/// Frees the memory that the calling thread holds for its next round.
pub fn free_memory_of_thread() {
    // It is gone already when the thread ends.
    let _ = ROUND.try_with(Cell::take);
}

impl Tx {
    /// `first` is the number of the first request of the connection, `open` says whether the peer may be sent to, and
    /// `emss` how many bytes a TCP segment has if FPDUs are to fit one.
    pub fn new(first: u64, open: bool, emss: Option<usize>) -> Tx {
        Tx {
            at: Position {
                request: first,
                begun: None,
                answered: 0,
                answering: None,
                reads: 0,
                response_first: true,
                sequence: TxSequence::new(),
                asked: first,
            },
            responses: VecDeque::new(),
            reads: VecDeque::new(),
            pending: Vec::new(),
            sent: 0,
            open,
            closed: false,
            lost: None,
            blocked: false,
            writes: 0,
            stopped: false,
            longest: emss.map_or(Longest::FULL, Longest::fitting),
            call: CallLength::new(),
        }
    }

    /// Puts bytes of our own in front of everything, unless there is no memory for them: then the
    /// peer misses the reason for the end of the connection.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.pending.try_reserve(bytes.len()).is_ok() {
            self.pending.extend_from_slice(bytes);
        }
    }

    /// A read request outside of the send queue: the number it is to carry.
    pub fn number_read(&mut self) -> u32 {
        self.at.sequence.next_read()
    }

    /// The number that an acknowledgement outside of the batches is to carry.
    pub fn number_acknowledgement(&mut self) -> u32 {
        self.at.sequence.next_acknowledgement()
    }

    /// The bytes that complete the FPDU which is sent in part.
    pub fn take_pending(&mut self) -> Vec<u8> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.drain(..self.sent);
        self.sent = 0;
        pending
    }

    pub fn has_pending(&self) -> bool {
        self.sent < self.pending.len()
    }

    /// A read or an atomic operation of ours was answered.
    pub fn read_done(&mut self) {
        self.reads.pop_front();
        self.at.reads -= 1;
    }

    /// The request that is partly sent.
    pub fn current(&self) -> Option<u64> {
        self.at.begun.map(|_| self.at.request)
    }

    /// Whether there is nothing to send but what `acks` may owe.
    #[inline]
    pub fn is_idle(&self, me: &QpState) -> bool {
        let all_begun = self.at.request == me.sq.tail() && self.at.begun.is_none();
        all_begun && self.responses.is_empty() && !self.has_pending()
    }

    /// Sends what can be sent.
    #[inline(never)]
    pub fn transmit(
        &mut self,
        me: &mut QpState,
        watch: &mut Watch,
        acks: &mut Acks,
        crc: bool,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.blocked = false;
        self.call.begin(acks.arrived, Instant::now);
        let (mut faults, mut turn) = (0, 0);
        loop {
            if self.closed {
                return Ok(());
            }
            self.execute_binds(me, acks, guard, up)?;
            if !self.flush_pending(watch)? {
                return Ok(());
            }
            if !self.open || self.is_idle(me) && !acks.is_due() {
                return Ok(());
            }
            if turn >= TURN_BYTES {
                self.blocked = true;
                return Ok(());
            }
            let mut round = take_round();
            round.batch.clear();
            round.frames.clear();
            let built = self.build(&mut round, me, acks.counting(me), crc, guard);
            if built.is_ok() && acks.owes() {
                self.add_acknowledgement(&mut round, acks, crc);
            }
            let result = if round.frames.is_empty() {
                built.map(|()| false)
            } else {
                self.send(&mut round, me, (watch, crc), acks, &mut faults, up)
            };
            turn += round.batch.len();
            put_round(round);
            if !result? {
                return Ok(());
            }
        }
    }

    /// Adds an acknowledgement to what is sent, unless that has the count, or there is no memory for
    /// it at the moment.
    fn add_acknowledgement(&self, round: &mut Round, acks: &Acks, crc: bool) {
        let Round { batch, frames } = round;
        let known = frames.iter().any(|frame| frame.acknowledges);
        if known || frames.is_empty() && !acks.is_due() || frames.try_reserve(1).is_err() {
            return;
        }
        let mut after = frames.last().map_or(self.at, |frame| frame.after);
        let (count, note) = (acks.finished, None);
        let header = Acknowledge { count, note }.header(after.sequence.next_acknowledgement());
        if batch.frame(&header, Cursor::new(&[]), 0, crc).is_ok() {
            frames.push(Frame {
                end: batch.len(),
                request: None,
                after,
                finishes: Finishes::Acknowledgement,
                acknowledges: true,
            });
        }
    }

    /// Sends what was put in front of everything.
    pub fn send_pending(&mut self, watch: &Watch) -> Result<(), CloseReason> {
        self.flush_pending(watch).map(|_| ())
    }

    /// True if nothing is pending any more.
    fn flush_pending(&mut self, watch: &Watch) -> Result<bool, CloseReason> {
        while self.has_pending() {
            let rest = &self.pending[self.sent..];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match kernel::net::send(watch, rest, flags) {
                Ok(n) => {
                    self.sent += n;
                    self.writes += 1;
                }
                Err(error) => {
                    self.refused(error);
                    return Ok(false);
                }
            }
        }
        self.pending = Vec::new();
        self.sent = 0;
        Ok(true)
    }

    /// The socket takes nothing. What is wrong with it shows when it is read, where there may
    /// be the peer's reasons; only that it was a reset shows just once.
    fn refused(&mut self, error: Errno) {
        if socket::is_passing(error) {
            self.blocked = true;
        } else {
            self.closed = true;
            self.lost = (error != Errno::PIPE).then_some(error);
        }
    }

    /// Builds FPDUs until the batch is full or nothing is left. An error stands behind those
    /// that were built, counted once they are sent. `acks` is what requests say of
    /// acknowledgements.
    fn build(
        &self,
        round: &mut Round,
        me: &QpState,
        acks: Counting,
        crc: bool,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        let Round { batch, frames } = round;
        let mut at = self.at;
        let mut longest = self.longest;
        let call = self.call.get();
        while batch.len() < call.max(BATCH_BYTES)
            && frames.len() < BATCH_FRAMES
            && batch.parts() < BATCH_PARTS
        {
            let response = self.responses.get(at.answered);
            let request = self.next_request(&at, me)?;
            let number = at.request;
            let before = at;
            let begin = batch.len();
            if frames.try_reserve(1).is_err() {
                return if frames.is_empty() {
                    Err(CloseReason::NoMemory)
                } else {
                    Ok(())
                };
            }
            let answers = at.answering.is_some() || at.begun.is_none() && at.response_first;
            let built = match (response, request) {
                (Some(response), request) if answers || request.is_none() => {
                    let finishes = answer(batch, &mut at, response, me, (longest, crc), guard);
                    finishes.map(|finishes| (None, finishes, false))
                }
                (_, Some((request, op, sges))) => {
                    let failed = || CloseReason::Request(number, WcStatus::LocalProtection);
                    if key_table::check_all(sges, me.id.pd, local_access(op), guard).is_err() {
                        return Err(failed());
                    }
                    let acknowledges = matches!(op, SendOp::Send);
                    let whole = (request, op, sges);
                    transfer(batch, &mut at, whole, acks, (longest, crc))
                        .map(|finishes| (Some(number), finishes, acknowledges))
                        .map_err(|error| match error {
                            FrameError::Unreadable => failed(),
                            FrameError::NoMemory => CloseReason::NoMemory,
                        })
                }
                (_, None) => return Ok(()),
            };
            let (request, finishes, acknowledges) = match built {
                // What there is is sent first.
                Err(CloseReason::NoMemory) if !frames.is_empty() => return Ok(()),
                Err(CloseReason::NoMemory) if longest != longest.shortened() => {
                    (at, longest) = (before, longest.shortened());
                    continue;
                }
                built => built?,
            };
            frames.push(Frame {
                end: batch.len(),
                request,
                after: at,
                finishes,
                acknowledges,
            });
            if batch.len() - begin >= LONG_FRAME && batch.len() >= call {
                break;
            }
        }
        Ok(())
    }

    /// Hands the batch to the socket. True if there may be more to send. `faults` counts the
    /// batches that the kernel could not read.
    fn send(
        &mut self,
        round: &mut Round,
        me: &mut QpState,
        (watch, crc): (&Watch, bool),
        acks: &mut Acks,
        faults: &mut u32,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        let Round { batch, frames } = round;
        let taken = match batch.send(watch) {
            Ok(taken) => taken,
            // The program has withdrawn memory since the batch was built. To build it again finds
            // whose memory that is, unless the program has given it back.
            Err(Errno::FAULT) if *faults < MOST_FAULTS => {
                *faults += 1;
                return Ok(true);
            }
            Err(Errno::FAULT) => {
                return Err(CloseReason::Protocol(WireError::RDMAP_CATASTROPHIC, None));
            }
            Err(error) => {
                self.refused(error);
                return Ok(false);
            }
        };
        self.writes += 1;
        let mut start = 0;
        for frame in &*frames {
            if taken <= start {
                break;
            }
            if taken < frame.end
                && batch
                    .copy_range(taken, frame.end, &mut self.pending)
                    .is_err()
            {
                return Err(self.torn(frame.request));
            }
            start = frame.end;
            self.commit(frame, me, acks);
        }
        me.retire(up);
        self.call
            .called((batch.len(), taken), crc, acks.arrived, Instant::now);
        self.blocked = taken < batch.len();
        Ok(!self.blocked)
    }

    /// An FPDU was sent in part, and the rest of it cannot be read: nothing can follow it, not even
    /// the reason for the peer.
    #[cold]
    pub(super) fn torn(&mut self, request: Option<u64>) -> CloseReason {
        self.closed = true;
        match request {
            Some(number) => CloseReason::Request(number, WcStatus::LocalProtection),
            None => CloseReason::Lost,
        }
    }

    /// An FPDU is sent.
    fn commit(&mut self, frame: &Frame, me: &mut QpState, acks: &mut Acks) {
        self.at = frame.after;
        if frame.acknowledges {
            acks.reported();
        }
        match frame.finishes {
            Finishes::Acknowledgement => acks.acknowledged_alone(),
            _ => acks.other_sent(),
        }
        match frame.finishes {
            Finishes::Nothing | Finishes::Acknowledgement => {}
            Finishes::Request(number) => acks.request_sent(number, me),
            Finishes::Read(number, msn) => {
                acks.request_sent(number, me);
                self.reads.push_back((number, msn));
            }
            Finishes::Response => {
                self.responses.pop_front();
            }
        }
        // The others count from the front of the queue.
        self.at.answered = 0;
    }
}
