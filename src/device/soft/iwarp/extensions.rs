//! Atomic Operations and Immediate Data (RFC 7306), which two ends of ours agree on when they connect.
//!
//! * An [`AtomicRequest`] is numbered with the Read Requests and counts for the same depths. The
//!   [`AtomicResponse`] takes its turn among the Read Responses; they have a queue of their own.
//! * [`Immediate`] data follows an RDMA Write, which may be left out if it has no bytes. The message is
//!   numbered with the Sends, and takes a receive as they do. All segments of that RDMA Write have the
//!   bit [`RDMAP_IMMEDIATE`]: the two are one request to those who count requests
//!   ([`acknowledge`](super::acknowledge)), and nothing else may come between them.
//!
//! The masks of RFC 7306 are those of operations on whole words.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::fpdu::{Control, Header, Untagged};
use super::rdmap::{Segment, check_versions};
use super::wire::{
    ATOMIC_COMPARE_SWAP, ATOMIC_FETCH_ADD, ATOMIC_OPERATION_MASK, ATOMIC_REQUEST_HDR,
    ATOMIC_RESPONSE_HDR, AtomicRequestWire, AtomicResponseWire, FPDU_PREFIX, IMMEDIATE_HDR,
    ImmediateWire, OP_ATOMIC_REQUEST, OP_ATOMIC_RESPONSE, OP_IMMEDIATE, OP_IMMEDIATE_SE,
    QN_ATOMIC_RESPONSE, QN_READ_REQUEST, QN_SEND, RDMAP_IMMEDIATE, UNTAGGED_HDR, WireError,
};
use crate::device::{AtomicOp, Remote};

impl Segment {
    /// [`Segment::classify_extended`] between two ends that have agreed on Atomic Operations and
    /// Immediate Data, too.
    ///
    /// # Errors
    /// The same, for these messages too.
    #[inline]
    pub fn classify_all(header: &Header, payload_len: usize) -> Result<Self, WireError> {
        match header {
            Header::Untagged(header)
                if (OP_IMMEDIATE..=OP_ATOMIC_RESPONSE).contains(&header.control.opcode()) =>
            {
                classify_untagged(header, payload_len)
            }
            header => match Self::classify_extended(header, payload_len)? {
                Segment::Write { stag, to, last, .. } => Ok(Segment::Write {
                    stag,
                    to,
                    last,
                    immediate: header.control().rdmap & RDMAP_IMMEDIATE != 0,
                }),
                segment => Ok(segment),
            },
        }
    }
}

fn classify_untagged(header: &Untagged, payload_len: usize) -> Result<Segment, WireError> {
    let &Untagged { control, msn, .. } = header;
    check_versions(control, WireError::DDP_UNTAGGED_VERSION)?;
    let (queue, most, segment) = match control.opcode() {
        OP_ATOMIC_REQUEST => (
            QN_READ_REQUEST,
            ATOMIC_REQUEST_HDR,
            Segment::AtomicRequest { msn },
        ),
        OP_ATOMIC_RESPONSE => (
            QN_ATOMIC_RESPONSE,
            ATOMIC_RESPONSE_HDR,
            Segment::AtomicResponse { msn },
        ),
        opcode => {
            let solicited = opcode == OP_IMMEDIATE_SE;
            let segment = Segment::Immediate { msn, solicited };
            (QN_SEND, IMMEDIATE_HDR, segment)
        }
    };
    if header.qn != queue {
        return Err(WireError::DDP_QN);
    }
    if header.mo != 0 {
        return Err(WireError::DDP_MO);
    }
    if !control.last() || payload_len > most - UNTAGGED_HDR {
        return Err(WireError::DDP_TOO_LONG);
    }
    Ok(segment)
}

/// Writes the header of a message of one segment in front of `payload`, which is all of it.
fn encode<const LEN: usize>(control: Control, qn: u32, msn: u32, payload: &[u8]) -> [u8; LEN] {
    let header = Untagged {
        control,
        invalidate: 0,
        qn,
        msn,
        mo: 0,
    };
    let mut out = [0; LEN];
    let ulpdu = U16::new((LEN - FPDU_PREFIX) as u16);
    out[..UNTAGGED_HDR].copy_from_slice(header.to_wire(ulpdu).as_bytes());
    out[UNTAGGED_HDR..].copy_from_slice(payload);
    out
}

