//! Connection set-up: the request and reply frames (RFC 5044 section 7.1) and the enhanced
//! set-up with read depths and ready-to-receive message (RFC 6581).
//!
//! ```text
//! initiator                                   responder
//! Local::request -> Frame::encode   ------>   parse -> Frame::answer or Frame::rejection
//! parse -> Local::conclude          <------   Frame::encode
//! ready-to-receive message, if agreed  ---->  first FPDU
//! ```
//!
//! The responder must not send an FPDU before it has received one (RFC 5044 section 7.1.2),
//! and the initiator none before the reply: siw breaks a connection on bytes that come right
//! behind a frame.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{
    ENHANCED_DEPTH, ENHANCED_PEER_TO_PEER, ENHANCED_RTR_FPDU, ENHANCED_RTR_READ,
    ENHANCED_RTR_WRITE, EnhancedHeader, KEY_REPLY, KEY_REQUEST, MPA_ACKNOWLEDGE,
    MPA_ACKNOWLEDGE_ACCEPT, MPA_ACKNOWLEDGE_OFFER, MPA_CRC, MPA_ENHANCED, MPA_EXTENSIONS,
    MPA_LONG_FPDUS, MPA_MARKERS, MPA_MAX_PRIVATE, MPA_REJECT, MpaHeader, WireError,
};

const HEADER: usize = size_of::<MpaHeader>();
const ENHANCED: usize = size_of::<EnhancedHeader>();

/// Longest frame.
pub const FRAME_MAX: usize = HEADER + MPA_MAX_PRIVATE;
/// Most consumer private data in a frame of revision 2.
pub const PRIVATE_MAX: usize = MPA_MAX_PRIVATE - ENHANCED;
/// Most consumer private data that siw accepts in a frame of revision 2: it takes 256 bytes,
/// and its own replies count them in eight bits.
pub const PRIVATE_MAX_SIW: usize = 256 - ENHANCED - 1;
/// A depth that leaves the matter to the consumers (RFC 6581 section 9).
pub const DEPTH_UNNEGOTIATED: u16 = ENHANCED_DEPTH;
/// Largest depth that can be negotiated.
pub const DEPTH_MAX: u16 = ENHANCED_DEPTH - 1;

bitflags::bitflags! {
    /// Ready-to-receive messages: what the initiator of a peer-to-peer connection may send
    /// first, so that the responder may start sending (RFC 6581).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rtr: u8 {
        /// An RDMA Write of no bytes. STag and offset mean nothing.
        const WRITE = 0x01;
        /// An RDMA Read of no bytes, answered with a response of no bytes, neither counted
        /// in the agreed depths.
        const READ = 0x02;
        /// An FPDU of no bytes.
        const FPDU = 0x04;
    }
}

impl Rtr {
    /// The one to use when several would do. A Write needs no answer and no read depth, and
    /// siw prefers it too; the empty FPDU comes last because siw does not know it.
    fn preferred(self) -> Option<Rtr> {
        [Rtr::WRITE, Rtr::READ, Rtr::FPDU]
            .into_iter()
            .find(|rtr| self.contains(*rtr))
    }
}

/// Which frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// From the side that made the TCP connection.
    Request,
    /// The answer.
    Reply,
}

impl Kind {
    /// The flags by which such a frame offers or accepts acknowledgements.
    fn acknowledge(self) -> u8 {
        match self {
            Kind::Request => MPA_ACKNOWLEDGE_OFFER,
            Kind::Reply => MPA_ACKNOWLEDGE_ACCEPT,
        }
    }
}

/// The enhanced header of a frame, RFC 6581 section 9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enhanced {
    /// Reads of the peer that the sender of the frame can hold: 0 to [`DEPTH_MAX`], or
    /// [`DEPTH_UNNEGOTIATED`].
    pub ird: u16,
    /// Reads that the sender of the frame wants outstanding, likewise.
    pub ord: u16,
    /// Peer-to-peer: the initiator sends a ready-to-receive message.
    pub peer_to_peer: bool,
    /// Which ones the sender of the frame knows.
    pub rtr: Rtr,
}

/// A request or reply frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Request or reply.
    pub kind: Kind,
    /// 1 or 2.
    pub revision: u8,
    /// The sender wants to receive markers.
    pub markers: bool,
    /// The sender wants CRCs.
    pub crc: bool,
    /// Reply: the connection is refused.
    pub reject: bool,
    /// Request: the initiator can exchange acknowledgements. Reply: both ends do.
    pub acknowledge: bool,
    /// The same of Atomic Operations and Immediate Data; only with acknowledgements.
    pub extensions: bool,
    /// The sender takes FPDUs that are longer than a TCP segment: it has said so, or can exchange
    /// acknowledgements.
    pub long_fpdus: bool,
    /// Revision 2: read depths and peer-to-peer.
    pub enhanced: Option<Enhanced>,
    /// Consumer private data.
    pub private_data: &'a [u8],
}

