//! Shared receive queues, and queue pairs that are modified.

use super::raw::{Raw, initiate, rtr, send_header};
use super::*;

/// Counts the calls of a shared receive queue.
#[derive(Default)]
struct Limits(AtomicU32);

impl SrqHandler for Limits {
    fn limit(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn failed(&self) {
        unreachable!("no queue of this device fails");
    }
}

/// A shared receive queue and memory for it, in a domain of their own.
struct Pool {
    srq: Arc<Srq>,
    limits: Arc<Limits>,
    /// Lends its domain and its memory.
    memory: End,
}

impl Pool {
    fn new(device: &Arc<Soft>, room: u32) -> Pool {
        let memory = End::new(device, attr());
        let limits = Arc::<Limits>::default();
        let srq = device
            .create_srq(&memory.pd, room, 2, limits.clone())
            .unwrap();
        Pool {
            srq,
            limits,
            memory,
        }
    }

    /// An end that takes its buffers here.
    fn end(&self) -> End {
        End::with_srq(&self.memory.device, attr(), Some(&self.srq))
    }

    fn recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let flags = WrFlags::empty();
        self.srq.post_recv(&RecvWr { wr_id, sges, flags })
    }

    /// Posts buffer number `n`, of 100 bytes.
    fn post(&self, n: u64) {
        let sge = self.memory.sge(n as usize * 100, 100);
        self.recv(n, &[sge]).unwrap();
    }

    fn bytes(&self, n: u64, len: usize) -> Vec<u8> {
        self.memory.bytes(n as usize * 100, len)
    }

    fn limits(&self) -> u32 {
        self.limits.0.load(Ordering::SeqCst)
    }
}

/// Sends one byte.
fn say(end: &End, byte: u8) {
    let at = usize::from(byte);
    end.fill(at, &[byte]);
    end.post(at as u64, SendOp::Send, &[end.sge(at, 1)])
        .unwrap();
}

/// Immediate data takes one buffer, in which nothing is placed.
#[test]
fn buffers_are_for_immediate_data() {
    over_all_paths(|net| {
        if !net.has_extensions() {
            return;
        }
        let pool = Pool::new(&net.passive, 8);
        let (a, b) = (End::new(&net.active, attr()), pool.end());
        net.join(&a, &b);
        let (remote, imm) = (b.remote(0), 5);
        a.fill(0, b"written!");
        a.post(1, SendOp::RdmaWriteImm { remote, imm }, &[a.sge(0, 8)])
            .unwrap();
        say(&a, 10);
        (0..3).for_each(|n| pool.post(n));
        let c = b.received();
        assert_eq!(
            (c.wr_id, c.op, c.status, c.byte_len),
            (0, WcOp::RecvRdmaImm { imm }, WcStatus::Success, 8)
        );
        assert!(c.from_srq);
        assert_eq!(b.bytes(0, 8), b"written!");
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!((pool.bytes(0, 1), pool.bytes(1, 1)), (vec![0], vec![10]));
        assert_eq!(pool.srq.available(), Some(1));
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (10, WcStatus::Success));
    });
}

#[test]
fn buffers_are_for_any_connection() {
    over_all_paths(|net| {
        let pool = Pool::new(&net.passive, 8);
        let (b1, b2) = (pool.end(), pool.end());
        let (a1, a2) = (End::new(&net.active, attr()), End::new(&net.active, attr()));
        net.join(&a1, &b1);
        net.join(&a2, &b2);
        (0..4).for_each(|n| pool.post(n));
        assert_eq!(pool.srq.available(), Some(4));
        for (n, (a, b)) in [(&a1, &b1), (&a2, &b2), (&a2, &b2)].into_iter().enumerate() {
            let n = n as u64;
            say(a, 10 + n as u8);
            let c = b.received();
            assert_eq!(
                (c.wr_id, c.op, c.status),
                (n, WcOp::Recv, WcStatus::Success)
            );
            assert!(c.from_srq);
            assert_eq!(pool.bytes(n, 1), [10 + n as u8]);
            assert!(!a.sent().from_srq);
            assert_eq!(pool.srq.available(), Some(3 - n as u32));
            assert_eq!(b.qp.recv_outstanding(), 0);
        }
        // The other way there is nothing shared.
        a1.recv(1, &[]).unwrap();
        b1.post(2, SendOp::Send, &[]).unwrap();
        assert!(!a1.received().from_srq);
        // It takes no receives of its own.
        assert!(b1.recv(3, &[]).is_err());
        // What was not taken stays.
        b1.qp.disconnect(false);
        assert_eq!(b1.event(), CmEvent::Disconnected);
        assert_eq!(pool.srq.available(), Some(1));
        b1.qp.reset();
        net.join(&End::new(&net.active, attr()), &b1);
        assert_eq!(pool.srq.available(), Some(1));
        (1..5).for_each(|n| pool.post(n));
        b1.idle();
    });
}

