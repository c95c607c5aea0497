//! Short RDMA writes between two ends of ours that go through the ring.

use std::sync::atomic::AtomicBool;

use super::*;

fn net() -> Net {
    Net::new("127.0.0.1 path=shm")
}

impl End {
    /// The peer has about a second to take writes.
    pub(super) fn is_patient(&self) {
        self.on_shm(|conn| conn.tx.writes.is_patient = true);
    }

    /// How many cells the end has filled.
    pub(super) fn cells(&self) -> u64 {
        self.on_shm(|conn| conn.tx.producer.next_cell())
    }

    pub(super) fn write(&self, wr_id: u64, to: Remote, at: usize, len: usize) {
        self.post(wr_id, SendOp::RdmaWrite(to), &[self.sge(at, len)])
            .unwrap();
    }
}

/// Runs a test while another thread polls the device.
fn while_polled<R>(device: &Arc<Soft>, test: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let poll = || {
            while !stop.load(Ordering::Relaxed) {
                device.progress();
                std::hint::spin_loop();
            }
        };
        s.spawn(poll);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Writes of all lengths, each waited for, until so many have gone through the ring that its end was passed
/// several times.
#[test]
fn one_write_after_the_other() {
    for addressing in ADDRESSINGS {
        let net = net();
        let (a, mut b) = net.pair();
        b.register(addressing);
        a.is_patient();
        let before = a.cells();
        while_polled(&net.passive, || {
            let mut round = 0;
            until(|| {
                for len in [1, 8, 39, 40, 41, 64, 500, 1023, 4096] {
                    round += 1;
                    let (bytes, at) = (pattern(len, round as u8), round as usize % 100);
                    a.fill(7, &bytes);
                    a.write(round, b.remote(at), 7, len);
                    assert_eq!(a.sent_as(), (round, WcStatus::Success));
                    assert_eq!(b.bytes(at, len), bytes);
                }
                a.cells() - before > 500
            });
        });
    }
}

const BURST: u64 = 12;

/// Writes a burst of words of this round, whose places do not adjoin, and of some longer ranges.
fn burst(a: &End, b: &End, round: u64, bad: Option<u64>) {
    a.on_shm(|conn| conn.expect_burst());
    for n in 0..BURST {
        let len = length(n);
        a.fill(4096 * n as usize, &pattern(len, (round + n) as u8));
        let mut to = b.remote(4096 * n as usize);
        if bad == Some(n) {
            to.rkey ^= 1 << 20;
        }
        a.write(n, to, 4096 * n as usize, len);
    }
}

fn length(n: u64) -> usize {
    [8, 8, 8, 200, 8, 3000][n as usize % 6]
}

fn is_written(b: &End, round: u64, n: u64) -> bool {
    b.bytes(4096 * n as usize, length(n)) == pattern(length(n), (round + n) as u8)
}

/// Bursts go through the ring as soon as both ends poll.
#[test]
fn bursts_of_writes() {
    let net = net();
    let (a, b) = net.pair();
    a.is_patient();
    let before = a.cells();
    while_polled(&net.passive, || {
        let mut round = 0;
        until(|| {
            round += 1;
            burst(&a, &b, round, None);
            for n in 0..BURST {
                assert_eq!(a.sent_as(), (n, WcStatus::Success));
                assert!(is_written(&b, round, n), "{n} of round {round}");
            }
            a.cells() - before > 500
        });
    });
}

/// Those before the one that the peer refuses are made, those behind are not.
#[test]
fn a_burst_up_to_a_write_that_is_refused() {
    let net = net();
    for bad in 0..BURST {
        let (a, b) = net.pair();
        a.is_patient();
        while_polled(&net.passive, || {
            let mut round = 0;
            until(|| {
                let before = a.cells();
                round += 1;
                burst(&a, &b, round, None);
                for n in 0..BURST {
                    assert_eq!(a.sent_as(), (n, WcStatus::Success));
                }
                a.cells() - before >= BURST
            });
            burst(&a, &b, 100, Some(bad));
            for n in 0..BURST {
                let status = status_beside_refused(n, bad);
                assert_eq!(a.sent_as(), (n, status), "{bad}");
            }
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            for n in 0..BURST {
                let round = if n < bad { 100 } else { round };
                assert!(is_written(&b, round, n), "{n} of {bad}");
            }
        });
    }
}

/// A region that the peer deregisters is not written to any longer, whoever executes the writes.
#[test]
fn a_region_that_goes() {
    let net = net();
    let (a, mut b) = net.pair();
    a.is_patient();
    while_polled(&net.passive, || {
        for round in 0..200 {
            a.fill(0, &[round; 8]);
            a.write(1, b.remote(0), 0, 8);
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
        }
        let to = b.remote(0);
        b.mr = None;
        a.fill(0, &[255; 8]);
        a.write(1, to, 0, 8);
        assert_eq!(a.sent_as(), (1, WcStatus::RemoteAccess));
        assert_eq!(b.bytes(0, 8), [199; 8]);
    });
}

/// What was posted before an end is made before that, though the peer might take writes from the ring.
#[test]
fn writes_before_an_end() {
    for graceful in [true, false] {
        let net = net();
        let (a, b) = net.pair();
        a.write(0, b.remote(0), 0, 8);
        assert_eq!(a.sent_as(), (0, WcStatus::Success));
        net.active.progress();
        net.passive.progress();
        let pause = net.passive.engine.pause();
        burst(&a, &b, 3, None);
        a.qp.disconnect(graceful);
        // The program may exit now.
        for n in 0..BURST {
            assert!(is_written(&b, 3, n), "{n}, {graceful}");
        }
        drop(pause);
        for n in 0..BURST {
            assert_eq!(a.sent_as(), (n, WcStatus::Success));
        }
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// A peer whose consumer has polled and does so no longer: the kernel makes the writes, and few are tried through
/// the ring.
#[test]
fn a_peer_that_polls_no_longer() {
    let net = net();
    let (a, b) = net.pair();
    net.passive.progress();
    let before = a.cells();
    for round in 0..3000_u64 {
        a.fill(0, &round.to_ne_bytes());
        a.write(round, b.remote(0), 0, 8);
        assert_eq!(a.sent_as(), (round, WcStatus::Success));
        assert_eq!(b.bytes(0, 8), round.to_ne_bytes());
    }
    let tried = a.cells() - before;
    assert!(tried <= 20, "{tried} of 3000");
}

/// What is posted behind writes does not wait until somebody polls, whether the peer takes the writes or not. If a
/// peer that has taken them is interrupted then, that is left to the thread of the engine.
#[test]
fn a_message_behind_writes() {
    let net = net();
    let (a, b) = net.pair();
    let mut left = 0;
    for round in 1..200_u64 {
        if round % 2 == 0 {
            net.passive.progress();
        }
        a.device.progress();
        b.recv(round, &[b.sge(BUFFER - 8, 8)]).unwrap();
        // Neither does the thread of the engine.
        let mut pause = Some(a.device.engine.pause());
        burst(&a, &b, round, None);
        a.post(BURST, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        let posted = Instant::now();
        let received = loop {
            if let Some(completion) = b.recv_cq.poll() {
                break completion;
            }
            net.passive.progress();
            if pause.is_some() && posted.elapsed() > Duration::from_millis(500) {
                pause = None;
                left += 1;
            }
            assert!(posted.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        };
        drop(pause);
        assert_eq!(
            (received.wr_id, received.status),
            (round, WcStatus::Success)
        );
        assert!(left < 20, "{left} of {round}");
        for n in 0..=BURST {
            assert_eq!(a.sent_as(), (n, WcStatus::Success));
        }
        for n in 0..BURST {
            assert!(is_written(&b, round, n), "{n} of round {round}");
        }
    }
}

/// Messages without a receive are in the ring in front of writes.
#[test]
fn writes_behind_messages_without_a_receive() {
    let net = net();
    let (a, b) = net.pair();
    while_polled(&net.passive, || {
        for round in 0..100_u64 {
            a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
            burst(&a, &b, round, None);
            a.write(BURST, b.remote(80_000), 0, 8);
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            for n in 0..=BURST {
                assert_eq!(a.sent_as(), (n, WcStatus::Success));
            }
            assert!((0..BURST).all(|n| is_written(&b, round, n)), "{round}");
            b.recv(2, &[b.sge(BUFFER - 8, 8)]).unwrap();
            assert_eq!(b.received_as(), (2, WcStatus::Success));
        }
    });
}

/// Both ends write to each other at the same time, and wait for each other while they do.
#[test]
fn writes_in_both_directions() {
    let net = net();
    let (a, b) = net.pair();
    let (to_a, to_b) = (a.remote(64), b.remote(64));
    let go = |me: End, to: Remote| {
        for round in 0..2000_u64 {
            me.fill(0, &round.to_ne_bytes());
            me.write(round, to, 0, 8);
            assert_eq!(me.sent_as(), (round, WcStatus::Success));
        }
        me
    };
    let (a, b) = std::thread::scope(|s| {
        let other = s.spawn(move || go(b, to_a));
        (go(a, to_b), other.join().unwrap())
    });
    for end in [&a, &b] {
        assert_eq!(end.bytes(64, 8), 1999_u64.to_ne_bytes());
    }
}
