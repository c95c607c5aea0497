//! Atomic operations: what they do.

use super::*;

/// Runs a test over every path that has these operations.
pub(super) fn over_extended_paths(test: impl Fn(&Net)) {
    over_all_paths(|net| {
        if net.has_extensions() {
            test(net);
        }
    });
}

pub(super) fn add(remote: Remote, add: u64) -> SendOp {
    let op = AtomicOp::FetchAdd { add };
    SendOp::Atomic { remote, op }
}

fn swap(remote: Remote, compare: u64, swap: u64) -> SendOp {
    let op = AtomicOp::CompareSwap { compare, swap };
    SendOp::Atomic { remote, op }
}

pub(super) fn write_imm(remote: Remote, imm: u32) -> SendOp {
    SendOp::RdmaWriteImm { remote, imm }
}

impl End {
    /// The word at an offset of the buffer.
    pub(super) fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    pub(super) fn set_word(&self, offset: usize, word: u64) {
        self.fill(offset, &word.to_ne_bytes());
    }

    /// The next receive completes without a message, with that number and length.
    #[track_caller]
    pub(super) fn received_imm(&self, wr_id: u64, imm: u32, len: u32) {
        let c = self.received();
        assert_eq!(
            (c.wr_id, c.op, c.status, c.byte_len),
            (wr_id, WcOp::RecvRdmaImm { imm }, WcStatus::Success, len)
        );
    }
}

#[test]
fn words_are_changed() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        const FIRST: u64 = 0x0102_0304_0506_0708;
        b.set_word(64, FIRST);
        for (op, kind, before, after) in [
            (add(b.remote(64), 1), WcOp::FetchAdd, FIRST, FIRST + 1),
            (
                add(b.remote(64), u64::MAX),
                WcOp::FetchAdd,
                FIRST + 1,
                FIRST,
            ),
            (
                swap(b.remote(64), FIRST - 1, 0),
                WcOp::CompareSwap,
                FIRST,
                FIRST,
            ),
            (
                swap(b.remote(64), FIRST, u64::MAX),
                WcOp::CompareSwap,
                FIRST,
                u64::MAX,
            ),
            (add(b.remote(64), 2), WcOp::FetchAdd, u64::MAX, 1),
        ] {
            // The result goes to the first 8 bytes of the segments.
            a.fill(0, &[0xee; 40]);
            let sges = [a.sge(1, 3), a.sge(0, 0), a.sge(20, 9)];
            a.post(7, op, &sges).unwrap();
            let c = a.sent();
            assert_eq!(
                (c.wr_id, c.op, c.status, c.byte_len),
                (7, kind, WcStatus::Success, 8)
            );
            let result = [a.bytes(1, 3), a.bytes(20, 5)].concat();
            assert_eq!(result, before.to_ne_bytes());
            assert_eq!(a.bytes(25, 15), [0xee; 15]);
            assert_eq!(b.word(64), after);
            assert_eq!((b.word(56), b.word(72)), (0, 0));
        }
        a.idle();
        b.idle();
        assert_eq!(a.qp.send_outstanding(), 0);
    });
}

/// Both ends at once, each on memory of the other, with more operations than may be outstanding.
#[test]
fn both_ends_add() {
    over_extended_paths(|net| {
        const ROUNDS: u64 = 200;
        let (a, b) = net.pair();
        let ends = [(&a, &b), (&b, &a)];
        let mut posted = [0; 2];
        let mut done = [0; 2];
        let end = Instant::now() + PATIENCE;
        while done != [ROUNDS; 2] {
            assert!(Instant::now() < end, "{done:?} of {posted:?}");
            for (n, (own, peer)) in ends.into_iter().enumerate() {
                while posted[n] < ROUNDS && posted[n] - done[n] < 16 {
                    let at = 100 + (posted[n] % 16) as usize * 8;
                    let op = add(peer.remote(0), 3);
                    own.post(posted[n], op, &[own.sge(at, 8)]).unwrap();
                    posted[n] += 1;
                }
                own.device.progress();
                while let Some(c) = own.send_cq.poll() {
                    assert_eq!((c.wr_id, c.status), (done[n], WcStatus::Success));
                    let at = 100 + (done[n] % 16) as usize * 8;
                    assert_eq!(own.word(at), 3 * done[n]);
                    done[n] += 1;
                }
            }
        }
        assert_eq!((a.word(0), b.word(0)), (3 * ROUNDS, 3 * ROUNDS));
    });
}

