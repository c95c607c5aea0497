//! What happens to requests that cannot be executed, and to the connection then.

use super::*;

const NOWHERE: Remote = Remote {
    addr: 0x1000,
    rkey: 0,
};

fn read(remote: Remote, len: u32) -> SendOp {
    SendOp::RdmaRead { remote, len }
}

#[test]
fn posts_are_checked_at_once() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let send = |sges: &[Sge]| a.post(1, SendOp::Send, sges);
        assert_eq!(send(&[a.sge(0, 1); 5]), Err(PostError::TooManySegments));
        let wrong_key = Sge {
            lkey: a.key() ^ 1,
            ..a.sge(0, 1)
        };
        assert_eq!(send(&[wrong_key]), Err(PostError::Key));
        assert_eq!(send(&[a.sge(BUFFER - 1, 2)]), Err(PostError::Bounds));
        assert_eq!(send(&[b.sge(0, 1)]), Err(PostError::Protection));
        assert_eq!(
            a.post(1, read(b.remote(0), 9), &[a.sge(0, 8)]),
            Err(PostError::Length)
        );
        let only = |access| {
            let mr = a.device.reg_mr(&a.pd, a.buffer as u64, 8, access).unwrap();
            let sge = Sge {
                lkey: mr.lkey(),
                ..a.sge(0, 8)
            };
            (mr, sge)
        };
        let (_mr, sge) = only(Access::LOCAL_WRITE);
        assert_eq!(send(&[sge]), Err(PostError::Access));
        let (_mr, sge) = only(Access::LOCAL_READ);
        assert_eq!(a.recv(1, &[sge]), Err(PostError::Access));
        assert_eq!(
            a.post(1, read(b.remote(0), 8), &[sge]),
            Err(PostError::Access)
        );
        for i in 0..16 {
            a.recv(i, &[]).unwrap();
        }
        assert_eq!(a.recv(16, &[]), Err(PostError::QueueFull));
        assert_eq!(a.qp.recv_outstanding(), 16);
        a.idle();
        let idle = End::new(&net.active, attr());
        assert_eq!(
            idle.post(1, SendOp::Send, &[]),
            Err(PostError::NotConnected)
        );
        assert_eq!(idle.recv(1, &[]), Ok(()));
    });
}

/// What is asked for, and what has to live meanwhile.
type Refused = fn(&End) -> (Remote, u32, Option<Mr>);

/// Everything that a target may refuse, over a read: the protocol names it in its answer.
#[test]
fn a_read_that_is_refused() {
    over_all_paths(|net| {
        let cases: [Refused; 5] = [
            |_| (NOWHERE, 8, None),
            |b| (b.remote(BUFFER - 4), 8, None),
            |b| {
                let at = b.remote(0);
                (
                    Remote {
                        addr: at.addr - 1,
                        ..at
                    },
                    8,
                    None,
                )
            },
            |b| {
                let access = Access::LOCAL_READ | Access::REMOTE_WRITE;
                let mr = b.device.reg_mr(&b.pd, b.buffer as u64, 8, access).unwrap();
                let rkey = mr.rkey();
                (
                    Remote {
                        rkey,
                        ..b.remote(0)
                    },
                    8,
                    Some(mr),
                )
            },
            |b| {
                let pd = b.device.alloc_pd().unwrap();
                let mr = b
                    .device
                    .reg_mr(&pd, b.buffer as u64, 8, Access::all())
                    .unwrap();
                let rkey = mr.rkey();
                (
                    Remote {
                        rkey,
                        ..b.remote(0)
                    },
                    8,
                    Some(mr),
                )
            },
        ];
        for case in cases {
            let (a, b) = net.pair();
            let (remote, len, _mr) = case(&b);
            b.recv(1, &[]).unwrap();
            b.recv(2, &[]).unwrap();
            a.recv(3, &[]).unwrap();
            a.post(4, read(b.remote(0), 8), &[a.sge(0, 8)]).unwrap();
            assert_eq!(a.sent_as(), (4, WcStatus::Success));
            a.post(5, read(remote, len), &[a.sge(0, 8)]).unwrap();
            a.post_flags(6, SendOp::Send, &[], WrFlags::UNSIGNALED | WrFlags::FENCE)
                .unwrap();
            assert_eq!(a.sent_as(), (5, WcStatus::RemoteAccess));
            assert_eq!(a.sent_as(), (6, WcStatus::Flushed));
            assert_eq!(a.received_as(), (3, WcStatus::Flushed));
            assert_eq!(b.received_as(), (1, WcStatus::Flushed));
            assert_eq!(b.received_as(), (2, WcStatus::Flushed));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            // From now on everything is flushed at once.
            a.post_flags(7, SendOp::Send, &[], WrFlags::UNSIGNALED)
                .unwrap();
            a.recv(8, &[]).unwrap();
            assert_eq!(a.send_cq.poll().unwrap().status, WcStatus::Flushed);
            assert_eq!(a.recv_cq.poll().unwrap().status, WcStatus::Flushed);
            a.idle();
            b.idle();
        }
    });
}

/// A write that is refused changes nothing, and breaks the connection.
#[test]
fn a_write_that_is_refused() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.fill(0, &[7; 64]);
        let access = Access::LOCAL_READ | Access::REMOTE_READ;
        let mr = b.device.reg_mr(&b.pd, b.buffer as u64, 64, access).unwrap();
        let remote = Remote {
            rkey: mr.rkey(),
            ..b.remote(0)
        };
        a.post(1, SendOp::RdmaWrite(remote), &[a.sge(0, 64)])
            .unwrap();
        let status = match net.is_refusal_exact() {
            true => WcStatus::RemoteAccess,
            false => WcStatus::Success,
        };
        assert_eq!(a.sent_as(), (1, status));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        assert_eq!(b.bytes(0, 64), [7; 64]);
    });
}

