//! Long payloads, which go to their place as they arrive: to the oldest receive, or to the sink of our
//! oldest read. The FPDU is used when its trailer has arrived.
//!
//! With checksums what was read is summed while it is copied; without, the kernel copies the rest of a
//! payload from the socket straight to its place. Until the checksum is known to be right nothing is
//! believed but the place: a wrong header can only have bytes written to a receive, or a sink, that is
//! not complete. Memory that an RDMA write names is not written before that, since programs wait for an
//! RDMA write by polling its target.

use rustix::io::Errno;

use super::close_reason::{CloseReason, header_of};
use super::conn::TcpConn;
use super::tx_frame::sink;
use crate::device::soft::engine::RX_BUFFER_LEN;
use crate::device::soft::iwarp::crc::Crc;
use crate::device::soft::iwarp::fpdu::{self, Header, Layout, Peek};
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::wire::UNTAGGED_HDR;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_table;
use crate::device::soft::mem::ranges::Ranges;
use crate::device::soft::qp::state::{QpState, Supply};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Sge};
use crate::guarded::{self, CopyFault};
use crate::handle::Guard;
use crate::kernel;

/// The shortest payload that goes to its place as it arrives, in bytes. In simulations, whose messages are
/// short, all limits are lower.
pub(super) const LONG: usize = if cfg!(dat_sim) { 64 } else { 24 * 1024 };
/// What has to be missing of one that the kernel copies, in bytes.
const MISSING: usize = if cfg!(dat_sim) { 1 } else { 4 * 1024 };
/// What is read of an FPDU that is probably long while its header is not known, in bytes.
pub(super) const FIRST_READ: usize = if cfg!(dat_sim) { 40 } else { 1024 };
/// What is read behind a payload, in bytes: its trailer, and the header of the next FPDU.
const BEHIND: usize = if cfg!(dat_sim) { 20 } else { 256 };
/// The most segments that are read to at a time, beside what is behind them.
const PIECES: usize = if cfg!(dat_sim) { 2 } else { 8 };

/// What the kernel copies to at a time: the segments, the last bytes of the message, and what is behind it.
type Pieces = Ranges<{ PIECES + 2 }>;

/// The payload of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// It is here.
    Bytes(&'a [u8]),
    /// So many bytes are where they belong, or could not be written there if not `written`.
    Placed { len: usize, written: bool },
}

impl<'a> Payload<'a> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Placed { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are here.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::Placed { .. } => &[],
        }
    }

    /// Copies it to its place, unless it is there.
    ///
    /// # Errors
    /// The memory is not there.
    ///
    /// # Safety
    /// The place is registered, for as long as the section lasts, and long enough.
    pub unsafe fn place(&self, at: Cursor<'_>) -> Result<(), CopyFault> {
        match *self {
            // SAFETY: the caller's promise.
            Payload::Bytes(bytes) => unsafe { copy::scatter(bytes.as_ptr(), bytes.len(), at) },
            Payload::Placed { written: true, .. } => Ok(()),
            Payload::Placed { written: false, .. } => Err(CopyFault::Target),
        }
    }
}

/// Where a payload belongs.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// In the receive with this number.
    Receive(u64),
    /// In the sink of the read with this number.
    Read(u64),
}

/// An FPDU whose payload goes to its place as it arrives.
#[derive(Debug)]
pub(super) struct Placing {
    target: Target,
    /// Bytes of the message before the payload.
    offset: u64,
    /// The encoded header, of which the layout says how long it is.
    header: [u8; UNTAGGED_HDR],
    layout: Layout,
    /// Bytes of the payload that have arrived.
    placed: usize,
    /// The sum so far, if there are sums.
    crc: Option<Crc>,
    /// Whether all bytes so far could be written.
    written: bool,
}

impl Placing {
    /// Whether the segment is the last one of its message.
    pub fn is_last(&self) -> bool {
        let header = self.layout.header.as_ref();
        header.is_none_or(|header| header.control().last())
    }

    /// Bytes of the payload that have not arrived.
    pub fn missing(&self) -> usize {
        self.layout.payload_len - self.placed
    }