#[test]
fn those_who_wait_have_their_turns() {
    over_all_paths(|net| {
        let pool = Pool::new(&net.passive, 8);
        let ends: Vec<(End, End)> = (0..3)
            .map(|_| (End::new(&net.active, attr()), pool.end()))
            .collect();
        for (n, (a, b)) in ends.iter().enumerate() {
            net.join(a, b);
            // Two messages each; the first gets in line.
            say(a, 20);
            say(a, 21);
            until(|| pool.srq.waiting() == n + 1);
        }
        for round in 0..2 {
            for (n, (_, b)) in ends.iter().enumerate() {
                let id = (round * 3 + n) as u64;
                pool.post(id);
                assert_eq!(b.received_as(), (id, WcStatus::Success));
                assert_eq!(pool.bytes(id, 1), [20 + round as u8]);
                ends.iter()
                    .for_each(|(_, b)| assert_eq!(b.recv_cq.poll(), None));
            }
        }
        assert_eq!((pool.srq.waiting(), pool.srq.available()), (0, Some(0)));
        // Who is in line and goes leaves no gap.
        say(&ends[0].0, 30);
        until(|| pool.srq.waiting() == 1);
        say(&ends[1].0, 31);
        until(|| pool.srq.waiting() == 2);
        ends[0].1.qp.destroy();
        assert_eq!(pool.srq.waiting(), 1);
        pool.post(7);
        assert_eq!(ends[1].1.received_as(), (7, WcStatus::Success));
        assert_eq!(pool.bytes(7, 1), [31]);
    });
}

/// Many connections, few buffers, two threads that post them: all arrives, in order.
#[test]
fn few_buffers_for_many() {
    const MESSAGES: u8 = 30;
    over_all_paths(|net| {
        let pool = Pool::new(&net.passive, 8);
        let ends: Vec<(End, End)> = (0..4)
            .map(|_| (End::new(&net.active, attr()), pool.end()))
            .collect();
        ends.iter().for_each(|(a, b)| net.join(a, b));
        (0..3).for_each(|n| pool.post(n));
        let (senders, receivers): (Vec<_>, Vec<_>) =
            ends.iter().map(|(a, b)| (Borrowed(a), Borrowed(b))).unzip();
        let pool = &Borrowed(&pool);
        std::thread::scope(|scope| {
            for pair in senders.chunks(2) {
                scope.spawn(move || {
                    for byte in 0..MESSAGES {
                        for a in pair {
                            say(a.get(), byte);
                        }
                        for a in pair {
                            assert_eq!(a.get().sent_as(), (byte.into(), WcStatus::Success));
                        }
                    }
                });
            }
            for pair in receivers.chunks(2) {
                scope.spawn(move || {
                    let pool = pool.get();
                    let mut next = [0; 2];
                    while next != [MESSAGES; 2] {
                        for (b, next) in pair.iter().zip(&mut next) {
                            let b = b.get();
                            let Some(c) = b.recv_cq.poll() else {
                                b.device.progress();
                                std::thread::yield_now();
                                continue;
                            };
                            assert_eq!(c.status, WcStatus::Success);
                            assert_eq!(pool.bytes(c.wr_id, 1), [*next]);
                            *next += 1;
                            pool.post(c.wr_id);
                        }
                    }
                });
            }
        });
        let pool = pool.get();
        assert_eq!((pool.srq.waiting(), pool.srq.available()), (0, Some(3)));
    });
}

/// Something that other threads use for a while.
struct Borrowed<'a, T>(&'a T);

// SAFETY: what the threads use of it at the same time is the device's, which is made for that;
// the rest each thread has for itself.
unsafe impl<T> Send for Borrowed<'_, T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Borrowed<'_, T> {}

impl<T> Borrowed<'_, T> {
    fn get(&self) -> &T {
        self.0
    }
}

