//! What a queue pair does with its lock held: posts, and the end of a connection.

use std::hint::black_box;
use std::sync::Arc;

use super::link::{Outcome, Transport};
use super::place::LockedQp;
use super::state::{LATE_RECV, local_access};
use super::work_queue::{NEVER, Op, Receive, Request, Transfer};
use crate::device::attempt::Phase;
use crate::device::connection_log::{GIVEN_UP, IN_ORDER, Step};
use crate::device::soft::engine::Backlog;
use crate::device::soft::mem::region::Mr;
use crate::device::soft::mem::segments::MemorySegments;
use crate::device::soft::mem::window::{Bind, Mw};
use crate::device::soft::mem::{copy, key_table};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{
    Access, BindWr, CmEvent, Device, PlainPost, PostError, RecvWr, Remote, SendWr, Sge, WcOp,
    WcStatus, WrFlags,
};

impl<L: Transport> LockedQp<'_, L> {
    #[inline(always)]
    pub fn post_send(&mut self, wr: &SendWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        if wr.op.is_extended() && !self.link.has_extensions() {
            return Err(PostError::Unsupported);
        }
        let me = &mut *self.me;
        if !me.executes_at_once() {
            return self.again().send_later(black_box(*wr), up);
        }
        me.admit_segments(wr)?;
        if !me.are_in_memory(wr.sges, local_access(&wr.op), self.guard) {
            return self.again().send_from_elsewhere(black_box(*wr), up);
        }
        self.send_admitted(wr, up)
    }

    /// [`LockedQp::post_send`] of a message of one segment, without flags, if it is copied to a receive of one
    /// segment at once; gives the upcalls. `None`, with which nothing has changed, says nothing.
    ///
    /// # Safety
    /// The thread holds no lock of the inner level as its owner.
    #[inline(always)]
    pub unsafe fn post_send_plainly(&mut self, segment: Sge, wr_id: u64) -> Option<Upcalls> {
        let me = &mut *self.me;
        let peer = self.link.direct_peer(self.peer.as_deref_mut())?;
        if !me.executes_at_once() || !me.admits_send_plainly(segment.len) {
            return None;
        }
        let now = me.readable_at(&segment, self.guard)?;
        let (len, thread) = (segment.len, self.guard.thread());
        let (receive, target) = peer.rq.front_of_one()?;
        // The receive was checked at the post, and no key has become invalid since.
        if len > receive.len || receive.checked_at != now {
            return None;
        }
        let (from, to) = (segment.addr as *const u8, target.addr as *mut u8);
        // SAFETY: both ranges are registered, as was checked in this section, and the receive is as long as the
        // message.
        unsafe { copy::plain(from, to, len as usize) }.ok()?;
        // SAFETY: the caller's promise. Whatever is called in between holds no lock when it returns.
        unsafe {
            let up = peer.complete_recv_plainly(receive, len, thread, Upcalls::default());
            peer.rq.advance();
            Some(me.complete_plainly(WcOp::Send, wr_id, len, thread, up))
        }
    }

    /// [`LockedQp::post_send`] of an RDMA write of one segment, without flags, if it is executed by a mere copy; gives
    /// the upcalls. `None`, with which nothing has changed, says nothing.
    ///
    /// # Safety
    /// As [`LockedQp::post_send_plainly`].
    #[inline(always)]
    pub unsafe fn post_write_plainly(
        &mut self,
        segment: Sge,
        remote: Remote,
        wr_id: u64,
    ) -> Option<Upcalls> {
        let me = &mut *self.me;
        if !me.executes_at_once() || !me.admits_write_plainly(segment.len) {
            return None;
        }
        me.readable_at(&segment, self.guard)?;
        // SAFETY: registered, as was checked in this section.
        if !unsafe { self.link.write_plainly(remote, &segment) } {
            return None;
        }
        let (op, thread) = (WcOp::RdmaWrite, self.guard.thread());
        // SAFETY: the caller's promise.
        Some(unsafe { me.complete_plainly(op, wr_id, segment.len, thread, Upcalls::default()) })
    }

    /// A request that others are queued before, or that there is no connection for.
    #[inline(never)]
    fn send_later(self, wr: SendWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = &mut *self.me;
        me.admit_request()?;
        me.admit_segments(&wr)?;
        let (pd, need) = (me.id.pd, local_access(&wr.op));
        if me.are_in_memory(wr.sges, need, self.guard) {
            let len = me.send_len(&wr)?;
            return self.queue_send(wr, len, up);
        }
        let segments = MemorySegments::of(wr.sges, pd, need, self.guard)?;
        let sges = segments.all();
        let wr = SendWr { sges, ..wr };
        let len = me.send_len(&wr)?;
        self.queue_send(wr, len, up)
    }

    /// A request whose segments are not named by addresses of memory, or not open.
    #[cold]
    #[inline(never)]
    fn send_from_elsewhere(mut self, wr: SendWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let (pd, need) = (self.me.id.pd, local_access(&wr.op));
        let segments = MemorySegments::of(wr.sges, pd, need, self.guard)?;
        let sges = segments.all();
        self.send_admitted(&SendWr { sges, ..wr }, up)
    }

    /// A request that is executed at once, and whose segments are open memory.
    #[inline(always)]
    fn send_admitted(&mut self, wr: &SendWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = &mut *self.me;
        let len = me.send_len(wr)?;
        let transfer = Transfer::of(wr, len);
        let peer = self.peer.as_deref_mut();
        let outcome = self.link.execute(me, peer, &transfer, self.guard, up);
        match outcome {
            Outcome::Done => {
                // Made anew, so that what is known of the operation here is known there.
                let (transfer, thread) = (Transfer::of(wr, len), self.guard.thread());
                me.complete_transfer(wr.wr_id, &transfer, WcStatus::Success, thread, up);
                Ok(())
            }
            Outcome::Failed(status) => {
                self.again().fail_send(black_box(*wr), len, status, up);
                Ok(())
            }
            Outcome::Wait => self.again().queue_send(black_box(*wr), len, up),
        }
    }

    /// A copy of the references. What is passed to a function that is not inlined has to be in
    /// memory; with a copy there, the rest of the caller keeps its own in registers.
    #[inline(always)]
    fn again(&mut self) -> LockedQp<'_, L> {
        black_box(LockedQp {
            me: self.me,
            peer: self.peer.as_deref_mut(),
            link: self.link,
            guard: self.guard,
        })
    }

    /// A request that was executed at once has failed.
    #[cold]
    #[inline(never)]
    fn fail_send(self, wr: SendWr<'_>, len: u32, status: WcStatus, up: &mut Upcalls) {
        let me = self.me;
        let (transfer, thread) = (Transfer::of(&wr, len), self.guard.thread());
        me.complete_transfer(wr.wr_id, &transfer, status, thread, up);
        self.link.execution_failed(me, self.peer, status, up);
    }

    /// A request that is not executed at once.
    #[inline(never)]
    fn queue_send(self, wr: SendWr<'_>, len: u32, up: &mut Upcalls) -> Result<(), PostError> {
        let me = self.me;
        let transfer = Transfer::of(&wr, len);
        if me.attempt.phase == Phase::Ended {
            let (status, thread) = (WcStatus::Flushed, self.guard.thread());
            me.complete_transfer(wr.wr_id, &transfer, status, thread, up);
            return Ok(());
        }
        if let Err(error) = me.sq.push(Request::of(wr.wr_id, &transfer), wr.sges) {
            self.link.not_queued(me, up);
            return Err(error);
        }
        self.link.posted_send(me, self.peer, self.guard, up);
        Ok(())
    }

    #[inline(always)]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = &mut *self.me;
        if matches!(me.attempt.phase, Phase::Ended | Phase::Destroyed) {
            return self.again().receive_after_end(black_box(*wr), up);
        }
        me.admit_recv(wr)?;
        // Read before the check, so that what becomes invalid meanwhile is noticed later.
        let checked_at = key_table::revocations(self.guard);
        if !me.are_in_memory(wr.sges, Access::LOCAL_WRITE, self.guard) {
            return self.again().receive_elsewhere(black_box(*wr), up);
        }
        self.receive_admitted(wr, checked_at, up)
    }

    /// [`LockedQp::post_recv`] of a receive of one segment, without flags, if nothing more than to queue it is to
    /// be done.
    #[inline(always)]
    pub fn post_recv_plainly(&mut self, segment: Sge, wr_id: u64) -> PlainPost {
        let me = &mut *self.me;
        if matches!(me.attempt.phase, Phase::Ended | Phase::Destroyed)
            || !me.admits_recv_plainly()
            || self.link.wants_receive(self.peer.as_deref())
        {
            return PlainPost::Otherwise;
        }
        let Some(checked_at) = me.writable_at(&segment, self.guard) else {
            return PlainPost::Otherwise;
        };
        let receive = Receive {
            wr_id,
            checked_at,
            flags: WrFlags::empty(),
            len: segment.len,
        };
        // SAFETY: there is room.
        unsafe { me.rq.append_one(receive, segment) };
        PlainPost::Posted
    }

    /// A receive whose segments are not named by addresses of memory, or not open.
    #[cold]
    #[inline(never)]
    fn receive_elsewhere(mut self, wr: RecvWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let segments = MemorySegments::of_receive(&wr, self.me.id.pd, self.guard)?;
        let sges = segments.all();
        self.receive_admitted(&RecvWr { sges, ..wr }, NEVER, up)
    }

    /// A receive after the end of the connection.
    #[cold]
    #[inline(never)]
    fn receive_after_end(self, wr: RecvWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = self.me;
        if me.attempt.phase == Phase::Destroyed {
            return Err(PostError::QueueFull);
        }
        me.admit_recv(&wr)?;
        if !me.are_in_memory(wr.sges, Access::LOCAL_WRITE, self.guard) {
            MemorySegments::of_receive(&wr, me.id.pd, self.guard)?;
        }
        me.flush_recv(&wr, up);
        Ok(())
    }

    /// A receive that the queue takes (`QpState::admit_recv`), and whose segments are open memory, as was
    /// checked then.
    #[inline(always)]
    fn receive_admitted(
        &mut self,
        wr: &RecvWr<'_>,
        checked_at: u64,
        up: &mut Upcalls,
    ) -> Result<(), PostError> {
        let me = &mut *self.me;
        let receive = Receive {
            checked_at,
            ..Receive::of(wr)
        };
        // SAFETY: room was made by `admit_recv`, under the lock that is held still.
        unsafe { me.rq.append(receive, wr.sges) };
        if self.link.wants_receive(self.peer.as_deref()) {
            self.again().receives_posted(up);
        }
        Ok(())
    }

    /// Messages of the peer that wait for receives are delivered.
    #[inline(never)]
    pub fn receives_posted(&mut self, up: &mut Upcalls) {
        let peer = self.peer.as_deref_mut();
        self.link.posted_recv(self.me, peer, self.guard, up);
    }

    /// Posts a bind of a memory window; gives the new key of the window.
    pub fn post_bind<D: Device<Mr = Mr, Mw = Mw>>(
        &mut self,
        wr: &BindWr<'_, D>,
        up: &mut Upcalls,
    ) -> Result<u32, PostError> {
        let me = &mut *self.me;
        me.admit_request()?;
        let bind = Bind::new(wr, me.id.key_scope)?;
        let key = bind.key();
        let context = wr.context;
        let request = Request {
            wr_id: wr.wr_id,
            op: Op::Bind { context },
            flags: wr.flags,
            len: 0,
            done: false,
        };
        if me.attempt.phase == Phase::Ended {
            me.complete(&request, WcStatus::Flushed, up);
            return Ok(key);
        }
        me.binds.try_reserve(1).map_err(|_| PostError::QueueFull)?;
        me.sq.push(request, &[])?;
        me.binds.push_back(bind);
        let peer = self.peer.as_deref_mut();
        self.link.posted_send(me, peer, self.guard, up);
        Ok(key)
    }

    /// The consumer has the event of the connection: what the peer has sent is delivered, but for
    /// the returned backlog, which the engine delivers in turn.
    pub fn start_receiving(&mut self, up: &mut Upcalls) -> Option<Arc<dyn Backlog>> {
        let me = &mut *self.me;
        if me.receiving || !me.is_up() {
            return None;
        }
        me.receiving = true;
        let peer = self.peer.as_deref_mut();
        self.link.start_receiving(me, peer, self.guard, up)
    }

    /// Ends the connection, or begins to end it gracefully. What is left of the connection or of
    /// the attempt is returned, to be released without the lock.
    pub fn disconnect(&mut self, graceful: bool, up: &mut Upcalls) -> L {
        let me = &mut *self.me;
        if graceful && me.is_up() {
            if me.attempt.phase == Phase::Connected {
                me.log_step(Step::DisconnectingGracefully, up);
                me.attempt.phase = Phase::Closing;
                me.close_at = Some(me.sq.tail());
                let peer = self.peer.as_deref_mut();
                self.link.closing(me, peer, self.guard, up);
            }
            return L::default();
        }
        // What was posted is sent as if it had never waited for later requests.
        self.link.quiesce(me, self.guard, up);
        self.note_path();
        if self.me.is_up() {
            self.me.log_step(Step::Disconnecting, up);
        }
        self.me.end(CmEvent::Disconnected, &GIVEN_UP, up);
        self.detach(up)
    }

    /// Records how an attempt to connect tries to reach the peer at the moment.
    pub fn note_path(&mut self) {
        if let Some(path) = self.link.pending_path() {
            self.me.path = path;
        }
    }

    /// Whether a graceful end over loopback waits for receives of the peer.
    pub fn is_lingering(&self) -> bool {
        self.me.attempt.phase == Phase::Closing && self.link.is_loopback()
    }

    /// The peer has not received in time.
    pub fn break_loopback(&mut self, up: &mut Upcalls) {
        if let Some(peer) = &mut self.peer {
            self.me.end(CmEvent::Broken, &LATE_RECV, up);
            peer.end(CmEvent::Broken, &LATE_RECV, up);
        }
    }

    /// Gives what is left of the link of a queue pair that has ended, to be released without the
    /// lock. A peer in the same lock domain ends as well.
    pub fn detach(&mut self, up: &mut Upcalls) -> L {
        match &mut self.peer {
            Some(peer) if self.link.is_loopback() => {
                peer.end(CmEvent::Disconnected, &IN_ORDER, up);
                L::default()
            }
            _ => std::mem::take(self.link),
        }
    }
}
