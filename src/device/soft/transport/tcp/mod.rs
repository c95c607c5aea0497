//! A connection over TCP that carries data: iWARP between the send and receive queues of a
//! queue pair and a socket.

pub(crate) mod batch;
pub(super) mod close_reason;
pub(super) mod coalesce;
pub(crate) mod linger;
pub(crate) mod rx;
pub(crate) mod tx;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::close_reason::CloseReason;
use self::coalesce::{CoalescePolicy, Verdict};
use self::linger::End;
use self::rx::Rx;
use self::tx::Tx;
use super::close_timers::{CloseTimers, RTR_TIMEOUT};
use crate::device::soft::engine::coalesced::Coalescer;
use crate::device::soft::engine::event_order::SetupGuard;
use crate::device::soft::engine::rounds::LastServed;
use crate::device::soft::engine::{Backlog, EventFlags, Scratch, Source, Watch};
use crate::device::soft::iwarp::fpdu::{self, Control, Header, Tagged};
use crate::device::soft::iwarp::mpa::{Agreed, Rtr};
use crate::device::soft::iwarp::rdmap::ReadRequest;
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX, Terminate};
use crate::device::soft::iwarp::wire::{
    FPDU_PREFIX, FPDU_TRAILER_MAX, LAYER_DDP, LAYER_RDMAP, OP_READ_REQUEST, OP_READ_RESPONSE,
    OP_WRITE, READ_REQUEST_HDR, TAGGED_HDR, WireError,
};
use crate::device::soft::qp::Qp;
use crate::device::soft::qp::ops::Link;
use crate::device::soft::qp::state::{Phase, QpState};
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, WcStatus};
use crate::handle::Guard;

/// See the module.
pub(crate) struct TcpConn {
    watch: Watch,
    qp: Weak<Qp>,
    source: Arc<TcpSource>,
    crc: bool,
    /// Reads of the peer that may wait for answers.
    ird: u16,
    /// The message with which the initiator begins.
    rtr: Option<Rtr>,
    /// We accepted, and the connection is not established before that message has come.
    awaiting_rtr: Option<SetupGuard>,
    tx: Tx,
    coalesce: CoalescePolicy,
    /// The engine is to come back for what was gathered.
    listed: bool,
    rx: Rx,
    /// We have ended the connection gracefully, and the stream with it.
    finished: bool,
    /// How long the peer may take then to receive what was sent.
    linger: Duration,
    ending: CloseTimers,
}

impl TcpConn {
    /// For a socket that has been through the set-up. `first` is the number of the first
    /// request.
    pub fn new(
        watch: Watch,
        qp: &Arc<Qp>,
        agreed: &Agreed,
        initiator: bool,
        first: u64,
        linger: Duration,
    ) -> TcpConn {
        TcpConn {
            watch,
            qp: Arc::downgrade(qp),
            source: Arc::new(TcpSource {
                qp: Arc::downgrade(qp),
                queued: AtomicBool::new(false),
                last_served: LastServed::default(),
            }),
            crc: agreed.crc,
            ird: agreed.ird,
            rtr: agreed.rtr,
            awaiting_rtr: None,
            // A responder speaks after the initiator (RFC 5044 section 7.1.2).
            tx: Tx::new(first, initiator),
            coalesce: CoalescePolicy::default(),
            listed: false,
            rx: Rx::new(),
            finished: false,
            linger,
            ending: CloseTimers::default(),
        }
    }