#[test]
fn the_limit_is_told_once() {
    over_all_paths(|net| {
        let pool = Pool::new(&net.passive, 8);
        let (a, b) = (End::new(&net.active, attr()), pool.end());
        net.join(&a, &b);
        (0..4).for_each(|n| pool.post(n));
        let take = || {
            say(&a, 1);
            assert_eq!(b.received().status, WcStatus::Success);
        };
        pool.srq.arm_limit(3).unwrap();
        take();
        assert_eq!(pool.limits(), 0);
        take();
        until(|| pool.limits() == 1);
        take();
        assert_eq!(pool.limits(), 1);
        // At once, and taken back.
        pool.srq.arm_limit(2).unwrap();
        assert_eq!(pool.limits(), 2);
        pool.srq.arm_limit(1).unwrap();
        pool.srq.arm_limit(0).unwrap();
        take();
        assert_eq!((pool.limits(), pool.srq.available()), (2, Some(0)));
    });
}

#[test]
fn marks_on_what_one_queue_pair_takes() {
    over_all_paths(|net| {
        let pool = Pool::new(&net.passive, 8);
        let (a, b) = (End::new(&net.active, attr()), pool.end());
        let none = a.qp.set_recv_watermarks(Some(1), None);
        assert_eq!(none, Err(DeviceError::Unsupported));
        b.qp.set_recv_watermarks(Some(0), Some(1)).unwrap();
        net.join(&a, &b);
        (0..4).for_each(|n| pool.post(n));
        for n in 0..2u8 {
            say(&a, n);
            assert_eq!(b.received_as(), (n.into(), WcStatus::Success));
            // Once for each setting.
            until(|| b.soft_marks.load(Ordering::SeqCst) == 1);
        }
        b.qp.set_recv_watermarks(None, Some(0)).unwrap();
        b.no_event();
        say(&a, 2);
        assert_eq!(b.received_as(), (2, WcStatus::Flushed));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        assert_eq!(b.soft_marks.load(Ordering::SeqCst), 1);
        assert_eq!(pool.srq.available(), Some(1));
    });
}

/// A pool with two buffers, an end that takes them, and the peer that it is connected to.
fn with_two_buffers() -> (Pool, End, Raw) {
    let pool = Pool::new(&raw::device(), 4);
    let b = pool.end();
    let mut raw = initiate(&b, 2);
    (0..2).for_each(|n| pool.post(n));
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    (pool, b, raw)
}

/// A message that has arrived in part has its buffer.
#[test]
fn the_buffer_of_half_a_message() {
    for end_by_mark in [false, true] {
        let (pool, b, mut raw) = with_two_buffers();
        raw.fpdu(&send_header(1, 0, false, 3), b"one");
        until(|| b.qp.recv_outstanding() == 1);
        assert_eq!(pool.srq.available(), Some(1));
        let event = if end_by_mark {
            b.qp.set_recv_watermarks(Some(0), Some(1)).unwrap();
            assert_eq!(b.soft_marks.load(Ordering::SeqCst), 1);
            b.no_event();
            b.qp.set_recv_watermarks(None, Some(0)).unwrap();
            CmEvent::Broken
        } else {
            drop(raw);
            CmEvent::Disconnected
        };
        assert_eq!(b.event(), event);
        let c = b.received();
        assert_eq!((c.wr_id, c.status), (0, WcStatus::Flushed));
        assert!(c.from_srq);
        assert_eq!(
            (b.qp.recv_outstanding(), pool.srq.available()),
            (0, Some(1))
        );
        b.idle();
    }
}

/// It has gone with its queue pair, for who counts the buffers.
#[test]
fn the_buffer_of_half_a_message_is_destroyed() {
    let (pool, b, mut raw) = with_two_buffers();
    raw.fpdu(&send_header(1, 0, true, 3), b"one");
    raw.fpdu(&send_header(2, 0, false, 3), b"two");
    until(|| b.qp.recv_outstanding() == 1 && pool.srq.available() == Some(0));
    // The completion of the whole message, and what there is of the other.
    assert_eq!(b.qp.destroy(), 2);
    assert_eq!(b.recv_cq.poll(), None);
}

