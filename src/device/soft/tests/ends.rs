//! How long an end waits for messages that were sent and have no receive yet.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Longer than anything but the time that a test waits for.
const A_WHILE: Duration = Duration::from_millis(1500);

/// Every path, with this parameter.
fn paths(parameter: &str) -> Vec<Net> {
    ["", " path=shm", " path=tcp", " path=tcp crc=off"]
        .map(|path| Net::new(&format!("127.0.0.1{path} {parameter}")))
        .into()
}

/// Sends messages of `len` bytes, number `i` filled with `i`.
fn send(a: &End, count: u8, len: usize) {
    for i in 0..count {
        a.fill(usize::from(i) * len, &vec![i; len]);
        let sge = a.sge(usize::from(i) * len, len);
        a.post(i.into(), SendOp::Send, &[sge]).unwrap();
    }
}

/// The messages of [`send`] arrive, whenever `b` receives them.
fn receive(b: &End, count: u8, len: usize) {
    for i in 0..count {
        b.recv(i.into(), &[b.sge(0, len)]).unwrap();
        assert_eq!(b.received_as(), (i.into(), WcStatus::Success));
        assert_eq!(b.bytes(0, len), vec![i; len]);
    }
}

fn completed(a: &End, count: u8, status: WcStatus) {
    for i in 0..count {
        assert_eq!(a.sent_as(), (i.into(), status));
    }
}

/// Few messages, and more than a receiver keeps in its own memory.
const AMOUNTS: [(u8, usize); 2] = [(3, 100), (12, 64 * 1024)];

#[test]
fn a_graceful_end_waits_for_the_receiver() {
    for net in paths("") {
        for (count, len) in AMOUNTS {
            let (a, b) = net.pair();
            send(&a, count, len);
            a.qp.disconnect(true);
            std::thread::sleep(A_WHILE);
            a.no_event();
            b.no_event();
            receive(&b, count, len);
            completed(&a, count, WcStatus::Success);
            assert_eq!(a.event(), CmEvent::Disconnected);
            assert_eq!(b.event(), CmEvent::Disconnected);
        }
    }
}

#[test]
fn a_receiver_that_never_comes_breaks_the_connection() {
    for net in paths("linger=1") {
        for (count, len) in AMOUNTS {
            let (a, b) = net.pair();
            let begun = Instant::now();
            send(&a, count, len);
            a.qp.disconnect(true);
            assert_eq!(a.event(), CmEvent::Broken);
            assert!(begun.elapsed() >= Duration::from_secs(1));
            assert_eq!(b.event(), CmEvent::Broken);
            let done = std::iter::from_fn(|| a.send_cq.poll());
            let done: Vec<WcStatus> = done.map(|c| c.status).collect();
            assert_eq!(done.len(), usize::from(count));
            let flushed = if net.is_send_delivered() {
                done.len()
            } else {
                0
            };
            assert!(done.iter().filter(|s| **s == WcStatus::Flushed).count() >= flushed);
        }
    }
}

#[test]
fn an_abrupt_end_waits_for_nothing() {
    for net in paths("") {
        for (count, len) in AMOUNTS {
            for by_sender in [true, false] {
                let (a, b) = net.pair();
                send(&a, count, len);
                let begun = Instant::now();
                if by_sender { &a } else { &b }.qp.disconnect(false);
                let (here, there) = if by_sender { (&a, &b) } else { (&b, &a) };
                assert_eq!(here.event(), CmEvent::Disconnected);
                match there.event() {
                    // Over TCP, where buffers are full, a reset.
                    CmEvent::Broken if by_sender && len > 100 => {}
                    event => assert_eq!(event, CmEvent::Disconnected),
                }
                assert!(begun.elapsed() < PATIENCE / 2);
            }
        }
    }
}

