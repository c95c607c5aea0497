//! What requests do when nothing goes wrong.

use super::*;

#[test]
fn a_message_arrives() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        for (n, len) in [0usize, 1, 7, 64, 4096, 70_000, 300_001]
            .into_iter()
            .enumerate()
        {
            let data = pattern(len, n as u8);
            a.fill(0, &data);
            b.recv(10, &[b.sge(100, 400_000)]).unwrap();
            a.post(20, SendOp::Send, &[a.sge(0, len)]).unwrap();
            let c = b.received();
            assert_eq!(
                (c.wr_id, c.op, c.status),
                (10, WcOp::Recv, WcStatus::Success)
            );
            assert_eq!(c.byte_len as usize, len);
            assert_eq!(b.bytes(100, len), data);
            let c = a.sent();
            assert_eq!(
                (c.wr_id, c.op, c.status),
                (20, WcOp::Send, WcStatus::Success)
            );
            assert_eq!(c.byte_len as usize, len);
        }
        assert_eq!((a.qp.send_outstanding(), b.qp.recv_outstanding()), (0, 0));
        a.idle();
        b.idle();
    });
}

#[test]
fn both_sides_may_speak_first() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.fill(0, b"from b");
        b.post(1, SendOp::Send, &[b.sge(0, 6)]).unwrap();
        a.recv(2, &[a.sge(0, 100)]).unwrap();
        assert_eq!(a.received_as(), (2, WcStatus::Success));
        assert_eq!(a.bytes(0, 6), b"from b");
        assert_eq!(b.sent_as(), (1, WcStatus::Success));
    });
}

#[test]
fn segments_are_gathered_and_scattered() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let data = pattern(100_000, 3);
        a.fill(0, &data);
        let from = [
            a.sge(0, 3),
            a.sge(3, 0),
            a.sge(3, 69_997),
            a.sge(70_000, 30_000),
        ];
        let to = [
            b.sge(500_000, 1),
            b.sge(100, 99_998),
            b.sge(9, 1),
            b.sge(0, 5),
        ];
        b.recv(1, &to).unwrap();
        a.post(2, SendOp::Send, &from).unwrap();
        assert_eq!(b.received().byte_len, 100_000);
        let mut got = b.bytes(500_000, 1);
        got.extend(b.bytes(100, 99_998));
        got.extend(b.bytes(9, 1));
        assert_eq!(got, data);
        assert_eq!(a.sent_as(), (2, WcStatus::Success));

        a.post(3, SendOp::RdmaWrite(b.remote(200_000)), &from)
            .unwrap();
        assert_eq!(a.sent_as(), (3, WcStatus::Success));
        let op = SendOp::RdmaRead {
            remote: b.remote(200_000),
            len: 99_999,
        };
        let into = [
            a.sge(600_000, 50_001),
            a.sge(300_000, 0),
            a.sge(400_000, 60_000),
        ];
        a.post(4, op, &into).unwrap();
        let c = a.sent();
        assert_eq!(
            (c.wr_id, c.op, c.status),
            (4, WcOp::RdmaRead, WcStatus::Success)
        );
        assert_eq!(c.byte_len, 99_999);
        let mut got = a.bytes(600_000, 50_001);
        got.extend(a.bytes(400_000, 49_998));
        assert_eq!(got, data[..99_999]);
        assert_eq!(a.bytes(449_998, 1), [0]);
    });
}

#[test]
fn messages_of_no_segments() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.recv(1, &[]).unwrap();
        b.recv(2, &[]).unwrap();
        a.post(3, SendOp::Send, &[]).unwrap();
        let nowhere = Remote { addr: 0, rkey: 0 };
        a.post(4, SendOp::RdmaWrite(nowhere), &[]).unwrap();
        let op = SendOp::RdmaRead {
            remote: nowhere,
            len: 0,
        };
        a.post(5, op, &[]).unwrap();
        a.post(6, SendOp::Send, &[]).unwrap();
        for id in 3..=6 {
            assert_eq!(a.sent_as(), (id, WcStatus::Success));
        }
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(b.received().byte_len, 0);
    });
}

#[test]
fn rdma_needs_nothing_of_the_target_program() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let data = pattern(BUFFER / 2, 9);
        a.fill(0, &data);
        a.post(1, SendOp::RdmaWrite(b.remote(7)), &[a.sge(0, data.len())])
            .unwrap();
        let op = SendOp::RdmaRead {
            remote: b.remote(7),
            len: data.len() as u32,
        };
        a.post(2, op, &[a.sge(BUFFER / 2, data.len())]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        assert_eq!(a.bytes(BUFFER / 2, data.len()), data);
        assert_eq!(b.bytes(7, data.len()), data);
        b.idle();
    });
}

