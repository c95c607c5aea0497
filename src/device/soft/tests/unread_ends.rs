//! The end of a peer's stream behind more messages than may wait for receives: the rest stays in the socket.

use std::net::Shutdown;

use super::raw::{Raw, fpdu_bytes, initiate, rtr, send_header};
use super::*;
use crate::device::soft::transport::tcp::conn::TcpConn;

/// More messages than may wait in a unit test, and less than a socket takes of which nothing is read.
const SENDS: u32 = 4000;

fn on_tcp<R>(end: &End, f: impl FnOnce(&TcpConn) -> R) -> R {
    end.qp.with(|locked| match locked.link {
        Link::Tcp(conn) => f(conn),
        _ => panic!("not connected over TCP"),
    })
}

/// A hand-made peer that has sent [`SENDS`] messages and the end of its stream, and our end, which has no
/// receives and has noticed that end.
fn ended(params: &str) -> (Raw, End) {
    let device = Soft::open(&format!("127.0.0.1 path=tcp {params}")).unwrap();
    let b = End::new(&device, attr());
    let mut raw = initiate(&b, 2);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    let sends = (1..=SENDS).flat_map(|msn| fpdu_bytes(&send_header(msn, 0, true, 0), b""));
    raw.send(&sends.collect::<Vec<u8>>());
    raw.socket.shutdown(Shutdown::Write).unwrap();
    let begun = Instant::now();
    while !on_tcp(&b, |conn| conn.holds_end()) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    (raw, b)
}

/// Every message gets a receive; then the connection ends.
fn receive_all(b: &End) {
    for i in 0..SENDS {
        b.recv(i.into(), &[]).unwrap();
        assert_eq!(b.received_as(), (i.into(), WcStatus::Success));
    }
    assert_eq!(b.event(), CmEvent::Disconnected);
}

#[test]
fn all_messages_are_received_before_the_end() {
    let (_raw, b) = ended("");
    receive_all(&b);
}

/// The bytes of the others, a quarter of a megabyte at most, stay where they are.
#[test]
fn a_receive_moves_no_other_message() {
    const MESSAGE: usize = 24;
    let (_raw, b) = ended("");
    let kept = || on_tcp(&b, |conn| conn.kept());
    let (len, used) = kept();
    assert!(len > 2 * MESSAGE, "{len}");
    b.recv(1, &[]).unwrap();
    assert_eq!(kept(), (len, used + MESSAGE));
}

#[test]
fn the_wait_for_receives_is_limited() {
    let (_raw, b) = ended("linger=1");
    assert_eq!(b.event(), CmEvent::Broken);
}

#[test]
fn nothing_waits_when_the_consumer_ends_the_connection_too() {
    let (_raw, b) = ended("");
    b.qp.disconnect(true);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// As a peer of ours does whose consumer ends the connection at once after a graceful end.
#[test]
fn a_reset_is_an_end_that_waits_for_nothing() {
    let (raw, b) = ended("");
    let at_once = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&raw.socket, at_once).unwrap();
    drop(raw);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// A peer that has exited in order answers what this end still sends with a reset.
#[test]
fn a_reset_that_this_end_has_caused_changes_nothing() {
    let (raw, b) = ended("");
    b.fill(0, b"too late");
    b.post(1, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    // With that unread.
    drop(raw);
    receive_all(&b);
}
