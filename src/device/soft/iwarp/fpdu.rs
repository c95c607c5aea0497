//! Framing: one DDP segment in one FPDU (RFC 5044 section 4, RFC 5041 section 4).
//!
//! ```text
//! | length 2 | DDP header 14 or 18 | payload | padding 0..3 | CRC 4 |
//! |---------------- header --------|         |----- trailer -------|
//! ```
//!
//! A sender encodes the header into an array of its own, computes the trailer with [`seal`]
//! over the slices of the payload, and hands header, slices and trailer to one `writev`.
//!
//! A receiver either has the FPDU in one buffer ([`decode`]), or reads the header first
//! ([`peek`]), then the payload to where it belongs while a [`Crc`] runs along, then the
//! trailer ([`check_trailer`]).
//!
//! Markers (RFC 5044 section 4.3) are never negotiated and do not occur here.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::crc::Crc;
use super::wire::{
    DDP_LAST, DDP_TAGGED, DDP_VERSION, FPDU_CRC, FPDU_PREFIX, FPDU_TRAILER_MAX, RDMAP_ASK,
    RDMAP_IMMEDIATE, RDMAP_OPCODE_MASK, RDMAP_VERSION, TAGGED_HDR, TaggedWire, ULPDU_MAX,
    UNTAGGED_HDR, UntaggedWire, WireError,
};

/// Smallest ULPDU that a sender may be told to keep to (RFC 5044 section 4.5).
pub const MULPDU_MIN: usize = 128;
/// Largest ULPDU that fills an FPDU without padding.
pub const MULPDU_MAX: usize = ULPDU_MAX - 1;

/// The largest ULPDU (DDP header and payload) whose FPDU fits a TCP segment of `emss` bytes:
/// RFC 5044 section 4.5 without markers.
///
/// Peers that do not say otherwise expect FPDUs to fit TCP segments. Cards put together what is in two segments, and
/// end the connection if the whole is longer than one.
pub const fn mulpdu(emss: usize) -> usize {
    let fit = emss.saturating_sub(FPDU_PREFIX + FPDU_CRC + emss % 4);
    if fit < MULPDU_MIN {
        MULPDU_MIN
    } else if fit > MULPDU_MAX {
        MULPDU_MAX
    } else {
        fit
    }
}

/// Payload bytes of a tagged segment in a ULPDU of `mulpdu` bytes.
pub const fn tagged_payload(mulpdu: usize) -> usize {
    mulpdu.saturating_sub(TAGGED_HDR - FPDU_PREFIX)
}

/// Payload bytes of an untagged segment in a ULPDU of `mulpdu` bytes.
pub const fn untagged_payload(mulpdu: usize) -> usize {
    mulpdu.saturating_sub(UNTAGGED_HDR - FPDU_PREFIX)
}

/// The DDP and RDMAP control bytes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// `DDP_*` bits but the T bit, which the type of the header says.
    pub ddp: u8,
    /// RDMAP version and opcode.
    pub rdmap: u8,
}

impl Control {
    /// For a segment to be sent; `opcode` is one of `OP_*`.
    pub const fn new(opcode: u8, last: bool) -> Self {
        Self {
            ddp: DDP_VERSION | if last { DDP_LAST } else { 0 },
            rdmap: RDMAP_VERSION | opcode & RDMAP_OPCODE_MASK,
        }
    }

    /// The same, which asks for an acknowledgement.
    pub const fn asking(self, asks: bool) -> Self {
        Self {
            rdmap: self.rdmap | if asks { RDMAP_ASK } else { 0 },
            ..self
        }
    }

    /// The same for an RDMA Write, with the bit that Immediate Data belongs to it.
    pub const fn with_immediate(self, follows: bool) -> Self {
        Self {
            rdmap: self.rdmap | if follows { RDMAP_IMMEDIATE } else { 0 },
            ..self
        }
    }

    /// Whether an acknowledgement is asked for, if both ends have agreed on acknowledgements.
    pub const fn asks(self) -> bool {
        self.rdmap & RDMAP_ASK != 0
    }

    /// The opcode, any number of four bits.
    pub const fn opcode(self) -> u8 {
        self.rdmap & RDMAP_OPCODE_MASK
    }

    /// Whether the segment is the last of its message.
    pub const fn last(self) -> bool {
        self.ddp & DDP_LAST != 0
    }
}

/// Header of a tagged segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// Control bytes.
    pub control: Control,
    /// Steering tag of the sink.
    pub stag: u32,
    /// Offset in the sink.
    pub to: u64,
}

