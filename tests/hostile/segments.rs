//! Every rule of RFC 5040, 5041 and 5044 that the receiver of a segment can check, broken by a peer
//! that does everything else right.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::mpa::Local;
use dat_core::testing::device::soft::iwarp::rdmap::ReadRequest;
use dat_core::testing::device::soft::iwarp::wire::*;

use crate::iwarp::*;
use crate::rows::Row;
use crate::victim::{Arena, REGION, Region};

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
    /// It sends a Terminate and ends the connection.
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
    pub arena: &'a Arena,
    /// The steering tags of the two reads of 8 bytes that the library has sent, if there are any.
    pub sinks: [u32; 2],
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
    pub row: Row,
    pub answer: Answer,
    pub when: When,
    pub offer: Local,
    pub make: Box<dyn Fn(&Open<'_>) -> Sent>,
}

fn case(
    name: &'static str,
    section: &'static str,
    sends: &'static str,
    answer: Answer,
    make: impl Fn(&Open<'_>) -> Sent + 'static,
) -> Case {
    Case {
        row: Row {
            name,
            section,
            sends,
            answer: answer.to_string(),
        },
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
}

/// A segment with a fault and nothing before it.
fn only(offending: Vec<u8>) -> Sent {
    Sent {
        offending,
        ..Sent::default()
    }
}

/// Segments without a fault, then one with.
fn then(before: Vec<u8>, offending: Vec<u8>) -> Sent {
    Sent {
        before,
        offending,
        ..Sent::default()
    }
}

fn with_opcode(opcode: u8, last: bool) -> Control {
    Control::new(opcode, last)
}

/// The other version bits of DDP.
fn ddp_version(control: Control, version: u8) -> Control {
    Control {
        ddp: control.ddp & !DDP_VERSION_MASK | version,
        ..control
    }
}

/// The other version bits of RDMAP.
fn rdmap_version(control: Control, version: u8) -> Control {
    Control {
        rdmap: control.rdmap & !RDMAP_VERSION_MASK | version << 6,
        ..control
    }
}

fn terminates(error: (u8, u8, u8), copied: Copied) -> Answer {
    Answer::Terminate(error, copied)
}

/// A part of a Send.
fn part(msn: u32, mo: u32, last: bool) -> Untagged {
    Untagged {
        control: with_opcode(OP_SEND, last),
        mo,
        ..send(msn)
    }
}

/// An untagged segment of a Read Request with any header.
fn read_as(header: Untagged, arena: &Arena, len: usize) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 2,
        size: 8,
        source_stag: arena.key(Region::Readable),
        source_to: arena.at(Region::Readable),
    };
    let mut bytes = [0; READ_REQUEST_HDR];
    request.encode(1, &mut bytes);
    let mut payload = bytes[UNTAGGED_HDR..].to_vec();
    payload.resize(len, 0);
    untagged(header, &payload)
}

fn read_header(msn: u32) -> Untagged {
    Untagged {
        control: with_opcode(OP_READ_REQUEST, true),
        invalidate: 0,
        qn: QN_READ_REQUEST,
        msn,
        mo: 0,
    }
}

/// A Terminate of the peer.
fn peer_terminate(msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let header = Untagged {
        control: with_opcode(OP_TERMINATE, true),
        invalidate: 0,
        qn: QN_TERMINATE,
        msn,
        mo,
    };
    untagged(header, payload)
}

fn write_to(open: &Open<'_>, region: Region, offset: i64, len: usize) -> Vec<u8> {
    let to = open.arena.at(region).wrapping_add_signed(offset);
    tagged(OP_WRITE, open.arena.key(region), to, &vec![0xee; len])
}

fn read_from(open: &Open<'_>, region: Region, offset: i64, size: u32) -> Vec<u8> {
    let to = open.arena.at(region).wrapping_add_signed(offset);
    read(1, open.arena.key(region), to, size)
}

fn invalidating(stag: u32) -> Vec<u8> {
    let header = Untagged {
        control: with_opcode(OP_SEND_INVALIDATE, true),
        invalidate: stag,
        ..send(1)
    };
    untagged(header, b"bye")
}

