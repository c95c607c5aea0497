//! Every rule of the set-up of a connection (RFC 5044 section 7.1, RFC 6581), broken by the peer that
//! asks and by the peer that answers: the frames that both send, and the test of a connection that is
//! set up all the same.

pub mod replies;
pub mod requests;

use std::fmt::Display;
use std::net::TcpStream;

use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use crate::iwarp::{send, untagged, write_all};
use crate::poll::completion;
use crate::rows::Row;
use crate::soft::PATIENCE;
use crate::victim::{Host, Victim};

/// One frame, and what the library does with the frame.
pub struct Case<A> {
    /// The case in docs/hostile-peers.md.
    pub row: Row,
    /// What the peer sends.
    pub bytes: Vec<u8>,
    /// What the library has to do.
    pub answer: A,
}

fn case<A: Display>(
    name: &'static str,
    section: &'static str,
    sends: &'static str,
    bytes: Vec<u8>,
    answer: A,
) -> Case<A> {
    Case {
        row: Row::new(name, section, sends, &answer),
        bytes,
        answer,
    }
}

/// The bytes of a frame, from its fields. `private` includes the four bytes of RFC 6581, and
/// `length` is what the frame states about it.
fn frame_of(key: &[u8; 16], flags: u8, revision: u8, length: usize, private: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend([flags, revision]);
    bytes.extend((length as u16).to_be_bytes());
    bytes.extend(private);
    bytes
}

fn request(flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    frame_of(&KEY_REQUEST, flags, revision, private.len(), private)
}

fn reply(flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    frame_of(&KEY_REPLY, flags, revision, private.len(), private)
}

/// The words of RFC 6581: IRD with the flags A and B, ORD with C and D.
fn words(ird: u16, ord: u16) -> Vec<u8> {
    [ird.to_be_bytes(), ord.to_be_bytes()].concat()
}

/// Flags of a frame: CRCs, and the words of RFC 6581.
const CRC: u8 = 0x40;
const ENHANCED: u8 = 0x50;
/// Peer-to-peer in the word IRD; the first message in IRD (an empty FPDU) and ORD (a Write, a Read).
const A: u16 = 0x8000;
const B: u16 = 0x4000;
const C: u16 = 0x8000;
const D: u16 = 0x4000;

/// The connection is established, and the peer sends a message over it.
fn check_works(host: &Host, victim: &Victim, peer: &mut TcpStream, name: &str) {
    let event = victim.events.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(event, CmEvent::Established { .. }),
        "{name}: {event:?}"
    );
    victim.receive(&host.arena, 1, 0, 64);
    write_all(peer, &untagged(send(1), b"works"));
    let received = completion(&host.device, &victim.cq);
    assert_eq!(
        (received.status, received.byte_len),
        (WcStatus::Success, 5),
        "{name}"
    );
}
