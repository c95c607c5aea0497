//! Acknowledgements that are wrong, of a peer that has agreed on them or has not. Their section is that
//! of docs/ARCHITECTURE.md.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Untagged};
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{self, Terminate};
use super::{Case, Copied, Open, When, case, only, peer_terminate, then};
use crate::iwarp::{send, untagged};

/// An acknowledgement with that sequence number and count.
fn header(msn: u32, count: u32) -> Untagged {
    Untagged {
        control: Control::new(OP_ACKNOWLEDGE, true),
        invalidate: count,
        qn: QN_ACKNOWLEDGE,
        msn,
        mo: 0,
    }
}

/// Its payload.
fn note(note: u32, number: u32) -> Vec<u8> {
    [note.to_be_bytes(), number.to_be_bytes()].concat()
}

/// A case on a connection with acknowledgements.
fn wrong(
    name: &'static str,
    sends: &'static str,
    answer: Answer,
    before: Vec<u8>,
    offending: Vec<u8>,
) -> Case {
    let make = move |_: &Open<'_>| then(before.clone(), offending.clone());
    case(name, "ours", sends, answer, make).acknowledging()
}

pub fn cases() -> Vec<Case> {
    use Copied::DdpHeader;
    let opcode = Terminate((0, 2, 6), DdpHeader);
    let stream = Terminate((0, 2, 7), DdpHeader);
    let empty = |msn, count| untagged(header(msn, count), b"");
    let noted = |count, note: &[u8]| untagged(header(1, count), note);
    let counting = |count| Untagged {
        invalidate: count,
        ..send(1)
    };
    let late = untagged(send(1), b"late");
    let ended = noted(0, &note(NOTE_ENDED, 0));
    vec![
        case(
            "acknowledgement-not-agreed",
            "5040 7.2",
            "an acknowledgement, without having agreed on them",
            opcode,
            |_| only(untagged(header(1, 0), b"")),
        ),
        wrong(
            "acknowledgement-queue",
            "an acknowledgement on queue 3",
            Terminate((1, 2, 1), DdpHeader),
            Vec::new(),
            untagged(
                Untagged {
                    qn: 3,
                    ..header(1, 0)
                },
                b"",
            ),
        ),
        wrong(
            "acknowledgement-offset",
            "an acknowledgement at offset 1",
            Terminate((1, 2, 4), DdpHeader),
            Vec::new(),
            untagged(
                Untagged {
                    mo: 1,
                    ..header(1, 0)
                },
                b"",
            ),
        ),
        wrong(
            "acknowledgement-not-last",
            "an acknowledgement in more than one segment",
            Terminate((1, 2, 5), DdpHeader),
            Vec::new(),
            untagged(
                Untagged {
                    control: Control::new(OP_ACKNOWLEDGE, false),
                    ..header(1, 0)
                },
                b"",
            ),
        ),
        wrong(
            "acknowledgement-repeated",
            "an acknowledgement with the number of the one before",
            Terminate((1, 2, 3), DdpHeader),
            empty(1, 0),
            empty(1, 0),
        ),
        wrong(
            "acknowledgement-beyond",
            "the acknowledgement of a request that was not sent",
            stream,
            Vec::new(),
            empty(1, 1),
        ),
        wrong(
            "acknowledgement-beyond-in-send",
            "the same in a Send",
            stream,
            Vec::new(),
            untagged(counting(1), b"hello"),
        ),
        wrong(
            "acknowledgement-below-zero",
            "an acknowledgement of one request less than none",
            stream,
            Vec::new(),
            empty(1, u32::MAX),
        ),
        wrong(
            "acknowledgement-beyond-reads",
            "the acknowledgement of three requests, of which two were sent",
            stream,
            Vec::new(),
            empty(1, 3),
        )
        .when(When::Reading),
        wrong(
            "acknowledgement-backwards",
            "the acknowledgement of two requests, then of one",
            stream,
            empty(1, 2),
            empty(2, 1),
        )
        .when(When::Reading),
        wrong(
            "acknowledgement-note-unknown",
            "an acknowledgement with a note that is none",
            stream,
            Vec::new(),
            noted(0, &note(3, 0)),
        ),
        wrong(
            "acknowledgement-note-torn",
            "an acknowledgement with half a note",
            stream,
            Vec::new(),
            noted(0, &[0, 0, 0, 1]),
        ),
        wrong(
            "acknowledgement-note-long",
            "an acknowledgement with a note and more",
            stream,
            Vec::new(),
            noted(0, &[note(NOTE_ENDED, 0), vec![0; 4]].concat()),
        ),
        wrong(
            "acknowledgement-refuses-nothing",
            "a refusal of a request that was not sent",
            stream,
            Vec::new(),
            noted(0, &note(NOTE_REFUSED, 1)),
        ),
        wrong(
            "acknowledgement-refuses-done",
            "a refusal of a request that it acknowledges",
            stream,
            Vec::new(),
            noted(2, &note(NOTE_REFUSED, 1)),
        )
        .when(When::Reading),
        wrong(
            "acknowledgement-end-repeated",
            "two notes that it has ended the connection, where reads are outstanding",
            Answer::Ends,
            Vec::new(),
            [
                ended,
                untagged(header(2, 0), &note(NOTE_ENDED, 0)),
                // Ends a case that would go on.
                peer_terminate(1, 0, &[0x01, 0x02, 0, 0]),
            ]
            .concat(),
        )
        .when(When::Reading),
        wrong(
            "acknowledgement-end-then-send",
            "a Send behind the note that it has ended the connection",
            stream,
            untagged(header(1, 0), &note(NOTE_ENDED, 0)),
            late,
        )
        .when(When::Reading),
    ]
}
