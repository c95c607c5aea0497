//! Requests that are posted one right behind the other, and what their consumer does next.

use super::*;

const BURST: u64 = 12;

fn receives(b: &End) {
    for n in 0..BURST {
        b.recv(n, &[b.sge(8 * n as usize, 8)]).unwrap();
    }
}

fn burst(a: &End, round: u64) {
    for n in 0..BURST {
        let at = 8 * n as usize;
        a.fill(at, &(round * 100 + n).to_ne_bytes());
        // A short queue has room when requests have completed.
        until(|| a.post(n, SendOp::Send, &[a.sge(at, 8)]) != Err(PostError::QueueFull));
    }
}

fn arrives(b: &End, round: u64) {
    for n in 0..BURST {
        assert_eq!(b.received_as(), (n, WcStatus::Success));
        let at = 8 * n as usize;
        assert_eq!(b.bytes(at, 8), (round * 100 + n).to_ne_bytes());
    }
}

fn completes(a: &End) {
    for n in 0..BURST {
        assert_eq!(a.sent_as(), (n, WcStatus::Success));
    }
    a.idle();
}

#[test]
fn a_burst_of_a_consumer_that_makes_no_call_arrives() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        for round in 0..50 {
            receives(&b);
            burst(&a, round);
            arrives(&b, round);
            // After a pause, and right away.
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
            completes(&a);
        }
    });
}

#[test]
fn what_was_written_before_a_burst_of_flags_is_there_before_them() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        for round in 1..=50u64 {
            for n in 0..8usize {
                let (data, flag) = (64 * n, 64 * n + 32);
                a.fill(data, &round.to_ne_bytes());
                a.fill(flag, &round.to_ne_bytes());
                for (wr_id, at) in [(1, data), (2, flag)] {
                    let op = SendOp::RdmaWrite(b.remote(at));
                    a.post(wr_id, op, &[a.sge(at, 8)]).unwrap();
                }
            }
            let last = 64 * 7 + 32;
            until(|| b.bytes(last, 8) == round.to_ne_bytes());
            for n in 0..8usize {
                assert_eq!(b.bytes(64 * n, 8), round.to_ne_bytes());
            }
            for _ in 0..8 {
                assert_eq!(a.sent_as(), (1, WcStatus::Success));
                assert_eq!(a.sent_as(), (2, WcStatus::Success));
            }
        }
    });
}

#[test]
fn an_end_without_grace_comes_after_what_was_posted() {
    over_all_paths(|net| {
        for ends in [
            |a: &End| a.qp.disconnect(false),
            |a: &End| {
                a.qp.destroy();
            },
        ] {
            let (a, b) = net.pair();
            receives(&b);
            burst(&a, 1);
            ends(&a);
            arrives(&b, 1);
            assert_eq!(b.event(), CmEvent::Disconnected);
        }
    });
}

#[test]
fn a_send_queue_of_two_is_never_full_for_long() {
    over_all_paths(|net| {
        let few = QpAttr {
            max_send_wr: 2,
            ..attr()
        };
        let (a, b) = net.pair_with(few, attr());
        for _ in 0..20 {
            receives(&b);
            burst(&a, 0);
            arrives(&b, 0);
            completes(&a);
        }
    });
}

/// Writes a burst of words of this round to the peer; the one with the number `bad` to what the peer does
/// not allow.
fn write_burst(a: &End, b: &End, round: u64, bad: Option<u64>) {
    for n in 0..BURST {
        let at = 8 * n as usize;
        a.fill(at, &(round * 100 + n).to_ne_bytes());
        let mut to = b.remote(at);
        if bad == Some(n) {
            to.addr += b.len as u64 - 8 * n;
        }
        a.post(n, SendOp::RdmaWrite(to), &[a.sge(at, 8)]).unwrap();
    }
}

/// What the peer refuses ends a burst of writes where it stands: those before have been made, those behind
/// have not.
#[test]
fn a_burst_of_writes_up_to_one_that_is_refused() {
    over_all_paths(|net| {
        for bad in 0..BURST {
            let (a, b) = net.pair();
            // Bursts are expected after these.
            for round in 1..5 {
                write_burst(&a, &b, round, None);
                completes(&a);
            }
            write_burst(&a, &b, 9, Some(bad));
            if net.is_refusal_exact() {
                for n in 0..BURST {
                    let status = status_beside_refused(n, bad);
                    assert_eq!(a.sent_as(), (n, status), "{bad}");
                }
            }
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            for n in 0..BURST {
                let round = if n < bad { 9 } else { 4 };
                let word = (round * 100 + n).to_ne_bytes();
                assert_eq!(b.bytes(8 * n as usize, 8), word, "{n} of {bad}");
            }
        }
    });
}

/// Through shared memory the writes of a burst share copies by the kernel.
#[test]
fn a_burst_of_writes_is_made_by_few_system_calls() {
    for addressing in ADDRESSINGS {
        let (a, mut b) = Net::new("127.0.0.1 path=shm").pair();
        b.register(addressing);
        is_made_by_few_system_calls(&a, &b);
    }
}

fn is_made_by_few_system_calls(a: &End, b: &End) {
    // How fast the posts follow each other depends on the machine, so the burst is announced.
    let copies = |begins: bool| {
        a.on_shm(|conn| {
            if begins {
                conn.expect_burst();
            }
            conn.tx.sections / 2
        })
    };
    let mut round = 0;
    until(|| {
        let before = copies(true);
        round += 1;
        write_burst(a, b, round, None);
        completes(a);
        copies(false) - before <= BURST as u32 / 2
    });
    for n in 0..BURST {
        let word = (round * 100 + n).to_ne_bytes();
        assert_eq!(b.bytes(8 * n as usize, 8), word, "{n}");
    }
}
