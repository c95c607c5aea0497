//! The wire structures and numbers of MPA, DDP and RDMAP, big-endian, byte-aligned.
//!
//! Nothing here decides anything; the rules are in the sibling modules.

use std::fmt;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

// ---------------------------------------------------------------- MPA, RFC 5044 section 7.1

/// Key of a request frame.
pub const KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";
/// Key of a reply frame.
pub const KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// The sender of the frame wants to receive markers.
pub const MPA_MARKERS: u8 = 0x80;
/// The sender of the frame wants CRCs.
pub const MPA_CRC: u8 = 0x40;
/// Reply only: the connection is refused.
pub const MPA_REJECT: u8 = 0x20;
/// Private data starts with an [`EnhancedHeader`] (RFC 6581; revision 2 only).
pub const MPA_ENHANCED: u8 = 0x10;
/// Request only, a reserved bit of RFC 5044: the initiator can exchange acknowledgements
/// ([`super::acknowledge`]). Linux siw has an extension of its own in the bit 0x08.
pub const MPA_ACKNOWLEDGE_OFFER: u8 = 0x04;
/// Reply only, a reserved bit of RFC 5044: both ends exchange acknowledgements. It is not the bit of
/// the request, since Linux siw answers with the reserved bits of the request.
pub const MPA_ACKNOWLEDGE_ACCEPT: u8 = 0x02;
/// The reserved bits that have to be exactly one of these two: an end that sets them all means
/// something else.
pub const MPA_ACKNOWLEDGE: u8 = 0x07;
/// A reserved bit of RFC 5044, which counts beside [`MPA_ACKNOWLEDGE_OFFER`] or
/// [`MPA_ACKNOWLEDGE_ACCEPT`] only: the initiator, or both ends, know Atomic Operations and Immediate
/// Data ([`super::extensions`]). To Linux siw it is [`MPA_LONG_FPDUS`], which is true of this library.
pub const MPA_EXTENSIONS: u8 = 0x08;
/// The same bit as Linux siw has it: the sender of the frame takes FPDUs that are longer than TCP segments. siw
/// repeats the bit of a request in its reply.
pub const MPA_LONG_FPDUS: u8 = MPA_EXTENSIONS;

/// Most private data, in bytes, of a frame; an [`EnhancedHeader`] counts.
pub const MPA_MAX_PRIVATE: usize = 512;

/// Fixed part of a request or reply frame; private data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MpaHeader {
    /// [`KEY_REQUEST`] or [`KEY_REPLY`].
    pub key: [u8; 16],
    /// `MPA_*` bits; the low four are reserved.
    pub flags: u8,
    /// 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// Bytes of private data, at most [`MPA_MAX_PRIVATE`].
    pub private_len: U16,
}

/// Peer-to-peer connection: the initiator sends a ready-to-receive message first. In the IRD
/// word, "control flag A".
pub const ENHANCED_PEER_TO_PEER: u16 = 0x8000;
/// A zero-length FPDU may be the ready-to-receive message. In the IRD word, flag B.
pub const ENHANCED_RTR_FPDU: u16 = 0x4000;
/// A zero-length RDMA Write may be it. In the ORD word, flag C.
pub const ENHANCED_RTR_WRITE: u16 = 0x8000;
/// A zero-length RDMA Read may be it. In the ORD word, flag D.
pub const ENHANCED_RTR_READ: u16 = 0x4000;
/// The depth in an IRD or ORD word.
pub const ENHANCED_DEPTH: u16 = 0x3fff;

/// RFC 6581 section 9: read depths and control flags, the first four bytes of private data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EnhancedHeader {
    /// Flags A and B, and how many reads of the peer the sender can hold.
    pub ird: U16,
    /// Flags C and D, and how many reads the sender wants outstanding.
    pub ord: U16,
}

/// ULPDU length field in front of each FPDU (RFC 5044 section 4).
pub const FPDU_PREFIX: usize = 2;
/// CRC field that ends each FPDU; present even when CRCs are off.
pub const FPDU_CRC: usize = 4;
/// Longest trailer: three bytes of padding and the CRC.
pub const FPDU_TRAILER_MAX: usize = 3 + FPDU_CRC;
/// Largest ULPDU that the length field can say.
pub const ULPDU_MAX: usize = u16::MAX as usize;