/// What [`parse`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<'a> {
    /// The frame, and how many bytes it took.
    Frame(Frame<'a>, usize),
    /// At least so many more bytes are needed.
    NeedMore(usize),
}

/// Parses the frame at the start of `buf`; never needs more than [`FRAME_MAX`] bytes.
///
/// Reserved bits are ignored, as RFC 5044 asks (siw uses one for a private extension), but for those
/// of our own. A reply that repeats the bit of our request is that of an end which does not know it.
///
/// # Errors
/// [`WireError::MPA_NEGOTIATION`] as soon as it cannot become a valid frame of that kind.
pub fn parse(kind: Kind, buf: &[u8]) -> Result<Parsed<'_>, WireError> {
    let key = match kind {
        Kind::Request => &KEY_REQUEST,
        Kind::Reply => &KEY_REPLY,
    };
    let seen = buf.len().min(key.len());
    if buf[..seen] != key[..seen] {
        return Err(WireError::MPA_NEGOTIATION);
    }
    let Ok((header, rest)) = MpaHeader::read_from_prefix(buf) else {
        return Ok(Parsed::NeedMore(HEADER - buf.len()));
    };
    let private_len = usize::from(header.private_len.get());
    if !matches!(header.revision, 1 | 2) || private_len > MPA_MAX_PRIVATE {
        return Err(WireError::MPA_NEGOTIATION);
    }
    let Some(private) = rest.get(..private_len) else {
        return Ok(Parsed::NeedMore(private_len - rest.len()));
    };
    let flag = |bit| header.flags & bit != 0;
    let reject = kind == Kind::Reply && flag(MPA_REJECT);
    let (enhanced, private_data) = if header.revision >= 2 && flag(MPA_ENHANCED) {
        match EnhancedHeader::read_from_prefix(private) {
            Ok((wire, consumer)) => (Some(Enhanced::from_wire(wire)), consumer),
            // siw mirrors the flag, but not the header, when it refuses a malformed request.
            Err(_) if reject => (None, private),
            Err(_) => return Err(WireError::MPA_NEGOTIATION),
        }
    } else {
        (None, private)
    };
    let acknowledge = header.flags & MPA_ACKNOWLEDGE == kind.acknowledge();
    let frame = Frame {
        kind,
        revision: header.revision,
        markers: flag(MPA_MARKERS),
        crc: flag(MPA_CRC),
        reject,
        acknowledge,
        extensions: acknowledge && flag(MPA_EXTENSIONS),
        long_fpdus: acknowledge || flag(MPA_LONG_FPDUS),
        enhanced,
        private_data,
    };
    Ok(Parsed::Frame(frame, HEADER + private_len))
}

impl Enhanced {
    fn from_wire(wire: EnhancedHeader) -> Self {
        let (ird, ord) = (wire.ird.get(), wire.ord.get());
        let mut rtr = Rtr::empty();
        rtr.set(Rtr::FPDU, ird & ENHANCED_RTR_FPDU != 0);
        rtr.set(Rtr::WRITE, ord & ENHANCED_RTR_WRITE != 0);
        rtr.set(Rtr::READ, ord & ENHANCED_RTR_READ != 0);
        Self {
            ird: ird & ENHANCED_DEPTH,
            ord: ord & ENHANCED_DEPTH,
            peer_to_peer: ird & ENHANCED_PEER_TO_PEER != 0,
            rtr,
        }
    }

    fn to_wire(self) -> EnhancedHeader {
        let bit = |set, bit| if set { bit } else { 0 };
        let ird = self.ird.min(ENHANCED_DEPTH)
            | bit(self.peer_to_peer, ENHANCED_PEER_TO_PEER)
            | bit(self.rtr.contains(Rtr::FPDU), ENHANCED_RTR_FPDU);
        let ord = self.ord.min(ENHANCED_DEPTH)
            | bit(self.rtr.contains(Rtr::WRITE), ENHANCED_RTR_WRITE)
            | bit(self.rtr.contains(Rtr::READ), ENHANCED_RTR_READ);
        EnhancedHeader {
            ird: U16::new(ird),
            ord: U16::new(ord),
        }
    }
}

