//! Receiving: FPDUs are read from the socket, and their segments used.

use crate::kernel;
use crate::kernel::net::RecvFlags;
use rustix::io::Errno;

use super::close_reason::CloseReason;
use super::conn::TcpConn;
use super::rx_direct::{FIRST_READ, LONG, Payload, Placing};
use super::rx_segment::Taken;
use super::rx_stream::StreamWatch;
use super::stash::Stash;
#[cfg(doc)]
use crate::device::soft::engine::rounds::LastServed;
use crate::device::soft::engine::{RX_BUFFER_LEN, Scratch};
use crate::device::soft::iwarp::fpdu::{self, Decoded};
use crate::device::soft::iwarp::mpa::Rtr;
use crate::device::soft::iwarp::sequence::RxSequence;
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// What one reading of a socket brings at most; there is room for as much kept from before.
const READ: usize = RX_BUFFER_LEN / 2;
/// Readings before another socket has its turn.
const TURNS: usize = 4;
/// What is read at a time and takes its turn with the messages of other connections. Longer ones
/// go to their receives as they are read, one at a time.
const IN_TURN: usize = 16 * 1024;

/// The receiving half of a connection.
pub(crate) struct Rx {
    pub(super) sequence: RxSequence,
    /// Bytes that were read: part of an FPDU, or more if paused or with a backlog.
    carry: Vec<u8>,
    /// How many of them are used; none but if paused or with a backlog.
    used: usize,
    /// The long FPDU whose payload goes to its place.
    pub(super) placing: Option<Placing>,
    /// Whether the last FPDU was long, so that the next one probably is.
    expects_long: bool,
    /// There may be whole messages among the others, which are delivered in turn.
    pub backlog: bool,
    /// A whole message was delivered, or an answer used, since the [engine](LastServed) was last told.
    pub served: bool,
    /// What waits for receives.
    pub(super) stash: Stash,
    /// The stash is full: nothing is read until there are receives.
    pub paused: bool,
    /// Something has been received.
    pub begun: bool,
    /// Whether the peer has ended its stream.
    pub ended: bool,
    /// Whether the peer's consumer has ended the connection at once.
    pub aborted: bool,
    /// Writes to the socket before the end of the peer's stream was noticed: see [`Tx::writes`](crate::device::soft::transport::tcp::tx::Tx::writes).
    pub writes_at_end: u64,
    /// Whether the peer has ended its stream behind what was read: more than otherwise may wait for receives,
    /// so that what the end is gets known.
    pub hung_up: bool,
    /// There may be more to read than was read in one turn.
    pub more: bool,
    /// The same, when the backlog is delivered.
    pub unread: bool,
    /// Bytes that have arrived of the response to our oldest read.
    pub(super) answered: u32,
    /// Answers to expect that are not to reads of the consumer.
    pub uncounted: u32,
    /// Whether the peer sends a stream.
    stream: StreamWatch,
}

impl Rx {
    pub fn new() -> Rx {
        Rx {
            sequence: RxSequence::new(),
            carry: Vec::new(),
            used: 0,
            placing: None,
            expects_long: false,
            backlog: false,
            served: false,
            stash: Stash::default(),
            paused: false,
            begun: false,
            ended: false,
            aborted: false,
            writes_at_end: 0,
            hung_up: false,
            more: false,
            unread: false,
            answered: 0,
            uncounted: 0,
            stream: StreamWatch::default(),
        }
    }

    /// The peer's consumer has ended the connection at once: nothing waits for receives.
    pub fn abort(&mut self) {
        self.ended = true;
        self.aborted = true;
        self.paused = false;
        self.carry = Vec::new();
        self.used = 0;
        self.stash.clear();
    }