    /// The memory where it belongs, if that is still there and nothing has failed. `read` is the oldest
    /// read of ours.
    fn memory<'a>(&self, me: &'a QpState, read: Option<u64>, guard: &Guard) -> Option<&'a [Sge]> {
        if !self.written {
            return None;
        }
        match self.target {
            Target::Receive(number) => {
                let (receive, sges) = me.rq.front().filter(|_| me.rq.head() == number)?;
                let end = self.offset + self.layout.payload_len as u64;
                me.check_receive(receive, sges, end, guard)
                    .is_ok()
                    .then_some(sges)
            }
            Target::Read(number) => {
                let (_, sges) = me.sq.get(number).filter(|_| read == Some(number))?;
                let checked = key_table::check_all(sges, me.id.pd, Access::LOCAL_WRITE, guard);
                checked.is_ok().then_some(sges)
            }
        }
    }

    /// Adds what is missing of the payload, as far as there is room for it, and returns the number of bytes. The last bytes
    /// of a message are a range of their own: the kernel copies one range after the other, and programs wait for a message
    /// by polling its last byte.
    fn push_missing(&self, sges: &[Sge], ranges: &mut Pieces) -> usize {
        let tail = if self.is_last() { copy::TAIL as u64 } else { 0 };
        let at = Cursor::at(sges, self.offset + self.placed as u64);
        ranges.push_segments(at, self.missing() as u64, tail) as usize
    }

    /// Copies bytes of the payload to their place, the last of them last, and adds them to the sum.
    ///
    /// # Errors
    /// The memory is not there.
    ///
    /// # Safety
    /// The place is registered, for as long as the section lasts.
    unsafe fn write(&mut self, mut bytes: &[u8], sges: &[Sge]) -> Result<(), CopyFault> {
        let mut cursor = Cursor::at(sges, self.offset + self.placed as u64);
        while let Some((at, n)) = cursor.take(bytes.len() as u64) {
            let (now, later) = bytes.split_at(n as usize);
            // SAFETY: the caller's promise.
            unsafe {
                match &mut self.crc {
                    // One pass for both does not order its stores.
                    Some(crc) if guarded::STORES_IN_ORDER => crc.place(now, at)?,
                    crc => {
                        if let Some(crc) = crc {
                            crc.update(now);
                        }
                        copy::arrived(now.as_ptr(), at, now.len())?;
                    }
                }
            }
            bytes = later;
        }
        Ok(())
    }
}

impl TcpConn {
    /// The read of ours that the next response is for.
    fn oldest_read(&self) -> Option<u64> {
        self.tx.reads.front().map(|&(number, _)| number)
    }

    /// Whether a long FPDU starts with these bytes, or goes on with them.
    #[inline]
    pub(super) fn is_long(&self, bytes: &[u8]) -> bool {
        let len = bytes.first_chunk().map(|&len| u16::from_be_bytes(len));
        self.rx.placing.is_some() || len.is_some_and(|len| usize::from(len) >= LONG)
    }

