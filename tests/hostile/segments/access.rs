//! Memory that a peer names (RFC 5041 section 7, RFC 5040 sections 7 and 8): steering tags, bounds and
//! rights of Writes, of reads, and of Sends with Invalidate.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{GoesOn, Terminate};
use super::{Case, Copied, Open, case, legal, only, send_with, then, write_to};
use crate::iwarp::{read, tagged, tagged_as, untagged};
use crate::victim::{Arena, REGION, Region};

/// A Read Request for so many bytes at an offset of a region, which may be outside of the region.
fn read_from(open: &Open<'_>, region: Region, offset: i64, size: u32) -> Vec<u8> {
    let (stag, to) = open.place(region);
    read(1, stag, to.wrapping_add_signed(offset), size)
}

/// A Send with Invalidate.
fn invalidating(stag: u32) -> Vec<u8> {
    let header = Untagged {
        invalidate: stag,
        ..send_with(Control::new(OP_SEND_INVALIDATE, true))
    };
    untagged(header, b"bye")
}

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::{DdpHeader, ReadRequest};
    let end = REGION as i64;
    let writes =
        |region, offset: i64, len| move |open: &Open<'_>| only(write_to(open, region, offset, len));
    let reads = |region, offset: i64, size| {
        move |open: &Open<'_>| only(read_from(open, region, offset, size))
    };
    let stag_write = |stag: u32| {
        move |open: &Open<'_>| only(tagged(OP_WRITE, stag, open.arena.at(Region::All), b"x"))
    };
    let stag_read =
        |stag: u32| move |open: &Open<'_>| only(read(1, stag, open.arena.at(Region::All), 1));
    let invalidates = |region| move |open: &Open<'_>| only(invalidating(open.arena.key(region)));
    let w_stag = Terminate((1, 1, 0), DdpHeader);
    let w_bounds = Terminate((1, 1, 1), DdpHeader);
    let w_rights = Terminate((0, 1, 2), DdpHeader);
    let r_stag = Terminate((0, 1, 0), ReadRequest);
    let r_bounds = Terminate((0, 1, 1), ReadRequest);
    let r_rights = Terminate((0, 1, 2), ReadRequest);
    let cannot = Terminate((0, 1, 9), DdpHeader);
    vec![
        case(
            "write-stag-0",
            "5041 7.1",
            "a Write to STag 0",
            w_stag,
            stag_write(0),
        ),
        case(
            "write-stag-max",
            "5041 7.1",
            "a Write to the highest STag",
            w_stag,
            stag_write(u32::MAX),
        ),
        case(
            "write-stag-unknown",
            "5041 7.1",
            "a Write to an STag with one bit changed",
            w_stag,
            |open| {
                let (stag, to) = open.place(Region::All);
                only(tagged(OP_WRITE, stag ^ 0x100, to, b"x"))
            },
        ),
        case(
            "write-stag-stale",
            "5041 7.1",
            "a Write to an STag that was revoked",
            w_stag,
            writes(Region::Stale, 0, 4),
        ),
        case(
            "write-stag-foreign",
            "5041 7.1",
            "a Write to an STag of another protection domain",
            Terminate((1, 1, 2), DdpHeader),
            writes(Region::Foreign, 0, 4),
        ),
        case(
            "write-before",
            "5041 7.1",
            "a Write that begins a byte before the region",
            w_bounds,
            writes(Region::All, -1, 4),
        ),
        case(
            "write-behind",
            "5041 7.1",
            "a Write that ends a byte behind the region",
            w_bounds,
            writes(Region::All, end - 3, 4),
        ),
        case(
            "write-outside",
            "5041 7.1",
            "a Write to the end of the region",
            w_bounds,
            writes(Region::All, end, 1),
        ),
        case(
            "write-longer",
            "5041 7.1",
            "a Write longer than the region",
            w_bounds,
            writes(Region::All, 0, REGION + 1),
        ),
        case(
            "write-address-0",
            "5041 7.1",
            "a Write to offset 0",
            w_bounds,
            |open| only(tagged(OP_WRITE, open.arena.key(Region::All), 0, b"x")),
        ),
        case(
            "write-neighbour",
            "5041 7.1",
            "a Write to a region by the STag of another",
            w_bounds,
            |open| {
                let (stag, to) = (open.arena.key(Region::All), open.arena.at(Region::Writable));
                only(tagged(OP_WRITE, stag, to, b"x"))
            },
        ),
        case(
            "write-wrap",
            "5041 7.1",
            "a Write whose offset wraps",
            Terminate((1, 1, 3), DdpHeader),
            |open| {
                let stag = open.arena.key(Region::All);
                only(tagged(OP_WRITE, stag, u64::MAX - 1, b"data"))
            },
        ),
        case(
            "write-second-segment",
            "5041 7.1",
            "a Write whose second segment is outside",
            w_bounds,
            move |open| {
                let (stag, to) = open.place(Region::All);
                let control = Control::new(OP_WRITE, false);
                // The first segment writes what is there already.
                let at = Arena::offset(Region::All);
                let same = &Arena::pattern()[at..at + 8];
                then(
                    tagged_as(Tagged { control, stag, to }, same),
                    write_to(open, Region::All, end, 8),
                )
            },
        ),
        case(
            "write-read-only",
            "5040 7.2",
            "a Write to a region without that right",
            w_rights,
            writes(Region::Readable, 0, 4),
        ),
        case(
            "write-local",
            "5040 7.2",
            "a Write to a region that is not open to peers",
            w_rights,
            writes(Region::Local, 0, 4),
        ),
        case(
            "write-empty",
            "5040 5.1",
            "a Write of no bytes, STag and offset invalid",
            GoesOn(1),
            |_| legal(tagged(OP_WRITE, 0xffff_ffff, u64::MAX, b"")),
        ),
        case(
            "read-stag-0",
            "5040 7.2",
            "a read of STag 0",
            r_stag,
            stag_read(0),
        ),
        case(
            "read-stag-max",
            "5040 7.2",
            "a read of the highest STag",
            r_stag,
            stag_read(u32::MAX),
        ),
        case(
            "read-stag-stale",
            "5040 7.2",
            "a read of an STag that was revoked",
            r_stag,
            reads(Region::Stale, 0, 4),
        ),
        case(
            "read-stag-foreign",
            "5040 7.2",
            "a read of an STag of another protection domain",
            Terminate((0, 1, 3), ReadRequest),
            reads(Region::Foreign, 0, 4),
        ),
        case(
            "read-before",
            "5040 7.2",
            "a read that begins a byte before the region",
            r_bounds,
            reads(Region::All, -1, 4),
        ),
        case(
            "read-behind",
            "5040 7.2",
            "a read that ends a byte behind the region",
            r_bounds,
            reads(Region::All, end - 3, 4),
        ),
        case(
            "read-outside",
            "5040 7.2",
            "a read at the end of the region",
            r_bounds,
            reads(Region::All, end, 1),
        ),
        case(
            "read-longest",
            "5040 7.2",
            "a read of 4 GiB",
            r_bounds,
            reads(Region::All, 0, u32::MAX),
        ),
        case(
            "read-wrap",
            "5040 7.2",
            "a read whose offset wraps",
            Terminate((0, 1, 4), ReadRequest),
            |open| only(read(1, open.arena.key(Region::All), u64::MAX - 1, 4)),
        ),
        case(
            "read-write-only",
            "5040 7.2",
            "a read of a region without that right",
            r_rights,
            reads(Region::Writable, 0, 4),
        ),
        case(
            "read-local",
            "5040 7.2",
            "a read of a region that is not open to peers",
            r_rights,
            reads(Region::Local, 0, 4),
        ),
        case(
            "read-empty",
            "5040 5.2",
            "a read of no bytes, STag and offset invalid",
            GoesOn(1),
            |_| legal(read(1, 0, u64::MAX, 0)),
        ),
        case(
            "invalidate-0",
            "5040 7.2",
            "a Send with Invalidate of STag 0",
            cannot,
            |_| only(invalidating(0)),
        ),
        case(
            "invalidate-stale",
            "5040 7.2",
            "a Send with Invalidate of a revoked STag",
            cannot,
            invalidates(Region::Stale),
        ),
        case(
            "invalidate-foreign",
            "5040 7.2",
            "a Send with Invalidate of an STag of another protection domain",
            cannot,
            invalidates(Region::Foreign),
        ),
        case(
            "invalidate-local",
            "5040 7.2",
            "a Send with Invalidate of an STag that is not open to peers",
            cannot,
            invalidates(Region::Local),
        ),
        case(
            "invalidate-region",
            "5040 7.2",
            "a Send with Invalidate of an STag of a region, not of a window",
            cannot,
            invalidates(Region::All),
        ),
    ]
}