/// A peer that reads nothing is notified by a reset, before the end of the stream can get to it.
#[test]
fn an_abrupt_end_resets_a_peer_that_reads_nothing() {
    let (raw, b) = raw::connected();
    send(&b, 12, 64 * 1024);
    b.qp.disconnect(false);
    assert_eq!(b.event(), CmEvent::Disconnected);
    // Errors are always reported. That the rest is lost without a reset takes five seconds.
    let mut reset = [PollFd::new(&raw.socket, PollFlags::empty())];
    let limit = Timespec::try_from(Duration::from_secs(4)).unwrap();
    assert_eq!(poll(&mut reset, Some(&limit)), Ok(1));
    let error = raw.socket.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// What went out before the stream was ended gets to a peer that has not read it, though an abrupt
/// end has come meanwhile.
#[test]
fn an_abrupt_end_waits_for_what_a_graceful_one_has_sent() {
    // A peer that takes nothing for half a second gets a reset, and this thread may get no processor for as long.
    assert!((0..5).any(|_| arrives_behind_an_abrupt_end()));
}

fn arrives_behind_an_abrupt_end() -> bool {
    const SENT: usize = 3 * 64 * 1024;
    let (mut raw, b) = raw::connected();
    send(&b, 3, SENT / 3);
    b.qp.disconnect(true);
    std::thread::sleep(Duration::from_millis(20));
    b.qp.disconnect(false);
    assert_eq!(b.event(), CmEvent::Disconnected);
    let ended = Instant::now();
    std::thread::sleep(Duration::from_millis(100));
    let mut got = 0;
    while let Some((_, payload)) = raw.any() {
        got += payload.len();
    }
    assert!(got == SENT || ended.elapsed() > Duration::from_millis(400));
    got == SENT
}

/// What was completed, and has a receive, arrives before an abrupt end.
#[test]
fn an_abrupt_end_comes_after_what_was_sent() {
    for net in paths("") {
        let (a, b) = net.pair();
        (0..3).for_each(|i| b.recv(i, &[b.sge(0, 100)]).unwrap());
        send(&a, 3, 100);
        completed(&a, 3, WcStatus::Success);
        a.qp.disconnect(false);
        (0..3).for_each(|i| assert_eq!(b.received_as(), (i, WcStatus::Success)));
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// The other direction goes on until the end.
#[test]
fn a_sender_that_lingers_receives() {
    for net in paths("") {
        let (a, b) = net.pair();
        a.recv(5, &[a.sge(600, 100)]).unwrap();
        send(&a, 1, 100);
        a.qp.disconnect(true);
        std::thread::sleep(Duration::from_millis(20));
        b.fill(500, b"still there");
        b.post(6, SendOp::Send, &[b.sge(500, 11)]).unwrap();
        assert_eq!(b.sent_as(), (6, WcStatus::Success));
        assert_eq!(a.received_as(), (5, WcStatus::Success));
        receive(&b, 1, 100);
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// Both have sent what the other does not receive, and both end the connection.
#[test]
fn two_graceful_ends() {
    for net in paths("") {
        let (a, b) = net.pair();
        send(&a, 1, 100);
        send(&b, 1, 100);
        a.qp.disconnect(true);
        b.qp.disconnect(true);
        if net.is_send_delivered() {
            // Neither has completed yet.
            receive(&b, 1, 100);
        }
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// An abrupt end takes the place of a graceful one that waits.
#[test]
fn an_abrupt_end_after_a_graceful_one() {
    for net in paths("") {
        let (a, b) = net.pair();
        send(&a, 1, 100);
        a.qp.disconnect(true);
        std::thread::sleep(Duration::from_millis(20));
        a.qp.disconnect(false);
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// The passive end gives up what it has just accepted, before the active end has sent anything.
#[test]
fn accepted_and_given_up() {
    for params in ["", " path=shm", " path=tcp", " path=tcp completion=sent"] {
        let net = Net::new(&format!("127.0.0.1{params}"));
        for _ in 0..20 {
            let (a, b) = (
                End::new(&net.active, attr()),
                End::new(&net.passive, attr()),
            );
            let (server, qual) = Server::any(&net.passive);
            a.connect(qual, b"hello").unwrap();
            net.passive
                .accept(server.next(), &b.qp, b"welcome")
                .unwrap();
            b.qp.disconnect(false);
            // Whether the end overtakes the beginning is open.
            let mut event = a.event();
            if event == established(b"welcome") {
                event = a.event();
            }
            assert_eq!(event, CmEvent::Disconnected, "{params}");
            let mut event = b.event();
            if event == established(b"") {
                event = b.event();
            }
            assert_eq!(event, CmEvent::Disconnected, "{params}");
        }
    }
}
