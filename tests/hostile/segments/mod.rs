//! Every rule of RFC 5040, 5041 and 5044 that the receiver of a segment can check, broken by a peer
//! that does everything else right: what a case consists of, and the segments that cases of several
//! subjects send. Each subject has a file of its own.

mod access;
mod acknowledgements;
mod ends;
mod extensions;
mod framing;
mod headers;
mod queues;
mod reads;
mod run;

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::mpa::Local;
use dat_core::testing::device::soft::iwarp::wire::*;

use crate::iwarp::{OFFER, send, tagged, tagged_as, untagged};
use crate::rows::Row;
use crate::victim::{Arena, Region};

/// What the peer sends, in this order.
#[derive(Default)]
pub struct Sent {
    /// Segments without a fault.
    pub before: Vec<u8>,
    /// The segment with the fault.
    pub offending: Vec<u8>,
    /// More, which must have no effect.
    pub after: Vec<u8>,
}

/// How much of the offending segment the Terminate repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    Nothing,
    DdpHeader,
    ReadRequest,
}

/// What the library does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It sends a Terminate with this layer, type and code, and ends the connection.
    Terminate((u8, u8, u8), Copied),
    /// It ends the connection without a Terminate.
    Ends,
    /// It goes on; the next Send has this number.
    GoesOn(u32),
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Terminate((layer, etype, code), copied) => {
                write!(f, "Terminate {layer}/{etype}/{code:02x}")?;
                f.write_str(match copied {
                    Copied::Nothing => "",
                    Copied::DdpHeader => ", DDP header",
                    Copied::ReadRequest => ", DDP header and Read Request",
                })
            }
            Answer::Ends => f.write_str("the end of the stream, no Terminate"),
            Answer::GoesOn(_) => f.write_str("none: legal, the connection goes on"),
        }
    }
}

/// What a case has of the connection.
pub struct Open<'a> {
    /// The memory of the library that has regions.
    pub arena: &'a Arena,
    /// The steering tags of the two reads of 8 bytes that the library has sent, if there are any.
    pub sinks: [u32; 2],
}

impl Open<'_> {
    /// The steering tag of a region, and its address.
    fn place(&self, region: Region) -> (u32, u64) {
        (self.arena.key(region), self.arena.at(region))
    }
}

/// When the peer sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// As its first message.
    First,
    /// On an established connection.
    Open,
    /// On an established connection without receives, which are posted when that has arrived.
    Late,
    /// On an established connection after two Read Requests of the library.
    Reading,
}

/// One broken rule.
pub struct Case {
    /// The case in docs/hostile-peers.md.
    pub row: Row,
    /// What the library has to do.
    pub answer: Answer,
    /// When the peer sends.
    pub when: When,
    /// What the peer offers in its request.
    pub offer: Local,
    /// Makes what the peer sends.
    pub make: Box<dyn Fn(&Open<'_>) -> Sent>,
}

/// A case on an established connection; [`Case::when`] changes that.
fn case(
    name: &'static str,
    section: &'static str,
    sends: &'static str,
    answer: Answer,
    make: impl Fn(&Open<'_>) -> Sent + 'static,
) -> Case {
    Case {
        row: Row::new(name, section, sends, &answer),
        answer,
        when: When::Open,
        offer: OFFER,
        make: Box::new(make),
    }
}

impl Case {
    fn when(self, when: When) -> Case {
        Case { when, ..self }
    }

    /// The peer has agreed on acknowledgements.
    fn acknowledging(mut self) -> Case {
        self.offer.acknowledge = true;
        self
    }
}

/// All cases, in the order of docs/hostile-peers.md.
pub fn cases() -> Vec<Case> {
    [
        framing::cases(),
        headers::cases(),
        queues::cases(),
        access::cases(),
        reads::cases(),
        ends::cases(),
        acknowledgements::cases(),
        extensions::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A segment with a fault and nothing before it.
fn only(offending: Vec<u8>) -> Sent {
    then(Vec::new(), offending)
}

/// Segments without a fault, then one with.
fn then(before: Vec<u8>, offending: Vec<u8>) -> Sent {
    Sent {
        before,
        offending,
        ..Sent::default()
    }
}

/// Segments without a fault, and nothing else.
fn legal(before: Vec<u8>) -> Sent {
    then(before, Vec::new())
}

/// The header of the first Send with other control bytes.
fn send_with(control: Control) -> Untagged {
    Untagged { control, ..send(1) }
}

/// A part of a Send.
fn part(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Untagged {
        control: Control::new(OP_SEND, last),
        mo,
        ..send(msn)
    };
    untagged(header, payload)
}

/// A Terminate of the peer.
fn peer_terminate(msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let header = Untagged {
        control: Control::new(OP_TERMINATE, true),
        invalidate: 0,
        qn: QN_TERMINATE,
        msn,
        mo,
    };
    untagged(header, payload)
}

/// A Write of so many bytes to an offset of a region, which may be outside of the region.
fn write_to(open: &Open<'_>, region: Region, offset: i64, len: usize) -> Vec<u8> {
    let (stag, to) = open.place(region);
    let to = to.wrapping_add_signed(offset);
    tagged(OP_WRITE, stag, to, &vec![0xee; len])
}

/// A segment of a Read Response to the steering tag of a read.
fn response(sink: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Tagged {
        control: Control::new(OP_READ_RESPONSE, last),
        stag: sink,
        to,
    };
    tagged_as(header, payload)
}
