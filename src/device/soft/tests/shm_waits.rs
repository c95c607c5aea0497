//! What a request through shared memory waits for, once there is no such request any more.

use super::*;
use crate::device::soft::qp::link::{Outcome, Transport};
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::shm::{self, conn::SendWait};

/// The two ends of a connection whose consumers do not poll.
fn blocking_pair() -> (End, End) {
    let net = Net::new("127.0.0.1 path=shm");
    let (a, b) = net.pair();
    doze(&net.active);
    doze(&net.passive);
    (a, b)
}

/// Whether an end waits for that.
fn waits(a: &End, need: Option<SendWait>) -> bool {
    a.on_shm(|conn| conn.tx.need == need)
}

/// What fails here works on a connection for ever, with the lock of its queue pair.
fn limit_this_process() {
    // SAFETY: ends this process, which is for one test alone.
    unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
}

/// Short writes that have waited for memory of the peer which moves are made by one system call.
#[test]
fn writes_that_are_made_together() {
    alone("shm_waits::writes_that_are_made_together", made_together);
}

fn made_together() {
    limit_this_process();
    let (a, b) = blocking_pair();
    let write = |n: u64| {
        let at = 64 * n as usize;
        a.fill(at, &pattern(8, n as u8));
        let op = SendOp::RdmaWrite(b.remote(at));
        a.post(n, op, &[a.sge(at, 8)]).unwrap();
    };
    // From now on it is known that the kernel makes them.
    write(0);
    assert_eq!(a.sent_as(), (0, WcStatus::Success));
    let memory = b.buffer as u64..b.buffer as u64 + b.len as u64;
    let announced = shm::own_moving().unwrap().announce(&memory);
    write(1);
    assert!(waits(&a, Some(SendWait::Move)));
    write(2);
    write(3);
    assert_eq!(a.send_cq.poll(), None);
    // As those of a region of which one part has moved and another one does not yet.
    drop(announced);
    for n in 1..4 {
        let poll = || a.send_cq.poll();
        let mut found = None;
        until(|| {
            found = poll();
            found.is_some()
        });
        let completion = found.unwrap();
        assert_eq!(
            (completion.wr_id, completion.status),
            (n, WcStatus::Success)
        );
        assert_eq!(b.bytes(64 * n as usize, 8), pattern(8, n as u8));
    }
    assert!(waits(&a, None));
    write(4);
    assert_eq!(a.sent_as(), (4, WcStatus::Success));
}

/// A request that would have waited for room in the ring, and for which the queue had no memory.
#[test]
fn a_request_that_was_not_queued() {
    alone("shm_waits::a_request_that_was_not_queued", not_queued);
}

fn not_queued() {
    limit_this_process();
    let (a, b) = blocking_pair();
    let sge = [a.sge(0, 8)];
    let transfer = Transfer {
        op: SendOp::Send,
        sges: &sge,
        flags: WrFlags::empty(),
        len: 8,
    };
    // Without a receive the messages stay in the ring.
    let mut sent = 0;
    let is_full = |sent: &mut u64| {
        a.qp.with(|locked| {
            let mut up = crate::device::soft::upcalls::Upcalls::default();
            let (me, link, guard) = (&mut *locked.me, &mut *locked.link, locked.guard);
            let outcome = link.execute(me, None, &transfer, guard, &mut up);
            if outcome == Outcome::Wait {
                link.not_queued(me, &mut up);
            }
            *sent += u64::from(outcome == Outcome::Done);
            up.run();
            outcome == Outcome::Wait
        })
    };
    while !is_full(&mut sent) {}
    for n in 0..sent {
        let posted = || b.recv(n, &[b.sge(0, 8)]);
        until(|| posted() != Err(PostError::QueueFull));
        while b.recv_cq.poll().is_some() {}
    }
    until(|| b.qp.recv_outstanding() == 0);
    // There is room now, and the connection is served for another reason.
    a.recv(9, &[a.sge(8, 8)]).unwrap();
    b.post(9, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    until(|| a.recv_cq.poll().is_some());
    until(|| waits(&a, None));
    b.recv(7, &[b.sge(0, 8)]).unwrap();
    a.post(8, SendOp::Send, &sge).unwrap();
    assert_eq!(a.sent_as(), (8, WcStatus::Success));
    a.no_event();
}