    /// Whether nothing more may wait for receives.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.stash.is_full() && (!self.hung_up || self.stash.is_full_at_end())
    }

    /// Whether the end of the peer's stream is behind what is not read until there are receives.
    pub fn holds_end(&self) -> bool {
        self.paused && self.hung_up
    }

    /// Whether the peer sends a stream, and is in the midst of a message: more than one segment is on its way.
    fn is_amid_stream(&self) -> bool {
        let amid = self
            .placing
            .as_ref()
            .is_some_and(|placing| !placing.is_last());
        amid && self.stream.runs()
    }

    /// Something was read and is not used.
    pub fn has_kept(&self) -> bool {
        !self.carry.is_empty()
    }

    /// Number of bytes that are kept, and how many of them are used.
    #[cfg(test)]
    pub fn kept(&self) -> (usize, usize) {
        (self.carry.len(), self.used)
    }

    /// An FPDU was torn off.
    pub fn is_torn(&self) -> bool {
        !self.paused && (!self.carry.is_empty() || self.placing.is_some())
    }

    /// The number of the oldest message that waits for a receive, among the requests of the peer.
    #[inline]
    pub fn oldest_waiting(&self) -> Option<u32> {
        self.stash.oldest()
    }

    /// Messages wait for receives.
    pub fn is_waiting(&self) -> bool {
        self.paused || !self.stash.is_empty()
    }
}