    /// Puts the stream to work. `me` is connecting.
    pub fn start(
        mut self,
        me: &mut QpState,
        link: &mut Link,
        (private_data, handshake): (Box<[u8]>, SetupGuard),
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        let initiator = self.tx.open;
        self.watch.redirect(self.source.clone());
        self.watch.count_as_tcp_conn();
        if initiator {
            self.ready_to_receive();
        }
        if initiator || self.rtr.is_none() {
            me.establish(private_data, Some(handshake), up);
        } else {
            self.awaiting_rtr = Some(handshake);
            self.limit(me, RTR_TIMEOUT, || CloseReason::Silent);
        }
        *link = Link::Tcp(Box::new(self));
        service(me, link, guard, up, |_, _| Ok(()));
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
                let nothing = ReadRequest {
                    sink_stag: 0,
                    sink_to: 0,
                    size: 0,
                    source_stag: 0,
                    source_to: 0,
                };
                nothing.encode(self.tx.number_read(), &mut header);
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

    /// The first FPDU of the peer has come: we may speak, if we had to wait for it.
    fn begin(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.rx.begun = true;
        self.tx.open = true;
        if let Some(handshake) = self.awaiting_rtr.take() {
            self.ending.cancel_limit();
            me.establish(Box::default(), Some(handshake), up);
        }
    }

    /// The connection is established, and the consumer was not told yet: nothing is received.
    fn is_held(&self, me: &QpState) -> bool {
        self.awaiting_rtr.is_none() && !me.receiving
    }

    /// Ends the connection with `down` after a while, unless it has gone on by then.
    fn limit(&mut self, me: &QpState, delay: Duration, down: fn() -> CloseReason) {
        let (qp, attempt) = (self.qp.clone(), me.attempt);
        self.ending.limit(&self.watch, delay, move |up| {
            let Some(qp) = qp.upgrade() else {
                return;
            };
            qp.with(|locked| {
                if locked.me.attempt == attempt && matches!(locked.link, Link::Tcp(_)) {
                    take_down(locked.me, locked.link, down(), up);
                }
            });
        });
    }

    /// Whether the end of the peer's stream takes effect; otherwise it is looked at again.
    fn is_over(&mut self, me: &QpState) -> bool {
        // Not up itself: nobody waits for this end, and others wait for this beginning.
        if self.awaiting_rtr.is_some() {
            return true;
        }
        let (qp, attempt) = (self.qp.clone(), me.attempt);
        self.ending.is_over(&self.watch, move |up| {
            if let Some(qp) = qp.upgrade() {
                qp.with(|locked| {
                    if locked.me.attempt == attempt {
                        service(locked.me, locked.link, locked.guard, up, |_, _| Ok(()));
                    }
                });
            }
        })
    }

    /// Draws the conclusions from what has changed.
    fn settle(&mut self, me: &mut QpState) -> Result<(), CloseReason> {
        if me.phase == Phase::Closing {
            self.limit(me, self.linger, || CloseReason::Late);
            let done = me.close_at == Some(me.sq.head()) && !self.tx.has_pending();
            if done && !self.finished {
                self.finished = true;
                self.tx.closed = true;
                let _ = rustix::net::shutdown(&self.watch, rustix::net::Shutdown::Write);
            }
        }
        if self.rx.ended {
            if self.rx.is_torn() || self.tx.lost {
                return Err(CloseReason::Lost);
            }
            if self.rx.is_waiting() && !self.finished {
                // Messages wait for receives, and our consumer has not ended the connection too.
                self.limit(me, self.linger, || CloseReason::Late);
            } else if self.is_over(me) {
                return Err(CloseReason::Closed);
            }
        }
        let events = self.interest();
        let watched = if std::mem::take(&mut self.rx.more) {
            self.watch.set(events).and_then(|()| self.watch.rearm())
        } else {
            self.watch.set(events)
        };
        watched.map_err(|_| CloseReason::Lost)
    }

    /// The socket is ready.
    fn ready(
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
        if self.rx.ended {
            // A reset that nothing of ours has caused.
            if events.contains(EventFlags::ERR) && self.tx.writes == self.rx.writes_at_end {
                self.rx.abort();
            }
            return Ok(());
        }
        if self.rx.paused {
            if events.contains(EventFlags::ERR) {
                return Err(CloseReason::Lost);
            }
            if !events.intersects(EventFlags::RDHUP | EventFlags::HUP) {
                return Ok(());
            }
            // What the socket still holds is all that comes, and there is room for that: the end
            // that stands behind may be one that does not wait for receives.
            self.rx.hung_up = true;
            self.rx.paused = false;
            self.use_kept(true, me, guard, up)?;
        }
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.receive(ends, me, scratch, guard, up)
    }

    /// Whether a request that was posted is sent later.
    fn gathers(&mut self, me: &QpState, up: &mut Upcalls) -> bool {
        let newest = me.sq.tail().wrapping_sub(1);
        let len = match me.sq.get(newest) {
            Some((request, _)) if matches!(request.op, Op::Transfer(_)) => request.len,
            // Binds are quick, but wait for all before them.
            _ => return false,
        };
        if me.phase != Phase::Connected || !self.tx.open {
            return false;
        }
        match self.coalesce.posted(len, Instant::now) {
            Verdict::Send => return false,
            Verdict::Join => {}
            Verdict::Begin(now) => {
                if !self.listed {
                    self.listed = true;
                    self.watch.schedule_send(self.source.clone(), now, up);
                }
            }
        }
        // There is always room for another one, unless the socket is full.
        !me.sq.is_full()
    }

    /// Which of our requests a Terminate of the peer is about.
    fn blame(&self, terminate: &Terminate) -> Option<(u64, WcStatus)> {
        let error = terminate.error;
        let protection = matches!(error.layer, LAYER_RDMAP | LAYER_DDP) && error.etype == 1;
        let status = if protection {
            WcStatus::RemoteAccess
        } else {
            WcStatus::RemoteOperation
        };
        let reads = &self.tx.reads;
        let number = match &terminate.header {
            Some(Header::Untagged(header)) if header.control.opcode() == OP_READ_REQUEST => {
                let named = reads.iter().find(|(_, msn)| *msn == header.msn);
                named.or(reads.front()).map(|(number, _)| *number)
            }
            Some(header) if header.control().opcode() == OP_READ_RESPONSE => None,
            Some(_) => self.tx.current(),
            None if protection && error.layer == LAYER_RDMAP => {
                reads.front().map(|(number, _)| *number)
            }
            None => None,
        };
        number.map(|number| (number, status))
    }
}

/// Works on the stream of `link`, then sends what can be sent, and ends the connection if that
/// is how it goes.
pub(crate) fn service(
    me: &mut QpState,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
    work: impl FnOnce(&mut TcpConn, (&mut QpState, &mut Upcalls)) -> Result<(), CloseReason>,
) {
    let Link::Tcp(conn) = link else {
        return;
    };
    let result = work(conn, (me, up))
        .and_then(|()| {
            let TcpConn { tx, watch, crc, .. } = &mut **conn;
            tx.transmit(me, watch, *crc, guard, up)?;
            if conn.coalesce.waits() {
                conn.coalesce.sent(Instant::now());
            }
            Ok(())
        })
        .and_then(|()| conn.settle(me));
    if let Err(down) = result {
        take_down(me, link, down, up);
    }
}

/// A request was posted.
pub(crate) fn posted_send(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    // A full socket says when it has room again.
    let Link::Tcp(conn) = link else {
        return;
    };
    if conn.tx.blocked || conn.gathers(me, up) {
        return;
    }
    let alone = !conn.coalesce.waits();
    service(me, link, guard, up, |_, _| Ok(()));
    if alone && let Link::Tcp(conn) = link {
        conn.coalesce.sent(Instant::now());
    }
}

/// Nothing is gathered any longer.
pub(crate) fn send_coalesced(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Tcp(conn) if conn.coalesce.waits()) {
        service(me, link, guard, up, |_, _| Ok(()));
    }
}

