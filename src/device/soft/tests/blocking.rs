//! Consumers that block, beside others that block, poll, or do something else.

use std::sync::atomic::AtomicBool;

use super::*;

/// How a consumer waits.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Blocks,
    Polls,
    /// Now one, now the other.
    Both,
}

const ROUNDS: u32 = 60;

/// Takes a message in each round, and says that it has.
fn consume(end: &End, way: Direction, done: &AtomicU32) {
    for round in 0..ROUNDS {
        end.recv(round.into(), &[]).unwrap();
        end.recv_cq.arm();
        done.store(2 * round + 1, Ordering::SeqCst);
        if way == Direction::Blocks || way == Direction::Both && round % 2 == 0 {
            block(&end.device, &end.recv_calls.notified, round);
            assert_eq!(end.recv_cq.poll().unwrap().wr_id, round.into());
        } else {
            assert_eq!(end.received_as(), (round.into(), WcStatus::Success));
            // The call is made after the completion.
            until(|| end.recv_calls.notified.load(Ordering::SeqCst) == round + 1);
        }
        done.store(2 * round + 2, Ordering::SeqCst);
    }
}

fn consumers(net: &Net, ways: &[Direction], pause: impl Fn(u32)) {
    let pairs: Vec<_> = ways.iter().map(|_| net.pair()).collect();
    let done: Vec<_> = ways.iter().map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|s| {
        let mut senders = Vec::new();
        for (((a, b), way), done) in pairs.into_iter().zip(ways).zip(&done) {
            s.spawn(move || consume(&b, *way, done));
            senders.push((a, done));
        }
        for round in 0..ROUNDS {
            for (a, done) in &senders {
                until(|| done.load(Ordering::SeqCst) > 2 * round);
                pause(round);
                a.post(1, SendOp::Send, &[]).unwrap();
            }
            for (a, done) in &senders {
                until(|| done.load(Ordering::SeqCst) > 2 * round + 1);
                assert_eq!(a.sent_as(), (1, WcStatus::Success));
            }
        }
    });
}

#[test]
fn one_of_them() {
    over_all_paths(|net| consumers(net, &[Direction::Blocks], |_| ()));
}

#[test]
fn several_who_block() {
    over_all_paths(|net| consumers(net, &[Direction::Blocks; 3], |_| ()));
}

#[test]
fn beside_others_that_poll() {
    over_all_paths(|net| {
        let ways = [
            Direction::Blocks,
            Direction::Polls,
            Direction::Blocks,
            Direction::Both,
        ];
        consumers(net, &ways, |round| {
            // Long enough for all to fall asleep, or for some.
            let micros = u64::from(round * 7919 % 16 * 100);
            std::thread::sleep(Duration::from_micros(micros));
        });
    });
}

/// A thread that waits for something that the device does not cause.
#[test]
fn called_by_somebody_else() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let (word, rounds) = (AtomicU32::new(0), 200);
        std::thread::scope(|s| {
            s.spawn(|| (0..rounds).for_each(|round| block(&b.device, &word, round)));
            for _ in 0..rounds {
                // Meanwhile it serves, perhaps.
                b.recv(1, &[]).unwrap();
                a.post(1, SendOp::Send, &[]).unwrap();
                assert_eq!(b.received_as(), (1, WcStatus::Success));
                assert_eq!(a.sent_as(), (1, WcStatus::Success));
                word.fetch_add(1, Ordering::SeqCst);
                b.device.unblock(&word);
            }
        });
    });
}

/// A peer is served while one blocks that waits for nothing of it, and after it has gone.
#[test]
fn one_sided_requests_meanwhile() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.fill(0, b"data");
        let (word, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let soon = Instant::now() + Duration::from_millis(3);
                    b.device.block(&word, 0, Some(soon));
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            for _ in 0..20 {
                let op = SendOp::RdmaRead {
                    remote: b.remote(0),
                    len: 4,
                };
                a.post(1, op, &[a.sge(0, 4)]).unwrap();
                assert_eq!(a.sent_as(), (1, WcStatus::Success));
                std::thread::sleep(Duration::from_micros(700));
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(a.bytes(0, 4), b"data");
    });
}
