//! What a case of this folder does: the posts of a program, the segments of the peer, and what both
//! see of the end of the connection.

use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use dat_core::testing::device::soft::iwarp::wire::READ_REQUEST_HDR;
use dat_core::testing::device::*;

use super::{Answer, Case, Copied, Open, Sent, When};
use crate::driver::Rule;
use crate::iwarp::{
    fpdus, read_to_end, receive_read_request, send, terminate, untagged, write_all,
};
use crate::rows::Row;
use crate::soft::PATIENCE;
use crate::victim::{Arena, Host, Region, Victim};

/// Offsets in the local region: the sinks of two reads, and two receives of 64 bytes.
const SINKS: [usize; 2] = [0, 64];
const RECEIVES: [usize; 2] = [128, 192];

/// Posts what a consumer would: two receives, and two reads if the case wants them. Returns the
/// steering tags of the reads.
fn post(host: &Host, victim: &Victim, peer: &mut TcpStream, reading: bool) -> [u32; 2] {
    for (wr_id, offset) in (0..).zip(RECEIVES) {
        victim.receive(&host.arena, wr_id, offset, 64);
    }
    if !reading {
        return [0; 2];
    }
    for (wr_id, offset) in (10..).zip(SINKS) {
        victim.read(&host.arena, wr_id, offset);
    }
    SINKS.map(|_| receive_read_request(peer))
}

/// The Terminate that the case expects.
fn expected(case: &Case, offending: &[u8]) -> Option<Vec<u8>> {
    let Answer::Terminate(error, copied) = case.answer else {
        return None;
    };
    let tagged = offending.get(2).is_some_and(|ddp| ddp & 0x80 != 0);
    let (bits, len) = match copied {
        Copied::Nothing => (0, 0),
        Copied::DdpHeader if tagged => (0xc0, 16),
        Copied::DdpHeader => (0xc0, 20),
        Copied::ReadRequest => (0xe0, 48),
    };
    Some(terminate(error, bits, &offending[..len]))
}

/// The memory is as it was, but for the receives, and so are the guard bytes.
fn check_memory(host: &Host, name: &str) {
    let (mut found, mut expected) = (host.arena.contents(), Arena::pattern());
    let at = Arena::offset(Region::Local);
    for receive in RECEIVES {
        found[at + receive..at + receive + 64].fill(0);
        expected[at + receive..at + receive + 64].fill(0);
    }
    let changed = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(changed, None, "{name}: the memory has changed there");
}

/// All completions of a connection that has ended; the requests and receives of `post`.
fn completions(host: &Host, victim: &Victim, count: usize) -> Vec<Completion> {
    let end = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < count {
        match victim.cq.poll() {
            Some(completion) => found.push(completion),
            None => host.device.progress(),
        }
        assert!(Instant::now() < end, "{count} completions, not {found:?}");
    }
    assert_eq!(victim.cq.poll(), None);
    found
}

impl Rule for Case {
    fn row(&self) -> &Row {
        &self.row
    }

    fn run(&self, host: &Host) {
        let case = self;
        let name = case.row.name;
        let first = case.when == When::First;
        let reading = case.when == When::Reading;
        let (mut peer, victim) = if first {
            host.accepted(&case.offer)
        } else {
            host.connected(&case.offer)
        };
        let late = case.when == When::Late;
        let mut sinks = [0; 2];
        if !late {
            sinks = post(host, &victim, &mut peer, reading);
        }
        let open = Open {
            arena: &host.arena,
            sinks,
        };
        let Sent {
            before,
            offending,
            after,
        } = (case.make)(&open);
        write_all(&mut peer, &[&before[..], &offending, &after].concat());
        if late {
            // Whatever the honest connection receives has arrived behind this.
            host.check_honest();
            post(host, &victim, &mut peer, false);
        }
        let event = |what: &str| {
            let event = victim.events.recv_timeout(PATIENCE);
            event.unwrap_or_else(|_| panic!("{name}: no event: {what}"))
        };
        if let Answer::GoesOn(next) = case.answer {
            if first {
                let event = event("established");
                assert!(
                    matches!(event, CmEvent::Established { .. }),
                    "{name}: {event:?}"
                );
            }
            write_all(&mut peer, &untagged(send(next), b"next"));
            let found = completions(host, &victim, next as usize);
            assert!(
                found.iter().all(|c| c.status == WcStatus::Success),
                "{name}: {found:?}"
            );
            assert_eq!(found.last().unwrap().byte_len, 4, "{name}");
            assert!(victim.events.try_recv().is_err(), "{name}");
            peer.shutdown(Shutdown::Write).unwrap();
            assert_eq!(event("the end"), CmEvent::Disconnected, "{name}");
            check_memory(host, name);
            return;
        }
        // The stream ends although the peer does not end it.
        let (bytes, reset) = read_to_end(&mut peer);
        assert!(!reset, "{name}: reset");
        let found = fpdus(&bytes, true);
        match expected(case, &offending_part(case, &offending)) {
            Some(expected) => {
                let last = found.last().copied().unwrap_or_default();
                assert_eq!(
                    last, expected,
                    "{name}: the Terminate, and the one expected: {found:02x?}"
                );
            }
            None => assert!(found.is_empty(), "{name}: {found:02x?}"),
        }
        let expected = if first {
            CmEvent::AcceptError
        } else {
            CmEvent::Broken
        };
        assert_eq!(event("the end"), expected, "{name}");
        assert!(victim.events.try_recv().is_err(), "{name}: a second event");
        let found = completions(host, &victim, if reading { 4 } else { 2 });
        for completion in &found {
            match (completion.wr_id, completion.status) {
                (0 | 1, WcStatus::Flushed) => {}
                (0, WcStatus::LocalLength) => assert!(name.contains("too-long"), "{name}"),
                (0, WcStatus::Success) => assert_eq!(name, "msn-repeated"),
                (10, WcStatus::BadResponse) => assert_ne!(name, "response-wrap"),
                // DDP finds the fault before the read is known, or the read is not what is wrong.
                (10, WcStatus::Flushed) => {
                    assert!(name == "response-wrap" || name.starts_with("acknowledgement"));
                }
                (11, WcStatus::Flushed) => {}
                _ => panic!("{name}: {found:?}"),
            }
        }
        check_memory(host, name);
    }
}

/// The segment that the Terminate is about: of many Read Requests the first that is too many.
fn offending_part(case: &Case, offending: &[u8]) -> Vec<u8> {
    match case.row.name {
        "request-beyond-ird" => offending[4 * (READ_REQUEST_HDR + 4)..].to_vec(),
        _ => offending.to_vec(),
    }
}
