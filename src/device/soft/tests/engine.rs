//! Who serves the sockets, and that nothing stays behind.

use std::net::TcpListener;
use std::sync::Weak;

use super::raw::{Raw, connected, initiate, rtr};
use super::*;
use crate::device::Wake;
use crate::device::soft::upcalls::RequestUpcall;
use crate::handle::pin::pin;

/// What a device leaves when the last reference to it is gone: nothing.
fn closes(device: Arc<Soft>) {
    let (soft, rest): (Weak<Soft>, _) = (Arc::downgrade(&device), device.engine.witness());
    drop(device);
    until(|| soft.strong_count() == 0 && rest.strong_count() == 0);
}

#[test]
fn nothing_stays_behind() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        a.post(1, SendOp::Send, &[a.sge(0, BUFFER)]).unwrap();
        drop((a, b));
    });
    for params in ["127.0.0.1", "127.0.0.1 path=shm", "127.0.0.1 path=tcp"] {
        let Net {
            active, passive, ..
        } = Net::new(params);
        let net = Net {
            active: active.clone(),
            passive: passive.clone(),
            loopback: false,
        };
        // Connected, in the middle of something.
        let (a, b) = net.pair();
        a.post(1, SendOp::Send, &[a.sge(0, BUFFER)]).unwrap();
        // A request without an answer, a listener, a responder that is silent.
        let (server, qual) = Server::any(&passive);
        let c = End::new(&active, attr());
        c.connect(qual, b"").unwrap();
        let request = server.next();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = u64::from(listener.local_addr().unwrap().port());
        let d = End::new(&active, attr());
        d.connect(silent, b"").unwrap();
        // An initiator that is silent.
        let (other, qual) = Server::any(&passive);
        let raw = Raw::connect(qual);
        drop((a, b, c, d, server, other, request, net));
        closes(active);
        closes(passive);
        drop(raw);
    }
}

#[test]
fn a_device_that_did_nothing_has_no_thread() {
    let device = Soft::open("127.0.0.1").unwrap();
    let end = End::new(&device, attr());
    device.progress();
    doze(&device);
    let start = Instant::now();
    let word = AtomicU32::new(0);
    for wait in [0, 300, 1300].map(Duration::from_micros) {
        let wake = device.block(&word, 0, Some(Instant::now() + wait));
        assert_eq!(wake, Some(Wake::TimedOut));
    }
    assert!(start.elapsed() >= Duration::from_micros(1600));
    assert!(!device.engine.is_started());
    drop(end);
    closes(device);
}

/// Only sockets make a poll of a consumer a system call, and only while there are connections of them.
#[test]
fn polls_without_connections_over_tcp_make_no_system_call() {
    for path in ["", " path=shm"] {
        let net = Net::new(&format!("127.0.0.1{path}"));
        let (a, b) = net.pair();
        a.post(1, SendOp::Send, &[]).unwrap();
        b.recv(1, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        // Now and then a check is due, which progress makes.
        let outcome = || {
            b.device.progress();
            b.device.poll_events(&pin())
        };
        until(|| outcome() == PollOutcome::Nothing);
    }
    let (raw, b) = connected();
    let outcome = || {
        b.device.progress();
        b.device.poll_events(&pin())
    };
    assert_eq!(outcome(), PollOutcome::NeedsProgress);
    drop(raw);
    assert_eq!(b.event(), CmEvent::Disconnected);
    until(|| outcome() == PollOutcome::Nothing);
}

/// A consumer that has polled, and then computes without a call.
#[test]
fn one_sided_requests_of_a_consumer_that_stopped_polling() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.fill(0, b"data");
        for _ in 0..20 {
            for _ in 0..50 {
                b.device.progress();
            }
            let op = SendOp::RdmaRead {
                remote: b.remote(0),
                len: 4,
            };
            a.post(1, op, &[a.sge(0, 4)]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
        }
        assert_eq!(a.bytes(0, 4), b"data");
    });
}

/// A listener whose handler waits, in the thread that serves, for what a later timer does.
struct WaitsForATimer {
    device: Arc<Soft>,
    /// Changed by that timer.
    expired: AtomicU32,
    /// Told how the wait has ended.
    waited: Sender<Option<Wake>>,
}

impl RequestUpcall<()> for WaitsForATimer {
    fn deliver(&self, (): ()) {
        let deadline = Instant::now() + PATIENCE;
        let wake = self.device.block(&self.expired, 0, Some(deadline));
        let _ = self.waited.send(wake);
    }
}

