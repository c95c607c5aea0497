//! Memory windows.

use super::raw::{self, responder, send_header, tagged};
use super::*;
use crate::device::WindowOpening;
use crate::device::soft::Mw;
use crate::device::soft::iwarp::acknowledge::{ACKNOWLEDGE_FPDU_MAX, Acknowledge};
use crate::device::soft::iwarp::mpa::Local;
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::wire::OP_READ_RESPONSE;
use crate::device::soft::mem::key_table::{self, Fault};
use crate::device::soft::mem::scope::Scope;
use crate::device::soft::mem::window;
use crate::handle::pin;

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const CONTEXT: u64 = 77;

fn window(end: &End) -> Arc<Mw> {
    end.device.alloc_mw(&end.pd, WindowScope::Domain).unwrap()
}

/// Binds `len` bytes of the buffer of `end` at `offset`.
fn bind(end: &End, window: &Arc<Mw>, offset: usize, len: usize, access: Access) -> u32 {
    post_bind(end, window, end.mr.as_ref(), (offset, len), access).unwrap()
}

fn post_bind(
    end: &End,
    window: &Arc<Mw>,
    region: Option<&Mr>,
    (offset, len): (usize, usize),
    access: Access,
) -> Result<u32, PostError> {
    let wr = BindWr {
        wr_id: 50,
        context: CONTEXT,
        window,
        region,
        addr: end.buffer as u64 + offset as u64,
        len: len as u64,
        addressing: Addressing::Virtual,
        access,
        flags: WrFlags::empty(),
    };
    Soft::post_bind(&end.qp, &wr)
}

/// The completion of a bind.
fn bound(end: &End) -> WcStatus {
    let c = end.sent();
    assert_eq!((c.wr_id, c.op), (50, WcOp::Bind { context: CONTEXT }));
    assert!(!c.from_srq);
    c.status
}

fn at(end: &End, offset: usize, rkey: u32) -> Remote {
    Remote {
        rkey,
        ..end.remote(offset)
    }
}

/// What the table says about a byte of the buffer.
fn opens(end: &End, rkey: u32, offset: usize, need: Access) -> Result<(), Fault> {
    let addr = end.buffer as u64 + offset as u64;
    key_table::check(rkey, Scope::of_pd(end.pd.id), addr, 1, need, &pin::pin())
}

#[test]
fn peers_use_a_window_under_its_own_key() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let w = window(&b);
        let key = bind(&b, &w, 100, 50, BOTH);
        assert_ne!(key, b.key());
        assert_eq!(bound(&b), WcStatus::Success);
        a.fill(0, &[5; 50]);
        a.post(1, SendOp::RdmaWrite(at(&b, 100, key)), &[a.sge(0, 50)])
            .unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        let op = SendOp::RdmaRead {
            remote: at(&b, 149, key),
            len: 1,
        };
        a.post(2, op, &[a.sge(200, 1)]).unwrap();
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        assert_eq!(a.bytes(200, 1), [5]);
        assert_eq!(b.bytes(99, 52), [&[0][..], &[5; 50], &[0]].concat());
        // It is no local key.
        let sge = Sge {
            lkey: key,
            ..b.sge(100, 1)
        };
        assert_eq!(b.post(3, SendOp::Send, &[sge]), Err(PostError::Access));
    });
}

#[test]
fn a_window_has_bounds_rights_and_a_domain() {
    over_all_paths(|net| {
        for case in 0..4 {
            let (a, b) = net.pair();
            let access = match case {
                0 => Access::REMOTE_WRITE | Access::LOCAL_READ,
                _ => BOTH,
            };
            let w = match case {
                1 => b
                    .device
                    .alloc_mw(&b.device.alloc_pd().unwrap(), WindowScope::Domain)
                    .unwrap(),
                _ => window(&b),
            };
            let key = bind(&b, &w, 100, 50, access);
            assert_eq!(bound(&b), WcStatus::Success);
            let from = [100, 100, 99, 150][case];
            let remote = at(&b, from, key);
            let op = SendOp::RdmaRead { remote, len: 1 };
            a.post(1, op, &[a.sge(0, 1)]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::RemoteAccess), "{case}");
            assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        }
    });
}

