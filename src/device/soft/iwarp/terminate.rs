//! The Terminate message (RFC 5040 section 4.8), with which a connection ends in error.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use super::fpdu::{self, Control, Header, Peek, Untagged};
use super::wire::{
    FPDU_CRC, FPDU_PREFIX, FPDU_TRAILER_MAX, LAYER_LLP, LAYER_RDMAP, OP_READ_REQUEST, OP_TERMINATE,
    QN_TERMINATE, READ_REQUEST_HDR, READ_REQUEST_LEN, TERM_D, TERM_M, TERM_R, TerminateWire,
    UNTAGGED_HDR, WireError,
};

const TERMINATE_LEN: usize = size_of::<TerminateWire>();
/// Longest FPDU with a Terminate: the one that carries a whole Read Request. No padding.
pub const TERMINATE_FPDU_MAX: usize = UNTAGGED_HDR + TERMINATE_LEN + READ_REQUEST_HDR + FPDU_CRC;

/// Builds the FPDU of a Terminate message that reports `error`; the result lies in `out`.
///
/// `offending` is the FPDU in error as far as it was received, from its length field on, or
/// empty if the error is not one of a received segment. Of it, what the RFC asks for the kind
/// of error is sent back: nothing for errors below DDP and catastrophic ones, the DDP header
/// for others, the RDMAP header too if it is a Read Request.
pub fn encode<'t>(
    error: WireError,
    offending: &[u8],
    crc: bool,
    out: &'t mut [u8; TERMINATE_FPDU_MAX],
) -> &'t [u8] {
    let (headers, header_control) = reported(error, offending);
    let wire = TerminateWire {
        layer_etype: error.layer << 4 | error.etype & 0x0f,
        code: error.code,
        header_control,
        reserved: 0,
    };
    let body_len = UNTAGGED_HDR + TERMINATE_LEN + headers.len();
    let control = Control::new(OP_TERMINATE, true);
    // A connection has one Terminate in each direction: the number is always the first.
    let header = Untagged {
        control,
        invalidate: 0,
        qn: QN_TERMINATE,
        msn: 1,
        mo: 0,
    };
    let header = header.to_wire(U16::new((body_len - FPDU_PREFIX) as u16));
    let (body, rest) = out.split_at_mut(body_len);
    body[..UNTAGGED_HDR].copy_from_slice(header.as_bytes());
    body[UNTAGGED_HDR..][..TERMINATE_LEN].copy_from_slice(wire.as_bytes());
    body[UNTAGGED_HDR + TERMINATE_LEN..].copy_from_slice(headers);

    let mut trailer = [0; FPDU_TRAILER_MAX];
    let trailer = fpdu::seal(crc, body, [], &mut trailer);
    rest[..trailer.len()].copy_from_slice(trailer);
    let total = body_len + trailer.len();
    &out[..total]
}

/// The part of the offending FPDU that the Terminate repeats, and the bits that say so. The
/// length field of an FPDU is the DDP segment length, so the part starts with it.
fn reported(error: WireError, offending: &[u8]) -> (&[u8], u8) {
    // Type 0 is a catastrophic error of RDMAP or DDP, or any error of MPA.
    let no_header = error.etype == 0
        // The layout of a foreign version is not known.
        || error == WireError::DDP_TAGGED_VERSION
        || error == WireError::DDP_UNTAGGED_VERSION;
    let Ok(Peek::Layout(layout)) = fpdu::peek(offending) else {
        return (&[], 0);
    };
    let Some(header) = layout.header.filter(|_| !no_header) else {
        return (&[], 0);
    };
    let is_read = matches!(header, Header::Untagged(_))
        && header.control().opcode() == OP_READ_REQUEST
        && layout.payload_len >= READ_REQUEST_LEN
        && error.layer == LAYER_RDMAP;
    match offending.get(..READ_REQUEST_HDR) {
        Some(request) if is_read => (request, TERM_M | TERM_D | TERM_R),
        _ => (&offending[..layout.header_len], TERM_M | TERM_D),
    }
}

/// A received Terminate message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// What the peer found wrong.
    pub error: WireError,
    /// The header of our segment that it is about, if the peer says. It is for diagnosis: the
    /// peer may have made it up.
    pub header: Option<Header>,
}

impl Terminate {
    /// Reads the payload of a [`Segment::Terminate`](super::rdmap::Segment::Terminate).
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if not even the first word is there.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let Ok((wire, headers)) = TerminateWire::read_from_prefix(payload) else {
            return Err(WireError::RDMAP_STREAM);
        };
        let (high, low) = (wire.layer_etype >> 4, wire.layer_etype & 0x0f);
        // On little-endian hosts siw lays these bit fields out from the other end: the two
        // nibbles are exchanged, and M, D, R are bits 0, 1, 2. Its flags give it away; without
        // flags, only its MPA errors do (layer 2, type 0): their codes 1 to 4 do not exist
        // in the place where they seem to be.
        let siw_flags = wire.header_control & 0x07 != 0 && wire.header_control & 0xe0 == 0;
        let siw_mpa = wire.header_control == 0 && wire.layer_etype == LAYER_LLP && wire.code <= 4;
        let (layer, etype) = if siw_flags || siw_mpa {
            (low, high)
        } else {
            (high, low)
        };
        let has_header = if siw_flags {
            wire.header_control & 0x02 != 0
        } else {
            wire.header_control & TERM_D != 0
        };
        let header = match fpdu::peek(headers) {
            Ok(Peek::Layout(layout)) if has_header => layout.header,
            _ => None,
        };
        Ok(Self {
            error: WireError {
                layer,
                etype,
                code: wire.code,
            },
            header,
        })
    }
}