// ---------------------------------------------------------------- DDP, RFC 5041 section 4

/// DDP control: tagged.
pub const DDP_TAGGED: u8 = 0x80;
/// DDP control: last segment of the message.
pub const DDP_LAST: u8 = 0x40;
/// DDP control: version bits.
pub const DDP_VERSION_MASK: u8 = 0x03;
/// The version of RFC 5041.
pub const DDP_VERSION: u8 = 1;

/// RDMAP control: version bits (RFC 5040 section 4.1).
pub const RDMAP_VERSION_MASK: u8 = 0xc0;
/// The version of RFC 5040, in place.
pub const RDMAP_VERSION: u8 = 1 << 6;
/// RDMAP control: a reserved bit of RFC 5040, by which the sender of a request asks for an
/// acknowledgement at once, between ends that have agreed on acknowledgements.
pub const RDMAP_ASK: u8 = 0x20;
/// RDMAP control: a reserved bit of RFC 5040, which all segments of an RDMA Write have that an
/// Immediate Data message belongs to, between ends that have agreed on these. The two are one request.
pub const RDMAP_IMMEDIATE: u8 = 0x10;
/// RDMAP control: opcode bits.
pub const RDMAP_OPCODE_MASK: u8 = 0x0f;

/// Header of a tagged segment with the FPDU length prefix (RFC 5041 section 4.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TaggedWire {
    /// Bytes after this field, without padding and CRC.
    pub ulpdu_len: U16,
    /// `DDP_*` bits.
    pub ddp: u8,
    /// RDMAP control (reserved for the ULP in RFC 5041).
    pub rdmap: u8,
    /// Steering tag of the sink.
    pub stag: U32,
    /// Tagged offset in the sink.
    pub to: U64,
}

/// Header of an untagged segment with the FPDU length prefix (RFC 5041 section 4.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UntaggedWire {
    /// Bytes after this field, without padding and CRC.
    pub ulpdu_len: U16,
    /// `DDP_*` bits.
    pub ddp: u8,
    /// RDMAP control.
    pub rdmap: u8,
    /// STag to invalidate (Send with Invalidate), else reserved (RFC 5040 section 4.1).
    pub invalidate: U32,
    /// Queue number.
    pub qn: U32,
    /// Message sequence number.
    pub msn: U32,
    /// Message offset.
    pub mo: U32,
}

/// RDMA Read Request header, the payload of its untagged segment (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadRequestWire {
    /// Where the response goes, at the requester.
    pub sink_stag: U32,
    /// Offset there.
    pub sink_to: U64,
    /// Bytes to read.
    pub size: U32,
    /// What is read, at the responder.
    pub source_stag: U32,
    /// Offset there.
    pub source_to: U64,
}

/// Atomic Request header, the payload of its untagged segment (RFC 7306 section 5.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicRequestWire {
    /// Reserved, but for the lowest four bits, which are one of `ATOMIC_*`.
    pub operation: U32,
    /// What the response repeats.
    pub identifier: U32,
    /// Steering tag of the memory of the word, at the responder.
    pub stag: U32,
    /// Offset of the word there.
    pub to: U64,
    /// What is added, or replaces the word.
    pub add_or_swap: U64,
    /// FetchAdd: the bits from which nothing is carried. CmpSwap: the bits that are replaced.
    pub add_or_swap_mask: U64,
    /// CmpSwap: what the word is compared with.
    pub compare: U64,
    /// CmpSwap: the bits that are compared.
    pub compare_mask: U64,
}

/// Atomic Response header, the payload of its untagged segment (RFC 7306 section 5.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicResponseWire {
    /// The identifier of the request.
    pub identifier: U32,
    /// What the word was before.
    pub before: U64,
}

/// Immediate Data, the payload of its untagged segment: 8 bytes (RFC 7306 section 6), which mean this
/// between two ends of ours.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ImmediateWire {
    /// The data of the consumer.
    pub data: [u8; 4],
    /// Bytes of the RDMA Write before it.
    pub written: U32,
}