    /// Places what these bytes have of the payload of a long FPDU. Returns how many of the bytes are used;
    /// those of its trailer are not.
    #[inline(never)]
    pub(super) fn place(
        &mut self,
        bytes: &[u8],
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> usize {
        let begun = match self.rx.placing {
            Some(_) => 0,
            None => {
                self.rx.placing = self.begin_placing(bytes, me, up);
                let placing = self.rx.placing.as_ref();
                placing.map_or(0, |placing| placing.layout.header_len)
            }
        };
        let read = self.oldest_read();
        let Some(placing) = &mut self.rx.placing else {
            return 0;
        };
        let bytes = &bytes[begun..];
        let bytes = &bytes[..bytes.len().min(placing.missing())];
        if !bytes.is_empty() {
            let memory = placing.memory(me, read, guard);
            // SAFETY: it was found just now.
            placing.written =
                memory.is_some_and(|sges| unsafe { placing.write(bytes, sges) }.is_ok());
        }
        placing.placed += bytes.len();
        begun + bytes.len()
    }

    /// The FPDU that starts with these bytes, if it is long and nothing is in the way of its payload.
    fn begin_placing(&self, bytes: &[u8], me: &mut QpState, up: &mut Upcalls) -> Option<Placing> {
        if !self.rx.begun {
            return None;
        }
        // What is wrong with a header is found when the FPDU is whole.
        let Ok(Peek::Layout(layout)) = fpdu::peek(bytes) else {
            return None;
        };
        let head = &bytes[..layout.header_len];
        if !self.crc && bytes.len() + MISSING > layout.header_len + layout.payload_len {
            return None;
        }
        let segment = Segment::classify(&layout.header?, layout.payload_len).ok()?;
        let (target, offset) = self.target(&segment, layout.payload_len as u64, me, up)?;
        let crc = self.crc.then(|| {
            let mut crc = Crc::new();
            crc.update(head);
            crc
        });
        Some(Placing {
            target,
            offset,
            header: header_of(head),
            layout,
            placed: 0,
            crc,
            written: true,
        })
    }

    /// Where the payload of a segment belongs, and what is before it in the message; `None` if it has to
    /// wait, or is wrong.
    fn target(
        &self,
        segment: &Segment,
        len: u64,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Option<(Target, u64)> {
        match *segment {
            Segment::Send { mo, .. } => {
                let ready = me.receiving && self.rx.stash.is_empty() && !self.acks.peer_ended;
                if !ready || !matches!(me.supply(up), Supply::Ready) {
                    return None;
                }
                let (receive, _) = me.rq.front()?;
                let offset = u64::from(mo);
                (offset + len <= u64::from(receive.len))
                    .then(|| (Target::Receive(me.rq.head()), offset))
            }
            Segment::ReadResponse { stag, to, .. } => {
                let number = self.oldest_read()?;
                let (request, _) = me.sq.get(number)?;
                let offset = u64::from(self.rx.answered);
                let fits =
                    stag == sink(number) && to == offset && offset + len <= u64::from(request.len);
                fits.then_some((Target::Read(number), offset))
            }
            _ => None,
        }
    }

    /// Has the kernel copy what is missing of a payload to its place, and what is behind it to the
    /// beginning of `buffer`; there is no sum. Returns how many bytes were read, 0 at the end of the
    /// stream, and the most that could have been.
    pub(super) fn read_to_place(
        &mut self,
        buffer: &mut [u8],
        me: &QpState,
        guard: &Guard,
    ) -> (Result<usize, Errno>, usize) {
        let read = self.oldest_read();
        let Some(placing) = &mut self.rx.placing else {
            return (Ok(0), 0);
        };
        // A part of the buffer for what is behind the payload, and one for bytes without a place.
        let (behind, room) = buffer.split_at_mut(BEHIND);
        let missing = placing.missing();
        let mut ranges = Ranges::new();
        let memory = placing.memory(me, read, guard);
        placing.written = memory.is_some();
        let mut asked = match memory {
            Some(sges) => placing.push_missing(sges, &mut ranges),
            // The request is gone with its connection, or will fail: the bytes are of no use.
            None => {
                ranges.push(room.as_mut_ptr(), missing);
                missing
            }
        };
        if asked == missing && !ranges.is_full() {
            ranges.push(behind.as_mut_ptr(), BEHIND);
            asked += BEHIND;
        }
        // SAFETY: the memory of the place is registered, for as long as the section lasts, and may be
        // overwritten, as the buffer may.
        let read = unsafe { kernel::receive_message(&self.watch, ranges.all()) };
        match read {
            Ok(n) => placing.placed += n.min(missing),
            // The program has withdrawn the memory: the bytes are read all the same.
            Err(Errno::FAULT) if placing.written => {
                placing.written = false;
                return (Err(Errno::INTR), asked);
            }
            Err(_) => {}
        }
        (read, asked)
    }

    /// Ends the placing of a payload, if it is complete, and `bytes`, which are behind it, have the
    /// trailer.
    ///
    /// # Errors
    /// The sum is wrong.
    pub(super) fn end_placing(
        &mut self,
        bytes: &[u8],
        me: &QpState,
        guard: &Guard,
    ) -> Result<Option<Placed>, CloseReason> {
        let read = self.oldest_read();
        let is_whole = |placing: &mut Placing| {
            placing.missing() == 0 && bytes.len() >= placing.layout.trailer_len
        };
        let Some(mut placing) = self.rx.placing.take_if(is_whole) else {
            return Ok(None);
        };
        placing.written = placing.memory(me, read, guard).is_some();
        if let (Some(crc), true) = (placing.crc, placing.written) {
            fpdu::check_trailer(&bytes[..placing.layout.trailer_len], crc)
                .map_err(|error| CloseReason::Protocol(error, None))?;
        }
        Ok(Some(Placed(placing)))
    }
}

/// An FPDU whose payload is in its place, or could not be written there.
pub(super) struct Placed(Placing);

impl Placed {
    /// Its header, its payload, the bytes of its trailer, and the encoded header.
    pub fn parts(&self) -> (Option<Header>, Payload<'_>, usize, &[u8]) {
        let Placed(placing) = self;
        let layout = &placing.layout;
        let (len, written) = (layout.payload_len, placing.written);
        let payload = Payload::Placed { len, written };
        (layout.header, payload, layout.trailer_len, &placing.header)
    }
}

// The largest payload fits in the buffer beside what is behind it.
const _: () = assert!(RX_BUFFER_LEN > BEHIND + (1 << 16));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::iwarp::fpdu::{Control, Untagged};
    use crate::device::soft::iwarp::wire::{OP_SEND, QN_SEND};

    const LEN: usize = 50_000;

    /// The payload of the last segment of a message, or of another one, of which some bytes have arrived.
    fn placing(last: bool, placed: usize) -> Placing {
        let header = Untagged {
            control: Control::new(OP_SEND, last),
            invalidate: 0,
            qn: QN_SEND,
            msn: 1,
            mo: 0,
        };
        let mut encoded = [0; UNTAGGED_HDR];
        header.encode(LEN, &mut encoded).unwrap();
        Placing {
            target: Target::Receive(0),
            offset: 0,
            header: encoded,
            layout: Layout {
                header: Some(Header::Untagged(header)),
                header_len: UNTAGGED_HDR,
                payload_len: LEN,
                trailer_len: 4,
            },
            placed,
            crc: None,
            written: true,
        }
    }

    /// The lengths of the ranges that are read to, and whether there is room for what is behind them.
    fn ranges(last: bool, placed: usize, segments: usize) -> (Vec<usize>, bool) {
        let sge = |number: usize| Sge {
            addr: 1u64 << (20 + number),
            // All of the payload together.
            len: ((number + 1) * LEN / segments - number * LEN / segments) as u32,
            lkey: 0,
        };
        let sges: Vec<Sge> = (0..segments).map(sge).collect();
        let mut ranges = Pieces::new();
        let asked = placing(last, placed).push_missing(&sges, &mut ranges);
        let lens: Vec<usize> = ranges.all().iter().map(|range| range.iov_len).collect();
        assert_eq!(lens.iter().sum::<usize>(), asked);
        (lens, !ranges.is_full())
    }

    #[test]
    fn the_last_bytes_of_a_message_are_a_range_of_their_own() {
        assert_eq!(ranges(true, 0, 1), (vec![LEN - 16, 16], true));
        assert_eq!(ranges(true, 40_000, 1), (vec![9984, 16], true));
        assert_eq!(ranges(true, LEN - 16, 1), (vec![16], true));
        assert_eq!(ranges(true, LEN - 3, 1), (vec![3], true));
        // Another segment follows, whose last bytes they are not.
        assert_eq!(ranges(false, 0, 1), (vec![LEN], true));
    }

    #[test]
    fn there_is_room_for_all_ranges() {
        for segments in [PIECES, PIECES + 1, PIECES + 2, 20] {
            for last in [false, true] {
                let (lens, has_room) = ranges(last, 0, segments);
                let is_whole = lens.iter().sum::<usize>() == LEN;
                assert_eq!(is_whole, segments <= PIECES + 1, "{segments}");
                let tail = usize::from(last && is_whole);
                assert_eq!(lens.len(), segments.min(PIECES + 1) + tail);
                assert_eq!(has_room, lens.len() < PIECES + 2);
            }
        }
    }
}