#[test]
fn buffers_are_checked_twice() {
    over_all_paths(|net| {
        let mut pool = Pool::new(&net.passive, 2);
        let memory = &pool.memory;
        let elsewhere = End::new(&net.passive, attr());
        let readable = memory
            .device
            .reg_mr(&memory.pd, memory.buffer as u64, 10, Access::LOCAL_READ)
            .unwrap();
        let sge = memory.sge(0, 5);
        let lkey = readable.lkey();
        let refused = [
            (vec![Sge { lkey, ..sge }], PostError::Access),
            (vec![Sge { lkey: 0, ..sge }], PostError::Key),
            (vec![memory.sge(BUFFER - 1, 2)], PostError::Bounds),
            (vec![elsewhere.sge(0, 1)], PostError::Protection),
            (vec![sge; 3], PostError::TooManySegments),
        ];
        for (sges, error) in refused {
            assert_eq!(pool.recv(1, &sges), Err(error));
        }
        pool.recv(1, &[sge, memory.sge(50, 5)]).unwrap();
        pool.post(2);
        assert_eq!(pool.recv(3, &[]), Err(PostError::QueueFull));

        let (a, b) = (End::new(&net.active, attr()), pool.end());
        net.join(&a, &b);
        a.fill(0, b"hello world");
        a.post(4, SendOp::Send, &[a.sge(0, 10)]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(pool.memory.bytes(0, 5), b"hello");
        assert_eq!(pool.memory.bytes(50, 5), b" worl");
        pool.memory.mr = None;
        a.post(5, SendOp::Send, &[a.sge(0, 10)]).unwrap();
        assert_eq!(b.received_as(), (2, WcStatus::LocalProtection));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
    });
}

#[test]
fn the_size_of_a_shared_queue() {
    let device = Soft::open("127.0.0.1").unwrap();
    let pool = Pool::new(&device, 2);
    (0..2).for_each(|n| pool.post(n));
    assert_eq!(pool.recv(2, &[]), Err(PostError::QueueFull));
    pool.srq.resize(3).unwrap();
    pool.post(2);
    assert_eq!(pool.srq.resize(2), Err(DeviceError::Limit));
    assert_eq!(pool.srq.available(), Some(3));
    let (max, sge) = (device.attr().max_srq_wr, device.attr().max_sge);
    assert_eq!(pool.srq.resize(max), Ok(()));
    assert_eq!(pool.srq.resize(max + 1), Err(DeviceError::Limit));
    let make = |wr, sge| {
        let limits = Arc::<Limits>::default();
        let srq = device.create_srq(&pool.memory.pd, wr, sge, limits);
        srq.map(|_| ())
    };
    assert_eq!(make(max, sge), Ok(()));
    assert_eq!(make(max + 1, sge), Err(DeviceError::Limit));
    assert_eq!(make(max, sge + 1), Err(DeviceError::Limit));
}

/// The parts and the attributes change; the receives that are posted stay.
#[test]
fn a_queue_pair_that_is_modified() {
    over_all_paths(|net| {
        let (a, b) = (
            End::new(&net.active, attr()),
            End::new(&net.passive, attr()),
        );
        let other = End::new(&net.passive, attr());
        let mut new = QpAttr {
            max_recv_wr: 2,
            max_recv_sge: 1,
            max_send_wr: 1,
            ..attr()
        };
        b.recv(1, &[b.sge(0, 10)]).unwrap();
        b.recv(2, &[b.sge(0, 10)]).unwrap();
        let modify = |attr: &QpAttr| {
            let parts = QpParts {
                pd: &other.pd,
                send_cq: Some(&other.send_cq),
                recv_cq: Some(&other.recv_cq),
                srq: None,
            };
            b.device.modify_qp(&b.qp, &parts, attr)
        };
        for wrong in [
            QpAttr {
                max_recv_wr: 1,
                ..new
            },
            QpAttr {
                max_recv_sge: 0,
                ..new
            },
            QpAttr {
                max_send_wr: u32::MAX,
                ..new
            },
        ] {
            assert_eq!(modify(&wrong), Err(DeviceError::Limit));
        }
        assert_eq!(b.recv(3, &[b.sge(0, 1); 2]), Ok(()));
        assert_eq!(modify(&new), Err(DeviceError::Limit));
        (new.max_recv_wr, new.max_recv_sge) = (4, 2);
        modify(&new).unwrap();
        assert_eq!(b.qp.recv_outstanding(), 3);
        // The domain is the new one.
        assert_eq!(b.recv(4, &[b.sge(0, 1)]), Err(PostError::Protection));
        b.recv(4, &[other.sge(0, 1)]).unwrap();
        assert_eq!(b.recv(5, &[]), Err(PostError::QueueFull));
        net.join(&a, &b);
        assert_eq!(modify(&new), Err(DeviceError::Unsupported));
        b.post(6, SendOp::Send, &[]).unwrap();
        a.recv(7, &[]).unwrap();
        assert_eq!(a.received_as(), (7, WcStatus::Success));
        assert_eq!(wait(&other.device, &other.send_cq).wr_id, 6);
        // Memory of the old domain is not for the new connection.
        a.post(8, SendOp::Send, &[a.sge(0, 1)]).unwrap();
        let c = wait(&other.device, &other.recv_cq);
        assert_eq!((c.wr_id, c.status), (1, WcStatus::LocalProtection));
        b.idle();
    });
}
