//! The turns of several connections over TCP whose receives complete in one queue.

use super::raw::{LOCAL, Raw, device, initiate, rtr, send_header};
use super::*;
use crate::device::soft::iwarp::mpa::Kind;

/// An end whose receives complete where those of `first` do.
fn beside(first: &End) -> End {
    let mut end = End::new(&first.device, attr());
    end.qp.destroy();
    let (events, received) = channel();
    let parts = QpParts {
        pd: &end.pd,
        send_cq: Some(&end.send_cq),
        recv_cq: Some(&first.recv_cq),
        srq: None,
    };
    let qp = end
        .device
        .create_qp(&parts, &attr(), Connection::new(events));
    end.qp = qp.unwrap();
    end.events = received;
    end.recv_cq = first.recv_cq.clone();
    end
}

/// Two ends of one device, with hand-made peers. Each has had a turn: the first one, and then the second.
fn served() -> [(Raw, End); 2] {
    let first = End::new(&device(), attr());
    let second = beside(&first);
    [(1, first), (2, second)].map(|(n, end)| {
        let mut raw = initiate(&end, 2);
        raw.send(&rtr());
        assert_eq!(end.event(), established(b""));
        end.recv(n, &[]).unwrap();
        raw.fpdu(&send_header(1, 0, true, 0), b"");
        assert_eq!(end.received_as(), (n, WcStatus::Success));
        (raw, end)
    })
}

/// The end whose last whole message is the longest ago is the first one, though a part has arrived since.
#[test]
fn a_part_of_a_message_is_no_turn() {
    let [(mut raw, a), (mut other, b)] = served();
    a.recv(3, &[a.sge(0, 8)]).unwrap();
    b.recv(4, &[]).unwrap();
    raw.fpdu(&send_header(2, 0, false, 4), b"part");
    until(|| a.bytes(0, 4) == b"part");
    let pause = a.device.engine.pause();
    raw.fpdu(&send_header(2, 4, true, 4), b"rest");
    other.fpdu(&send_header(2, 0, true, 0), b"");
    drop(pause);
    assert_eq!(a.received_as(), (3, WcStatus::Success));
    assert_eq!(a.received_as(), (4, WcStatus::Success));
}

/// Also one that goes to its receive as it is read.
#[test]
fn a_long_message_is_a_turn() {
    const LONG: usize = 40_000;
    let [(mut raw, a), (mut other, b)] = served();
    a.recv(3, &[a.sge(0, LONG)]).unwrap();
    a.recv(5, &[]).unwrap();
    b.recv(4, &[]).unwrap();
    let pause = a.device.engine.pause();
    raw.fpdu(&send_header(2, 0, true, LONG), &pattern(LONG, 1));
    drop(pause);
    assert_eq!(a.received_as(), (3, WcStatus::Success));
    let pause = a.device.engine.pause();
    raw.fpdu(&send_header(3, 0, true, 0), b"");
    other.fpdu(&send_header(2, 0, true, 0), b"");
    drop(pause);
    assert_eq!(a.received_as(), (4, WcStatus::Success));
    assert_eq!(a.received_as(), (5, WcStatus::Success));
}

/// A thread that is about to read the only connection is put to sleep. Meanwhile another one is made, whose peer does not
/// speak first, and a message is sent to that before one to the first: they are delivered in this order.
#[test]
fn a_connection_that_is_made_beside_a_read() {
    let a = End::new(&device(), attr());
    let b = beside(&a);
    let mut raw = initiate(&a, 2);
    raw.send(&rtr());
    assert_eq!(a.event(), established(b""));
    let (server, qual) = Server::any(&b.device);
    let mut other = Raw::connect(qual);
    other.frame(&LOCAL.request(1, b""));
    let request = server.next();
    a.recv(1, &[]).unwrap();
    a.recv(2, &[]).unwrap();
    b.recv(3, &[]).unwrap();
    raw.fpdu(&send_header(1, 0, true, 0), b"");
    assert_eq!(a.received_as(), (1, WcStatus::Success));
    let engine = &b.device.engine;
    engine.read_only_after(|| {
        b.device.accept(request, &b.qp, b"").unwrap();
        assert_eq!(b.event(), established(b""));
        let agreed = other.receive_frame(Kind::Reply, |reply| LOCAL.conclude(1, reply));
        assert!(agreed.unwrap().is_ok());
        other.fpdu(&send_header(1, 0, true, 0), b"");
        raw.fpdu(&send_header(2, 0, true, 0), b"");
    });
    assert_eq!(a.received_as(), (3, WcStatus::Success));
    assert_eq!(a.received_as(), (2, WcStatus::Success));
}