/// A program may wait in a callback, for longer than the next timer takes.
#[test]
fn timers_expire_while_an_upcall_waits() {
    let device = Soft::open("127.0.0.1").unwrap();
    device.engine.start().unwrap();
    let (waited, has_waited) = channel();
    let waits = Arc::new(WaitsForATimer {
        device: device.clone(),
        expired: AtomicU32::new(0),
        waited,
    });
    let (first, second) = (waits.clone(), waits.clone());
    let after = |ms| Duration::from_millis(ms);
    let _first = device
        .engine
        .timer(after(20), move |up| up.request(first, ()));
    let _second = device.engine.timer(after(40), move |_| {
        second.expired.store(1, Ordering::SeqCst);
        second.device.unblock(&second.expired);
    });
    let wake = has_waited.recv_timeout(2 * PATIENCE).unwrap();
    assert!(matches!(wake, Some(Wake::Woken)), "{wake:?}");
}

/// A consumer that has polled, and then blocks.
#[test]
fn a_consumer_that_blocks_is_woken() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        for round in 1..=20 {
            for _ in 0..50 {
                b.device.progress();
            }
            b.recv(1, &[]).unwrap();
            b.recv_cq.arm();
            assert_eq!(b.recv_cq.poll(), None);
            if round % 2 == 0 {
                // Somebody else serves.
                doze(&b.device);
                a.post(1, SendOp::Send, &[]).unwrap();
                until(|| b.recv_calls.notified.load(Ordering::SeqCst) == round);
            } else {
                std::thread::scope(|s| {
                    s.spawn(|| block(&b.device, &b.recv_calls.notified, round - 1));
                    a.post(1, SendOp::Send, &[]).unwrap();
                });
            }
            assert_eq!(b.recv_cq.poll().unwrap().status, WcStatus::Success);
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
        }
    });
}

/// A consumer that has polled for so long that its socket is not watched, and then stops.
#[test]
fn a_socket_that_was_left_to_the_polls_is_watched_again() {
    let net = Net::new("127.0.0.1 path=tcp");
    let (a, b) = net.pair();
    // Moves a message by polls, and says whether the socket is left to them now.
    let is_left_to_polls = || {
        b.recv(1, &[]).unwrap();
        a.post(1, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        b.device.engine.has_left_to_polls()
    };
    // That takes a thread that polls for several milliseconds, which one of many that share a processor does not: the
    // test goes on when they are fewer.
    let is_soon_left = || (0..1000).any(|_| is_left_to_polls());
    let until_left_to_polls = || until_within(10 * PATIENCE, is_soon_left);
    for round in 1..=6 {
        until_left_to_polls();
        b.recv(1, &[]).unwrap();
        b.recv_cq.arm();
        assert_eq!(b.recv_cq.poll(), None);
        std::thread::scope(|s| {
            if round % 2 == 0 {
                s.spawn(|| block(&b.device, &b.recv_calls.notified, round - 1));
            }
            a.post(1, SendOp::Send, &[]).unwrap();
            until(|| b.recv_calls.notified.load(Ordering::SeqCst) == round);
        });
        assert_eq!(b.recv_cq.poll().unwrap().status, WcStatus::Success);
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
    }
    // The end of the peer is noticed too.
    until_left_to_polls();
    drop(a);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

#[test]
fn a_queue_that_is_disarmed_does_not_notify() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.recv(1, &[]).unwrap();
        b.recv_cq.arm();
        b.recv_cq.disarm();
        a.post(1, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(b.recv_calls.notified.load(Ordering::SeqCst), 0);
    });
}

/// A peer ends its first connection when its others are up. There are more of them than are
/// served in one round.
#[test]
fn an_end_is_told_after_what_came_before_it() {
    for _ in 0..5 {
        let (first, a) = connected();
        let mut others: Vec<(Raw, End)> = (0..200)
            .map(|_| {
                let b = End::new(&a.device, attr());
                (initiate(&b, 2), b)
            })
            .collect();
        let pause = a.device.engine.pause();
        drop(first);
        others.iter_mut().for_each(|(raw, _)| raw.send(&rtr()));
        drop(pause);
        assert_eq!(a.event(), CmEvent::Disconnected);
        for (_, b) in &others {
            assert_eq!(b.events.try_recv(), Ok(established(b"")));
        }
    }
}