#[test]
fn a_message_waits_for_its_receive() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        for i in 0..16u8 {
            a.fill(usize::from(i) * 100, &[i; 100]);
            let sge = a.sge(usize::from(i) * 100, 100);
            a.post(u64::from(i), SendOp::Send, &[sge]).unwrap();
        }
        // One-sided requests of the peer go on meanwhile.
        a.fill(5000, b"read me");
        let op = SendOp::RdmaRead {
            remote: a.remote(5000),
            len: 7,
        };
        b.post(50, op, &[b.sge(5000, 7)]).unwrap();
        assert_eq!(b.sent_as(), (50, WcStatus::Success));
        assert_eq!(b.bytes(5000, 7), b"read me");
        for i in 0..16u8 {
            b.recv(u64::from(i), &[b.sge(usize::from(i) * 100, 100)])
                .unwrap();
            assert_eq!(b.received_as(), (u64::from(i), WcStatus::Success));
            assert_eq!(b.bytes(usize::from(i) * 100, 100), [i; 100]);
            assert_eq!(a.sent_as(), (u64::from(i), WcStatus::Success));
        }
    });
}

#[test]
fn a_great_deal_waits_for_its_receives() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let data = pattern(BUFFER, 5);
        a.fill(0, &data);
        for i in 0..16 {
            a.post(i, SendOp::Send, &[a.sge(0, BUFFER)]).unwrap();
        }
        for i in 0..16 {
            b.fill(0, &vec![0; BUFFER]);
            b.recv(i, &[b.sge(0, BUFFER)]).unwrap();
            assert_eq!(b.received_as(), (i, WcStatus::Success));
            assert!(b.bytes(0, BUFFER) == data);
        }
        for i in 0..16 {
            assert_eq!(a.sent_as(), (i, WcStatus::Success));
        }
    });
}

#[test]
fn reads_keep_to_the_depth_and_requests_to_their_order() {
    over_all_paths(|net| {
        let mut active = attr();
        active.max_rd_out = 3;
        let mut passive = attr();
        passive.max_rd_in = 2;
        let (a, b) = net.pair_with(active, passive);
        let data = pattern(BUFFER / 2, 1);
        b.fill(0, &data);
        b.recv(99, &[]).unwrap();
        for i in 0..8u64 {
            let op = SendOp::RdmaRead {
                remote: b.remote(0),
                len: (BUFFER / 2) as u32,
            };
            a.post(i, op, &[a.sge(0, BUFFER / 2)]).unwrap();
            if i == 3 {
                a.post(100, SendOp::Send, &[]).unwrap();
            }
        }
        let order: Vec<u64> = (0..9).map(|_| a.sent().wr_id).collect();
        assert_eq!(order, [0, 1, 2, 3, 100, 4, 5, 6, 7]);
        assert!(a.bytes(0, BUFFER / 2) == data);
        assert_eq!(b.received_as(), (99, WcStatus::Success));
    });
}

#[test]
fn a_fence_waits_for_reads() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let data = pattern(BUFFER / 2, 8);
        b.fill(0, &data);
        let half = BUFFER / 2;
        let op = SendOp::RdmaRead {
            remote: b.remote(0),
            len: half as u32,
        };
        a.post(1, op, &[a.sge(0, half)]).unwrap();
        // What the read brings is what the write takes.
        let back = SendOp::RdmaWrite(b.remote(half));
        a.post_flags(2, back, &[a.sge(0, half)], WrFlags::FENCE)
            .unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        b.recv(3, &[]).unwrap();
        a.post(4, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (3, WcStatus::Success));
        assert!(b.bytes(half, half) == data);
    });
}

#[test]
fn the_end_of_a_write_arrives_last() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        const LEN: usize = 9000;
        for round in 1..=50u8 {
            a.fill(0, &[round; LEN]);
            a.post(1, SendOp::RdmaWrite(b.remote(0)), &[a.sge(0, LEN)])
                .unwrap();
            // SAFETY: inside the buffer.
            let last = unsafe { std::sync::atomic::AtomicU8::from_ptr(b.buffer.add(LEN - 1)) };
            until(|| last.load(Ordering::Acquire) == round);
            assert!(b.bytes(0, LEN).iter().all(|byte| *byte == round));
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
        }
    });
}

#[test]
fn flags_decide_what_is_seen_and_what_notifies() {
    over_all_paths(|net| {
        let mut passive = attr();
        passive.recv_solicited_only = true;
        let (a, b) = net.pair_with(attr(), passive);
        let send = |id, flags| a.post_flags(id, SendOp::Send, &[], flags).unwrap();
        let notified = |calls: &Calls| calls.notified.load(Ordering::SeqCst);
        (0..4).for_each(|i| b.recv(i, &[]).unwrap());
        a.send_cq.arm();
        b.recv_cq.arm();
        send(1, WrFlags::UNSIGNALED);
        send(2, WrFlags::QUIET);
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        assert_eq!(b.received_as(), (0, WcStatus::Success));
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!((notified(&a.send_calls), notified(&b.recv_calls)), (0, 0));
        send(3, WrFlags::SOLICITED);
        assert_eq!(a.sent_as(), (3, WcStatus::Success));
        assert_eq!(b.received_as(), (2, WcStatus::Success));
        until(|| notified(&a.send_calls) == 1 && notified(&b.recv_calls) == 1);
        // The arming is used up.
        send(4, WrFlags::SOLICITED);
        assert_eq!(a.sent_as(), (4, WcStatus::Success));
        assert_eq!(b.received_as(), (3, WcStatus::Success));
        assert_eq!((notified(&a.send_calls), notified(&b.recv_calls)), (1, 1));
    });
}