/// An Atomic Request (RFC 7306 section 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// What the response repeats.
    pub identifier: u32,
    /// The word, at the responder.
    pub word: Remote,
    /// What becomes of it.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Encodes prefix, DDP header and request; the FPDU has no payload beyond.
    pub fn encode(&self, msn: u32) -> [u8; ATOMIC_REQUEST_HDR] {
        let (operation, add_or_swap, add_or_swap_mask, compare, compare_mask) = match self.op {
            // Nothing keeps the sum from being carried through the whole word.
            AtomicOp::FetchAdd { add } => (ATOMIC_FETCH_ADD, add, 0, 0, 0),
            AtomicOp::CompareSwap { compare, swap } => {
                (ATOMIC_COMPARE_SWAP, swap, u64::MAX, compare, u64::MAX)
            }
        };
        let wire = AtomicRequestWire {
            operation: U32::new(operation),
            identifier: U32::new(self.identifier),
            stag: U32::new(self.word.rkey),
            to: U64::new(self.word.addr),
            add_or_swap: U64::new(add_or_swap),
            add_or_swap_mask: U64::new(add_or_swap_mask),
            compare: U64::new(compare),
            compare_mask: U64::new(compare_mask),
        };
        let control = Control::new(OP_ATOMIC_REQUEST, true);
        encode(control, QN_READ_REQUEST, msn, wire.as_bytes())
    }

    /// Reads the payload of a [`Segment::AtomicRequest`]. The word may wrap.
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it is cut short, [`WireError::RDMAP_OPERATION`] if the operation is
    /// unknown, or is one on a part of the word.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let wire =
            AtomicRequestWire::read_from_bytes(payload).map_err(|_| WireError::RDMAP_STREAM)?;
        let masks = (wire.add_or_swap_mask.get(), wire.compare_mask.get());
        let (add_or_swap, compare) = (wire.add_or_swap.get(), wire.compare.get());
        let op = match (wire.operation.get() & ATOMIC_OPERATION_MASK, masks) {
            (ATOMIC_FETCH_ADD, (0, _)) => AtomicOp::FetchAdd { add: add_or_swap },
            (ATOMIC_COMPARE_SWAP, (u64::MAX, u64::MAX)) => AtomicOp::CompareSwap {
                compare,
                swap: add_or_swap,
            },
            _ => return Err(WireError::RDMAP_OPERATION),
        };
        let (addr, rkey) = (wire.to.get(), wire.stag.get());
        Ok(Self {
            identifier: wire.identifier.get(),
            word: Remote { addr, rkey },
            op,
        })
    }
}

/// An Atomic Response (RFC 7306 section 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub identifier: u32,
    /// What the word was before.
    pub before: u64,
}

impl AtomicResponse {
    /// Encodes prefix, DDP header and response; the FPDU has no payload beyond.
    pub fn encode(&self, msn: u32) -> [u8; ATOMIC_RESPONSE_HDR] {
        let wire = AtomicResponseWire {
            identifier: U32::new(self.identifier),
            before: U64::new(self.before),
        };
        let control = Control::new(OP_ATOMIC_RESPONSE, true);
        encode(control, QN_ATOMIC_RESPONSE, msn, wire.as_bytes())
    }

    /// Reads the payload of a [`Segment::AtomicResponse`].
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it is cut short.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let wire =
            AtomicResponseWire::read_from_bytes(payload).map_err(|_| WireError::RDMAP_STREAM)?;
        Ok(Self {
            identifier: wire.identifier.get(),
            before: wire.before.get(),
        })
    }
}

/// Immediate Data (RFC 7306 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// The 4 bytes of the consumer, as a number of this host.
    pub imm: u32,
    /// Bytes of the RDMA Write before it.
    pub written: u32,
}

impl Immediate {
    /// Encodes prefix, DDP header and data; the FPDU has no payload beyond. `asks` is for an
    /// acknowledgement.
    pub fn encode(&self, msn: u32, solicited: bool, asks: bool) -> [u8; IMMEDIATE_HDR] {
        let wire = ImmediateWire {
            data: self.imm.to_ne_bytes(),
            written: U32::new(self.written),
        };
        let opcode = if solicited {
            OP_IMMEDIATE_SE
        } else {
            OP_IMMEDIATE
        };
        let control = Control::new(opcode, true).asking(asks);
        encode(control, QN_SEND, msn, wire.as_bytes())
    }

    /// Reads the payload of a [`Segment::Immediate`].
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it is cut short.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let wire = ImmediateWire::read_from_bytes(payload).map_err(|_| WireError::RDMAP_STREAM)?;
        Ok(Self {
            imm: u32::from_ne_bytes(wire.data),
            written: wire.written.get(),
        })
    }
}
