//! A connection over TCP that carries data: iWARP between the send and receive queues of a
//! queue pair and a socket.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Instant;
use crate::kernel::net::sockopt;

use super::acknowledge::Acks;
use super::close_reason::CloseReason;
use super::liveness::Liveness;
use super::rx::Rx;
use super::tx::Tx;
use crate::device::attempt::Phase;
use crate::device::soft::bad_keys::BadKeys;
use crate::device::soft::device::Soft;
use crate::device::soft::engine::{Acknowledger, Backlog, EventFlags, Scratch, Source, Watch};
use crate::device::soft::event_order::SetupGuard;
use crate::device::soft::iwarp::fpdu::{self, Control, Tagged};
use crate::device::soft::iwarp::mpa::{Agreed, Rtr};
use crate::device::soft::iwarp::rdmap::ReadRequest;
use crate::device::soft::iwarp::wire::{
    FPDU_PREFIX, FPDU_TRAILER_MAX, OP_WRITE, READ_REQUEST_HDR, TAGGED_HDR,
};
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::socket;
use crate::device::soft::transport::coalesce::{CoalescePolicy, MOST_OWED, Verdict};
use crate::device::soft::transport::lifecycle::{Lifecycle, Timed};
use crate::device::soft::upcalls::{Coalescer, Upcalls};
use crate::handle::Guard;

/// A connection as the engine knows it.
pub(crate) trait TcpTarget: Source + Coalescer + Acknowledger + Timed {
    /// The connection has a backlog: gives what the engine is to put in its list of those, if it
    /// is not in there.
    fn enqueue(self: Arc<Self>) -> Option<Arc<dyn Backlog>>;
    /// Ends the connection if the host of the peer is gone: see [`TcpConn::check_peer`].
    fn check_peer(&self, up: &mut Upcalls);
}

/// See the module.
pub(crate) struct TcpConn {
    pub(super) watch: Watch,
    pub(super) target: Arc<dyn TcpTarget>,
    /// Whether FPDUs carry a CRC.
    pub(super) crc: bool,
    /// Whether both ends know atomic operations and immediate data.
    pub extensions: bool,
    /// RDMA reads and atomic operations of the peer that may wait for their responses.
    pub(super) ird: u16,
    /// The ready-to-receive message with which the initiator begins.
    pub(super) rtr: Option<Rtr>,
    /// Whether the next request of the peer is that message.
    pub(super) awaits_ready: bool,
    pub(crate) tx: Tx,
    coalesce: CoalescePolicy,
    pub(super) rx: Rx,
    pub(super) acks: Acks,
    /// Whether the engine has the connection in its list of those that may owe an acknowledgement.
    pub(super) acknowledgement_listed: bool,
    pub(super) lifecycle: Lifecycle,
    pub(super) liveness: Liveness,
    /// The address of the peer, and where wrong keys of the peer are counted.
    pub(super) bad_keys: Option<(IpAddr, Arc<BadKeys>)>,
}

