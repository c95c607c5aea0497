//! More connections than are polled one by one.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::device::soft::transport::shm;

const MANY: usize = 100;

fn net() -> Net {
    Net::new("127.0.0.1 path=shm")
}

/// A message from each to each; `take` waits for one.
fn round(pairs: &[(End, End)], number: u64, take: impl Fn(&End) -> Completion) {
    for (a, b) in pairs {
        a.recv(number, &[a.sge(0, 100)]).unwrap();
        b.recv(number, &[b.sge(0, 100)]).unwrap();
        a.post(number, SendOp::Send, &[a.sge(200, 60)]).unwrap();
        b.post(number, SendOp::Send, &[b.sge(200, 8)]).unwrap();
    }
    for (a, b) in pairs.iter().rev() {
        for (end, len) in [(a, 8), (b, 60)] {
            let got = take(end);
            assert_eq!(
                (got.wr_id, got.status, got.byte_len),
                (number, WcStatus::Success, len)
            );
            assert_eq!(end.sent_as(), (number, WcStatus::Success));
        }
    }
}

/// As a consumer that blocks: the thread serves.
fn blocked(end: &End) -> Completion {
    super::doze(&end.device);
    let mut got = None;
    let end_of_patience = Instant::now() + PATIENCE;
    while got.is_none() {
        assert!(Instant::now() < end_of_patience, "no completion");
        got = end.recv_cq.poll();
        std::thread::yield_now();
    }
    got.unwrap()
}

#[test]
fn all_are_served_polling_and_blocked() {
    let net = net();
    let mut pairs = Vec::new();
    let mut number = 0;
    // Up and down, over the numbers where the notify mode changes.
    for len in [1, 16, 20, MANY, 9, 6, 40] {
        pairs.truncate(len);
        pairs.resize_with(len, || net.pair());
        for _ in 0..3 {
            number += 1;
            round(&pairs, number, End::received);
            number += 1;
            round(&pairs, number, blocked);
            // Long enough for the thread to see that no consumer polls.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// More bytes than a ring holds: who waits for room is marked as well.
#[test]
fn large_messages_both_ways() {
    let net = net();
    let pairs: Vec<_> = (0..40).map(|_| net.pair()).collect();
    const LEN: usize = 100_000;
    for number in 0..3u64 {
        for (i, (a, b)) in pairs.iter().enumerate() {
            a.fill(0, &pattern(LEN, i as u8));
            b.fill(0, &pattern(LEN, !i as u8));
            for end in [a, b] {
                end.recv(number, &[end.sge(400_000, LEN)]).unwrap();
                end.post(number, SendOp::Send, &[end.sge(0, LEN)]).unwrap();
            }
        }
        for (i, (a, b)) in pairs.iter().enumerate() {
            for end in [a, b] {
                let got = if number == 1 {
                    blocked(end)
                } else {
                    end.received()
                };
                assert_eq!((got.wr_id, got.status), (number, WcStatus::Success));
                assert_eq!(end.sent_as(), (number, WcStatus::Success));
            }
            assert!(a.bytes(400_000, LEN) == pattern(LEN, !i as u8));
            assert!(b.bytes(400_000, LEN) == pattern(LEN, i as u8));
        }
    }
}

/// A peer that clears the marks of others delays them, and no more; one that sets them likewise.
#[test]
fn marks_that_are_spoilt() {
    let net = net();
    let pairs: Vec<_> = (0..MANY).map(|_| net.pair()).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut set = false;
            while !over.load(Ordering::Relaxed) {
                shm::corrupt_bitmaps(set);
                set = !set;
                std::thread::yield_now();
            }
        });
        for number in 0..6 {
            round(&pairs, number, End::received);
        }
        for number in 6..12 {
            round(&pairs, number, blocked);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A consumer that polls does not depend on the thread of the engine, however many connections it
/// has.
#[test]
fn polls_serve_all_while_the_thread_does_not() {
    let net = net();
    let pairs: Vec<_> = (0..MANY).map(|_| net.pair()).collect();
    // From now on the connections are polled.
    round(&pairs, 1, End::received);
    let _paused = [&net.active, &net.passive].map(|device| device.engine.pause());
    round(&pairs, 2, End::received);
}

/// Ends are seen as ever, and each once.
#[test]
fn ends_of_many() {
    let net = net();
    let pairs: Vec<_> = (0..MANY).map(|_| net.pair()).collect();
    round(&pairs, 1, End::received);
    for (i, (a, b)) in pairs.iter().enumerate() {
        b.recv(2, &[]).unwrap();
        a.qp.disconnect(i % 2 == 0);
    }
    for (a, b) in &pairs {
        assert_eq!(b.received_as(), (2, WcStatus::Flushed));
        assert!(matches!(b.event(), CmEvent::Disconnected | CmEvent::Broken));
        assert_eq!(a.event(), CmEvent::Disconnected);
        a.no_event();
        b.no_event();
    }
}
