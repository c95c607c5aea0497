//! When requests complete, and what a peer that is killed, hostile or of another kind makes of them.

use std::net::Shutdown;

use super::raw::{self, Raw, connected, fpdu_bytes, responder, send_header, tagged};
use super::*;
use crate::device::soft::iwarp::acknowledge::{ACKNOWLEDGE_FPDU_MAX, Acknowledge, Note};
use crate::device::soft::iwarp::mpa::Local;
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX};
use crate::device::soft::iwarp::wire::{OP_READ_RESPONSE, OP_WRITE, WireError};

/// What an end of ours offers, for a peer made by hand.
const ABLE: Local = Local {
    acknowledge: true,
    ..raw::LOCAL
};

/// Nothing completes at `a`, however its device is polled.
fn nothing_completes(a: &End) {
    let end = Instant::now() + Duration::from_millis(50);
    while Instant::now() < end {
        a.device.progress();
        assert_eq!(a.send_cq.poll(), None);
    }
}

#[test]
fn a_send_completes_with_its_receive() {
    over_all_paths(|net| {
        if !net.is_send_delivered() {
            return;
        }
        let (a, b) = net.pair();
        a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        a.post(2, SendOp::RdmaWrite(b.remote(100)), &[a.sge(0, 8)])
            .unwrap();
        a.post(3, SendOp::Send, &[a.sge(0, 70_000)]).unwrap();
        nothing_completes(&a);
        b.recv(5, &[b.sge(0, 8)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        nothing_completes(&a);
        b.recv(6, &[b.sge(0, 70_000)]).unwrap();
        assert_eq!(a.sent_as(), (3, WcStatus::Success));
        assert_eq!(b.received_as(), (5, WcStatus::Success));
        assert_eq!(b.received_as(), (6, WcStatus::Success));
    });
}

/// What was posted behind a message that waits has no effect before the message is in its receive.
#[test]
fn requests_are_executed_in_their_order() {
    over_all_paths(|net| {
        if !net.is_send_delivered() {
            return;
        }
        let (a, b) = net.pair();
        b.fill(100, &[1; 8]);
        b.fill(200, &[2; 70_000]);
        a.fill(0, &[3; 70_000]);
        let read = SendOp::RdmaRead {
            remote: b.remote(100),
            len: 8,
        };
        a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        a.post(2, SendOp::RdmaWrite(b.remote(200)), &[a.sge(0, 70_000)])
            .unwrap();
        a.post(3, read, &[a.sge(80_000, 8)]).unwrap();
        nothing_completes(&a);
        assert_eq!(b.bytes(200, 70_000), [2; 70_000]);
        b.fill(100, &[4; 8]);
        b.recv(5, &[b.sge(0, 8)]).unwrap();
        for id in 1..=3 {
            assert_eq!(a.sent_as(), (id, WcStatus::Success));
        }
        assert_eq!(b.bytes(200, 70_000), [3; 70_000]);
        assert_eq!(a.bytes(80_000, 8), [4; 8]);

        for refuses_read in [false, true] {
            let (a, b) = net.pair();
            let remote = Remote {
                rkey: b.key() ^ 0x10,
                ..b.remote(0)
            };
            let refused = match refuses_read {
                true => SendOp::RdmaRead { remote, len: 8 },
                false => SendOp::RdmaWrite(remote),
            };
            let sge = [a.sge(0, 8)];
            a.post(6, SendOp::Send, &sge).unwrap();
            let remote = b.remote(100);
            a.post(7, SendOp::RdmaRead { remote, len: 8 }, &sge)
                .unwrap();
            a.post(8, refused, &sge).unwrap();
            a.post(9, SendOp::RdmaWrite(b.remote(8)), &sge).unwrap();
            nothing_completes(&a);
            a.no_event();
            b.fill(8, &[9; 8]);
            b.recv(5, &[b.sge(0, 8)]).unwrap();
            assert_eq!(a.sent_as(), (6, WcStatus::Success));
            assert_eq!(a.sent_as(), (7, WcStatus::Success));
            assert_eq!(a.sent_as(), (8, WcStatus::RemoteAccess));
            assert_eq!(a.sent_as(), (9, WcStatus::Flushed));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            assert_eq!(b.bytes(8, 8), [9; 8]);
        }
    });
}

/// Those before it succeed, in the order of posting; the others are flushed.
#[test]
fn a_request_that_is_refused() {
    over_all_paths(|net| {
        if !net.is_refusal_exact() {
            return;
        }
        for bind in [false, true] {
            let (a, b) = net.pair();
            for i in 0..4 {
                b.recv(i, &[b.sge(0, 100)]).unwrap();
            }
            let wrong = Remote {
                rkey: b.key() ^ 0x10,
                ..b.remote(0)
            };
            let write = |to| SendOp::RdmaWrite(to);
            let sge = [a.sge(0, 100)];
            a.post(1, SendOp::Send, &sge).unwrap();
            a.post_flags(2, write(b.remote(0)), &sge, WrFlags::UNSIGNALED)
                .unwrap();
            if bind {
                // It waits for all before it.
                let read = SendOp::RdmaRead {
                    remote: b.remote(0),
                    len: 100,
                };
                a.post_flags(3, read, &sge, WrFlags::FENCE).unwrap();
            }
            a.post(4, write(b.remote(0)), &sge).unwrap();
            a.post_flags(5, write(wrong), &sge, WrFlags::UNSIGNALED)
                .unwrap();
            a.post(6, SendOp::Send, &sge).unwrap();
            a.post(7, write(b.remote(0)), &sge).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            if bind {
                assert_eq!(a.sent_as(), (3, WcStatus::Success));
            }
            assert_eq!(a.sent_as(), (4, WcStatus::Success));
            assert_eq!(a.sent_as(), (5, WcStatus::RemoteAccess));
            assert_eq!(a.sent_as(), (6, WcStatus::Flushed));
            assert_eq!(a.sent_as(), (7, WcStatus::Flushed));
            assert_eq!(b.received_as(), (0, WcStatus::Success));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        }
    });
}

/// Both consumers send more than the other end keeps, and post a receive for each send that has
/// completed: neither waits for ever.
#[test]
fn both_send_before_they_receive() {
    const LEN: usize = 60_000;
    over_all_paths(|net| {
        if net.is_loopback() {
            return;
        }
        let (a, b) = net.pair();
        let ends = [&a, &b];
        for end in ends {
            for i in 0..12 {
                end.post(i, SendOp::Send, &[end.sge(0, LEN)]).unwrap();
            }
        }
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        let mut posted = [1; 2];
        for end in ends {
            end.recv(0, &[end.sge(LEN, LEN)]).unwrap();
        }
        let begun = Instant::now();
        while (sent, received) != ([12; 2], [12; 2]) {
            assert!(begun.elapsed() < PATIENCE, "{received:?} of {posted:?}");
            for (n, end) in ends.iter().enumerate() {
                end.device.progress();
                while end.send_cq.poll().is_some() {
                    sent[n] += 1;
                    if posted[n] < 12 {
                        end.recv(0, &[end.sge(LEN, LEN)]).unwrap();
                        posted[n] += 1;
                    }
                }
                while end.recv_cq.poll().is_some() {
                    received[n] += 1;
                }
            }
        }
        if !net.is_send_delivered() {
            return;
        }
        // What comes then completes with its receive again.
        for (from, to) in [(&a, &b), (&b, &a)] {
            for id in 20..22 {
                from.post(id, SendOp::Send, &[from.sge(0, 8)]).unwrap();
                nothing_completes(from);
                to.recv(id, &[to.sge(LEN, LEN)]).unwrap();
                assert_eq!(from.sent_as(), (id, WcStatus::Success));
                assert_eq!(to.received_as(), (id, WcStatus::Success));
            }
        }
    });
}

/// A hand-made initiator that has agreed on acknowledgements, and our end.
fn initiator() -> (Raw, End) {
    raw::initiator_of(&ABLE)
}

fn acknowledge(raw: &mut Raw, msn: u32, count: u32, note: Option<Note>) {
    let mut bytes = [0; ACKNOWLEDGE_FPDU_MAX];
    raw.send(Acknowledge { count, note }.encode(msn, true, &mut bytes));
}

/// Reads the requests of our end.
fn requests(raw: &mut Raw, count: usize) {
    for _ in 0..count {
        let (segment, _) = raw.segment().unwrap();
        assert!(segment.is_request(), "{segment:?}");
    }
}

#[test]
fn a_peer_that_acknowledges_late_or_never() {
    let (mut raw, b) = initiator();
    let write = SendOp::RdmaWrite(b.remote(0));
    for i in 0..16 {
        b.post(i, write, &[b.sge(0, 8)]).unwrap();
    }
    // It takes no more than the queue, and costs no more.
    assert_eq!(b.post(16, write, &[b.sge(0, 8)]), Err(PostError::QueueFull));
    requests(&mut raw, 16);
    nothing_completes(&b);
    acknowledge(&mut raw, 1, 3, None);
    for i in 0..3 {
        assert_eq!(b.sent_as(), (i, WcStatus::Success));
    }
    nothing_completes(&b);
    acknowledge(&mut raw, 2, 16, None);
    for i in 3..16 {
        assert_eq!(b.sent_as(), (i, WcStatus::Success));
    }
    b.post(16, write, &[b.sge(0, 8)]).unwrap();
    b.post(17, write, &[b.sge(0, 8)]).unwrap();
    requests(&mut raw, 2);
    // The end of the stream alone is that of a peer which was killed.
    acknowledge(&mut raw, 3, 17, None);
    raw.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(b.sent_as(), (16, WcStatus::Success));
    assert_eq!(b.sent_as(), (17, WcStatus::Flushed));
}

/// It acknowledges what was sent before, and nothing is begun any more.
#[test]
fn a_peer_that_ends_in_order() {
    let (mut raw, b) = initiator();
    let write = SendOp::RdmaWrite(b.remote(0));
    b.post(1, write, &[b.sge(0, 8)]).unwrap();
    requests(&mut raw, 1);
    acknowledge(&mut raw, 1, 0, Some(Note::Ended));
    std::thread::sleep(Duration::from_millis(20));
    b.no_event();
    b.post(2, write, &[b.sge(0, 8)]).unwrap();
    acknowledge(&mut raw, 2, 1, None);
    assert_eq!(b.event(), CmEvent::Disconnected);
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    assert_eq!(b.sent_as(), (2, WcStatus::Flushed));
    assert!(raw.segment().is_none());
}

/// What it was asked for before comes nevertheless: the end of the connection is behind the response.
#[test]
fn a_peer_that_ends_in_order_before_it_answers() {
    let (mut raw, b) = initiator();
    let remote = b.remote(0);
    b.post(1, SendOp::RdmaRead { remote, len: 0 }, &[]).unwrap();
    requests(&mut raw, 1);
    acknowledge(&mut raw, 1, 1, Some(Note::Ended));
    std::thread::sleep(Duration::from_millis(20));
    b.no_event();
    raw.fpdu(&tagged(OP_READ_RESPONSE, 0, 0, 0), b"");
    assert_eq!(b.event(), CmEvent::Disconnected);
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
}

/// Both consumers end the connection at the same time: what this one had posted is executed.
#[test]
fn both_end_while_a_request_waits() {
    let (mut raw, b) = initiator();
    let remote = b.remote(0);
    b.post(1, SendOp::RdmaRead { remote, len: 0 }, &[]).unwrap();
    b.post_flags(2, SendOp::RdmaWrite(remote), &[b.sge(0, 8)], WrFlags::FENCE)
        .unwrap();
    b.qp.disconnect(true);
    requests(&mut raw, 1);
    acknowledge(&mut raw, 1, 1, Some(Note::Ended));
    std::thread::sleep(Duration::from_millis(20));
    b.no_event();
    raw.fpdu(&tagged(OP_READ_RESPONSE, 0, 0, 0), b"");
    requests(&mut raw, 1);
    acknowledge(&mut raw, 2, 2, None);
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    assert_eq!(b.sent_as(), (2, WcStatus::Success));
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// Nothing is begun behind the note.
#[test]
fn a_peer_that_goes_on_behind_its_end() {
    let (mut raw, b) = initiator();
    b.recv(1, &[]).unwrap();
    b.post(2, SendOp::RdmaWrite(b.remote(0)), &[b.sge(0, 8)])
        .unwrap();
    requests(&mut raw, 1);
    acknowledge(&mut raw, 1, 0, Some(Note::Ended));
    raw.fpdu(&send_header(1, 0, true, 0), b"");
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(b.received_as(), (1, WcStatus::Flushed));
    assert_eq!(b.sent_as(), (2, WcStatus::Flushed));
}

/// As does one that counts backwards.
#[test]
fn a_peer_that_acknowledges_more_than_was_sent() {
    for count in [3, u32::MAX] {
        let (mut raw, b) = initiator();
        let write = SendOp::RdmaWrite(b.remote(0));
        for i in 0..2 {
            b.post(i, write, &[b.sge(0, 8)]).unwrap();
        }
        requests(&mut raw, 2);
        acknowledge(&mut raw, 1, count, None);
        assert_eq!(b.event(), CmEvent::Broken);
        for i in 0..2 {
            assert_eq!(b.sent_as(), (i, WcStatus::Flushed));
        }
    }
}

/// Its process exits behind the note, with a request of ours unread, so that the kernel resets the stream.
#[test]
fn a_peer_that_ends_in_order_and_exits() {
    for read_at_once in [false, true] {
        let (mut raw, b) = initiator();
        b.post(1, SendOp::RdmaWrite(b.remote(0)), &[b.sge(0, 8)])
            .unwrap();
        // The request has arrived there.
        raw.socket.peek(&mut [0]).unwrap();
        let pause = read_at_once.then(|| b.device.engine.pause());
        acknowledge(&mut raw, 1, 0, Some(Note::Ended));
        if !read_at_once {
            std::thread::sleep(Duration::from_millis(20));
            b.no_event();
        }
        drop(raw);
        drop(pause);
        assert_eq!(b.event(), CmEvent::Disconnected);
        assert_eq!(b.sent_as(), (1, WcStatus::Flushed));
    }
}

#[test]
fn a_peer_that_refuses() {
    let (mut raw, b) = initiator();
    let write = SendOp::RdmaWrite(b.remote(0));
    for i in 0..4 {
        b.post(i, write, &[b.sge(0, 8)]).unwrap();
    }
    requests(&mut raw, 4);
    acknowledge(&mut raw, 1, 1, Some(Note::Refused(2)));
    let mut bytes = [0; TERMINATE_FPDU_MAX];
    let error = WireError::DDP_TAGGED_BOUNDS;
    raw.send(terminate::encode(error, &[], true, &mut bytes));
    // The one between was neither finished nor is it what failed.
    assert_eq!(b.event(), CmEvent::Broken);
    for expected in [
        (0, WcStatus::Success),
        (1, WcStatus::Flushed),
        (2, WcStatus::RemoteAccess),
        (3, WcStatus::Flushed),
    ] {
        assert_eq!(b.sent_as(), expected);
    }
}

/// What an end of ours owes is with the peer soon, also if no consumer makes a call.
#[test]
fn acknowledgements_are_sent_without_a_call() {
    let (mut raw, b) = initiator();
    for i in 0..3 {
        b.recv(i, &[b.sge(0, 8)]).unwrap();
    }
    let write = fpdu_bytes(&tagged(OP_WRITE, b.key(), b.remote(0).addr, 8), &[1; 8]);
    raw.send(&write);
    raw.send(&fpdu_bytes(&send_header(1, 0, true, 8), &[2; 8]));
    raw.send(&write);
    let mut counts = Vec::new();
    while counts.last() != Some(&3) {
        let (segment, payload, count) = raw.extended();
        assert!(matches!(segment, Segment::Acknowledge { .. }) && payload.is_empty());
        counts.push(count);
    }
    assert!(counts.is_sorted() && counts.len() <= 3, "{counts:?}");
    // With a message they go along.
    assert_eq!(b.received_as(), (0, WcStatus::Success));
    raw.send(&fpdu_bytes(&send_header(2, 0, true, 8), &[2; 8]));
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    b.post(9, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    loop {
        let (segment, _, count) = raw.extended();
        assert_eq!(count, 4);
        if matches!(segment, Segment::Send { .. }) {
            break;
        }
    }
}

/// A peer of another kind: requests complete when they are sent, and the end of its stream is an end
/// in order.
#[test]
fn a_peer_without_acknowledgements() {
    for ours_asks in [false, true] {
        let (mut raw, b) = if ours_asks { responder() } else { connected() };
        b.post(1, SendOp::Send, &[b.sge(0, 8)]).unwrap();
        assert_eq!(b.sent_as(), (1, WcStatus::Success));
        b.post(2, SendOp::RdmaWrite(b.remote(0)), &[b.sge(0, 8)])
            .unwrap();
        assert_eq!(b.sent_as(), (2, WcStatus::Success));
        requests(&mut raw, 2);
        raw.socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(b.event(), CmEvent::Disconnected);
        assert!(raw.segment().is_none());
    }
}