impl TcpConn {
    /// For a socket over which both ends have agreed. `first` is the number of the first request.
    pub fn new<T: TcpTarget + 'static>(
        watch: Watch,
        target: Arc<T>,
        agreed: &Agreed,
        initiator: bool,
        first: u64,
        device: &Soft,
    ) -> TcpConn {
        let params = &device.params;
        let remote = socket::remote(&watch);
        let emss = match agreed.long_fpdus {
            true => None,
            false => socket::segment_size(&watch),
        };
        let bad_keys = remote.map(|remote| (remote.ip(), device.bad_keys.clone()));
        TcpConn {
            watch,
            crc: agreed.crc,
            extensions: agreed.extensions,
            ird: agreed.ird,
            rtr: agreed.rtr,
            awaits_ready: !initiator && matches!(agreed.rtr, Some(Rtr::WRITE | Rtr::READ)),
            // A responder speaks after the initiator (RFC 5044 section 7.1.2).
            tx: Tx::new(first, initiator, emss),
            coalesce: CoalescePolicy::default(),
            rx: Rx::new(),
            acks: Acks::new(agreed.acknowledge, first),
            acknowledgement_listed: false,
            lifecycle: Lifecycle::new(target.clone(), params.linger),
            liveness: Liveness::new(params.timeout),
            bad_keys,
            target,
        }
    }

    /// Begins. `me` is connecting. The caller calls [`TcpConn::advance`] once the connection is
    /// that of the queue pair.
    pub fn start(&mut self, me: &mut QpState, setup: (Box<[u8]>, SetupGuard), up: &mut Upcalls) {
        let initiator = self.tx.open;
        self.watch.redirect(self.target.clone());
        self.watch.count_as_tcp_conn();
        if initiator {
            self.ready_to_receive();
        }
        let at_once = initiator || self.rtr.is_none();
        self.lifecycle.start(at_once, me, &self.watch, setup, up);
    }

    /// The first message of an initiator.
    fn ready_to_receive(&mut self) {
        let mut header = [0; READ_REQUEST_HDR];
        let len = match self.rtr {
            Some(Rtr::WRITE) => {
                let control = Control::new(OP_WRITE, true);
                let (stag, to) = (0, 0);
                let mut bytes = [0; TAGGED_HDR];
                // No payload is never too much.
                let _ = Tagged { control, stag, to }.encode(0, &mut bytes);
                header[..TAGGED_HDR].copy_from_slice(&bytes);
                TAGGED_HDR
            }
            Some(Rtr::READ) => {
                ReadRequest::NOTHING.encode(self.tx.number_read(), &mut header);
                self.rx.uncounted = 1;
                READ_REQUEST_HDR
            }
            Some(_) => FPDU_PREFIX,
            None => return,
        };
        let header = &header[..len];
        let mut trailer = [0; FPDU_TRAILER_MAX];
        let trailer = fpdu::seal(self.crc, header, [], &mut trailer);
        self.tx.put(header);
        self.tx.put(trailer);
    }

    /// The first FPDU of the peer has arrived: this end may send, if it had to wait for that.
    pub(super) fn begin(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.rx.begun = true;
        self.tx.open = true;
        self.lifecycle.message_arrived(me, up);
    }

    /// Whether nothing is received yet: the connection is established, and the consumer does not
    /// have the event.
    pub(super) fn is_held(&self, me: &QpState) -> bool {
        self.is_established() && !me.receiving
    }

    /// Whether the connection is established.
    pub(super) fn is_established(&self) -> bool {
        self.lifecycle.is_established()
    }

    /// Whether messages are read and not delivered.
    pub fn has_backlog(&self) -> bool {
        self.rx.backlog
    }

    /// Whether a whole message was delivered since this was last asked.
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.rx.served)
    }

    /// Whether the end of the peer's stream is behind what is not read until there are receives.
    #[cfg(test)]
    pub fn holds_end(&self) -> bool {
        self.rx.holds_end()
    }

    /// Whether nothing is read until there are receives.
    #[cfg(test)]
    pub fn is_paused(&self) -> bool {
        self.rx.paused
    }

    /// Whether the end of the peer's stream was read.
    #[cfg(test)]
    pub fn has_ended(&self) -> bool {
        self.rx.ended
    }

    /// See [`Rx::kept`].
    #[cfg(test)]
    pub fn kept(&self) -> (usize, usize) {
        self.rx.kept()
    }

    /// Sends what can be sent, and notices what has changed.
    pub fn advance(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.acks.agreed {
            self.count_finished();
        }
        if self.tx.is_idle(me) && !self.acks.is_due() {
            self.tx.blocked = false;
        } else {
            self.tx
                .transmit(me, &mut self.watch, &mut self.acks, self.crc, guard, up)?;
        }
        if self.acks.agreed {
            self.settle_acknowledgements(me, up);
        }
        self.liveness
            .written(self.tx.writes, &self.watch, &self.target);
        self.coalesce.flushed();
        self.settle(me)
    }

    /// A request was posted.
    pub fn posted_send(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        // A full socket becomes ready when it has room again.
        if self.tx.blocked || self.coalesces(me, up) {
            return Ok(());
        }
        let alone = !self.coalesce.waits();
        if !(alone && self.send_short(me, up)?) {
            self.advance(me, guard, up)?;
        }
        if alone {
            self.coalesce.sent(Instant::now());
        }
        Ok(())
    }

    /// Sends the request that was posted last, if that can be done in the [short way](super::tx_short).
    #[inline]
    fn send_short(&mut self, me: &mut QpState, up: &mut Upcalls) -> Result<bool, CloseReason> {
        if self.acks.agreed {
            self.count_finished();
        }
        let (watch, acks) = (&self.watch, &mut self.acks);
        if !self.tx.transmit_short(me, watch, acks, self.crc, up)? {
            return Ok(false);
        }
        if self.acks.agreed {
            self.settle_acknowledgements(me, up);
        }
        self.liveness
            .written(self.tx.writes, &self.watch, &self.target);
        Ok(true)
    }

    /// Whether a message waits for a receive, and may have one.
    #[inline]
    pub fn is_starved(&self, me: &QpState) -> bool {
        me.receiving && self.rx.is_waiting()
    }

    /// A receive was posted for a message that waits.
    pub fn posted_recv(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.drain(me, guard, up)?;
        self.advance(me, guard, up)
    }

    /// Sends the coalesced requests, if there are some.
    pub fn flush_coalesced(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.coalesce.waits() {
            self.advance(me, guard, up)?;
        }
        Ok(())
    }

    /// The engine has the connection no longer in its list of those with coalesced requests, which
    /// are sent. `late`: see [`Coalescer::send_coalesced`].
    pub fn left_coalesced_list(
        &mut self,
        late: bool,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let late = self.coalesce.left_list(late);
        self.flush_coalesced(me, guard, up)?;
        if late {
            self.coalesce.was_wrong(MOST_OWED);
        }
        Ok(())
    }

    /// The consumer has the event of the connection: the socket is read, and what was read before
    /// is the backlog.
    pub fn start_receiving(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<Option<Arc<dyn Backlog>>, CloseReason> {
        self.rx.more = true;
        self.rx.backlog = self.rx.has_kept();
        // A first message that is more than the announcement that this end may send.
        self.drain(me, guard, up)?;
        self.advance(me, guard, up)?;
        let backlog = self.rx.backlog.then(|| self.target.clone().enqueue());
        Ok(backlog.flatten())
    }

    /// Acts on what has changed: a graceful end that takes effect, an end of the peer, what the
    /// socket is watched for.
    fn settle(&mut self, me: &mut QpState) -> Result<(), CloseReason> {
        let all_sent = !self.tx.has_pending();
        if self.lifecycle.closes(me, &self.watch, all_sent) {
            self.end_requests()?;
        }
        if self.acks.agreed && self.lifecycle.is_closed() && self.rx.is_waiting() {
            // Our consumer does not wait for what has no receive, and the peer shall not wait for an
            // acknowledgement of that.
            self.end_stream();
        }
        if self.rx.ended || self.rx.holds_end() || self.has_peer_finished() {
            // A peer that our consumer has left need not end what it has begun to send.
            let torn = self.rx.is_torn() && !self.lifecycle.is_closed();
            let lost = self.tx.lost.is_some() && !self.acks.peer_ended;
            if self.rx.ended && (torn || lost) {
                return Err(CloseReason::Lost);
            }
            if self.is_peer_killed() {
                if self.lifecycle.peer_end_is_due(&self.watch) {
                    return Err(CloseReason::Lost);
                }
            } else if self.rx.is_waiting() && !self.lifecycle.is_closed() {
                // Messages wait for receives, and our consumer has not ended the connection too.
                self.lifecycle.limit_linger(&self.watch);
            } else if self.lifecycle.peer_end_is_due(&self.watch) {
                return Err(CloseReason::Closed);
            }
        }
        if let Some(error) = self.tx.lost
            && !self.rx.ended
            && !self.rx.backlog
            && !socket::is_readable(&self.watch)
        {
            // No event of the socket would follow.
            return Err(CloseReason::Socket(error));
        }
        let events = self.interest();
        let watched = if std::mem::take(&mut self.rx.more) {
            self.watch.set(events).and_then(|()| self.watch.rearm())
        } else {
            self.watch.set(events)
        };
        watched.map_err(|_| CloseReason::Lost)
    }

    /// What the socket is to be watched for.
    fn interest(&self) -> EventFlags {
        let mut events = if self.rx.ended && self.rx.is_waiting() || self.rx.holds_end() {
            // The kernel notifies of a reset in any case.
            EventFlags::ET
        } else if self.rx.ended {
            EventFlags::empty()
        } else if self.rx.paused {
            EventFlags::RDHUP
        } else {
            EventFlags::IN | EventFlags::RDHUP
        };
        if self.tx.blocked && !self.tx.closed {
            events |= EventFlags::OUT;
        } else if !self.rx.paused && !self.rx.ended {
            events |= EventFlags::ET;
        }
        events
    }

    /// See [`Source::leave_to_polls`].
    pub fn leave_to_polls(&mut self) {
        self.watch.leave_to_polls();
    }

    /// See [`Source::take_from_polls`].
    ///
    /// # Errors
    /// There is no memory to watch the socket.
    pub fn take_from_polls(&mut self) -> Result<(), CloseReason> {
        self.watch.take_from_polls().map_err(|_| CloseReason::Lost)
    }

    /// A check of the peer is due.
    ///
    /// # Errors
    /// [`CloseReason::Unresponsive`] if the host of the peer is gone.
    pub fn check_peer(&mut self) -> Result<(), CloseReason> {
        if !self.liveness.is_gone(&self.watch, &self.target) {
            return Ok(());
        }
        // The kernel shall not go on to send what was not acknowledged.
        let _ = sockopt::set_socket_linger(&self.watch, Some(Duration::ZERO));
        Err(CloseReason::Unresponsive(self.liveness.timeout()))
    }

    /// The socket is ready.
    pub fn ready(
        &mut self,
        events: EventFlags,
        me: &mut QpState,
        scratch: &mut Scratch,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.is_held(me) {
            return Ok(());
        }
        if self.rx.backlog {
            // The socket is read when that is delivered.
            self.rx.unread = true;
            return Ok(());
        }
        if self.rx.ended || self.rx.holds_end() {
            // A reset that nothing of ours has caused: a peer with acknowledgements has aborted. Another one has seen its
            // messages complete, and closed its socket in order: the kernel of its host answers even a probe with a reset.
            let unprovoked = self.tx.writes == self.rx.writes_at_end;
            if self.acks.agreed && events.contains(EventFlags::ERR) && unprovoked {
                self.rx.abort();
            }
            return Ok(());
        }
        if self.rx.paused {
            // What the socket holds can be read behind a reset, and the end of the stream that may have come before that.
            if self.acks.agreed && events.contains(EventFlags::ERR) {
                return Err(CloseReason::Lost);
            }
            if !events.intersects(EventFlags::RDHUP | EventFlags::HUP) {
                return Ok(());
            }
            // The end behind what the socket still holds may be one that does not wait for receives.
            self.rx.hung_up = true;
            self.rx.writes_at_end = self.tx.writes;
            self.rx.paused = false;
            self.use_kept(true, me, guard, up)?;
        }
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.receive(ends, me, scratch, guard, up)
    }

    /// Whether a request that was posted is sent later.
    fn coalesces(&mut self, me: &QpState, up: &mut Upcalls) -> bool {
        let newest = me.sq.tail().wrapping_sub(1);
        let len = match me.sq.get(newest) {
            Some((request, _)) if matches!(request.op, Op::Transfer(_)) => request.len,
            // Binds are quick, but wait for all before them.
            _ => return false,
        };
        if me.attempt.phase != Phase::Connected || !self.tx.open {
            return false;
        }
        match self.coalesce.posted(len, Instant::now) {
            Verdict::Send => return false,
            Verdict::Join => {}
            Verdict::Begin(now) => {
                if self.coalesce.enters_list() {
                    self.watch.schedule_send(self.target.clone(), now, up);
                }
            }
        }
        // There is always room for another one, unless the socket is full.
        !me.sq.is_full()
    }
}
