//! The end of a peer's stream behind more messages than may wait for receives: the rest stays in the socket.

use std::net::Shutdown;

use super::raw::{self, Raw, fpdu_bytes, initiate_as, rtr, send_header};
use super::*;
use crate::device::soft::iwarp::mpa::Local;
use crate::device::soft::transport::tcp::conn::TcpConn;

/// More messages than may wait in a unit test, and less than a socket takes of which nothing is read.
const SENDS: u32 = 4000;

fn on_tcp<R>(end: &End, f: impl FnOnce(&TcpConn) -> R) -> R {
    end.qp.with(|locked| match locked.link {
        Link::Tcp(conn) => f(conn),
        _ => panic!("not connected over TCP"),
    })
}

/// A hand-made peer that offers `local` and has sent [`SENDS`] messages, and our end, which has no receives.
fn full_of(local: &Local, params: &str) -> (Raw, End) {
    let device = Soft::open(&format!("127.0.0.1 path=tcp {params}")).unwrap();
    let b = End::new(&device, attr());
    let mut raw = initiate_as(local, &b, 2);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    let sends = (1..=SENDS).flat_map(|msn| fpdu_bytes(&send_header(msn, 0, true, 0), b""));
    raw.send(&sends.collect::<Vec<u8>>());
    (raw, b)
}

/// The same, after the peer has ended its stream, and our end has noticed that.
fn ended_by(local: &Local, params: &str) -> (Raw, End) {
    let (raw, b) = full_of(local, params);
    raw.socket.shutdown(Shutdown::Write).unwrap();
    until(|| on_tcp(&b, |conn| conn.holds_end()));
    (raw, b)
}

/// The same of a peer without acknowledgements.
fn ended(params: &str) -> (Raw, End) {
    ended_by(&raw::LOCAL, params)
}

/// Closes the socket of a peer by a reset.
fn reset(raw: Raw) {
    let at_once = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&raw.socket, at_once).unwrap();
    drop(raw);
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
    let local = Local {
        acknowledge: true,
        ..raw::LOCAL
    };
    let (raw, b) = ended_by(&local, "");
    reset(raw);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// A peer of another kind, which has seen its messages complete, closes its socket. Some time after that the kernel of
/// its host knows nothing of the connection, and answers a probe with a reset.
#[test]
fn a_reset_behind_the_end_of_another_kind_of_peer_loses_nothing() {
    let (raw, b) = ended("");
    reset(raw);
    receive_all(&b);
}

/// The same if our end notices both at once.
#[test]
fn a_reset_right_behind_the_end_loses_nothing() {
    let (raw, b) = full_of(&raw::LOCAL, "");
    until(|| on_tcp(&b, |conn| conn.is_paused()));
    let pause = b.device.engine.pause();
    raw.socket.shutdown(Shutdown::Write).unwrap();
    reset(raw);
    drop(pause);
    receive_all(&b);
}

/// The same with messages that have all been read.
#[test]
fn a_reset_loses_nothing_that_was_read() {
    let b = End::new(&raw::device(), attr());
    let mut raw = initiate_as(&raw::LOCAL, &b, 2);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    for msn in 1..=2 {
        raw.fpdu(&send_header(msn, 0, true, 3), b"all");
    }
    raw.socket.shutdown(Shutdown::Write).unwrap();
    until(|| on_tcp(&b, |conn| conn.has_ended()));
    reset(raw);
    // The reset is noticed at once, if at all.
    std::thread::sleep(Duration::from_millis(20));
    for i in 1..=2 {
        b.recv(i, &[b.sge(0, 3)]).unwrap();
        assert_eq!(b.received_as(), (i, WcStatus::Success));
    }
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