impl Tagged {
    /// Encodes for a segment with `payload_len` bytes of payload, at most
    /// [`tagged_payload`]`(`[`ULPDU_MAX`]`)`.
    ///
    /// # Errors
    /// [`WireError::MPA_FRAMING`] if it is longer.
    #[inline]
    pub fn encode(self, payload_len: usize, out: &mut [u8; TAGGED_HDR]) -> Result<(), WireError> {
        let wire = TaggedWire {
            ulpdu_len: ulpdu_len(TAGGED_HDR, payload_len)?,
            ddp: self.control.ddp | DDP_TAGGED,
            rdmap: self.control.rdmap,
            stag: U32::new(self.stag),
            to: U64::new(self.to),
        };
        out.copy_from_slice(wire.as_bytes());
        Ok(())
    }
}

/// Header of an untagged segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untagged {
    /// Control bytes.
    pub control: Control,
    /// STag to invalidate, or 0.
    pub invalidate: u32,
    /// Queue number.
    pub qn: u32,
    /// Message sequence number.
    pub msn: u32,
    /// Offset of the payload in the message.
    pub mo: u32,
}

impl Untagged {
    /// Encodes for a segment with `payload_len` bytes of payload, at most
    /// [`untagged_payload`]`(`[`ULPDU_MAX`]`)`.
    ///
    /// # Errors
    /// [`WireError::MPA_FRAMING`] if it is longer.
    #[inline]
    pub fn encode(self, payload_len: usize, out: &mut [u8; UNTAGGED_HDR]) -> Result<(), WireError> {
        let wire = self.to_wire(ulpdu_len(UNTAGGED_HDR, payload_len)?);
        out.copy_from_slice(wire.as_bytes());
        Ok(())
    }

    /// The structure itself, for messages that put a header of their own behind it.
    pub(super) const fn to_wire(self, ulpdu_len: U16) -> UntaggedWire {
        UntaggedWire {
            ulpdu_len,
            ddp: self.control.ddp & !DDP_TAGGED,
            rdmap: self.control.rdmap,
            invalidate: U32::new(self.invalidate),
            qn: U32::new(self.qn),
            msn: U32::new(self.msn),
            mo: U32::new(self.mo),
        }
    }
}

fn ulpdu_len(header_len: usize, payload_len: usize) -> Result<U16, WireError> {
    let ulpdu = payload_len.saturating_add(header_len - FPDU_PREFIX);
    let ulpdu = u16::try_from(ulpdu).map_err(|_| WireError::MPA_FRAMING)?;
    Ok(U16::new(ulpdu))
}

/// Bytes of padding behind `body_len` bytes of header (with prefix) and payload.
pub const fn padding(body_len: usize) -> usize {
    body_len.wrapping_neg() % 4
}

/// Computes padding and CRC behind `header` and the slices of the payload. The result, 4 to 7
/// bytes in `out`, ends the FPDU.
///
/// With `crc` off the CRC field is zero: it must be there, and is not checked (RFC 5044
/// section 4.4).
#[inline]
pub fn seal<'p, 't>(
    crc: bool,
    header: &[u8],
    payload: impl IntoIterator<Item = &'p [u8]>,
    out: &'t mut [u8; FPDU_TRAILER_MAX],
) -> &'t [u8] {
    let mut body_len = header.len();
    let mut running = crc.then(Crc::new);
    if let Some(running) = &mut running {
        running.update(header);
    }
    for slice in payload {
        body_len += slice.len();
        if let Some(running) = &mut running {
            running.update(slice);
        }
    }
    trailer(body_len, running, out)
}

/// Like [`seal`], when the CRC of header and payload has been computed already: `body_len` is
/// their length, `crc` their CRC or `None` if CRCs are off.
#[inline]
pub fn trailer(body_len: usize, crc: Option<Crc>, out: &mut [u8; FPDU_TRAILER_MAX]) -> &[u8] {
    let pad = padding(body_len);
    let field = match crc {
        Some(mut crc) => {
            crc.update(&[0; 3][..pad]);
            crc.finish()
        }
        None => [0; FPDU_CRC],
    };
    out[..pad].fill(0);
    out[pad..pad + FPDU_CRC].copy_from_slice(&field);
    &out[..pad + FPDU_CRC]
}

/// The header of a received segment, undone but not judged: see
/// [`Segment::classify`](super::rdmap::Segment::classify).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// With the T bit.
    Tagged(Tagged),
    /// Without.
    Untagged(Untagged),
}

impl Header {
    /// Its control bytes.
    pub const fn control(&self) -> Control {
        match self {
            Header::Tagged(header) => header.control,
            Header::Untagged(header) => header.control,
        }
    }
}

/// Where the parts of an FPDU are: header, payload and trailer follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The header; `None` for the FPDU of length zero that RFC 6581 has as a ready-to-receive
    /// message.
    pub header: Option<Header>,
    /// Bytes before the payload: [`FPDU_PREFIX`], [`TAGGED_HDR`] or [`UNTAGGED_HDR`].
    pub header_len: usize,
    /// Bytes of payload.
    pub payload_len: usize,
    /// Bytes of padding and CRC.
    pub trailer_len: usize,
}