/// Each sees what those before it did, and nothing of those behind it.
#[test]
fn requests_keep_their_order() {
    over_extended_paths(|net| {
        for early in [true, false] {
            let (a, b) = net.pair();
            // What takes a receive may be complete before it has one.
            let in_ring = u64::from(!net.is_send_delivered());
            let remote = b.remote(64);
            let read = SendOp::RdmaRead { remote, len: 8 };
            a.set_word(0, 5);
            a.set_word(8, 40);
            b.set_word(64, 1);
            let receive = |id| b.recv(id, &[b.sge(200, 8)]).unwrap();
            if early {
                (0..3).for_each(receive);
            }
            let at = |n: usize| [a.sge(1000 + 8 * n, 8)];
            let post = |id, op, sges: &[Sge]| a.post(id, op, sges).unwrap();
            post(0, read, &at(0));
            post(1, add(remote, 1), &at(1));
            post(2, SendOp::RdmaWrite(remote), &[a.sge(0, 8)]);
            post(3, add(remote, 3), &at(3));
            post(4, SendOp::Send, &[a.sge(0, 8)]);
            post(5, swap(remote, 8, 20), &at(5));
            post(6, read, &at(6));
            // Without a fence a write may pass a read.
            let (op, sges) = (write_imm(remote, 9), [a.sge(8, 8)]);
            a.post_flags(7, op, &sges, WrFlags::FENCE).unwrap();
            post(8, add(remote, 2), &at(8));
            post(9, SendOp::Send, &[]);
            post(10, read, &at(10));
            for id in 0..4 {
                assert_eq!(a.sent_as(), (id, WcStatus::Success));
            }
            if !early {
                // What is behind a message waits with it.
                std::thread::sleep(Duration::from_millis(5));
                a.device.progress();
                b.device.progress();
                if in_ring > 0 {
                    assert_eq!(a.sent_as(), (4, WcStatus::Success));
                }
                assert_eq!((a.send_cq.poll(), b.word(64)), (None, 8));
                receive(0);
                for id in 4 + in_ring..7 {
                    assert_eq!(a.sent_as(), (id, WcStatus::Success));
                }
                // The write itself waits in a process only.
                let written = if net.is_loopback() { 20 } else { 40 };
                until(|| b.word(64) == written);
                if in_ring > 0 {
                    assert_eq!(a.sent_as(), (7, WcStatus::Success));
                }
                assert_eq!(a.send_cq.poll(), None);
                (1..3).for_each(receive);
            }
            let rest = if early { 4 } else { 7 + in_ring };
            for id in rest..=10 {
                assert_eq!(a.sent_as(), (id, WcStatus::Success));
            }
            let results = [0, 1, 3, 5, 6, 8, 10].map(|n| a.word(1000 + 8 * n));
            assert_eq!(results, [1, 1, 5, 8, 20, 40, 42]);
            assert_eq!(b.received_as(), (0, WcStatus::Success));
            b.received_imm(1, 9, 8);
            assert_eq!(b.received_as(), (2, WcStatus::Success));
        }
    });
}

/// It has the word of before, also where both have waited behind a message.
#[test]
fn a_read_before_an_atomic_operation() {
    over_extended_paths(|net| {
        for waits in [false, true] {
            let (a, b) = net.pair();
            let remote = b.remote(64);
            if waits {
                a.post(0, SendOp::Send, &[]).unwrap();
            }
            let read = SendOp::RdmaRead { remote, len: 8 };
            a.post(1, read, &[a.sge(8, 8)]).unwrap();
            a.post(2, add(remote, 1), &[a.sge(16, 8)]).unwrap();
            a.post(3, read, &[a.sge(24, 8)]).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            b.device.progress();
            if waits {
                b.recv(0, &[]).unwrap();
                assert_eq!(a.sent_as(), (0, WcStatus::Success));
            }
            for id in 1..4 {
                assert_eq!(a.sent_as(), (id, WcStatus::Success));
            }
            assert_eq!([8, 16, 24].map(|at| a.word(at)), [0, 0, 1]);
        }
    });
}