/// A peer closes a window by its key, and only a window: the key of a region stays.
#[test]
fn a_key_can_be_invalidated() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let w = window(&b);
        assert_eq!(w.opening(), WindowOpening::Open(0));
        let rkey = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(w.opening(), WindowOpening::Open(rkey));
        b.recv(1, &[]).unwrap();
        a.post(2, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        let c = b.received();
        assert_eq!(c.op, WcOp::RecvInvalidate { rkey });
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        assert_eq!(w.opening(), WindowOpening::Open(0));
        assert_eq!(opens(&b, rkey, 5, BOTH), Err(Fault::Access));
        let (rkey, all) = (b.key(), Access::REMOTE_READ);
        b.recv(3, &[]).unwrap();
        a.post(4, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        assert_ne!(b.received().status, WcStatus::Success);
        assert_eq!(opens(&b, rkey, 5, all), Ok(()));
    });
}

/// Nor to a peer that finds the key itself.
#[test]
fn an_invalidated_key_opens_nothing() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let w = window(&b);
        let rkey = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        let remote = at(&b, 0, rkey);
        let read = SendOp::RdmaRead { remote, len: 10 };
        a.post(1, read, &[a.sge(0, 10)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        b.recv(2, &[]).unwrap();
        a.post(3, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        assert_eq!(b.received_as(), (2, WcStatus::Success));
        assert_eq!(a.sent_as(), (3, WcStatus::Success));
        a.post(4, read, &[a.sge(0, 10)]).unwrap();
        assert_eq!(a.sent_as(), (4, WcStatus::RemoteAccess));
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
    });
}

/// What is shut already cannot be invalidated: the peer has lost count of its keys.
#[test]
fn a_key_is_invalidated_once() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let w = window(&b);
        let rkey = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        for id in [1, 2] {
            b.recv(id, &[]).unwrap();
        }
        a.post(3, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (3, WcStatus::Success));
        a.post(4, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        assert_eq!((a.event(), b.event()), (CmEvent::Broken, CmEvent::Broken));
        assert_ne!(b.received().status, WcStatus::Success);
    });
}

#[test]
fn every_bind_gives_a_new_key() {
    over_all_paths(|net| {
        let (_a, b) = net.pair();
        let w = window(&b);
        let first = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(opens(&b, first, 5, BOTH), Ok(()));
        let second = bind(&b, &w, 10, 10, Access::REMOTE_READ);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_ne!(first, second);
        assert_eq!(opens(&b, first, 5, BOTH), Err(Fault::Key));
        assert_eq!(opens(&b, second, 15, Access::REMOTE_READ), Ok(()));
        assert_eq!(
            opens(&b, second, 5, Access::REMOTE_READ),
            Err(Fault::Bounds)
        );
        let none = post_bind(&b, &w, None, (0, 0), BOTH).unwrap();
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(opens(&b, second, 15, Access::REMOTE_READ), Err(Fault::Key));
        assert_eq!(none, 0);
        // Keys are used again, later than anybody remembers them, and never run out.
        for _ in 0..3000 {
            let key = bind(&b, &w, 0, 10, BOTH);
            assert_eq!(bound(&b), WcStatus::Success);
            assert_eq!(opens(&b, key, 0, BOTH), Ok(()));
        }
    });
}