fn response(sink: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let control = with_opcode(OP_READ_RESPONSE, last);
    tagged_as(
        Tagged {
            control,
            stag: sink,
            to,
        },
        payload,
    )
}

/// All cases.
pub fn cases() -> Vec<Case> {
    [framing(), headers(), queues(), access(), reads(), ends()]
        .into_iter()
        .flatten()
        .collect()
}

/// RFC 5044: FPDUs.
fn framing() -> Vec<Case> {
    use Copied::Nothing;
    let framing = terminates((2, 0, 3), Nothing);
    let crc = terminates((2, 0, 2), Nothing);
    let flip = |at: fn(usize) -> usize| {
        move |_: &Open<'_>| {
            let mut bytes = untagged(send(1), b"hello");
            let at = at(bytes.len());
            bytes[at] ^= 0x10;
            only(bytes)
        }
    };
    vec![
        case(
            "fpdu-empty",
            "5044 4.1, 6581 9.2",
            "an FPDU of length 0 that is no agreed first message",
            framing,
            |_| only(sealed(true, &[0, 0], &[])),
        ),
        case(
            "fpdu-empty-first",
            "6581 9.2",
            "an FPDU of length 0 as the first message, RDMA Write agreed",
            framing,
            |_| only(sealed(true, &[0, 0], &[])),
        )
        .when(When::First),
        case(
            "fpdu-too-short-tagged",
            "5044 4.1, 5041 4.2",
            "a length that holds no tagged header",
            framing,
            |_| {
                only(vec![
                    0, 13, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ])
            },
        ),
        case(
            "fpdu-too-short-untagged",
            "5044 4.1, 5041 4.3",
            "a length that holds no untagged header",
            framing,
            |_| {
                only(vec![
                    0, 17, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
                ])
            },
        ),
        case(
            "fpdu-length-1",
            "5044 4.1",
            "a length of 1",
            framing,
            |_| only(vec![0, 1, 0x41, 0, 0, 0, 0, 0]),
        ),
        case(
            "crc-header",
            "5044 4.4",
            "a bit of the header changed",
            crc,
            flip(|_| 14),
        ),
        case(
            "crc-payload",
            "5044 4.4",
            "a bit of the payload changed",
            crc,
            flip(|_| 21),
        ),
        case(
            "crc-padding",
            "5044 4.4",
            "a bit of the padding changed",
            crc,
            flip(|len| len - 5),
        ),
        case(
            "crc-field",
            "5044 4.4",
            "a bit of the CRC changed",
            crc,
            flip(|len| len - 1),
        ),
        case(
            "crc-zero",
            "5044 4.4",
            "a CRC of zero although CRCs are in use",
            crc,
            |_| {
                let mut bytes = untagged(send(1), b"hello");
                let len = bytes.len();
                bytes[len - 4..].fill(0);
                only(bytes)
            },
        ),
        case(
            "marker",
            "5044 4.3",
            "a marker although none were negotiated",
            crc,
            |_| only([vec![0; 4], untagged(send(1), b"hello")].concat()),
        ),
        case(
            "padding-not-zero",
            "5044 4.1",
            "padding that is not zero, with its CRC",
            Answer::GoesOn(2),
            |_| {
                let mut header = [0; UNTAGGED_HDR];
                send(1).encode(5, &mut header).unwrap();
                let mut body = [&header[..], b"hello", &[1, 2, 3]].concat();
                let mut crc = dat_core::testing::device::soft::iwarp::crc::Crc::new();
                crc.update(&body);
                body.extend(crc.finish());
                Sent {
                    before: body,
                    ..Sent::default()
                }
            },
        ),
    ]
}

