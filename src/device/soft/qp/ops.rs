//! What a queue pair does with its lock held: posts, and the end of a connection.

use std::hint::black_box;
use std::sync::Arc;

use super::state::{Phase, Side};
use super::work_queue::{Op, Request, Transfer};
use crate::device::connection_log::{GIVEN_UP, IN_ORDER};
use crate::device::soft::Soft;
use crate::device::soft::cm::connector::Dial;
use crate::device::soft::engine::{Backlog, Timer};
use crate::device::soft::mem::window::Bind;
use crate::device::soft::transport::close_timers::LATE;
use crate::device::soft::transport::loopback::{self, Outcome};
use crate::device::soft::transport::shm::{self, Pipe};
use crate::device::soft::transport::tcp::{self, Stream};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{BindWr, CmEvent, PostError, RecvWr, SendWr, WcStatus};
use crate::handle::Guard;

/// How the side, or the sides, of a lane reach their peer.
#[derive(Default)]
pub(crate) enum Link {
    /// Not at all.
    #[default]
    None,
    /// An attempt to connect. Dropping it gives it up.
    Pending(Pending),
    /// The other side of the lane is the peer, and not both consumers were told yet that the
    /// connection is established: requests wait.
    Opening,
    /// The other side of the lane is the peer.
    Loop,
    /// A connection through shared memory.
    Shm(Box<Pipe>),
    /// A TCP connection.
    Tcp(Box<Stream>),
}

/// What an attempt to connect holds.
pub(crate) struct Pending {
    /// Limits it.
    pub _timer: Option<Timer>,
    /// Drives it, if it goes over TCP.
    pub dial: Option<Arc<Dial>>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(dial) = self.dial.take() {
            dial.cancel();
        }
    }
}

/// A queue pair, as seen with its lock held.
pub(crate) struct View<'a> {
    pub me: &'a mut Side,
    /// The peer, if it sits in the same lane.
    pub peer: Option<&'a mut Side>,
    pub link: &'a mut Link,
    pub guard: &'a Guard,
}