#[test]
fn a_message_that_does_not_fit() {
    over_all_paths(|net| {
        for (sent, room) in [(9, 8), (1, 0), (300_000, 100)] {
            let (a, b) = net.pair();
            b.fill(0, &[7; 200]);
            b.recv(1, &[b.sge(0, room)]).unwrap();
            b.recv(2, &[b.sge(0, 100)]).unwrap();
            a.post(3, SendOp::Send, &[a.sge(0, sent)]).unwrap();
            assert_eq!(b.received_as(), (1, WcStatus::LocalLength));
            assert_eq!(b.received_as(), (2, WcStatus::Flushed));
            let (id, status) = a.sent_as();
            assert_eq!(id, 3);
            if net.is_send_delivered() {
                assert_eq!(status, WcStatus::RemoteOperation);
            }
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
            assert_eq!(b.bytes(room, 100), [7; 100]);
        }
    });
}

#[test]
fn memory_that_went_away_before_execution() {
    over_all_paths(|net| {
        // The receive's.
        let (a, mut b) = net.pair();
        b.recv(1, &[b.sge(0, 100)]).unwrap();
        b.recv(2, &[]).unwrap();
        b.mr = None;
        a.post(3, SendOp::Send, &[a.sge(0, 50)]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::LocalProtection));
        assert_eq!(b.received_as(), (2, WcStatus::Flushed));
        if net.is_send_delivered() {
            assert_eq!(a.sent_as(), (3, WcStatus::RemoteOperation));
        }
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));

        // The target's of an RDMA read.
        let (a, mut b) = net.pair();
        let remote = b.remote(0);
        b.mr = None;
        a.post(1, read(remote, 8), &[a.sge(0, 8)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::RemoteAccess));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));

        // That of a request which waits behind reads.
        let mut attr = attr();
        attr.max_rd_out = 1;
        let (mut a, b) = net.pair_with(attr, super::attr());
        if net.is_loopback() {
            a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
            a.mr = None;
            b.recv(2, &[b.sge(0, 8)]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::LocalProtection));
            assert_eq!(b.received_as(), (2, WcStatus::Flushed));
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        }
    });
}

#[test]
fn a_read_without_any_depth() {
    over_all_paths(|net| {
        let mut none = attr();
        none.max_rd_in = 0;
        let (a, b) = net.pair_with(attr(), none);
        a.post(1, read(b.remote(0), 1), &[a.sge(0, 1)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::LocalQpOperation));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
    });
}

#[test]
fn keys_that_cannot_be_invalidated() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        b.recv(1, &[]).unwrap();
        let op = SendOp::SendInvalidate { rkey: b.key() ^ 1 };
        a.post(2, op, &[]).unwrap();
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        let c = b.received();
        assert_ne!(c.status, WcStatus::Success);
    });
}

/// Once a region is deregistered nothing reaches it, whatever is under way.
#[test]
fn deregistration_under_fire() {
    over_all_paths(|net| {
        let (a, mut b) = net.pair();
        let remote = b.remote(0);
        let writer = std::thread::spawn(move || {
            let mut n = 0;
            loop {
                a.fill(0, &[1; 4096]);
                let op = SendOp::RdmaWrite(remote);
                if a.post(n, op, &[a.sge(0, 4096)]).is_ok() {
                    n += 1;
                }
                while let Some(c) = a.send_cq.poll() {
                    if c.status != WcStatus::Success {
                        return a;
                    }
                }
                a.device.progress();
            }
        });
        until(|| b.bytes(0, 1) == [1]);
        b.mr = None;
        b.fill(0, &[0; 4096]);
        let a = writer.join().unwrap();
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        assert_eq!(b.bytes(0, 4096), [0; 4096]);
    });
}

/// What was found of a region at one post says nothing once a key has become invalid.
#[test]
fn regions_come_and_go() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let region = |end: &End, access| {
            let (at, len) = (end.buffer as u64, 64);
            end.device.reg_mr(&end.pd, at, len, access).unwrap()
        };
        let of = |mr: &Mr, sge: Sge| Sge {
            lkey: mr.lkey(),
            ..sge
        };
        let (other, into) = (region(&b, Access::all()), region(&b, Access::all()));
        let from = region(&a, Access::LOCAL_READ);
        a.fill(0, &pattern(64, 1));
        // Another key becomes invalid between the post and the message.
        b.recv(1, &[of(&into, b.sge(0, 64))]).unwrap();
        drop(other);
        a.post(2, SendOp::Send, &[of(&from, a.sge(0, 64))]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(b.bytes(0, 64), pattern(64, 1));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        // The region of the last post opens what is inside it, for what it was registered for.
        let send = |sge| a.post(3, SendOp::Send, &[of(&from, sge)]);
        assert_eq!(send(a.sge(1, 64)), Err(PostError::Bounds));
        assert_eq!(send(a.sge(64, 1)), Err(PostError::Bounds));
        let receive = a.recv(3, &[of(&from, a.sge(0, 64))]);
        assert_eq!(receive, Err(PostError::Access));
        b.recv(4, &[of(&into, b.sge(0, 64))]).unwrap();
        let gone = from.lkey();
        drop(from);
        let sge = Sge {
            lkey: gone,
            ..a.sge(0, 64)
        };
        assert_eq!(a.post(5, SendOp::Send, &[sge]), Err(PostError::Key));
        // The region of the receive.
        drop(into);
        a.post(6, SendOp::Send, &[a.sge(0, 64)]).unwrap();
        assert_eq!(b.received_as(), (4, WcStatus::LocalProtection));
        assert_eq!(b.event(), CmEvent::Broken);
    });
}
