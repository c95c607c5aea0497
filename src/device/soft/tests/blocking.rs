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

/// Blocks for a moment, for something that does not happen.
fn block_for_a_moment(device: &Soft) -> (Option<Wake>, Duration) {
    let (word, begun) = (AtomicU32::new(0), Instant::now());
    let wake = device.block(&word, 0, Some(begun + MOMENT));
    (wake, begun.elapsed())
}

const MOMENT: Duration = Duration::from_millis(30);

/// A consumer that blocks for a limited time does not wait for longer where a thread that serves has no processor.
#[test]
fn beside_a_thread_that_serves_and_does_not_run() {
    let device = Soft::open("127.0.0.1 path=tcp").unwrap();
    let (wake, blocked) = std::thread::scope(|s| {
        let _pause = device.engine.pause();
        let consumer = s.spawn(|| block_for_a_moment(&device));
        until(|| consumer.is_finished());
        consumer.join().unwrap()
    });
    assert_eq!(wake, Some(Wake::TimedOut));
    assert!(blocked >= MOMENT);
}

/// The same for one that has taken events of sockets, and of timers: they are served later.
#[test]
fn events_of_a_consumer_that_does_not_block_for_longer() {
    for params in ["127.0.0.1 path=tcp", "127.0.0.1 path=shm"] {
        let net = Net::new(params);
        let (a, b) = net.pair();
        for round in 0..20 {
            b.recv(round, &[]).unwrap();
            let expired = Arc::new(AtomicBool::new(false));
            let expires = expired.clone();
            let timer = b.device.engine.timer(MOMENT / 3, move |_| {
                expires.store(true, Ordering::SeqCst);
            });
            std::thread::scope(|s| {
                let consumer = s.spawn(|| block_for_a_moment(&b.device));
                // It sleeps by now, with the engine's thread, which the kernel wakes later.
                std::thread::sleep(MOMENT / 6);
                let pause = b.device.engine.pause();
                // On a busy machine that was later than meant.
                let before = expired.load(Ordering::SeqCst);
                if round % 2 == 1 {
                    // The event of the timer comes first.
                    std::thread::sleep(MOMENT / 3);
                }
                a.post(1, SendOp::Send, &[]).unwrap();
                until(|| consumer.is_finished());
                let (wake, _) = consumer.join().unwrap();
                assert!(matches!(wake, Some(Wake::TimedOut) | None), "{wake:?}");
                assert_eq!(b.recv_cq.poll(), None);
                assert_eq!(expired.load(Ordering::SeqCst), before);
                drop(pause);
            });
            // By the engine's thread.
            let mut received = None;
            until(|| {
                received = received.or_else(|| b.recv_cq.poll());
                received.is_some() && expired.load(Ordering::SeqCst)
            });
            assert_eq!(received.unwrap().wr_id, round);
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            drop(timer);
        }
    }
}