/// The bits of [`AtomicRequestWire::operation`] that are not reserved.
pub const ATOMIC_OPERATION_MASK: u32 = 0x0f;
/// Atomic Request: FetchAdd.
pub const ATOMIC_FETCH_ADD: u32 = 0;
/// Atomic Request: CmpSwap.
pub const ATOMIC_COMPARE_SWAP: u32 = 2;

/// First word of a Terminate message (RFC 5040 section 4.8). If `D` is set, the DDP segment
/// length (16 bits) and the terminated DDP header follow; if `R` is set, the terminated RDMA
/// Read Request header too.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TerminateWire {
    /// Layer in the high nibble, error type in the low one.
    pub layer_etype: u8,
    /// Error code.
    pub code: u8,
    /// `TERM_*` bits.
    pub header_control: u8,
    /// Zero.
    pub reserved: u8,
}

/// Terminate: the DDP segment length is valid.
pub const TERM_M: u8 = 0x80;
/// Terminate: segment length and DDP header are present.
pub const TERM_D: u8 = 0x40;
/// Terminate: the RDMAP header is present.
pub const TERM_R: u8 = 0x20;

/// What an acknowledgement says beyond its count, the payload of its untagged segment.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AcknowledgeWire {
    /// `NOTE_*`.
    pub note: U32,
    /// The number of the request that the note is about, else 0.
    pub number: U32,
}

/// Note of an acknowledgement: its sender has ended the connection gracefully, and sends no further
/// request.
pub const NOTE_ENDED: u32 = 1;
/// Note of an acknowledgement: the request with the given number failed. A Terminate follows.
pub const NOTE_REFUSED: u32 = 2;

/// FPDU prefix and tagged header.
pub const TAGGED_HDR: usize = size_of::<TaggedWire>();
/// FPDU prefix and untagged header.
pub const UNTAGGED_HDR: usize = size_of::<UntaggedWire>();
/// The Read Request header that follows an untagged header.
pub const READ_REQUEST_LEN: usize = size_of::<ReadRequestWire>();
/// FPDU prefix, untagged header and Read Request header: a whole Read Request but its CRC.
pub const READ_REQUEST_HDR: usize = UNTAGGED_HDR + READ_REQUEST_LEN;

/// FPDU prefix, untagged header and Atomic Request header.
pub const ATOMIC_REQUEST_HDR: usize = UNTAGGED_HDR + size_of::<AtomicRequestWire>();
/// FPDU prefix, untagged header and Atomic Response header.
pub const ATOMIC_RESPONSE_HDR: usize = UNTAGGED_HDR + size_of::<AtomicResponseWire>();
/// FPDU prefix, untagged header and Immediate Data.
pub const IMMEDIATE_HDR: usize = UNTAGGED_HDR + size_of::<ImmediateWire>();

const _: () = assert!(ATOMIC_REQUEST_HDR == UNTAGGED_HDR + 52 && IMMEDIATE_HDR == UNTAGGED_HDR + 8);
const _: () = assert!(ATOMIC_RESPONSE_HDR == UNTAGGED_HDR + 12);
const _: () = assert!(TAGGED_HDR == 2 + 14 && UNTAGGED_HDR == 2 + 18 && READ_REQUEST_LEN == 28);
const _: () = assert!(size_of::<MpaHeader>() == 20 && size_of::<EnhancedHeader>() == 4);

// --------------------------------------------------- RDMAP, RFC 5040 section 4; RFC 7306

