//! Atomic Operations and Immediate Data (RFC 7306) of a peer that has agreed on them and uses them
//! wrongly.

use dat_core::testing::device::soft::iwarp::extensions::{
    AtomicRequest, AtomicResponse, Immediate,
};
use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged};
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::{AtomicOp, Remote};

use super::Answer::{self, Terminate};
use super::{Case, Copied, Open, When, case, only, part, then, write_to};
use crate::iwarp::{sealed, tagged_as};
use crate::victim::Region;

/// An Atomic Request with a fault that `change` makes.
fn atomic(open: &Open<'_>, region: Region, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (rkey, to) = open.place(region);
    let request = AtomicRequest {
        identifier: 1,
        word: Remote {
            addr: to.next_multiple_of(8),
            rkey,
        },
        op: AtomicOp::CompareSwap {
            compare: 0,
            swap: 1,
        },
    };
    let mut header = request.encode(1);
    change(&mut header);
    sealed(true, &header, &[])
}

/// Immediate Data behind an RDMA Write of so many bytes.
fn immediate(written: u32) -> Vec<u8> {
    let header = Immediate { imm: 1, written }.encode(1, false, false);
    sealed(true, &header, &[])
}

/// A segment of no bytes of an RDMA Write that Immediate Data belongs to.
fn write(last: bool) -> Vec<u8> {
    let control = Control::new(OP_WRITE, last).with_immediate(true);
    let (stag, to) = (0, 0);
    tagged_as(Tagged { control, stag, to }, b"")
}

/// An Atomic Response.
fn response(msn: u32) -> Vec<u8> {
    let response = AtomicResponse {
        identifier: 1,
        before: 1,
    };
    sealed(true, &response.encode(msn), &[])
}

/// A case on a connection with these operations.
fn wrong(
    name: &'static str,
    section: &'static str,
    sends: &'static str,
    answer: Answer,
    make: impl Fn(&Open<'_>) -> super::Sent + 'static,
) -> Case {
    let mut case = case(name, section, sends, answer, make).acknowledging();
    case.offer.extensions = true;
    case
}

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::DdpHeader;
    let request =
        |region, change: fn(&mut [u8])| move |open: &Open<'_>| only(atomic(open, region, change));
    // The address of the word, and the masks of the operation.
    const TO: usize = UNTAGGED_HDR + 12;
    const SWAP_MASK: usize = UNTAGGED_HDR + 28;
    const COMPARE_MASK: usize = UNTAGGED_HDR + 44;
    let operation = Terminate((0, 2, 0xff), DdpHeader);
    let opcode = Terminate((0, 2, 6), DdpHeader);
    let stream = Terminate((0, 2, 7), DdpHeader);
    vec![
        case(
            "atomic-not-agreed",
            "5040 7.2",
            "an Atomic Request, without having agreed on them",
            opcode,
            request(Region::All, |_| {}),
        )
        .acknowledging(),
        wrong(
            "atomic-stag",
            "7306 8",
            "an Atomic Request for a region that was deregistered",
            Terminate((0, 1, 0), DdpHeader),
            request(Region::Stale, |_| {}),
        ),
        wrong(
            "atomic-readable",
            "7306 8",
            "the same for one that peers may only read",
            Terminate((0, 1, 2), DdpHeader),
            request(Region::Readable, |_| {}),
        ),
        wrong(
            "atomic-writable",
            "7306 8",
            "the same for one that they may only write",
            Terminate((0, 1, 2), DdpHeader),
            request(Region::Writable, |_| {}),
        ),
        wrong(
            "atomic-foreign",
            "7306 8",
            "the same for one of another protection domain",
            Terminate((0, 1, 3), DdpHeader),
            request(Region::Foreign, |_| {}),
        ),
        wrong(
            "atomic-bounds",
            "7306 8",
            "the same for a word before the region",
            Terminate((0, 1, 1), DdpHeader),
            request(Region::All, |header| header[TO] ^= 0x10),
        ),
        wrong(
            "atomic-wrap",
            "7306 8",
            "the same for a word whose offset wraps",
            Terminate((0, 1, 4), DdpHeader),
            request(Region::All, |header| header[TO..TO + 8].fill(0xff)),
        ),
        wrong(
            "atomic-unaligned",
            "7306 5.1",
            "the same for an address that is not a multiple of 8",
            operation,
            request(Region::All, |header| header[TO + 7] |= 1),
        ),
        wrong(
            "atomic-operation",
            "7306 5.2",
            "an operation that there is not",
            operation,
            request(Region::All, |header| header[UNTAGGED_HDR + 3] = 1),
        ),
        wrong(
            "atomic-swap-mask",
            "7306 5.2",
            "an operation that replaces a part of the word, which the library has not",
            operation,
            request(Region::All, |header| header[SWAP_MASK] = 0x7f),
        ),
        wrong(
            "atomic-compare-mask",
            "7306 5.2",
            "an operation that compares a part of the word, likewise",
            operation,
            request(Region::All, |header| header[COMPARE_MASK + 7] = 0),
        ),
        wrong(
            "atomic-response-unasked",
            "7306 5.2",
            "an Atomic Response that was not asked for",
            Terminate((1, 2, 2), DdpHeader),
            |_| only(response(1)),
        ),
        wrong(
            "atomic-response-to-read",
            "7306 5.2",
            "an Atomic Response to a read",
            stream,
            |_| only(response(1)),
        )
        .when(When::Reading),
        wrong(
            "immediate-length",
            "ours",
            "Immediate Data of a Write of 5 bytes, which has not come",
            stream,
            |_| only(immediate(5)),
        ),
        wrong(
            "immediate-early",
            "7306 6",
            "Immediate Data in a Write",
            opcode,
            |_| then(write(false), immediate(0)),
        ),
        wrong(
            "immediate-in-send",
            "7306 6, 5041 5.3",
            "Immediate Data in a Send",
            opcode,
            |_| then(part(1, 0, false, b"he"), immediate(0)),
        ),
        wrong(
            "immediate-other",
            "ours",
            "another Write between a Write and its Immediate Data",
            opcode,
            |open| then(write(true), write_to(open, Region::Writable, 0, 0)),
        ),
    ]
}