impl TcpConn {
    /// Reads the socket and uses what has arrived, up to the end of the stream if it `ends`.
    pub(crate) fn receive(
        &mut self,
        ends: bool,
        me: &mut QpState,
        scratch: &mut Scratch,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let buffer = scratch.rx();
        // Less than an FPDU, so there is room.
        let mut kept = self.rx.carry.len();
        let (mut loaded, mut arrived) = (false, false);
        let mut more = true;
        let mut left = TURNS * READ;
        while left > 0 {
            if self.rx.paused || self.rx.ended || self.is_held(me) {
                more = false;
                break;
            }
            let missing = self.missing();
            let (read, full) = if missing > 0 {
                self.read_to_place(buffer, me, guard)
            } else {
                let alone = self.rx.expects_long && !self.crc && !self.watch.serves_in_rounds();
                let most = if alone { FIRST_READ } else { READ };
                let space = &mut buffer[kept..kept + most];
                let read = kernel::net::recv(&self.watch, space, RecvFlags::DONTWAIT);
                (read.map(|(_, n)| n), most)
            };
            let n = match read {
                Ok(n) if n > 0 => n,
                Err(Errno::AGAIN) => {
                    more = false;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(error) if !self.acks.peer_ended => return Err(CloseReason::Socket(error)),
                // The end of the stream. A program that has exited behind its graceful end, with something of ours
                // unread, ends the stream with an error.
                Ok(_) | Err(_) => {
                    self.rx.ended = true;
                    if !self.rx.hung_up {
                        self.rx.writes_at_end = self.tx.writes;
                    }
                    more = false;
                    break;
                }
            };
            arrived = true;
            left = left.saturating_sub(full);
            // Behind the read: another connection may have been made before something of it was sent.
            let in_rounds = self.watch.serves_in_rounds();
            if in_rounds && missing == 0 && n <= IN_TURN {
                match loaded {
                    true => kept += n,
                    false => append(&mut self.rx.carry, &buffer[kept..kept + n])?,
                }
                self.rx.backlog = true;
                more = ends || n == full;
                break;
            }
            if !loaded {
                buffer[..kept].copy_from_slice(&self.rx.carry);
                self.rx.carry.clear();
                loaded = true;
            }
            // What is missing of a payload is not in the buffer.
            let end = (kept + n).saturating_sub(missing);
            let (used, whole) = self.process(&buffer[..end], !in_rounds, me, guard, up)?;
            buffer.copy_within(used..end, 0);
            kept = end - used;
            if in_rounds {
                self.rx.backlog = whole && kept > 0;
                more = ends || n == full;
                break;
            }
            if n < full && !ends {
                more = false;
                break;
            }
        }
        if loaded {
            self.keep(&buffer[..kept])?;
        }
        if self.rx.backlog {
            self.rx.unread |= more;
        } else {
            self.rx.more |= more;
        }
        scratch.received = arrived;
        scratch.streams = !self.crc && self.rx.is_amid_stream();
        Ok(())
    }

    /// Bytes that are missing of a payload that the kernel is to copy to its place.
    fn missing(&self) -> usize {
        let placing = self.rx.placing.as_ref().filter(|_| !self.crc);
        placing.map_or(0, Placing::missing)
    }

    /// Keeps bytes for later, in as much memory as they need.
    fn keep(&mut self, rest: &[u8]) -> Result<(), CloseReason> {
        if rest.is_empty() {
            self.rx.carry = Vec::new();
            return Ok(());
        }
        self.rx.carry.clear();
        append(&mut self.rx.carry, rest)
    }

    /// Uses whole FPDUs, `all` of them or those up to the end of a message. Returns how many bytes
    /// of them there were, and whether it stopped for that end.
    fn process(
        &mut self,
        bytes: &[u8],
        all: bool,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(usize, bool), CloseReason> {
        let mut used = 0;
        loop {
            if self.is_held(me) {
                return Ok((used, false));
            }
            if self.is_long(&bytes[used..]) {
                used += self.place(&bytes[used..], me, guard, up);
            }
            let rest = &bytes[used..];
            let placed = match self.rx.placing.is_some() {
                true => match self.end_placing(rest, me, guard)? {
                    Some(placed) => Some(placed),
                    None => return Ok((used, false)),
                },
                false => None,
            };
            let (header, payload, consumed, encoded) = match &placed {
                Some(placed) => placed.parts(),
                None => match fpdu::decode(rest, self.crc) {
                    Ok(Decoded::Fpdu(fpdu)) => {
                        let payload = Payload::Bytes(fpdu.payload);
                        (fpdu.header, payload, fpdu.consumed, rest)
                    }
                    Ok(Decoded::NeedMore(_)) => return Ok((used, false)),
                    Err(error) => return Err(CloseReason::Protocol(error, None)),
                },
            };
            self.rx.expects_long = payload.len() >= LONG;
            self.rx.stream.arrived(payload.len(), me.sq.tail());
            let taken = match &header {
                Some(header) => self
                    .classify(header, payload.len(), me, up)
                    .and_then(|segment| self.take(&segment, encoded, payload, me, guard, up)),
                // Only as the ready-to-receive message.
                None if !self.rx.begun && self.rtr == Some(Rtr::FPDU) => Ok(Taken::Yes),
                None => Err(CloseReason::Protocol(WireError::MPA_FRAMING, None)),
            };
            if taken.is_err() {
                self.answer_earlier_reads(me, guard, up)?;
            }
            let whole = match taken {
                Ok(Taken::Yes) => false,
                Ok(Taken::Whole) => {
                    self.rx.served = true;
                    true
                }
                Ok(Taken::Pause) => {
                    self.rx.paused = true;
                    return Ok((used, false));
                }
                Err(why) => return Err(why.about(encoded)),
            };
            used += consumed;
            if !self.rx.begun {
                self.begin(me, up);
            }
            if self.rx.ended {
                // Nothing counts behind a Terminate.
                return Ok((bytes.len(), false));
            }
            if whole && !all {
                return Ok((used, true));
            }
        }
    }

    /// Uses what was read and kept, `all` of it or one message.
    pub fn use_kept(
        &mut self,
        all: bool,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let mut kept = std::mem::take(&mut self.rx.carry);
        let before = std::mem::take(&mut self.rx.used);
        let (used, whole) = self.process(&kept[before..], all, me, guard, up)?;
        let used = before + used;
        let rest = used < kept.len();
        self.rx.backlog = whole && rest;
        if !self.rx.backlog {
            self.rx.more |= std::mem::take(&mut self.rx.unread);
        }
        if rest {
            // Of many messages each may be used in a call of its own; none of those is to move all that follow.
            if self.rx.backlog || self.rx.paused {
                self.rx.used = used;
            } else {
                kept.drain(..used);
            }
            self.rx.carry = kept;
        }
        Ok(())
    }
}

/// Appends bytes, in as much memory as they need.
pub(super) fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Result<(), CloseReason> {
    let reserved = to.try_reserve_exact(bytes.len());
    reserved.map_err(|_| CloseReason::NoMemory)?;
    to.extend_from_slice(bytes);
    Ok(())
}
