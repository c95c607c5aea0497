//! The message by which an initiator says that it is ready to receive (RTR), as peers of other kinds send it.

use super::raw::{self, fpdu_bytes, initiate_as};
use super::*;
use crate::device::soft::iwarp::mpa::{Local, Rtr};
use crate::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use crate::device::soft::iwarp::wire::READ_REQUEST_HDR;

fn local(rtr: Rtr) -> Local {
    Local { rtr, ..raw::LOCAL }
}

/// A read of nothing, which needs no place among the reads that the consumer has agreed to.
#[test]
fn a_read_where_no_reads_are_taken() {
    let attr = QpAttr {
        max_rd_in: 0,
        ..attr()
    };
    let b = End::new(&raw::device(), attr);
    let mut raw = initiate_as(&local(Rtr::READ), &b, 2);
    for msn in 1..=2 {
        let mut header = [0; READ_REQUEST_HDR];
        ReadRequest::NOTHING.encode(msn, &mut header);
        raw.send(&fpdu_bytes(&header, b""));
        if msn == 1 {
            assert_eq!(b.event(), established(b""));
            let (segment, _) = raw.segment().unwrap();
            let answered = matches!(segment, Segment::ReadResponse { last: true, .. });
            assert!(answered, "{segment:?}");
        }
    }
    // Any other does.
    assert_eq!(b.event(), CmEvent::Broken);
}

/// A unit without a message is that message, and nothing else later.
#[test]
fn an_empty_unit_is_taken_once() {
    let b = End::new(&raw::device(), attr());
    let mut raw = initiate_as(&local(Rtr::FPDU), &b, 2);
    raw.send(&fpdu_bytes(&[0, 0], b""));
    assert_eq!(b.event(), established(b""));
    raw.send(&fpdu_bytes(&[0, 0], b""));
    assert_eq!(b.event(), CmEvent::Broken);
}
