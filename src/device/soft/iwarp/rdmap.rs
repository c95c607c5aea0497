//! The meaning of segments (RFC 5040).

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::fpdu::{Control, Header, Tagged, Untagged};
use super::wire::{
    DDP_VERSION, DDP_VERSION_MASK, FPDU_PREFIX, OP_ACKNOWLEDGE, OP_READ_REQUEST, OP_READ_RESPONSE,
    OP_SEND, OP_SEND_INVALIDATE, OP_SEND_SE, OP_SEND_SE_INVALIDATE, OP_TERMINATE, OP_WRITE,
    QN_ACKNOWLEDGE, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, RDMAP_VERSION, RDMAP_VERSION_MASK,
    READ_REQUEST_HDR, READ_REQUEST_LEN, ReadRequestWire, UNTAGGED_HDR, WireError,
};

/// What a received segment is. Its payload is beside it, not in it, so that the same type
/// serves buffers and direct placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// RDMA Write: the payload goes to `to` in `stag`. With no payload, neither is to be
    /// looked at (RFC 5040 section 5.1; ready-to-receive messages carry invented ones).
    Write {
        /// Steering tag of ours.
        stag: u32,
        /// Offset; `to` plus the payload's length does not wrap.
        to: u64,
        /// Last segment of the message.
        last: bool,
        /// Immediate Data of the same request follows. Only [`Segment::classify_all`] finds that.
        immediate: bool,
    },
    /// RDMA Read Response: the payload goes to `to` in `stag`, both as our oldest unanswered
    /// Read Request named them.
    ReadResponse {
        /// Steering tag of ours.
        stag: u32,
        /// Offset; `to` plus the payload's length does not wrap.
        to: u64,
        /// Last segment of the response.
        last: bool,
    },
    /// A Send of any kind: the payload goes to `mo` in the oldest receive buffer.
    Send {
        /// Message sequence number.
        msn: u32,
        /// Offset in the message; `mo` plus the payload's length does not wrap.
        mo: u32,
        /// Last segment of the message.
        last: bool,
        /// Solicited event.
        solicited: bool,
        /// STag of ours to invalidate when the message is complete.
        invalidate: Option<u32>,
    },
    /// RDMA Read Request: the payload is for [`ReadRequest::parse`].
    ReadRequest {
        /// Message sequence number.
        msn: u32,
    },
    /// Terminate: the payload is for [`Terminate::parse`](super::terminate::Terminate::parse).
    Terminate {
        /// Message sequence number.
        msn: u32,
    },
    /// Acknowledgement ([`acknowledge`](super::acknowledge)): the payload is for
    /// [`Acknowledge::parse_note`](super::acknowledge::Acknowledge::parse_note). Only
    /// [`Segment::classify_extended`] gives it.
    Acknowledge {
        /// Message sequence number.
        msn: u32,
    },
    /// Immediate Data: the payload is for
    /// [`Immediate::parse`](super::extensions::Immediate::parse). Only [`Segment::classify_all`] gives
    /// it, and the two below.
    Immediate {
        /// Message sequence number.
        msn: u32,
        /// Solicited event.
        solicited: bool,
    },
    /// Atomic Request: the payload is for
    /// [`AtomicRequest::parse`](super::extensions::AtomicRequest::parse).
    AtomicRequest {
        /// Message sequence number.
        msn: u32,
    },
    /// Atomic Response: the payload is for
    /// [`AtomicResponse::parse`](super::extensions::AtomicResponse::parse).
    AtomicResponse {
        /// Message sequence number.
        msn: u32,
    },
}

impl Segment {
    /// Judges a header and the length of its payload by all rules that need no state.
    ///
    /// # Errors
    /// The error to terminate the connection with. Of versions, opcode and queue the first
    /// that is wrong counts, in this order, as RFC 5041 section 7 and RFC 5040 section 7 have
    /// it. The opcodes of RFC 7306 are not taken.
    #[inline]
    pub fn classify(header: &Header, payload_len: usize) -> Result<Self, WireError> {
        match header {
            Header::Tagged(header) => Self::classify_tagged(header, payload_len),
            Header::Untagged(header) => Self::classify_untagged(header, payload_len),
        }
    }

    /// Whether it is of a request of the peer.
    pub const fn is_request(&self) -> bool {
        matches!(
            self,
            Segment::Write { .. }
                | Segment::Send { .. }
                | Segment::ReadRequest { .. }
                | Segment::Immediate { .. }
                | Segment::AtomicRequest { .. }
        )
    }

    /// [`Segment::classify`] between two ends that have agreed on acknowledgements.
    ///
    /// # Errors
    /// The same, for an acknowledgement too.
    #[inline]
    pub fn classify_extended(header: &Header, payload_len: usize) -> Result<Self, WireError> {
        match header {
            Header::Untagged(header) if header.control.opcode() == OP_ACKNOWLEDGE => {
                check_versions(header.control, WireError::DDP_UNTAGGED_VERSION)?;
                if header.qn != QN_ACKNOWLEDGE {
                    return Err(WireError::DDP_QN);
                }
                if header.mo != 0 {
                    return Err(WireError::DDP_MO);
                }
                if !header.control.last() {
                    return Err(WireError::DDP_TOO_LONG);
                }
                Ok(Segment::Acknowledge { msn: header.msn })
            }
            header => Self::classify(header, payload_len),
        }
    }