/// RFC 5041 section 4 and RFC 5040 section 4: control bytes.
fn headers() -> Vec<Case> {
    use Copied::{DdpHeader, Nothing};
    let mut cases = Vec::new();
    let name = |names: &[&'static str], n: u8| names[usize::from(n)];
    for version in [0, 2, 3] {
        let tagged_names = [
            "ddp-version-tagged-0",
            "",
            "ddp-version-tagged-2",
            "ddp-version-tagged-3",
        ];
        cases.push(case(
            name(&tagged_names, version),
            "5041 4.1, 7.1",
            "a tagged segment of another DDP version",
            terminates((1, 1, 4), Nothing),
            move |open| {
                let control = ddp_version(with_opcode(OP_WRITE, true), version);
                let (stag, to) = (open.arena.key(Region::All), open.arena.at(Region::All));
                only(tagged_as(Tagged { control, stag, to }, b"data"))
            },
        ));
        let untagged_names = [
            "ddp-version-untagged-0",
            "",
            "ddp-version-untagged-2",
            "ddp-version-untagged-3",
        ];
        cases.push(case(
            name(&untagged_names, version),
            "5041 4.1, 7.1",
            "an untagged segment of another DDP version",
            terminates((1, 2, 6), Nothing),
            move |_| {
                let control = ddp_version(send(1).control, version);
                only(untagged(Untagged { control, ..send(1) }, b"data"))
            },
        ));
        let rdmap_names = ["rdmap-version-0", "", "rdmap-version-2", "rdmap-version-3"];
        cases.push(case(
            name(&rdmap_names, version),
            "5040 4.1, 7.2",
            "another RDMAP version",
            terminates((0, 2, 5), DdpHeader),
            move |_| {
                let control = rdmap_version(send(1).control, version);
                only(untagged(Untagged { control, ..send(1) }, b"data"))
            },
        ));
    }
    const UNTAGGED: [&str; 16] = [
        "opcode-write-untagged",
        "",
        "opcode-response-untagged",
        "",
        "",
        "",
        "",
        "",
        "opcode-8",
        "opcode-9",
        "opcode-10",
        "opcode-11",
        "opcode-12",
        "opcode-13",
        "opcode-14",
        "opcode-15",
    ];
    const TAGGED: [&str; 16] = [
        "",
        "opcode-request-tagged",
        "",
        "opcode-send-tagged",
        "opcode-send-invalidate-tagged",
        "opcode-send-se-tagged",
        "opcode-send-se-invalidate-tagged",
        "opcode-terminate-tagged",
        "opcode-8-tagged",
        "opcode-9-tagged",
        "opcode-10-tagged",
        "opcode-11-tagged",
        "opcode-12-tagged",
        "opcode-13-tagged",
        "opcode-14-tagged",
        "opcode-15-tagged",
    ];
    for opcode in 0..16u8 {
        let unexpected = terminates((0, 2, 6), DdpHeader);
        if !UNTAGGED[usize::from(opcode)].is_empty() {
            cases.push(case(
                UNTAGGED[usize::from(opcode)],
                "5040 4.1, 7.2",
                "an opcode that no untagged segment has",
                unexpected,
                move |_| {
                    let control = with_opcode(opcode, true);
                    only(untagged(Untagged { control, ..send(1) }, b"data"))
                },
            ));
        }
        if !TAGGED[usize::from(opcode)].is_empty() {
            cases.push(case(
                TAGGED[usize::from(opcode)],
                "5040 4.1, 7.2",
                "an opcode that no tagged segment has",
                unexpected,
                move |open| {
                    let (stag, to) = (open.arena.key(Region::All), open.arena.at(Region::All));
                    only(tagged_as(
                        Tagged {
                            control: with_opcode(opcode, true),
                            stag,
                            to,
                        },
                        b"data",
                    ))
                },
            ));
        }
    }
    cases.push(case(
        "reserved-bits",
        "5041 4.1, 5040 4.1",
        "reserved bits of DDP and RDMAP that are set",
        Answer::GoesOn(2),
        |_| {
            let control = send(1).control;
            let control = Control {
                ddp: control.ddp | 0x3c,
                rdmap: control.rdmap | 0x30,
            };
            let before = untagged(
                Untagged {
                    control,
                    invalidate: 0xffff_ffff,
                    ..send(1)
                },
                b"data",
            );
            Sent {
                before,
                ..Sent::default()
            }
        },
    ));
    cases
}

/// RFC 5041 section 5: queues, sequence numbers, offsets.
fn queues() -> Vec<Case> {
    use Copied::DdpHeader;
    let qn = terminates((1, 2, 1), DdpHeader);
    let msn = terminates((1, 2, 3), DdpHeader);
    let mo = terminates((1, 2, 4), DdpHeader);
    let too_long = terminates((1, 2, 5), DdpHeader);
    let send_to = |queue: u32| {
        move |_: &Open<'_>| {
            only(untagged(
                Untagged {
                    qn: queue,
                    ..send(1)
                },
                b"data",
            ))
        }
    };
    let send_msn = |msn: u32| move |_: &Open<'_>| only(untagged(send(msn), b"data"));
    let kinds = |first: u8, second: u8, invalidates: u32| {
        move |open: &Open<'_>| {
            let invalidate = open.arena.key(Region::All);
            let a = Untagged {
                control: with_opcode(first, false),
                invalidate,
                ..send(1)
            };
            let b = Untagged {
                control: with_opcode(second, true),
                invalidate: invalidate ^ invalidates,
                mo: 4,
                ..send(1)
            };
            then(untagged(a, b"data"), untagged(b, b"more"))
        }
    };
    let kind = terminates((0, 2, 6), DdpHeader);
    vec![
        case(
            "qn-send-1",
            "5040 4.2, 5041 7.1",
            "a Send on queue 1",
            qn,
            send_to(1),
        ),
        case(
            "qn-send-2",
            "5040 4.2, 5041 7.1",
            "a Send on queue 2",
            qn,
            send_to(2),
        ),
        case(
            "qn-send-3",
            "5041 4.3, 7.1",
            "a Send on queue 3, which does not exist",
            qn,
            send_to(3),
        ),
        case(
            "qn-send-max",
            "5041 4.3, 7.1",
            "a Send on the highest queue number",
            qn,
            send_to(u32::MAX),
        ),
        case(
            "qn-request-0",
            "5040 4.2",
            "a Read Request on queue 0",
            qn,
            |open| {
                only(read_as(
                    Untagged {
                        qn: 0,
                        ..read_header(1)
                    },
                    open.arena,
                    READ_REQUEST_LEN,
                ))
            },
        ),
        case(
            "qn-terminate-0",
            "5040 4.2",
            "a Terminate on queue 0",
            qn,
            |_| {
                let control = with_opcode(OP_TERMINATE, true);
                only(untagged(Untagged { control, ..send(1) }, &[0; 4]))
            },
        ),
        case(
            "msn-0",
            "5041 5.1, 7.1",
            "a Send with number 0",
            msn,
            send_msn(0),
        ),
        case(
            "msn-skipped",
            "5041 5.1, 7.1",
            "a Send with number 2 first",
            msn,
            send_msn(2),
        ),
        case(
            "msn-max",
            "5041 5.1, 7.1",
            "a Send with the highest number",
            msn,
            send_msn(u32::MAX),
        ),
        case(
            "msn-repeated",
            "5041 5.1, 7.1",
            "the number of the Send before",
            msn,
            |_| then(untagged(send(1), b"one"), untagged(send(1), b"two")),
        ),
        case(
            "msn-in-message",
            "5041 5.1, 5.2",
            "the next number in the midst of a message",
            msn,
            |_| {
                then(
                    untagged(part(1, 0, false), b"one"),
                    untagged(part(2, 3, true), b"two"),
                )
            },
        ),
        case(
            "msn-request",
            "5041 5.1, 7.1",
            "a Read Request with number 2 first",
            msn,
            |open| only(read_as(read_header(2), open.arena, READ_REQUEST_LEN)),
        ),
        case(
            "msn-terminate",
            "5041 5.1, 5040 5.4",
            "a Terminate with number 2",
            msn,
            |_| only(peer_terminate(2, 0, &[0; 4])),
        ),
        case(
            "mo-first",
            "5041 5.2, 7.1",
            "an offset in the first segment of a message",
            mo,
            |_| only(untagged(part(1, 5, true), b"data")),
        ),
        case(
            "mo-gap",
            "5041 5.2, 7.1",
            "an offset that leaves out a byte",
            mo,
            |_| {
                then(
                    untagged(part(1, 0, false), b"one"),
                    untagged(part(1, 4, true), b"two"),
                )
            },
        ),
        case(
            "mo-back",
            "5041 5.2, 7.1",
            "an offset that repeats a byte",
            mo,
            |_| {
                then(
                    untagged(part(1, 0, false), b"one"),
                    untagged(part(1, 2, true), b"two"),
                )
            },
        ),
        case(
            "mo-wrap",
            "5041 5.2, 7.1",
            "an offset that wraps with the payload",
            mo,
            |_| only(untagged(part(1, u32::MAX - 1, true), b"data")),
        ),
        case(
            "mo-request",
            "5041 5.2",
            "a Read Request with an offset",
            mo,
            |open| {
                only(read_as(
                    Untagged {
                        mo: 1,
                        ..read_header(1)
                    },
                    open.arena,
                    READ_REQUEST_LEN,
                ))
            },
        ),
        case(
            "mo-terminate",
            "5041 5.2",
            "a Terminate with an offset",
            mo,
            |_| only(peer_terminate(1, 4, &[0; 4])),
        ),
        case(
            "send-too-long",
            "5041 7.1",
            "a Send of a byte more than the receive holds",
            too_long,
            |_| only(untagged(send(1), &[0xee; 65])),
        ),
        case(
            "send-too-long-late",
            "5041 7.1",
            "the same before a receive is posted",
            too_long,
            |_| only(untagged(send(1), &[0xee; 65])),
        )
        .when(When::Late),
        case(
            "send-parts-too-long",
            "5041 7.1",
            "the same in two segments",
            too_long,
            |_| {
                then(
                    untagged(part(1, 0, false), &[0xee; 64]),
                    untagged(part(1, 64, true), b"x"),
                )
            },
        ),
        case(
            "request-not-last",
            "5040 5.2",
            "a Read Request in more than one segment",
            too_long,
            |open| {
                let control = with_opcode(OP_READ_REQUEST, false);
                only(read_as(
                    Untagged {
                        control,
                        ..read_header(1)
                    },
                    open.arena,
                    READ_REQUEST_LEN,
                ))
            },
        ),
        case(
            "request-too-long",
            "5040 4.4",
            "a Read Request of 29 bytes",
            too_long,
            |open| only(read_as(read_header(1), open.arena, READ_REQUEST_LEN + 1)),
        ),
        case(
            "request-too-short",
            "5040 4.4",
            "a Read Request of 27 bytes",
            terminates((0, 2, 7), DdpHeader),
            |open| only(read_as(read_header(1), open.arena, READ_REQUEST_LEN - 1)),
        ),
        case(
            "request-empty",
            "5040 4.4",
            "a Read Request without its header",
            terminates((0, 2, 7), DdpHeader),
            |open| only(read_as(read_header(1), open.arena, 0)),
        ),
        case(
            "send-kind-changes",
            "5040 5.3",
            "segments of one Send, the second solicited",
            kind,
            kinds(OP_SEND, OP_SEND_SE, 0),
        ),
        case(
            "send-invalidate-appears",
            "5040 5.3",
            "segments of one Send, the second with an STag to invalidate",
            kind,
            kinds(OP_SEND, OP_SEND_INVALIDATE, 0),
        ),
        case(
            "send-invalidate-changes",
            "5040 5.3",
            "segments of one Send with different STags to invalidate",
            kind,
            kinds(OP_SEND_INVALIDATE, OP_SEND_INVALIDATE, 1),
        ),
        case(
            "send-parts-empty",
            "5041 5.2",
            "segments of a Send without payload",
            Answer::GoesOn(2),
            |_| {
                let empty = untagged(part(1, 0, false), b"").repeat(100);
                Sent {
                    before: [empty, untagged(part(1, 0, true), b"end")].concat(),
                    ..Sent::default()
                }
            },
        ),
    ]
}