#[test]
fn what_ends_a_window() {
    over_all_paths(|net| {
        let (a, mut b) = net.pair();
        // Its own close, for good.
        let w = window(&b);
        let key = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        w.close();
        assert_eq!(opens(&b, key, 0, BOTH), Err(Fault::Key));
        let key = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(opens(&b, key, 0, BOTH), Err(Fault::Key));
        // Its drop.
        let w = window(&b);
        let key = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(opens(&b, key, 0, BOTH), Ok(()));
        drop(w);
        assert_eq!(opens(&b, key, 0, BOTH), Err(Fault::Key));
        // A peer that takes the key away.
        let w = window(&b);
        let rkey = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        b.recv(1, &[]).unwrap();
        a.post(2, SendOp::SendInvalidate { rkey }, &[]).unwrap();
        assert_eq!(b.received().op, WcOp::RecvInvalidate { rkey });
        assert_eq!(opens(&b, rkey, 0, Access::REMOTE_READ), Err(Fault::Access));
        assert_eq!(opens(&b, rkey, 0, Access::REMOTE_WRITE), Err(Fault::Access));
        // The window can be bound again, and the region is as it was.
        let key = bind(&b, &w, 0, 10, BOTH);
        assert_eq!(bound(&b), WcStatus::Success);
        assert_eq!(opens(&b, key, 0, BOTH), Ok(()));
        assert_eq!(opens(&b, b.key(), 0, BOTH), Ok(()));
        // The end of the region, whatever takes its place.
        b.mr = None;
        assert_eq!(opens(&b, key, 0, BOTH), Err(Fault::Key));
    });
}

/// A peer that gets the key with the next message can use it, whichever thread polls completions.
#[test]
fn requests_after_a_bind_wait_for_it() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let w = window(&b);
        for round in 0..20u8 {
            a.recv(1, &[]).unwrap();
            let key = bind(&b, &w, 0, 10, BOTH);
            b.post(2, SendOp::Send, &[]).unwrap();
            assert_eq!(a.received_as(), (1, WcStatus::Success));
            a.fill(0, &[round; 10]);
            a.post(3, SendOp::RdmaWrite(at(&b, 0, key)), &[a.sge(0, 10)])
                .unwrap();
            let op = SendOp::RdmaRead {
                remote: at(&b, 0, key),
                len: 10,
            };
            a.post(4, op, &[a.sge(20, 10)]).unwrap();
            assert_eq!(a.sent_as(), (3, WcStatus::Success));
            assert_eq!(a.sent_as(), (4, WcStatus::Success));
            assert_eq!(a.bytes(20, 10), [round; 10]);
            assert_eq!(bound(&b), WcStatus::Success);
            assert_eq!(b.sent_as(), (2, WcStatus::Success));
        }
    });
}

/// The bind is behind a read that is never answered.
#[test]
fn a_bind_waits_its_turn_and_changes_nothing_if_it_is_flushed() {
    let (mut raw, a) = responder();
    let w = window(&a);
    let first = bind(&a, &w, 0, 10, BOTH);
    assert_eq!(bound(&a), WcStatus::Success);
    let op = SendOp::RdmaRead {
        remote: at(&a, 0, 1),
        len: 8,
    };
    a.post(1, op, &[a.sge(0, 8)]).unwrap();
    let second = bind(&a, &w, 10, 10, BOTH);
    // Something of the peer is served meanwhile.
    a.recv(2, &[]).unwrap();
    raw.fpdu(&send_header(1, 0, true, 0), b"");
    assert_eq!(a.received_as(), (2, WcStatus::Success));
    assert_eq!(opens(&a, first, 5, BOTH), Ok(()));
    assert_eq!(opens(&a, second, 15, BOTH), Err(Fault::Key));
    drop(raw);
    assert_eq!(a.sent_as(), (1, WcStatus::Flushed));
    assert_eq!(bound(&a), WcStatus::Flushed);
    // And one that is posted too late.
    let third = bind(&a, &w, 10, 10, BOTH);
    assert_eq!(bound(&a), WcStatus::Flushed);
    assert_eq!(opens(&a, first, 5, BOTH), Ok(()));
    assert_eq!(opens(&a, second, 15, BOTH), Err(Fault::Key));
    assert_eq!(opens(&a, third, 15, BOTH), Err(Fault::Key));
}

/// It is behind the end that the consumer has asked for, which waits for the read.
#[test]
fn a_bind_behind_a_graceful_end_is_flushed() {
    let (mut raw, a) = responder();
    let w = window(&a);
    let remote = at(&a, 0, 1);
    a.post(1, SendOp::RdmaRead { remote, len: 0 }, &[]).unwrap();
    a.qp.disconnect(true);
    let key = bind(&a, &w, 0, 10, BOTH);
    raw.segment().unwrap();
    raw.fpdu(&tagged(OP_READ_RESPONSE, 0, 0, 0), b"");
    assert_eq!(a.sent_as(), (1, WcStatus::Success));
    assert!(raw.segment().is_none());
    drop(raw);
    assert_eq!(a.event(), CmEvent::Disconnected);
    assert_eq!(bound(&a), WcStatus::Flushed);
    assert_eq!(opens(&a, key, 5, BOTH), Err(Fault::Key));
}