/// The consumer was told of the connection: the socket is read, and what was read before is to be
/// delivered.
pub(crate) fn start_receiving(
    me: &mut QpState,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
) -> Option<Arc<dyn Backlog>> {
    service(me, link, guard, up, |conn, _| {
        conn.rx.more = true;
        conn.rx.backlog = conn.rx.has_kept();
        Ok(())
    });
    match link {
        Link::Tcp(conn) if conn.rx.backlog => conn.source.enqueue(),
        _ => None,
    }
}

/// A receive was posted.
pub(crate) fn posted_recv(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Tcp(conn) if me.receiving && conn.rx.is_waiting()) {
        service(me, link, guard, up, |conn, (me, up)| {
            conn.drain(me, guard, up)
        });
    }
}

/// Ends the connection.
fn take_down(me: &mut QpState, link: &mut Link, down: CloseReason, up: &mut Upcalls) {
    let Link::Tcp(mut conn) = std::mem::take(link) else {
        return;
    };
    let how = match down {
        CloseReason::Late => End::Aborted,
        _ => End::Graceful,
    };
    let (event, terminate) = match &down {
        CloseReason::Closed => (CmEvent::Disconnected, None),
        CloseReason::Lost | CloseReason::Socket(_) | CloseReason::Silent => (CmEvent::Broken, None),
        CloseReason::Late => (CmEvent::Broken, Some((WireError::RDMAP_CATASTROPHIC, None))),
        CloseReason::Protocol(error, offending) => (CmEvent::Broken, Some((*error, *offending))),
        CloseReason::Request(number, status) => {
            me.fail_request(*number, *status, up);
            (CmEvent::Broken, Some((WireError::RDMAP_CATASTROPHIC, None)))
        }
        CloseReason::Terminated(terminate) => {
            if let Some((number, status)) = conn.blame(terminate) {
                me.fail_request(number, status, up);
            }
            (CmEvent::Broken, None)
        }
    };
    let event = if conn.awaiting_rtr.is_some() {
        CmEvent::AcceptError
    } else {
        event
    };
    me.end(event, &down, up);
    if let Some((error, offending)) = terminate {
        let offending = offending.as_ref().map_or(&[][..], |o| o);
        let mut bytes = [0; TERMINATE_FPDU_MAX];
        let bytes = terminate::encode(error, offending, conn.crc, &mut bytes);
        if !conn.tx.closed {
            conn.tx.put(bytes);
        }
        end(*conn, how);
    }
}

