//! RDMA writes to mapped memory that are no more than a copy.

use super::*;
use crate::device::PlainPost;
use crate::device::soft::transport::shm::mapped;
use crate::handle::pin;

/// Two connected ends whose memory is mapped by the other one, but for the parts of pages at its beginning and its
/// end; `None` where that is not possible here.
fn mapped_pair() -> Option<(Net, End, End)> {
    if let Err(why) = mapped::enable() {
        eprintln!("\nskipped: plain_writes: {why}");
        return None;
    }
    let net = Net::new("127.0.0.1 path=shm memory=eager");
    let (a, b) = net.pair();
    Some((net, a, b))
}

/// Posts a write the whole way; gives how it has ended.
fn written(a: &End, remote: Remote, segment: Sge) -> WcStatus {
    a.post(7, SendOp::RdmaWrite(remote), &[segment]).unwrap();
    a.sent().status
}

/// Makes an attempt.
fn attempted(a: &End, remote: Remote, segment: Sge) -> PlainPost {
    let guard = pin::pin();
    // SAFETY: this thread holds no lock.
    unsafe { a.qp.post_write_plainly(segment, remote, 9, &guard) }
}

/// What an attempt does right after one of a write that is permitted, `usual`, has done that; `None` where no thread
/// owns locks.
fn attempt(a: &End, usual: (Remote, Sge), remote: Remote, segment: Sge) -> Option<PlainPost> {
    // The engine's thread may take the locks away at any time.
    for _ in 0..10_000 {
        if attempted(a, usual.0, usual.1) == PlainPost::Posted {
            assert_eq!(a.sent().status, WcStatus::Success);
            let done = attempted(a, remote, segment);
            if done != PlainPost::Otherwise {
                return Some(done);
            }
        }
        assert_eq!(written(a, usual.0, usual.1), WcStatus::Success);
    }
    assert!(pin::fences_needed(), "no thread becomes the owner");
    None
}

#[test]
fn what_the_key_opens_is_written() {
    let Some((_net, a, b)) = mapped_pair() else {
        return;
    };
    let usual = (b.remote(8192), a.sge(0, 8));
    for len in [1, 8, 9, 16, 17, 100, 4096, 100_000] {
        let source: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        a.fill(1000, &source);
        b.fill(20_000, &vec![0; len + 1]);
        match attempt(&a, usual, b.remote(20_000), a.sge(1000, len)) {
            None => return,
            Some(done) => assert_eq!(done, PlainPost::Posted, "{len} bytes"),
        }
        assert_eq!(b.bytes(20_000, len), source);
        assert_eq!(b.bytes(20_000 + len, 1), [0]);
        let c = a.sent();
        assert_eq!(
            (c.wr_id, c.op, c.status, c.byte_len),
            (9, WcOp::RdmaWrite, WcStatus::Success, len as u32)
        );
    }
}

/// Each of them is left to the whole way, by which it ends as ever.
#[test]
fn nothing_else_is() {
    let Some((_net, a, mut b)) = mapped_pair() else {
        return;
    };
    let usual = (b.remote(8192), a.sge(0, 8));
    let not_here = |a: &End, remote: Remote, segment: Sge| {
        let done = attempt(a, usual, remote, segment);
        assert!(
            done.is_none_or(|done| done == PlainPost::NotHere),
            "{done:?}"
        );
        assert!(a.send_cq.poll().is_none());
    };
    a.fill(0, b"unwanted");
    b.fill(9000, b"original");
    let (to, from) = (b.remote(9000), a.sge(0, 8));
    not_here(
        &a,
        Remote {
            rkey: to.rkey ^ 1 << 20,
            ..to
        },
        from,
    );
    not_here(&a, Remote { rkey: 0, ..to }, from);
    not_here(&a, b.remote(BUFFER - 7), from);
    not_here(
        &a,
        Remote {
            addr: u64::MAX - 3,
            ..to
        },
        from,
    );
    not_here(
        &a,
        to,
        Sge {
            lkey: from.lkey ^ 1 << 20,
            ..from
        },
    );
    not_here(
        &a,
        to,
        Sge {
            addr: from.addr - 1,
            ..from
        },
    );
    not_here(&a, to, a.sge(0, 0));
    let (start, len) = (b.buffer as u64, BUFFER as u64);
    let readable = Access::LOCAL_READ | Access::REMOTE_READ;
    let only_read = b.device.reg_mr(&b.pd, start, len, readable).unwrap();
    not_here(
        &a,
        Remote {
            rkey: only_read.rkey(),
            ..to
        },
        from,
    );
    assert_eq!(b.bytes(9000, 8), b"original");
    // The usual ones need the first region.
    assert_eq!(written(&a, usual.0, usual.1), WcStatus::Success);
    b.mr = None;
    assert_ne!(attempted(&a, to, from), PlainPost::Posted);
    assert_eq!(b.bytes(9000, 8), b"original");
}

#[test]
fn none_is_written_after_the_end() {
    let Some((_net, a, b)) = mapped_pair() else {
        return;
    };
    let usual = (b.remote(8192), a.sge(0, 8));
    if attempt(&a, usual, usual.0, usual.1).is_none() {
        return;
    }
    assert_eq!(a.sent().status, WcStatus::Success);
    a.fill(0, b"unwanted");
    b.fill(8192, b"original");
    b.qp.disconnect(false);
    assert_eq!(b.event(), CmEvent::Disconnected);
    for _ in 0..1000 {
        assert_ne!(attempted(&a, usual.0, usual.1), PlainPost::Posted);
    }
    assert_eq!(b.bytes(8192, 8), b"original");
}
