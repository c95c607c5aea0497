//! Reads in both directions (RFC 5040 section 5.2): more Read Requests than were agreed, and Read
//! Responses that no read has asked for or that do not fit their read.

use super::Answer::Terminate;
use super::{Case, Copied, Open, When, case, only, response, then};
use crate::iwarp::read;
use crate::victim::{Arena, Region};

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::DdpHeader;
    let stag = Terminate((1, 1, 0), DdpHeader);
    let bounds = Terminate((1, 1, 1), DdpHeader);
    let requests = |n: u32| {
        move |open: &Open<'_>| {
            let (stag, to) = open.place(Region::Readable);
            // One write to the socket holds them all: none is answered before the last is read.
            only((1..=n).flat_map(|msn| read(msn, stag, to, 8)).collect())
        }
    };
    let reading = |make: fn([u32; 2]) -> Vec<u8>| move |open: &Open<'_>| only(make(open.sinks));
    vec![
        case(
            "request-beyond-ird",
            "5040 5.2, 6581 9.1",
            "more Read Requests at a time than were agreed",
            Terminate((1, 2, 2), DdpHeader),
            requests(40),
        ),
        case(
            "response-unasked",
            "5040 5.2, 5041 7.1",
            "a Read Response that was not asked for",
            stag,
            |_| only(response(0x8000_0000, 0, true, b"12345678")),
        ),
        case(
            "response-unasked-empty",
            "5040 5.2, 5041 7.1",
            "the same of no bytes",
            stag,
            |_| only(response(0, 0, true, b"")),
        ),
        case(
            "response-unasked-region",
            "5040 5.2",
            "a Read Response to a registered region",
            stag,
            |open| {
                let (stag, to) = open.place(Region::All);
                only(response(stag, to, true, b"12345678"))
            },
        ),
        case(
            "response-stag",
            "5040 5.2, 5041 7.1",
            "a Read Response with another STag",
            stag,
            reading(|[sink, _]| response(sink ^ 0x10, 0, true, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-region",
            "5040 5.2",
            "a Read Response with the STag of a region",
            stag,
            |open| only(response(open.arena.key(Region::All), 0, true, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-of-the-next",
            "5040 5.2, 5.5",
            "the Response to the second read before that to the first",
            stag,
            reading(|[_, next]| response(next, 0, true, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-offset",
            "5040 5.2, 5041 7.1",
            "a Read Response at another offset",
            bounds,
            reading(|[sink, _]| response(sink, 1, true, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-gap",
            "5040 5.2",
            "a second segment that leaves out a byte",
            bounds,
            |open| {
                let sink = open.sinks[0];
                let at = Arena::offset(Region::Local);
                let same = &Arena::pattern()[at..at + 3];
                then(
                    response(sink, 0, false, same),
                    response(sink, 4, true, &[0xee; 4]),
                )
            },
        )
        .when(When::Reading),
        case(
            "response-wrap",
            "5041 7.1",
            "a Read Response whose offset wraps",
            Terminate((1, 1, 3), DdpHeader),
            reading(|[sink, _]| response(sink, u64::MAX - 1, true, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-too-long",
            "5040 5.2, 5041 7.1",
            "a Read Response of 9 bytes to a read of 8",
            bounds,
            reading(|[sink, _]| response(sink, 0, true, &[0xee; 9])),
        )
        .when(When::Reading),
        case(
            "response-not-last",
            "5040 5.2",
            "a Read Response of 8 bytes that shall go on",
            Terminate((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, false, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-too-short",
            "5040 5.2",
            "a Read Response that ends after 7 bytes",
            Terminate((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, true, &[0xee; 7])),
        )
        .when(When::Reading),
        case(
            "response-empty",
            "5040 5.2",
            "a Read Response of no bytes to a read of 8",
            Terminate((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, true, b"")),
        )
        .when(When::Reading),
    ]
}