/// What this side wants and can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// Use CRCs even if the peer does not want them.
    pub crc: bool,
    /// Reads of the peer that we can hold, at most [`DEPTH_MAX`].
    pub ird: u16,
    /// Reads that we want outstanding, at most [`DEPTH_MAX`].
    pub ord: u16,
    /// Ready-to-receive messages that we can send (as initiator; none: not peer-to-peer) or
    /// receive (as responder).
    pub rtr: Rtr,
    /// Whether acknowledgements can be exchanged.
    pub acknowledge: bool,
    /// Whether Atomic Operations and Immediate Data can be, too.
    pub extensions: bool,
}

/// What both sides will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// CRCs are computed and checked.
    pub crc: bool,
    /// Reads of the peer that we must hold.
    pub ird: u16,
    /// Reads that we may have outstanding.
    pub ord: u16,
    /// The ready-to-receive message that the initiator sends first, exactly one.
    pub rtr: Option<Rtr>,
    /// Whether both ends send acknowledgements ([`super::acknowledge`]).
    pub acknowledge: bool,
    /// Whether both ends know Atomic Operations and Immediate Data ([`super::extensions`]). Then they
    /// send acknowledgements.
    pub extensions: bool,
    /// Whether the FPDUs that we send may be longer than a TCP segment.
    pub long_fpdus: bool,
}

/// Why an initiator cannot use a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The responder refused; its reasons are in the private data of the reply.
    Rejected,
    /// The responder speaks revision 1 only: try again with it. It took the enhanced header
    /// for private data.
    Revision1,
    /// The reply cannot be agreed to: send this Terminate, if the error is one of RFC 6581,
    /// and close.
    Error(WireError),
}

impl Local {
    /// The request for a connection. `revision` 2 is the usual one and siw's default; with 1
    /// there are no depths and no ready-to-receive message.
    pub fn request<'a>(&self, revision: u8, private_data: &'a [u8]) -> Frame<'a> {
        let enhanced = (revision >= 2).then_some(Enhanced {
            ird: self.ird.min(DEPTH_MAX),
            ord: self.ord.min(DEPTH_MAX),
            peer_to_peer: !self.rtr.is_empty(),
            rtr: self.rtr,
        });
        let (kind, crc) = (Kind::Request, self.crc);
        let acknowledge = self.acknowledge && revision >= 2;
        Frame {
            kind,
            revision,
            markers: false,
            crc,
            reject: false,
            acknowledge,
            extensions: self.extensions && acknowledge,
            long_fpdus: acknowledge,
            enhanced,
            private_data,
        }
    }

    /// Judges the reply to the request that [`Local::request`] made with `revision`.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn conclude(&self, revision: u8, reply: &Frame<'_>) -> Result<Agreed, Failure> {
        if reply.reject {
            return Err(Failure::Rejected);
        }
        if reply.revision < revision {
            return Err(Failure::Revision1);
        }
        // A peer that wants markers cannot be served; RFC 5044 has no other way to say so.
        if reply.markers {
            return Err(Failure::Error(WireError::MPA_NEGOTIATION));
        }
        let crc = self.crc || reply.crc;
        let acknowledge = self.acknowledge && revision >= 2 && reply.acknowledge;
        let plain = Agreed {
            crc,
            ird: self.ird,
            ord: self.ord,
            rtr: None,
            acknowledge,
            extensions: self.extensions && acknowledge && reply.extensions,
            long_fpdus: reply.long_fpdus,
        };
        if revision < 2 {
            return Ok(plain);
        }
        let Some(theirs) = reply.enhanced else {
            return Err(Failure::Error(WireError::MPA_NEGOTIATION));
        };
        if theirs.ord != DEPTH_UNNEGOTIATED && theirs.ord > self.ird {
            return Err(Failure::Error(WireError::MPA_IRD));
        }
        let ord = if theirs.ird == DEPTH_UNNEGOTIATED {
            self.ord
        } else {
            self.ord.min(theirs.ird)
        };
        let rtr = if self.rtr.is_empty() {
            None
        } else {
            let common = (self.rtr & theirs.rtr).preferred();
            Some(common.ok_or(Failure::Error(WireError::MPA_RTR))?)
        };
        Ok(Agreed { ord, rtr, ..plain })
    }
}