    fn classify_tagged(header: &Tagged, payload_len: usize) -> Result<Self, WireError> {
        let &Tagged { control, stag, to } = header;
        check_versions(control, WireError::DDP_TAGGED_VERSION)?;
        let last = control.last();
        let segment = match control.opcode() {
            OP_WRITE => Segment::Write {
                stag,
                to,
                last,
                immediate: false,
            },
            OP_READ_RESPONSE => Segment::ReadResponse { stag, to, last },
            _ => return Err(WireError::RDMAP_OPCODE),
        };
        match to.checked_add(payload_len as u64) {
            Some(_) => Ok(segment),
            None => Err(WireError::DDP_TAGGED_TO_WRAP),
        }
    }

    fn classify_untagged(header: &Untagged, payload_len: usize) -> Result<Self, WireError> {
        let &Untagged {
            control,
            invalidate,
            qn,
            msn,
            mo,
        } = header;
        check_versions(control, WireError::DDP_UNTAGGED_VERSION)?;
        let last = control.last();
        let opcode = control.opcode();
        let (queue, segment) = match opcode {
            OP_SEND | OP_SEND_INVALIDATE | OP_SEND_SE | OP_SEND_SE_INVALIDATE => {
                let solicited = matches!(opcode, OP_SEND_SE | OP_SEND_SE_INVALIDATE);
                let invalidates = matches!(opcode, OP_SEND_INVALIDATE | OP_SEND_SE_INVALIDATE);
                let invalidate = invalidates.then_some(invalidate);
                (
                    QN_SEND,
                    Segment::Send {
                        msn,
                        mo,
                        last,
                        solicited,
                        invalidate,
                    },
                )
            }
            OP_READ_REQUEST => (QN_READ_REQUEST, Segment::ReadRequest { msn }),
            OP_TERMINATE => (QN_TERMINATE, Segment::Terminate { msn }),
            _ => return Err(WireError::RDMAP_OPCODE),
        };
        if qn != queue {
            return Err(WireError::DDP_QN);
        }
        if queue == QN_SEND {
            let end = u32::try_from(payload_len)
                .ok()
                .and_then(|len| mo.checked_add(len));
            return end.map(|_| segment).ok_or(WireError::DDP_MO);
        }
        // Messages of the other queues are headers that fit one segment, and always arrive so.
        if mo != 0 {
            return Err(WireError::DDP_MO);
        }
        if !last || queue == QN_READ_REQUEST && payload_len > READ_REQUEST_LEN {
            return Err(WireError::DDP_TOO_LONG);
        }
        Ok(segment)
    }
}

/// Checks the versions of DDP and RDMAP.
pub(super) fn check_versions(control: Control, ddp_error: WireError) -> Result<(), WireError> {
    if control.ddp & DDP_VERSION_MASK != DDP_VERSION {
        return Err(ddp_error);
    }
    if control.rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION {
        return Err(WireError::RDMAP_VERSION);
    }
    Ok(())
}

/// An RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Where the response is to go, at the requester.
    pub sink_stag: u32,
    /// Offset there.
    pub sink_to: u64,
    /// Bytes to read. With zero, STags and offsets are not checked.
    pub size: u32,
    /// What to read, at the responder.
    pub source_stag: u32,
    /// Offset there.
    pub source_to: u64,
}

impl ReadRequest {
    /// A read of no bytes, which may be a ready-to-receive message (RFC 6581).
    pub const NOTHING: ReadRequest = ReadRequest {
        sink_stag: 0,
        sink_to: 0,
        size: 0,
        source_stag: 0,
        source_to: 0,
    };

    /// Encodes prefix, DDP header and request; the FPDU has no payload beyond.
    pub fn encode(&self, msn: u32, out: &mut [u8; READ_REQUEST_HDR]) {
        let control = Control::new(OP_READ_REQUEST, true);
        let header = Untagged {
            control,
            invalidate: 0,
            qn: QN_READ_REQUEST,
            msn,
            mo: 0,
        };
        let wire = ReadRequestWire {
            sink_stag: U32::new(self.sink_stag),
            sink_to: U64::new(self.sink_to),
            size: U32::new(self.size),
            source_stag: U32::new(self.source_stag),
            source_to: U64::new(self.source_to),
        };
        let ulpdu = U16::new((READ_REQUEST_HDR - FPDU_PREFIX) as u16);
        out[..UNTAGGED_HDR].copy_from_slice(header.to_wire(ulpdu).as_bytes());
        out[UNTAGGED_HDR..].copy_from_slice(wire.as_bytes());
    }

    /// Reads the payload of a [`Segment::ReadRequest`].
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it is cut short, [`WireError::RDMAP_TO_WRAP`] if the
    /// source wraps.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let wire =
            ReadRequestWire::read_from_bytes(payload).map_err(|_| WireError::RDMAP_STREAM)?;
        let request = Self {
            sink_stag: wire.sink_stag.get(),
            sink_to: wire.sink_to.get(),
            size: wire.size.get(),
            source_stag: wire.source_stag.get(),
            source_to: wire.source_to.get(),
        };
        match request.source_to.checked_add(u64::from(request.size)) {
            Some(_) => Ok(request),
            None => Err(WireError::RDMAP_TO_WRAP),
        }
    }
}

/// The opcode of a Send.
pub const fn send_opcode(solicited: bool, invalidate: bool) -> u8 {
    match (solicited, invalidate) {
        (false, false) => OP_SEND,
        (false, true) => OP_SEND_INVALIDATE,
        (true, false) => OP_SEND_SE,
        (true, true) => OP_SEND_SE_INVALIDATE,
    }
}