#[test]
fn atomic_operations_keep_to_the_depth() {
    over_extended_paths(|net| {
        let (mut active, mut passive) = (attr(), attr());
        (active.max_rd_out, passive.max_rd_in) = (3, 2);
        let (a, b) = net.pair_with(active, passive);
        let long = SendOp::RdmaRead {
            remote: b.remote(BUFFER / 2),
            len: (BUFFER / 2) as u32,
        };
        b.fill(BUFFER / 2, &pattern(BUFFER / 2, 7));
        for id in 0..12 {
            let sge = a.sge(8 * id as usize, 8);
            match id % 4 {
                3 => a.post(id, long, &[a.sge(BUFFER / 2, BUFFER / 2)]),
                _ => a.post(id, add(b.remote(0), 1), &[sge]),
            }
            .unwrap();
        }
        for id in 0..12 {
            assert_eq!(a.sent_as(), (id, WcStatus::Success));
        }
        for (n, id) in (0..12).filter(|id| id % 4 != 3).enumerate() {
            assert_eq!(a.word(8 * id), n as u64);
        }
        assert!(a.bytes(BUFFER / 2, BUFFER / 2) == pattern(BUFFER / 2, 7));

        // A fence waits for them.
        let fenced = SendOp::RdmaWrite(b.remote(16));
        a.post(12, add(b.remote(0), 1), &[a.sge(0, 8)]).unwrap();
        a.post_flags(13, fenced, &[a.sge(0, 8)], WrFlags::FENCE)
            .unwrap();
        assert_eq!(a.sent_as(), (12, WcStatus::Success));
        assert_eq!(a.sent_as(), (13, WcStatus::Success));
        assert_eq!(b.word(16), 9);
    });
}

/// An end that may have none outstanding.
#[test]
fn atomic_operations_need_a_depth() {
    over_extended_paths(|net| {
        for side in 0..2 {
            let (mut active, mut passive) = (attr(), attr());
            match side {
                0 => active.max_rd_out = 0,
                _ => passive.max_rd_in = 0,
            }
            if side == 1 && net.is_loopback() {
                continue;
            }
            let (a, b) = net.pair_with(active, passive);
            a.post(1, add(b.remote(0), 1), &[a.sge(0, 8)]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::LocalQpOperation));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            assert_eq!(b.word(0), 0);
        }
    });
}

/// What is before the request that is refused succeeds, what is behind it has no effect.
#[test]
fn atomic_operations_that_are_refused() {
    over_extended_paths(|net| {
        for case in 0..6 {
            for behind_message in [false, true] {
                let (a, mut b) = net.pair();
                let right = b.remote(64);
                let mut access = Access::all();
                access.remove(Access::REMOTE_ATOMIC);
                let len = BUFFER as u64;
                let plain = b.device.reg_mr(&b.pd, b.buffer as u64, len, access);
                let plain = plain.unwrap();
                let no_right = Remote {
                    rkey: plain.rkey(),
                    ..right
                };
                let no_key = Remote {
                    rkey: right.rkey ^ 0x10,
                    ..right
                };
                let (word, status) = match case {
                    0 => (no_key, WcStatus::RemoteAccess),
                    1 => (no_right, WcStatus::RemoteAccess),
                    2 => (b.remote(60), WcStatus::RemoteOperation),
                    3 => (b.remote(BUFFER - 4), WcStatus::RemoteAccess),
                    4 => (b.remote(BUFFER), WcStatus::RemoteAccess),
                    _ => {
                        let addr = u64::MAX - 3;
                        (Remote { addr, ..right }, WcStatus::RemoteAccess)
                    }
                };
                b.recv(0, &[b.sge(0, 8)]).unwrap();
                a.post(1, add(right, 4), &[a.sge(0, 8)]).unwrap();
                a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
                let mut id = 3;
                if behind_message {
                    a.post(3, SendOp::Send, &[]).unwrap();
                    a.post(4, add(right, 6), &[a.sge(0, 8)]).unwrap();
                    id = 5;
                }
                a.post(id, add(word, 1), &[a.sge(16, 8)]).unwrap();
                a.post(id + 1, add(right, 1), &[a.sge(16, 8)]).unwrap();
                a.post(id + 2, SendOp::RdmaWrite(right), &[a.sge(16, 8)])
                    .unwrap();
                if behind_message {
                    b.recv(0, &[]).unwrap();
                }
                for before in 1..id {
                    assert_eq!(a.sent_as(), (before, WcStatus::Success));
                }
                assert_eq!(a.sent_as(), (id, status), "case {case}");
                assert_eq!(a.sent_as(), (id + 1, WcStatus::Flushed));
                assert_eq!(a.sent_as(), (id + 2, WcStatus::Flushed));
                assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
                let expected = if behind_message { 10 } else { 4 };
                assert_eq!(b.word(64), expected, "case {case}");
                assert_eq!(a.word(16), 0);
                b.mr = None;
            }
        }
    });
}