/// RFC 5041 section 7 and RFC 5040 section 7, 8: steering tags, bounds, rights.
fn access() -> Vec<Case> {
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
    let w_stag = terminates((1, 1, 0), DdpHeader);
    let w_bounds = terminates((1, 1, 1), DdpHeader);
    let w_rights = terminates((0, 1, 2), DdpHeader);
    let r_stag = terminates((0, 1, 0), ReadRequest);
    let r_bounds = terminates((0, 1, 1), ReadRequest);
    let r_rights = terminates((0, 1, 2), ReadRequest);
    let cannot = terminates((0, 1, 9), DdpHeader);
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
                only(tagged(
                    OP_WRITE,
                    open.arena.key(Region::All) ^ 0x100,
                    open.arena.at(Region::All),
                    b"x",
                ))
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
            terminates((1, 1, 2), DdpHeader),
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
                only(tagged(
                    OP_WRITE,
                    open.arena.key(Region::All),
                    open.arena.at(Region::Writable),
                    b"x",
                ))
            },
        ),
        case(
            "write-wrap",
            "5041 7.1",
            "a Write whose offset wraps",
            terminates((1, 1, 3), DdpHeader),
            |open| {
                only(tagged(
                    OP_WRITE,
                    open.arena.key(Region::All),
                    u64::MAX - 1,
                    b"data",
                ))
            },
        ),
        case(
            "write-second-segment",
            "5041 7.1",
            "a Write whose second segment is outside",
            w_bounds,
            move |open| {
                let (stag, to) = (open.arena.key(Region::All), open.arena.at(Region::All));
                let control = with_opcode(OP_WRITE, false);
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
            Answer::GoesOn(1),
            |_| Sent {
                before: tagged(OP_WRITE, 0xffff_ffff, u64::MAX, b""),
                ..Sent::default()
            },
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
            terminates((0, 1, 3), ReadRequest),
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
            terminates((0, 1, 4), ReadRequest),
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
            Answer::GoesOn(1),
            |_| Sent {
                before: read(1, 0, u64::MAX, 0),
                ..Sent::default()
            },
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
    ]
}