impl<'a> Frame<'a> {
    /// The frame without its private data, to be kept for [`Frame::answer`] or
    /// [`Frame::rejection`], which do not use that.
    pub fn without_private_data(&self) -> Frame<'static> {
        let Frame {
            kind,
            revision,
            markers,
            crc,
            reject,
            acknowledge,
            extensions,
            long_fpdus,
            enhanced,
            private_data: _,
        } = *self;
        Frame {
            kind,
            revision,
            markers,
            crc,
            reject,
            acknowledge,
            extensions,
            long_fpdus,
            enhanced,
            private_data: &[],
        }
    }

    /// Encodes into `out`; the result lies there.
    ///
    /// # Errors
    /// [`WireError::MPA_NEGOTIATION`] if there is too much private data.
    pub fn encode<'t>(&self, out: &'t mut [u8; FRAME_MAX]) -> Result<&'t [u8], WireError> {
        let bit = |set, bit| if set { bit } else { 0 };
        let enhanced = self.enhanced.map(Enhanced::to_wire);
        let enhanced = enhanced.as_ref().map_or(&[][..], EnhancedHeader::as_bytes);
        let private_len = enhanced.len() + self.private_data.len();
        if private_len > MPA_MAX_PRIVATE {
            return Err(WireError::MPA_NEGOTIATION);
        }
        let header = MpaHeader {
            key: match self.kind {
                Kind::Request => KEY_REQUEST,
                Kind::Reply => KEY_REPLY,
            },
            flags: bit(self.markers, MPA_MARKERS)
                | bit(self.crc, MPA_CRC)
                | bit(self.reject, MPA_REJECT)
                | bit(self.acknowledge, self.kind.acknowledge())
                | bit(self.extensions, MPA_EXTENSIONS)
                | bit(self.long_fpdus && !self.acknowledge, MPA_LONG_FPDUS)
                | bit(self.enhanced.is_some(), MPA_ENHANCED),
            revision: self.revision,
            private_len: U16::new(private_len as u16),
        };
        let (head, rest) = out.split_at_mut(HEADER);
        head.copy_from_slice(header.as_bytes());
        rest[..enhanced.len()].copy_from_slice(enhanced);
        rest[enhanced.len()..private_len].copy_from_slice(self.private_data);
        Ok(&out[..HEADER + private_len])
    }

    /// The reply that accepts this request, and what is then agreed.
    ///
    /// # Errors
    /// [`WireError::MPA_NEGOTIATION`] if the peer wants markers: answer with
    /// [`Frame::rejection`] (siw does the same); [`WireError::MPA_RTR`] if it offers only
    /// ready-to-receive messages that we do not take.
    pub fn answer<'p>(
        &self,
        local: &Local,
        private_data: &'p [u8],
    ) -> Result<(Frame<'p>, Agreed), WireError> {
        if self.markers {
            return Err(WireError::MPA_NEGOTIATION);
        }
        let crc = self.crc || local.crc;
        let acknowledge = self.enhanced.is_some() && self.acknowledge && local.acknowledge;
        let extensions = acknowledge && self.extensions && local.extensions;
        let mut agreed = Agreed {
            crc,
            ird: local.ird,
            ord: local.ord,
            rtr: None,
            acknowledge,
            extensions,
            long_fpdus: self.long_fpdus,
        };
        let mut enhanced = None;
        if let Some(theirs) = self.enhanced {
            let negotiate = |ours: u16, theirs| match theirs {
                DEPTH_UNNEGOTIATED => (ours, DEPTH_UNNEGOTIATED),
                depth => (ours.min(depth), ours.min(depth)),
            };
            let (ird, said_ird) = negotiate(local.ird, theirs.ord);
            let (ord, said_ord) = negotiate(local.ord, theirs.ird);
            let rtr = if theirs.peer_to_peer {
                // No choice offered: propose the usual one, as siw does.
                let offered = if theirs.rtr.is_empty() {
                    Rtr::WRITE
                } else {
                    theirs.rtr
                };
                let common = (offered & local.rtr).preferred();
                Some(common.ok_or(WireError::MPA_RTR)?)
            } else {
                None
            };
            agreed = Agreed {
                ird,
                ord,
                rtr,
                ..agreed
            };
            enhanced = Some(Enhanced {
                ird: said_ird,
                ord: said_ord,
                peer_to_peer: theirs.peer_to_peer,
                rtr: rtr.unwrap_or_default(),
            });
        }
        let (kind, revision) = (Kind::Reply, self.revision);
        let reply = Frame {
            kind,
            revision,
            markers: false,
            crc,
            reject: false,
            acknowledge,
            extensions,
            long_fpdus: acknowledge,
            enhanced,
            private_data,
        };
        Ok((reply, agreed))
    }

    /// The reply that refuses this request.
    pub fn rejection<'p>(&self, private_data: &'p [u8]) -> Frame<'p> {
        let zero = Enhanced {
            ird: 0,
            ord: 0,
            peer_to_peer: false,
            rtr: Rtr::empty(),
        };
        Frame {
            kind: Kind::Reply,
            revision: self.revision,
            markers: false,
            crc: self.crc,
            reject: true,
            acknowledge: false,
            extensions: false,
            long_fpdus: false,
            enhanced: self.enhanced.map(|_| zero),
            private_data,
        }
    }
}