/// RDMA Write, tagged.
pub const OP_WRITE: u8 = 0;
/// RDMA Read Request, queue 1.
pub const OP_READ_REQUEST: u8 = 1;
/// RDMA Read Response, tagged.
pub const OP_READ_RESPONSE: u8 = 2;
/// Send, queue 0.
pub const OP_SEND: u8 = 3;
/// Send with Invalidate, queue 0.
pub const OP_SEND_INVALIDATE: u8 = 4;
/// Send with Solicited Event, queue 0.
pub const OP_SEND_SE: u8 = 5;
/// Send with Solicited Event and Invalidate, queue 0.
pub const OP_SEND_SE_INVALIDATE: u8 = 6;
/// Terminate, queue 2.
pub const OP_TERMINATE: u8 = 7;
/// Immediate Data (RFC 7306), queue 0.
pub const OP_IMMEDIATE: u8 = 8;
/// Immediate Data with Solicited Event (RFC 7306), queue 0.
pub const OP_IMMEDIATE_SE: u8 = 9;
/// Atomic Request (RFC 7306), queue 1.
pub const OP_ATOMIC_REQUEST: u8 = 10;
/// Atomic Response (RFC 7306), queue 3.
pub const OP_ATOMIC_RESPONSE: u8 = 11;
/// Acknowledgement, queue 4: an opcode that no RFC uses, see [`super::acknowledge`].
pub const OP_ACKNOWLEDGE: u8 = 15;

/// Queue of Sends.
pub const QN_SEND: u32 = 0;
/// Queue of RDMA Read Requests.
pub const QN_READ_REQUEST: u32 = 1;
/// Queue of the Terminate message.
pub const QN_TERMINATE: u32 = 2;
/// Queue of Atomic Responses (RFC 7306).
pub const QN_ATOMIC_RESPONSE: u32 = 3;
/// Queue of acknowledgements, a number that no RFC uses.
pub const QN_ACKNOWLEDGE: u32 = 4;
/// Number of queues of RFC 5040.
pub const QUEUES: usize = 3;

// --------------------------------------------------- errors: what a Terminate message says

/// The RDMAP layer.
pub const LAYER_RDMAP: u8 = 0;
/// The DDP layer.
pub const LAYER_DDP: u8 = 1;
/// The layer below: MPA.
pub const LAYER_LLP: u8 = 2;

/// A violation, as the triple that the Terminate message carries (RFC 5040 section 4.8, RFC
/// 5041 section 7, RFC 5044 section 8, RFC 6581). It is the error type of all modules here;
/// the memory side uses `RDMAP_*` (reads, invalidations) and `DDP_TAGGED_*` (writes) for what
/// it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireError {
    /// `LAYER_*`.
    pub layer: u8,
    /// Error type, a number of the layer.
    pub etype: u8,
    /// Error code, a number of the type.
    pub code: u8,
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = ($layer:expr, $etype:expr, $code:expr), $text:expr;)*) => {
        impl WireError {
            $($(#[$doc])* pub const $name: WireError =
                WireError { layer: $layer, etype: $etype, code: $code };)*

            /// Every error that has a name, with the name's meaning.
            pub const NAMED: &'static [(WireError, &'static str)] =
                &[$((WireError::$name, $text)),*];
        }
    };
}