impl Layout {
    /// Bytes of the whole FPDU, at most 65544.
    pub const fn total(&self) -> usize {
        self.header_len + self.payload_len + self.trailer_len
    }
}

/// What [`peek`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peek {
    /// The header is there.
    Layout(Layout),
    /// At least so many more bytes are needed.
    NeedMore(usize),
}

/// Reads the header at the start of `buf`, which need not hold more than the header.
///
/// # Errors
/// [`WireError::MPA_FRAMING`] if the length field is too small for a DDP header. The stream
/// is lost: there is no way to find the next FPDU.
#[inline]
pub fn peek(buf: &[u8]) -> Result<Peek, WireError> {
    let Some((ulpdu, rest)) = U16::read_from_prefix(buf).ok() else {
        return Ok(Peek::NeedMore(FPDU_PREFIX - buf.len()));
    };
    let body_len = FPDU_PREFIX + usize::from(ulpdu.get());
    let trailer_len = padding(body_len) + FPDU_CRC;
    if body_len == FPDU_PREFIX {
        let (header_len, payload_len) = (FPDU_PREFIX, 0);
        return Ok(Peek::Layout(Layout {
            header: None,
            header_len,
            payload_len,
            trailer_len,
        }));
    }
    let Some(&ddp) = rest.first() else {
        return Ok(Peek::NeedMore(1));
    };
    let header_len = if ddp & DDP_TAGGED != 0 {
        TAGGED_HDR
    } else {
        UNTAGGED_HDR
    };
    let Some(payload_len) = body_len.checked_sub(header_len) else {
        return Err(WireError::MPA_FRAMING);
    };
    let header = if ddp & DDP_TAGGED != 0 {
        TaggedWire::read_from_prefix(buf).ok().map(|(wire, _)| {
            let control = Control {
                ddp: wire.ddp & !DDP_TAGGED,
                rdmap: wire.rdmap,
            };
            Header::Tagged(Tagged {
                control,
                stag: wire.stag.get(),
                to: wire.to.get(),
            })
        })
    } else {
        UntaggedWire::read_from_prefix(buf).ok().map(|(wire, _)| {
            Header::Untagged(Untagged {
                control: Control {
                    ddp: wire.ddp,
                    rdmap: wire.rdmap,
                },
                invalidate: wire.invalidate.get(),
                qn: wire.qn.get(),
                msn: wire.msn.get(),
                mo: wire.mo.get(),
            })
        })
    };
    Ok(match header {
        Some(_) => Peek::Layout(Layout {
            header,
            header_len,
            payload_len,
            trailer_len,
        }),
        None => Peek::NeedMore(header_len - buf.len()),
    })
}

/// Checks `trailer` (padding and CRC, [`Layout::trailer_len`] bytes) against the CRC of header
/// and payload.
///
/// # Errors
/// [`WireError::MPA_CRC`].
#[inline]
pub fn check_trailer(trailer: &[u8], mut crc: Crc) -> Result<(), WireError> {
    let Some((pad, field)) = trailer.split_last_chunk::<FPDU_CRC>() else {
        return Err(WireError::MPA_CRC);
    };
    crc.update(pad);
    if crc.finish() == *field {
        Ok(())
    } else {
        Err(WireError::MPA_CRC)
    }
}

/// A whole FPDU in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fpdu<'a> {
    /// The header; see [`Layout::header`].
    pub header: Option<Header>,
    /// The payload.
    pub payload: &'a [u8],
    /// Bytes of the FPDU: the next one starts behind them.
    pub consumed: usize,
}

/// What [`decode`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// A whole FPDU.
    Fpdu(Fpdu<'a>),
    /// At least so many more bytes are needed.
    NeedMore(usize),
}

/// Decodes the FPDU at the start of `buf`. If `crc` is on, its CRC is checked.
///
/// # Errors
/// [`WireError::MPA_FRAMING`] and [`WireError::MPA_CRC`]; both end the connection.
#[inline]
pub fn decode(buf: &[u8], crc: bool) -> Result<Decoded<'_>, WireError> {
    let layout = match peek(buf)? {
        Peek::Layout(layout) => layout,
        Peek::NeedMore(bytes) => return Ok(Decoded::NeedMore(bytes)),
    };
    let consumed = layout.total();
    let Some(frame) = buf.get(..consumed) else {
        return Ok(Decoded::NeedMore(consumed - buf.len()));
    };
    if crc {
        // One pass over header, payload and padding: they are contiguous here.
        let (covered, field) = frame.split_at(consumed - FPDU_CRC);
        let mut running = Crc::new();
        running.update(covered);
        check_trailer(field, running)?;
    }
    let payload = &frame[layout.header_len..][..layout.payload_len];
    Ok(Decoded::Fpdu(Fpdu {
        header: layout.header,
        payload,
        consumed,
    }))
}