impl View<'_> {
    #[inline(always)]
    pub fn post_send(&mut self, wr: &SendWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = &mut *self.me;
        let len = me.admit_send(wr, self.guard)?;
        if me.phase == Phase::Connected && me.sq.is_empty() {
            let transfer = Transfer::of(wr, len);
            let outcome = match (&mut *self.link, &mut self.peer) {
                (Link::Loop, Some(peer)) => loopback::execute(me, peer, &transfer, self.guard, up),
                (Link::Shm(pipe), _) => shm::execute(me, pipe, &transfer),
                _ => Outcome::Wait,
            };
            match outcome {
                Outcome::Done => {
                    me.complete_transfer(wr.wr_id, &transfer, WcStatus::Success, up);
                    return Ok(());
                }
                Outcome::Failed(status) => {
                    self.again().fail_send(black_box(*wr), len, status, up);
                    return Ok(());
                }
                Outcome::Wait => {}
            }
        }
        self.again().queue_send(black_box(*wr), len, up)
    }

    /// The same once more. What is passed on to a function that is not inlined is in memory from
    /// then on, and better a copy than what the rest works with.
    #[inline(always)]
    fn again(&mut self) -> View<'_> {
        black_box(View {
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
        me.complete_transfer(wr.wr_id, &Transfer::of(&wr, len), status, up);
        match self.peer {
            Some(peer) => loopback::fail(me, peer, status, up),
            None => shm::fail(me, self.link, status, up),
        }
    }

    /// A request that is not executed at once.
    #[inline(never)]
    fn queue_send(self, wr: SendWr<'_>, len: u32, up: &mut Upcalls) -> Result<(), PostError> {
        let me = self.me;
        let transfer = Transfer::of(&wr, len);
        if me.phase == Phase::Ended {
            me.complete_transfer(wr.wr_id, &transfer, WcStatus::Flushed, up);
            return Ok(());
        }
        if let Err(error) = me.sq.push(Request::of(wr.wr_id, &transfer), wr.sges) {
            shm::tear(me, self.link, up);
            return Err(error);
        }
        shm::posted_send(me, self.link, self.guard, up);
        tcp::posted_send(me, self.link, self.guard, up);
        Ok(())
    }

    #[inline(always)]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>, up: &mut Upcalls) -> Result<(), PostError> {
        let me = &mut *self.me;
        let receive = me.admit_recv(wr, self.guard)?;
        if me.phase == Phase::Ended {
            me.complete_recv(&receive, WcStatus::Flushed, 0, false, None, up);
            return Ok(());
        }
        me.rq.push(receive, wr.sges)?;
        if self.is_awaited() {
            self.again().receives_came(up);
        }
        Ok(())
    }

    /// Whether a message may wait for a receive.
    #[inline(always)]
    fn is_awaited(&self) -> bool {
        match (&*self.link, &self.peer) {
            (Link::Loop, Some(peer)) => !peer.sq.is_empty(),
            (Link::Shm(pipe), _) => pipe.is_starved(),
            (Link::Tcp(_), _) => true,
            _ => false,
        }
    }

    /// Messages that wait for receives go on.
    #[inline(never)]
    pub fn receives_came(&mut self, up: &mut Upcalls) {
        let me = &mut *self.me;
        match self.link {
            Link::None | Link::Pending(_) | Link::Opening => {}
            Link::Loop => {
                if let Some(peer) = self.peer.as_deref_mut().filter(|p| !p.sq.is_empty()) {
                    loopback::pump(peer, me, self.guard, up);
                }
            }
            Link::Shm(_) => shm::posted_recv(me, self.link, self.guard, up),
            Link::Tcp(_) => tcp::posted_recv(me, self.link, self.guard, up),
        }
    }

    pub fn post_bind(&mut self, wr: &BindWr<'_, Soft>, up: &mut Upcalls) -> Result<u32, PostError> {
        let me = &mut *self.me;
        me.admit_request()?;
        let bind = Bind::new(wr)?;
        let key = bind.key();
        let context = wr.context;
        let request = Request {
            wr_id: wr.wr_id,
            op: Op::Bind { context },
            flags: wr.flags,
            len: 0,
            done: false,
        };
        if me.phase == Phase::Ended {
            me.complete(&request, WcStatus::Flushed, up);
            return Ok(key);
        }
        let first = me.sq.is_empty();
        me.sq.push(request, &[])?;
        me.binds.push_back(bind);
        if let (Link::Loop, Some(peer)) = (&*self.link, &mut self.peer)
            && first
        {
            loopback::pump(me, peer, self.guard, up);
        }
        shm::posted_send(me, self.link, self.guard, up);
        tcp::posted_send(me, self.link, self.guard, up);
        Ok(key)
    }

    /// The consumer was told that the connection is established: what the peer has sent in the
    /// meantime is delivered, but for what the engine has to deliver in turn.
    pub fn start_receiving(&mut self, up: &mut Upcalls) -> Option<Arc<dyn Backlog>> {
        let me = &mut *self.me;
        if me.told || !me.is_up() {
            return None;
        }
        me.told = true;
        match (&mut *self.link, &mut self.peer) {
            (link @ Link::Opening, Some(peer)) if peer.told => {
                *link = Link::Loop;
                loopback::pump(peer, me, self.guard, up);
                loopback::pump(me, peer, self.guard, up);
            }
            (Link::Shm(_), _) => shm::start_receiving(me, self.link, self.guard, up),
            (Link::Tcp(_), _) => return tcp::start_receiving(me, self.link, self.guard, up),
            _ => {}
        }
        None
    }

    /// What is left of the connection, or of the attempt, goes to the caller, to be dropped
    /// without the lock.
    pub fn disconnect(&mut self, graceful: bool, up: &mut Upcalls) -> Link {
        let me = &mut *self.me;
        if graceful && me.is_up() {
            if me.phase == Phase::Connected {
                me.phase = Phase::Closing;
                me.close_at = Some(me.sq.tail());
                if let (Link::Loop, Some(peer)) = (&*self.link, &mut self.peer) {
                    loopback::pump(me, peer, self.guard, up);
                }
                shm::posted_send(me, self.link, self.guard, up);
                tcp::service(me, self.link, self.guard, up, |_, _| Ok(()));
            }
            return Link::None;
        }
        // What was posted is on its way as if it had never been gathered.
        tcp::send_gathered(me, self.link, self.guard, up);
        self.note_path();
        self.me.end(CmEvent::Disconnected, &GIVEN_UP, up);
        self.detach(up)
    }

    /// Notes which way an attempt to connect tries at the moment.
    pub fn note_path(&mut self) {
        if let Link::Pending(Pending {
            dial: Some(dial), ..
        }) = &*self.link
        {
            self.me.path = dial.path();
        }
    }

    /// Whether a graceful end over loopback waits for receives of the peer.
    pub fn lingers(&self) -> bool {
        self.me.phase == Phase::Closing && matches!(self.link, Link::Opening | Link::Loop)
    }

    /// The peer has not received in time.
    pub fn break_loopback(&mut self, up: &mut Upcalls) {
        if let Some(peer) = &mut self.peer {
            self.me.end(CmEvent::Broken, &LATE, up);
            peer.end(CmEvent::Broken, &LATE, up);
        }
    }

    /// Ends the connection of a side that has ended.
    pub fn detach(&mut self, up: &mut Upcalls) -> Link {
        match (&*self.link, &mut self.peer) {
            (Link::Opening | Link::Loop, Some(peer)) => {
                peer.end(CmEvent::Disconnected, &IN_ORDER, up);
                Link::None
            }
            _ => std::mem::take(self.link),
        }
    }
}