errors! {
    /// Local catastrophic error.
    RDMAP_CATASTROPHIC = (LAYER_RDMAP, 0, 0x00), "local catastrophic error";
    /// The consumer has ended the connection at once. The code of a local catastrophic error may
    /// have any value (RFC 5040 section 4.8); this one is ours.
    RDMAP_ABORTED = (LAYER_RDMAP, 0, 0xff), "connection ended by its consumer";
    /// Read source or invalidated STag is not valid.
    RDMAP_INVALID_STAG = (LAYER_RDMAP, 1, 0x00), "invalid STag";
    /// Read source is out of bounds.
    RDMAP_BOUNDS = (LAYER_RDMAP, 1, 0x01), "base or bounds violation";
    /// Read source may not be read by the peer.
    RDMAP_ACCESS = (LAYER_RDMAP, 1, 0x02), "access rights violation";
    /// Read source belongs to another protection domain.
    RDMAP_STAG_NOT_ASSOCIATED = (LAYER_RDMAP, 1, 0x03), "STag not associated with the stream";
    /// Read source runs over the end of the address space.
    RDMAP_TO_WRAP = (LAYER_RDMAP, 1, 0x04), "tagged offset wraps";
    /// The STag of a Send with Invalidate cannot be invalidated.
    RDMAP_CANNOT_INVALIDATE = (LAYER_RDMAP, 1, 0x09), "STag cannot be invalidated";
    /// Protection error of another kind.
    RDMAP_PROTECTION = (LAYER_RDMAP, 1, 0xff), "remote protection error";
    /// RDMAP version is not 1.
    RDMAP_VERSION = (LAYER_RDMAP, 2, 0x05), "invalid RDMAP version";
    /// Unknown opcode, or one that does not fit the segment.
    RDMAP_OPCODE = (LAYER_RDMAP, 2, 0x06), "unexpected opcode";
    /// Catastrophic error of this stream.
    RDMAP_STREAM = (LAYER_RDMAP, 2, 0x07), "catastrophic error of the stream";
    /// Catastrophic error of the whole device.
    RDMAP_GLOBAL = (LAYER_RDMAP, 2, 0x08), "catastrophic error of the device";
    /// Operation error of another kind.
    RDMAP_OPERATION = (LAYER_RDMAP, 2, 0xff), "remote operation error";
    /// DDP local catastrophic error.
    DDP_CATASTROPHIC = (LAYER_DDP, 0, 0x00), "DDP catastrophic error";
    /// Write or read-response target is not a valid STag.
    DDP_TAGGED_INVALID_STAG = (LAYER_DDP, 1, 0x00), "invalid STag of a tagged segment";
    /// Target is out of bounds.
    DDP_TAGGED_BOUNDS = (LAYER_DDP, 1, 0x01), "base or bounds violation of a tagged segment";
    /// Target belongs to another protection domain.
    DDP_TAGGED_STAG_NOT_ASSOCIATED = (LAYER_DDP, 1, 0x02),
        "STag of a tagged segment not associated with the stream";
    /// Target runs over the end of the address space.
    DDP_TAGGED_TO_WRAP = (LAYER_DDP, 1, 0x03), "tagged offset of a segment wraps";
    /// DDP version of a tagged segment is not 1.
    DDP_TAGGED_VERSION = (LAYER_DDP, 1, 0x04), "invalid DDP version of a tagged segment";
    /// Unknown queue, or one that does not fit the opcode.
    DDP_QN = (LAYER_DDP, 2, 0x01), "invalid queue number";
    /// No receive is posted for the message.
    DDP_NO_BUFFER = (LAYER_DDP, 2, 0x02), "no buffer for the message";
    /// Message sequence number is not the next one.
    DDP_MSN = (LAYER_DDP, 2, 0x03), "message sequence number out of range";
    /// Message offset does not continue the message.
    DDP_MO = (LAYER_DDP, 2, 0x04), "invalid message offset";
    /// Message is longer than its buffer.
    DDP_TOO_LONG = (LAYER_DDP, 2, 0x05), "message too long for its buffer";
    /// DDP version of an untagged segment is not 1.
    DDP_UNTAGGED_VERSION = (LAYER_DDP, 2, 0x06), "invalid DDP version of an untagged segment";
    /// The TCP connection is lost.
    MPA_LOST = (LAYER_LLP, 0, 0x01), "TCP connection lost";
    /// CRC mismatch.
    MPA_CRC = (LAYER_LLP, 0, 0x02), "MPA CRC mismatch";
    /// Length field cannot be that of an FPDU.
    MPA_FRAMING = (LAYER_LLP, 0, 0x03), "MPA length field inconsistent";
    /// Request or reply frame is malformed.
    MPA_NEGOTIATION = (LAYER_LLP, 0, 0x04), "invalid MPA request or reply frame";
    /// RFC 6581: local catastrophic error during set-up.
    MPA_CATASTROPHIC = (LAYER_LLP, 0, 0x05), "MPA local catastrophic error";
    /// RFC 6581: the responder wants more outstanding reads than the initiator can hold.
    MPA_IRD = (LAYER_LLP, 0, 0x06), "insufficient IRD";
    /// RFC 6581: no ready-to-receive message that both know.
    MPA_RTR = (LAYER_LLP, 0, 0x07), "no matching RTR option";
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMED.iter().find(|(error, _)| error == self);
        let text = name.map_or("unknown error", |(_, text)| *text);
        write!(
            f,
            "{text} ({:x}/{:x}/{:02x})",
            self.layer, self.etype, self.code
        )
    }
}

impl std::error::Error for WireError {}