/// Ends the transport of a connection that the consumer has ended at once.
pub(crate) fn abort(mut conn: TcpConn) {
    if conn.tx.open && !conn.tx.closed {
        let mut bytes = [0; TERMINATE_FPDU_MAX];
        let bytes = terminate::encode(WireError::RDMAP_ABORTED, &[], conn.crc, &mut bytes);
        conn.tx.put(bytes);
    }
    let how = if conn.finished {
        End::Reset
    } else {
        End::Aborted
    };
    end(conn, how);
}

/// Ends the transport: what is begun goes out whole, then the end.
fn end(mut conn: TcpConn, how: End) {
    let rest = if conn.tx.closed {
        Vec::new()
    } else {
        conn.tx.take_pending()
    };
    linger::linger(conn.watch, rest, how);
}

/// What the engine knows of a stream.
struct TcpSource {
    qp: Weak<Qp>,
    /// The engine has the connection in its list of those with a backlog.
    queued: AtomicBool,
    last_served: LastServed,
}

impl TcpSource {
    /// The connection has a backlog: gives what the engine is to have, if it has not.
    fn enqueue(self: &Arc<Self>) -> Option<Arc<dyn Backlog>> {
        (!self.queued.swap(true, Ordering::Relaxed)).then(|| self.clone() as Arc<dyn Backlog>)
    }

    /// Works on the stream; true if that leaves a backlog.
    fn service(
        &self,
        up: &mut Upcalls,
        work: impl FnOnce(&mut TcpConn, &mut QpState, &Guard, &mut Upcalls) -> Result<(), CloseReason>,
    ) -> bool {
        self.qp.upgrade().is_some_and(|qp| {
            qp.with(|locked| {
                service(
                    locked.me,
                    locked.link,
                    locked.guard,
                    up,
                    |conn, (me, up)| work(conn, me, locked.guard, up),
                );
                matches!(locked.link, Link::Tcp(conn) if conn.rx.backlog)
            })
        })
    }
}

impl Source for TcpSource {
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls) {
        let backlog = self.service(up, |conn, me, guard, up| {
            conn.ready(events, me, scratch, guard, up)
        });
        if backlog {
            scratch.backlog.extend(self.enqueue());
        }
    }

    fn is_pollable(&self) -> bool {
        true
    }
}

impl Backlog for TcpSource {
    fn deliver(&self, all: bool, up: &mut Upcalls) -> bool {
        let more = self.service(up, |conn, me, guard, up| conn.use_kept(all, me, guard, up));
        if !more {
            self.queued.store(false, Ordering::Relaxed);
        }
        more
    }

    fn last_served(&self) -> &LastServed {
        &self.last_served
    }
}

impl Coalescer for TcpSource {
    fn send_coalesced(&self, late: bool, up: &mut Upcalls) {
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        qp.with(|locked| {
            let Link::Tcp(conn) = &mut *locked.link else {
                return;
            };
            conn.listed = false;
            let late = late && conn.coalesce.is_late(Instant::now());
            send_coalesced(locked.me, locked.link, locked.guard, up);
            if late && let Link::Tcp(conn) = &mut *locked.link {
                conn.coalesce.was_late();
            }
        });
    }
}