/// Peers know nothing of binds: acknowledgements are of the requests that were sent.
#[test]
fn a_peer_acknowledges_what_is_behind_a_bind() {
    let local = Local {
        acknowledge: true,
        ..raw::LOCAL
    };
    let (mut raw, b) = raw::initiator_of(&local);
    let w = window(&b);
    bind(&b, &w, 0, 10, BOTH);
    assert_eq!(bound(&b), WcStatus::Success);
    b.post(1, SendOp::RdmaWrite(at(&b, 0, 1)), &[b.sge(0, 8)])
        .unwrap();
    raw.segment().unwrap();
    let mut bytes = [0; ACKNOWLEDGE_FPDU_MAX];
    let (count, note) = (1, None);
    raw.send(Acknowledge { count, note }.encode(1, true, &mut bytes));
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
}

#[test]
fn a_region_that_is_gone_cannot_be_bound() {
    let (mut raw, mut a) = responder();
    let w = window(&a);
    let op = SendOp::RdmaRead {
        remote: at(&a, 0, 1),
        len: 0,
    };
    a.post(1, op, &[]).unwrap();
    let key = bind(&a, &w, 0, 10, BOTH);
    a.mr = None;
    let (segment, _) = raw.segment().unwrap();
    assert!(matches!(segment, Segment::ReadRequest { msn: 1 }));
    raw.fpdu(&tagged(OP_READ_RESPONSE, 0, 0, 0), b"");
    assert_eq!(a.sent_as(), (1, WcStatus::Success));
    assert_eq!(bound(&a), WcStatus::BindFailed);
    assert_eq!(a.event(), CmEvent::Broken);
    assert_eq!(opens(&a, key, 0, BOTH), Err(Fault::Key));
}

#[test]
fn a_bind_needs_a_connection_and_room() {
    over_all_paths(|net| {
        let idle = End::new(&net.active, attr());
        let w = window(&idle);
        let refused = post_bind(&idle, &w, idle.mr.as_ref(), (0, 1), BOTH);
        assert_eq!(refused, Err(PostError::NotConnected));
        if net.is_loopback() {
            // Behind a message that waits for its receive.
            let (a, b) = net.pair();
            let w = window(&a);
            a.post(1, SendOp::Send, &[]).unwrap();
            let keys: Vec<u32> = (0..15).map(|_| bind(&a, &w, 0, 10, BOTH)).collect();
            let refused = post_bind(&a, &w, a.mr.as_ref(), (0, 10), BOTH);
            assert_eq!(refused, Err(PostError::QueueFull));
            assert!(keys.iter().all(|key| opens(&a, *key, 0, BOTH).is_err()));
            b.recv(2, &[]).unwrap();
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            (0..15).for_each(|_| assert_eq!(bound(&a), WcStatus::Success));
            assert_eq!(opens(&a, keys[14], 0, BOTH), Ok(()));
            assert!(
                keys[..14]
                    .iter()
                    .all(|key| opens(&a, *key, 0, BOTH).is_err())
            );
        }
    });
}

#[test]
fn as_many_windows_as_promised() {
    let device = Soft::open("127.0.0.1").unwrap();
    assert_eq!(device.attr().max_mw, window::MAX_MW);
    let pd = device.alloc_pd().unwrap();
    let all: Vec<_> = (0..window::MAX_MW)
        .map(|_| device.alloc_mw(&pd, WindowScope::Domain).unwrap())
        .collect();
    assert!(matches!(
        device.alloc_mw(&pd, WindowScope::Domain),
        Err(DeviceError::Resources)
    ));
    drop(all);
    assert!(device.alloc_mw(&pd, WindowScope::Domain).is_ok());
}