/// RFC 5040 section 5.2: reads in both directions.
fn reads() -> Vec<Case> {
    use Copied::DdpHeader;
    let stag = terminates((1, 1, 0), DdpHeader);
    let bounds = terminates((1, 1, 1), DdpHeader);
    let requests = |n: u32| {
        move |open: &Open<'_>| {
            let request = |msn| {
                read(
                    msn,
                    open.arena.key(Region::Readable),
                    open.arena.at(Region::Readable),
                    8,
                )
            };
            // One write to the socket holds them all: none is answered before the last is read.
            only((1..=n).flat_map(request).collect())
        }
    };
    let reading = |make: fn([u32; 2]) -> Vec<u8>| move |open: &Open<'_>| only(make(open.sinks));
    vec![
        case(
            "request-beyond-ird",
            "5040 5.2, 6581 9.1",
            "more Read Requests at a time than were agreed",
            terminates((1, 2, 2), DdpHeader),
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
                only(response(
                    open.arena.key(Region::All),
                    open.arena.at(Region::All),
                    true,
                    b"12345678",
                ))
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
            terminates((1, 1, 3), DdpHeader),
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
            terminates((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, false, &[0xee; 8])),
        )
        .when(When::Reading),
        case(
            "response-too-short",
            "5040 5.2",
            "a Read Response that ends after 7 bytes",
            terminates((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, true, &[0xee; 7])),
        )
        .when(When::Reading),
        case(
            "response-empty",
            "5040 5.2",
            "a Read Response of no bytes to a read of 8",
            terminates((0, 2, 7), DdpHeader),
            reading(|[sink, _]| response(sink, 0, true, b"")),
        )
        .when(When::Reading),
    ]
}

