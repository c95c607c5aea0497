//! Atomic operations: their memory, at both ends, and what a peer through shared memory can put into a
//! cell. What the operations do is in [`extended`](super::extended) and [`immediate`](super::immediate).

use super::extended::{add, over_extended_paths, write_imm};
use super::shm_peer::{connected, device, over};
use super::*;
use crate::device::soft::transport::shm::ring::{CellFlags, Kind, Producer};
use crate::test_pages::TestPages;

/// The additions of both ends, and of the program itself.
#[test]
fn no_addition_is_lost() {
    const TIMES: u64 = 2000;
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        let (c, d) = (
            End::new(&net.active, attr()),
            End::new(&net.passive, attr()),
        );
        net.join(&c, &d);
        // The word is in the memory of `b`, to which `d` has no right: so `c` adds through a region of
        // the protection domain of `d`.
        let (at, len) = (b.buffer as u64, b.len as u64);
        let region = d.device.reg_mr(&d.pd, at, len, Access::all()).unwrap();
        let through_d = Remote {
            addr: at,
            rkey: region.rkey(),
        };
        let add_all = |end: End, to: Remote| {
            for i in 0..TIMES {
                end.post(i, add(to, 1), &[end.sge(0, 8)]).unwrap();
                assert_eq!(end.sent_as(), (i, WcStatus::Success));
            }
        };
        let through_b = b.remote(0);
        std::thread::scope(|s| {
            s.spawn(move || add_all(a, through_b));
            s.spawn(move || add_all(c, through_d));
            // SAFETY: a word of the buffer, which lives as long, accessed atomically alone.
            let own = unsafe { std::sync::atomic::AtomicU64::from_ptr(b.buffer.cast()) };
            for _ in 0..TIMES {
                own.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(b.word(0), 3 * TIMES);
        drop(region);
    });
}

#[test]
fn posts_are_checked() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        let op = add(b.remote(0), 1);
        assert_eq!(a.post(1, op, &[a.sge(0, 7)]), Err(PostError::Length));
        assert_eq!(a.post(1, op, &[]), Err(PostError::Length));
        let (at, len) = (a.buffer as u64, a.len as u64);
        let readable = a.device.reg_mr(&a.pd, at, len, Access::LOCAL_READ).unwrap();
        let sge = Sge {
            lkey: readable.lkey(),
            ..a.sge(0, 8)
        };
        assert_eq!(a.post(1, op, &[sge]), Err(PostError::Access));
        a.post(1, op, &[a.sge(0, 8)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        drop(readable);
        // Without reads there are none.
        let none = QpAttr {
            max_rd_in: 0,
            max_rd_out: 0,
            ..attr()
        };
        let (a, b) = net.pair_with(none, none);
        a.post(2, add(b.remote(0), 1), &[a.sge(0, 8)]).unwrap();
        assert_eq!(a.sent_as(), (2, WcStatus::LocalQpOperation));
    });
}

/// Memory that is unmapped while it is registered: the request fails, and no process does.
#[test]
fn memory_that_is_not_there() {
    over_extended_paths(|net| {
        for target in [true, false] {
            let (a, b) = net.pair();
            let owner = if target { &b } else { &a };
            let page = TestPages::new(1);
            let (addr, len) = (page.addr(0), page.len() as u64);
            let mr = owner.device.reg_mr(&owner.pd, addr, len, Access::all());
            let mr = mr.unwrap();
            page.unmap(0..1);
            let key = mr.rkey();
            let there = if target {
                Remote { addr, rkey: key }
            } else {
                b.remote(0)
            };
            let here = if target {
                a.sge(0, 8)
            } else {
                Sge {
                    addr,
                    len: 8,
                    lkey: mr.lkey(),
                }
            };
            a.post(1, add(there, 1), &[here]).unwrap();
            let status = if target {
                WcStatus::RemoteAccess
            } else {
                WcStatus::LocalProtection
            };
            assert_eq!(a.sent_as(), (1, status));
            assert_eq!(a.event(), CmEvent::Broken);
        }
    });
}

#[test]
fn memory_of_the_result_that_went_away() {
    over_extended_paths(|net| {
        let (a, b) = net.pair();
        // The first one waits for its receive, so that the second is not executed when it is posted.
        a.post(1, write_imm(b.remote(0), 5), &[a.sge(0, 8)])
            .unwrap();
        let (at, len) = (a.buffer as u64, a.len as u64);
        let region = a.device.reg_mr(&a.pd, at, len, Access::all()).unwrap();
        let sge = Sge {
            lkey: region.lkey(),
            ..a.sge(0, 8)
        };
        if net.is_loopback() {
            a.post(2, add(b.remote(0), 1), &[sge]).unwrap();
            drop(region);
            b.recv(9, &[]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            assert_eq!(a.sent_as(), (2, WcStatus::LocalProtection));
            assert_eq!(a.event(), CmEvent::Broken);
        }
    });
}

/// An operation that waits for its response when the connection ends is flushed.
#[test]
fn operations_that_are_under_way_at_the_end() {
    let net = Net::new("127.0.0.1 path=shm");
    let (a, b) = net.pair();
    // In front of it is a message for which there is no receive.
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    assert_eq!(a.sent_as(), (1, WcStatus::Success));
    a.post(2, add(b.remote(0), 1), &[a.sge(0, 8)]).unwrap();
    a.post(3, add(b.remote(0), 1), &[a.sge(0, 8)]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(a.send_cq.poll(), None);
    a.qp.disconnect(false);
    assert_eq!(a.sent_as(), (2, WcStatus::Flushed));
    assert_eq!(a.sent_as(), (3, WcStatus::Flushed));
    assert_eq!(a.event(), CmEvent::Disconnected);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// What a peer through shared memory puts into a cell ends the connection.
fn refused(kind: Kind, flags: CellFlags, bytes: &[u8]) {
    let (peer, b) = connected(&device());
    b.recv(9, &[b.sge(0, 64)]).unwrap();
    let fill = |to: *mut u8| {
        // SAFETY: a cell has more room.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len()) };
        Ok::<_, ()>(())
    };
    let ring = peer.segment.tx_ring();
    Producer::default()
        .push(ring, kind, flags, bytes.len(), fill)
        .unwrap();
    peer.send(b"!");
    over(&b);
    assert_eq!(
        b.received_as(),
        (9, WcStatus::Flushed),
        "{kind:?} {flags:?}"
    );
}

#[test]
fn cells_that_are_no_operation_end_the_connection() {
    let last = CellFlags::LAST;
    let no_such_operation = [[1u64, 2, 3, 4].map(u64::to_ne_bytes), [[0; 8]; 4]];
    for words in no_such_operation {
        refused(Kind::Atomic, last, words.as_flattened());
    }
    for (kind, flags, len) in [
        (Kind::Atomic, last, 24),
        (Kind::Atomic, CellFlags::empty(), 32),
        (Kind::Atomic, last | CellFlags::SOLICITED, 32),
        (Kind::Immediate, last, 4),
        (Kind::Immediate, CellFlags::empty(), 8),
    ] {
        refused(kind, flags, &[0; 32][..len]);
    }
}