#[test]
fn receives_can_be_quiet() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.recv_cq.arm();
        let (sges, flags) = (&[][..], WrFlags::QUIET);
        b.qp.post_recv(&RecvWr {
            wr_id: 1,
            sges,
            flags,
        })
        .unwrap();
        b.recv(2, &[]).unwrap();
        a.post(1, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(b.recv_calls.notified.load(Ordering::SeqCst), 0);
        a.post(2, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (2, WcStatus::Success));
        until(|| b.recv_calls.notified.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn completion_queues_have_an_end() {
    let device = Soft::open("127.0.0.1").unwrap();
    let calls = Calls::new(&device);
    let cq = device.create_cq(2, calls.clone()).unwrap();
    let room = u64::from(cq.capacity());
    assert!(room >= 2);
    assert!(device.create_cq(u32::MAX, calls.clone()).is_err());
    let (tx, events) = channel();
    let pd = device.alloc_pd().unwrap();
    let handler = Connection::new(tx);
    let attr = attr();
    let parts = QpParts {
        pd: &pd,
        send_cq: None,
        recv_cq: Some(&cq),
        srq: None,
    };
    let qp = device.create_qp(&parts, &attr, handler).unwrap();
    let recv = |wr_id| {
        let flags = WrFlags::empty();
        qp.post_recv(&RecvWr {
            wr_id,
            sges: &[],
            flags,
        })
    };
    (0..=room).for_each(|i| recv(i).unwrap());
    // An attempt that is given up flushes.
    let (server, qual) = Server::any(&device);
    let to = "127.0.0.1:0".parse().unwrap();
    device.connect(&qp, to, qual, None, b"").unwrap();
    let _request = server.next();
    qp.disconnect(false);
    assert_eq!(events.recv_timeout(PATIENCE), Ok(CmEvent::Disconnected));
    assert_eq!(calls.overflows.load(Ordering::SeqCst), 1);
    assert_eq!(cq.resize(1), Err(DeviceError::Limit));
    cq.resize(50_000).unwrap();
    recv(7).unwrap();
    let ids = std::iter::from_fn(|| cq.poll()).map(|c| c.wr_id);
    assert!(ids.eq((0..room).chain([7])));
    let send = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        sges: &[],
        flags: WrFlags::empty(),
    };
    // Requests have no queue: this one is flushed, without a completion.
    assert_eq!(qp.post_send(&send), Ok(()));
    assert_eq!(cq.poll(), None);
}

#[test]
fn two_threads_each_way() {
    over_all_paths(|net| {
        const ROUNDS: u64 = 3000;
        let (a, b) = net.pair();
        let run = |end: End, peer: Remote| {
            std::thread::spawn(move || {
                for i in 0..8 {
                    end.recv(i, &[end.sge(i as usize * 64, 64)]).unwrap();
                }
                let (mut posted, mut sent, mut received) = (0, 0, 0);
                while sent < ROUNDS || received < ROUNDS / 3 * 2 {
                    while posted < ROUNDS && posted - sent < 8 {
                        end.fill(10_000 + (posted % 8) as usize * 64, &posted.to_ne_bytes());
                        let sge = end.sge(10_000 + (posted % 8) as usize * 64, 64);
                        let op = if posted % 3 == 0 {
                            SendOp::RdmaWrite(peer)
                        } else {
                            SendOp::Send
                        };
                        end.post(posted, op, &[sge]).unwrap();
                        posted += 1;
                    }
                    while let Some(c) = end.send_cq.poll() {
                        assert_eq!((c.wr_id, c.status), (sent, WcStatus::Success));
                        sent += 1;
                    }
                    while let Some(c) = end.recv_cq.poll() {
                        assert_eq!(c.status, WcStatus::Success);
                        let slot = c.wr_id as usize * 64;
                        // Every third number went by RDMA write.
                        let number: u64 = received / 2 * 3 + received % 2 + 1;
                        assert_eq!(end.bytes(slot, 8), number.to_ne_bytes());
                        end.recv(c.wr_id, &[end.sge(slot, 64)]).unwrap();
                        received += 1;
                    }
                    end.device.progress();
                }
                end
            })
        };
        let (ra, rb) = (a.remote(20_000), b.remote(20_000));
        let (a, b) = (run(a, rb), run(b, ra));
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        a.no_event();
        b.no_event();
    });
}