/// RFC 5040 section 5.4 and 4.8: the Terminate of a peer, and first messages.
fn ends() -> Vec<Case> {
    let ended_by = |payload: &'static [u8]| {
        move |open: &Open<'_>| Sent {
            before: Vec::new(),
            offending: peer_terminate(1, 0, payload),
            after: [
                untagged(send(1), b"late"),
                write_to(open, Region::All, 0, 4),
            ]
            .concat(),
        }
    };
    vec![
        case(
            "terminate",
            "5040 5.4",
            "a Terminate, then data",
            Answer::Ends,
            ended_by(&[0x01, 0x02, 0, 0]),
        ),
        case(
            "terminate-unknown",
            "5040 4.8",
            "a Terminate with an error that is none, then data",
            Answer::Ends,
            ended_by(&[0xff, 0xff, 0xff, 0xff]),
        ),
        case(
            "terminate-torn",
            "5040 4.8",
            "a Terminate that promises a header and has none, then data",
            Answer::Ends,
            ended_by(&[0x12, 0x02, 0xe0, 0, 0, 0x16, 0x41]),
        ),
        case(
            "terminate-short",
            "5040 4.8",
            "a Terminate of 3 bytes, then data",
            Answer::Ends,
            ended_by(&[0x01, 0x02, 0]),
        ),
        case(
            "terminate-empty",
            "5040 4.8",
            "a Terminate of no bytes, then data",
            Answer::Ends,
            ended_by(&[]),
        ),
        case(
            "terminate-not-last",
            "5040 5.4",
            "a Terminate in more than one segment",
            terminates((1, 2, 5), Copied::DdpHeader),
            |_| {
                let control = with_opcode(OP_TERMINATE, false);
                let qn = QN_TERMINATE;
                only(untagged(
                    Untagged {
                        control,
                        qn,
                        ..send(1)
                    },
                    &[0; 4],
                ))
            },
        ),
        case(
            "terminate-in-message",
            "5040 5.4",
            "a Terminate in the midst of a Send, then data",
            Answer::Ends,
            |_| Sent {
                before: untagged(part(1, 0, false), b"half"),
                offending: peer_terminate(1, 0, &[0x01, 0x02, 0, 0]),
                after: untagged(part(1, 4, true), b"rest"),
            },
        ),
        case(
            "terminate-first",
            "5040 5.4",
            "a Terminate as the first message",
            Answer::Ends,
            |_| only(peer_terminate(1, 0, &[0x01, 0x02, 0, 0])),
        )
        .when(When::First),
        case(
            "first-crc",
            "5044 4.4, 6581 9.2",
            "a first message with a wrong CRC",
            terminates((2, 0, 2), Copied::Nothing),
            |_| {
                let mut bytes = ready_to_receive();
                bytes[17] ^= 1;
                only(bytes)
            },
        )
        .when(When::First),
        case(
            "first-opcode",
            "5040 7.2",
            "a first message with an opcode that is none",
            terminates((0, 2, 6), Copied::DdpHeader),
            |_| only(tagged(15, 0, 0, b"")),
        )
        .when(When::First),
        case(
            "first-write",
            "5041 7.1",
            "a first message that writes to STag 0",
            terminates((1, 1, 0), Copied::DdpHeader),
            |_| only(tagged(OP_WRITE, 0, 0, b"x")),
        )
        .when(When::First),
        case(
            "first-response",
            "5040 5.2",
            "a first message that is a Read Response",
            terminates((1, 1, 0), Copied::DdpHeader),
            |_| only(response(0, 0, true, b"")),
        )
        .when(When::First),
        case(
            "first-read",
            "6581 9.2",
            "a Read Request as the first message, RDMA Write agreed",
            Answer::GoesOn(1),
            |_| Sent {
                before: read(1, 0, 0, 0),
                ..Sent::default()
            },
        )
        .when(When::First),
        case(
            "first-send",
            "6581 9.2",
            "a Send as the first message, RDMA Write agreed",
            Answer::GoesOn(2),
            |_| Sent {
                before: untagged(send(1), b"hello"),
                ..Sent::default()
            },
        )
        .when(When::First),
    ]
}
