//! RDMA writes with immediate data.

use super::extended::*;
use super::*;

#[test]
fn a_write_with_immediate_data() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        for (n, len) in [0usize, 1, 7, 8, 4096, 70_000, 300_001]
            .into_iter()
            .enumerate()
        {
            let imm = 0x0102_0304 << n;
            let data = pattern(len, n as u8);
            a.fill(0, &data);
            b.fill(100, &vec![0xee; len + 1]);
            b.fill(500_000, &[0xee; 100]);
            b.recv(10, &[b.sge(500_000, 100)]).unwrap();
            let sges = [a.sge(0, len / 3), a.sge(len / 3, len - len / 3)];
            a.post(20, write_imm(b.remote(100), imm), &sges).unwrap();
            b.received_imm(10, imm, len as u32);
            assert!(b.bytes(100, len) == data);
            assert_eq!(b.bytes(100 + len, 1), [0xee]);
            assert_eq!(b.bytes(500_000, 100), [0xee; 100]);
            let c = a.sent();
            assert_eq!(
                (c.wr_id, c.op, c.status),
                (20, WcOp::RdmaWriteImm, WcStatus::Success)
            );
            assert_eq!(c.byte_len as usize, len);
        }
        // Without bytes the target means nothing; a receive needs no memory.
        b.recv(11, &[]).unwrap();
        let nowhere = Remote { addr: 1, rkey: 2 };
        a.post(21, write_imm(nowhere, 7), &[]).unwrap();
        b.received_imm(11, 7, 0);
        assert_eq!(a.sent_as(), (21, WcStatus::Success));
        a.idle();
        b.idle();
        assert_eq!((a.qp.send_outstanding(), b.qp.recv_outstanding()), (0, 0));
    });
}

/// Each takes one receive, in the order of posting, and completes with it.
#[test]
fn immediate_data_waits_for_its_receive() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        for i in 0..16u8 {
            let at = usize::from(i) * 100;
            a.fill(at, &[i; 100]);
            let sges = [a.sge(at, 100)];
            let op = match i % 4 {
                0 => SendOp::Send,
                1 => write_imm(b.remote(at), i.into()),
                2 => write_imm(b.remote(0), i.into()),
                _ => SendOp::RdmaWrite(b.remote(at)),
            };
            let sges = if i % 4 == 2 { &[][..] } else { &sges };
            a.post(i.into(), op, sges).unwrap();
        }
        let mut completed = 0;
        for i in (0..16u8).filter(|i| i % 4 != 3) {
            let (id, at) = (u64::from(i), usize::from(i) * 100);
            b.device.progress();
            assert_eq!(b.recv_cq.poll(), None);
            if net.is_send_delivered() {
                assert_eq!(a.send_cq.poll(), None);
            }
            b.recv(id, &[b.sge(at, 100)]).unwrap();
            match i % 4 {
                0 => assert_eq!(b.received_as(), (id, WcStatus::Success)),
                1 => b.received_imm(id, i.into(), 100),
                _ => b.received_imm(id, i.into(), 0),
            }
            if i % 4 != 2 {
                assert_eq!(b.bytes(at, 100), [i; 100]);
            }
            while completed <= id || completed == 3 || completed % 4 == 3 && completed < id + 2 {
                assert_eq!(a.sent_as(), (completed, WcStatus::Success));
                completed += 1;
            }
        }
        assert_eq!(b.bytes(1500, 100), [15; 100]);
        a.idle();
        b.idle();
    });
}

/// More than an end keeps for messages without a receive.
#[test]
fn a_great_deal_waits_with_immediate_data() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        const LEN: usize = BUFFER / 2;
        let data = pattern(LEN, 5);
        a.fill(0, &data);
        for i in 0..8 {
            let to = b.remote(i % 2 * LEN);
            a.post(i as u64, write_imm(to, i as u32), &[a.sge(0, LEN)])
                .unwrap();
            let word = add(b.remote(0), 0);
            a.post(100 + i as u64, word, &[a.sge(LEN, 8)]).unwrap();
        }
        for i in 0..8 {
            b.recv(i, &[]).unwrap();
            b.received_imm(i, i as u32, LEN as u32);
            assert!(b.bytes(i as usize % 2 * LEN, LEN) == data);
        }
        for i in 0..8 {
            assert_eq!(a.sent_as(), (i, WcStatus::Success));
            assert_eq!(a.sent_as(), (100 + i, WcStatus::Success));
        }
        assert_eq!(a.bytes(LEN, 8), data[..8]);
    });
}

#[test]
fn immediate_data_can_be_solicited() {
    over_extended_paths(|net| {
        let mut passive = attr();
        passive.recv_solicited_only = true;
        let (a, b) = net.pair_with(attr(), passive);
        let notified = || b.recv_calls.notified.load(Ordering::SeqCst);
        (0..2).for_each(|i| b.recv(i, &[]).unwrap());
        b.recv_cq.arm();
        for (id, flags) in [(0, WrFlags::empty()), (1, WrFlags::SOLICITED)] {
            let op = write_imm(b.remote(0), 1);
            a.post_flags(id, op, &[a.sge(0, 8)], flags).unwrap();
            assert_eq!(a.sent_as(), (id, WcStatus::Success));
            b.received_imm(id, 1, 8);
            if id == 0 {
                assert_eq!(notified(), 0);
            }
        }
        until(|| notified() == 1);
    });
}

#[test]
fn a_write_with_immediate_data_that_is_refused() {
    over_extended_paths(|net| {
        for len in [8, 200_000] {
            let (a, b) = net.pair();
            (0..4).for_each(|id| b.recv(id, &[b.sge(0, 8)]).unwrap());
            let sge = [a.sge(0, len)];
            let wrong = Remote {
                rkey: b.key() ^ 0x10,
                ..b.remote(0)
            };
            a.post(1, write_imm(b.remote(0), 1), &sge).unwrap();
            a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
            a.post(3, write_imm(b.remote(0), 2), &[]).unwrap();
            a.post(4, write_imm(wrong, 3), &sge).unwrap();
            a.post(5, SendOp::Send, &[a.sge(0, 8)]).unwrap();
            for id in 1..4 {
                assert_eq!(a.sent_as(), (id, WcStatus::Success));
            }
            assert_eq!(a.sent_as(), (4, WcStatus::RemoteAccess));
            assert_eq!(a.sent_as(), (5, WcStatus::Flushed));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            b.received_imm(0, 1, len as u32);
            assert_eq!(b.received_as(), (1, WcStatus::Success));
            b.received_imm(2, 2, 0);
            assert_eq!(b.received_as(), (3, WcStatus::Flushed));
            b.idle();
        }
    });
}
