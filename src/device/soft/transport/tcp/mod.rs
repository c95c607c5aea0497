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

use self::close_reason::Down;
use self::coalesce::{Gather, Verdict};
use self::linger::End;
use self::rx::Rx;
use self::tx::Tx;
use super::close_timers::{Ending, HANDSHAKE};
use crate::device::soft::engine::coalesced::Gatherer;
use crate::device::soft::engine::event_order::Handshake;
use crate::device::soft::engine::rounds::LastTurn;
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
use crate::device::soft::qp::state::{Phase, Side};
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, WcStatus};
use crate::handle::Guard;

/// See the module.
pub(crate) struct Stream {
    watch: Watch,
    qp: Weak<Qp>,
    line: Arc<Line>,
    crc: bool,
    /// Reads of the peer that may wait for answers.
    ird: u16,
    /// The message with which the initiator begins.
    rtr: Option<Rtr>,
    /// We accepted, and the connection is not established before that message has come.
    waits: Option<Handshake>,
    tx: Tx,
    gather: Gather,
    /// The engine is to come back for what was gathered.
    listed: bool,
    rx: Rx,
    /// We have ended the connection gracefully, and the stream with it.
    finished: bool,
    /// How long the peer may take then to receive what was sent.
    linger: Duration,
    ending: Ending,
}

impl Stream {
    /// For a socket that has been through the set-up. `first` is the number of the first
    /// request.
    pub fn new(
        watch: Watch,
        qp: &Arc<Qp>,
        agreed: &Agreed,
        initiator: bool,
        first: u64,
        linger: Duration,
    ) -> Stream {
        Stream {
            watch,
            qp: Arc::downgrade(qp),
            line: Arc::new(Line {
                qp: Arc::downgrade(qp),
                queued: AtomicBool::new(false),
                last_turn: LastTurn::default(),
            }),
            crc: agreed.crc,
            ird: agreed.ird,
            rtr: agreed.rtr,
            waits: None,
            // A responder speaks after the initiator (RFC 5044 section 7.1.2).
            tx: Tx::new(first, initiator),
            gather: Gather::default(),
            listed: false,
            rx: Rx::new(),
            finished: false,
            linger,
            ending: Ending::default(),
        }
    }

    /// Puts the stream to work. `me` is connecting.
    pub fn start(
        mut self,
        me: &mut Side,
        link: &mut Link,
        (private_data, handshake): (Box<[u8]>, Handshake),
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        let initiator = self.tx.open;
        self.watch.redirect(self.line.clone());
        self.watch.count_as_stream();
        if initiator {
            self.ready_to_receive();
        }
        if initiator || self.rtr.is_none() {
            me.establish(private_data, Some(handshake), up);
        } else {
            self.waits = Some(handshake);
            self.limit(me, HANDSHAKE, || Down::Silent);
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
    fn begin(&mut self, me: &mut Side, up: &mut Upcalls) {
        self.rx.begun = true;
        self.tx.open = true;
        if let Some(handshake) = self.waits.take() {
            self.ending.gone_on();
            me.establish(Box::default(), Some(handshake), up);
        }
    }

    /// The connection is established, and the consumer was not told yet: nothing is received.
    fn is_held(&self, me: &Side) -> bool {
        self.waits.is_none() && !me.told
    }

    /// Ends the connection with `down` after a while, unless it has gone on by then.
    fn limit(&mut self, me: &Side, delay: Duration, down: fn() -> Down) {
        let (qp, attempt) = (self.qp.clone(), me.attempt);
        self.ending.limit(&self.watch, delay, move |up| {
            let Some(qp) = qp.upgrade() else {
                return;
            };
            qp.with(|v| {
                if v.me.attempt == attempt && matches!(v.link, Link::Tcp(_)) {
                    take_down(v.me, v.link, down(), up);
                }
            });
        });
    }

    /// Whether the end of the peer's stream takes effect; otherwise it is looked at again.
    fn is_over(&mut self, me: &Side) -> bool {
        // Not up itself: nobody waits for this end, and others wait for this beginning.
        if self.waits.is_some() {
            return true;
        }
        let (qp, attempt) = (self.qp.clone(), me.attempt);
        self.ending.is_over(&self.watch, move |up| {
            if let Some(qp) = qp.upgrade() {
                qp.with(|v| {
                    if v.me.attempt == attempt {
                        service(v.me, v.link, v.guard, up, |_, _| Ok(()));
                    }
                });
            }
        })
    }

    /// Draws the conclusions from what has changed.
    fn settle(&mut self, me: &mut Side) -> Result<(), Down> {
        if me.phase == Phase::Closing {
            self.limit(me, self.linger, || Down::Late);
            let done = me.close_at == Some(me.sq.head()) && !self.tx.has_pending();
            if done && !self.finished {
                self.finished = true;
                self.tx.closed = true;
                let _ = rustix::net::shutdown(&self.watch, rustix::net::Shutdown::Write);
            }
        }
        if self.rx.ended {
            if self.rx.is_torn() || self.tx.lost {
                return Err(Down::Lost);
            }
            if self.rx.is_waiting() && !self.finished {
                // Messages wait for receives, and our consumer has not ended the connection too.
                self.limit(me, self.linger, || Down::Late);
            } else if self.is_over(me) {
                return Err(Down::Closed);
            }
        }
        let events = self.interest();
        let watched = if std::mem::take(&mut self.rx.more) {
            self.watch.set(events).and_then(|()| self.watch.again())
        } else {
            self.watch.set(events)
        };
        watched.map_err(|_| Down::Lost)
    }

    /// The socket is ready.
    fn ready(
        &mut self,
        events: EventFlags,
        me: &mut Side,
        scratch: &mut Scratch,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), Down> {
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
                return Err(Down::Lost);
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
    fn gathers(&mut self, me: &Side, up: &mut Upcalls) -> bool {
        let newest = me.sq.tail().wrapping_sub(1);
        let len = match me.sq.get(newest) {
            Some((request, _)) if matches!(request.op, Op::Transfer(_)) => request.len,
            // Binds are quick, but wait for all before them.
            _ => return false,
        };
        if me.phase != Phase::Connected || !self.tx.open {
            return false;
        }
        match self.gather.posted(len, Instant::now) {
            Verdict::Send => return false,
            Verdict::Join => {}
            Verdict::Begin(now) => {
                if !self.listed {
                    self.listed = true;
                    self.watch.sends_later(self.line.clone(), now, up);
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
    me: &mut Side,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
    work: impl FnOnce(&mut Stream, (&mut Side, &mut Upcalls)) -> Result<(), Down>,
) {
    let Link::Tcp(stream) = link else {
        return;
    };
    let result = work(stream, (me, up))
        .and_then(|()| {
            let Stream { tx, watch, crc, .. } = &mut **stream;
            tx.transmit(me, watch, *crc, guard, up)?;
            if stream.gather.waits() {
                stream.gather.sent(Instant::now());
            }
            Ok(())
        })
        .and_then(|()| stream.settle(me));
    if let Err(down) = result {
        take_down(me, link, down, up);
    }
}

/// A request was posted.
pub(crate) fn posted_send(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    // A full socket says when it has room again.
    let Link::Tcp(stream) = link else {
        return;
    };
    if stream.tx.blocked || stream.gathers(me, up) {
        return;
    }
    let alone = !stream.gather.waits();
    service(me, link, guard, up, |_, _| Ok(()));
    if alone && let Link::Tcp(stream) = link {
        stream.gather.sent(Instant::now());
    }
}

/// Nothing is gathered any longer.
pub(crate) fn send_gathered(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Tcp(stream) if stream.gather.waits()) {
        service(me, link, guard, up, |_, _| Ok(()));
    }
}

/// The consumer was told of the connection: the socket is read, and what was read before is to be
/// delivered.
pub(crate) fn start_receiving(
    me: &mut Side,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
) -> Option<Arc<dyn Backlog>> {
    service(me, link, guard, up, |stream, _| {
        stream.rx.more = true;
        stream.rx.backlog = stream.rx.has_kept();
        Ok(())
    });
    match link {
        Link::Tcp(stream) if stream.rx.backlog => stream.line.enqueue(),
        _ => None,
    }
}

/// A receive was posted.
pub(crate) fn posted_recv(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Tcp(stream) if me.told && stream.rx.is_waiting()) {
        service(me, link, guard, up, |stream, (me, up)| {
            stream.drain(me, guard, up)
        });
    }
}

/// Ends the connection.
fn take_down(me: &mut Side, link: &mut Link, down: Down, up: &mut Upcalls) {
    let Link::Tcp(mut stream) = std::mem::take(link) else {
        return;
    };
    let how = match down {
        Down::Late => End::Aborted,
        _ => End::Graceful,
    };
    let (event, terminate) = match &down {
        Down::Closed => (CmEvent::Disconnected, None),
        Down::Lost | Down::Socket(_) | Down::Silent => (CmEvent::Broken, None),
        Down::Late => (CmEvent::Broken, Some((WireError::RDMAP_CATASTROPHIC, None))),
        Down::Protocol(error, offending) => (CmEvent::Broken, Some((*error, *offending))),
        Down::Request(number, status) => {
            me.fail_request(*number, *status, up);
            (CmEvent::Broken, Some((WireError::RDMAP_CATASTROPHIC, None)))
        }
        Down::Terminated(terminate) => {
            if let Some((number, status)) = stream.blame(terminate) {
                me.fail_request(number, status, up);
            }
            (CmEvent::Broken, None)
        }
    };
    let event = if stream.waits.is_some() {
        CmEvent::AcceptError
    } else {
        event
    };
    me.end(event, &down, up);
    if let Some((error, offending)) = terminate {
        let offending = offending.as_ref().map_or(&[][..], |o| o);
        let mut bytes = [0; TERMINATE_FPDU_MAX];
        let bytes = terminate::encode(error, offending, stream.crc, &mut bytes);
        if !stream.tx.closed {
            stream.tx.put(bytes);
        }
        end(*stream, how);
    }
}

/// Ends the transport of a connection that the consumer has ended at once.
pub(crate) fn abort(mut stream: Stream) {
    if stream.tx.open && !stream.tx.closed {
        let mut bytes = [0; TERMINATE_FPDU_MAX];
        let bytes = terminate::encode(WireError::RDMAP_ABORTED, &[], stream.crc, &mut bytes);
        stream.tx.put(bytes);
    }
    let how = if stream.finished {
        End::Reset
    } else {
        End::Aborted
    };
    end(stream, how);
}

/// Ends the transport: what is begun goes out whole, then the end.
fn end(mut stream: Stream, how: End) {
    let rest = if stream.tx.closed {
        Vec::new()
    } else {
        stream.tx.take_pending()
    };
    linger::linger(stream.watch, rest, how);
}

/// What the engine knows of a stream.
struct Line {
    qp: Weak<Qp>,
    /// The engine has the connection in its list of those with a backlog.
    queued: AtomicBool,
    last_turn: LastTurn,
}

impl Line {
    /// The connection has a backlog: gives what the engine is to have, if it has not.
    fn enqueue(self: &Arc<Self>) -> Option<Arc<dyn Backlog>> {
        (!self.queued.swap(true, Ordering::Relaxed)).then(|| self.clone() as Arc<dyn Backlog>)
    }

    /// Works on the stream; true if that leaves a backlog.
    fn service(
        &self,
        up: &mut Upcalls,
        work: impl FnOnce(&mut Stream, &mut Side, &Guard, &mut Upcalls) -> Result<(), Down>,
    ) -> bool {
        self.qp.upgrade().is_some_and(|qp| {
            qp.with(|v| {
                service(v.me, v.link, v.guard, up, |stream, (me, up)| {
                    work(stream, me, v.guard, up)
                });
                matches!(v.link, Link::Tcp(stream) if stream.rx.backlog)
            })
        })
    }
}

impl Source for Line {
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls) {
        let backlog = self.service(up, |stream, me, guard, up| {
            stream.ready(events, me, scratch, guard, up)
        });
        if backlog {
            scratch.backlog.extend(self.enqueue());
        }
    }

    fn may_be_tried(&self) -> bool {
        true
    }
}

impl Backlog for Line {
    fn deliver(&self, all: bool, up: &mut Upcalls) -> bool {
        let more = self.service(up, |stream, me, guard, up| {
            stream.use_kept(all, me, guard, up)
        });
        if !more {
            self.queued.store(false, Ordering::Relaxed);
        }
        more
    }

    fn last_turn(&self) -> &LastTurn {
        &self.last_turn
    }
}

impl Gatherer for Line {
    fn send_gathered(&self, late: bool, up: &mut Upcalls) {
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        qp.with(|v| {
            let Link::Tcp(stream) = &mut *v.link else {
                return;
            };
            stream.listed = false;
            let late = late && stream.gather.is_late(Instant::now());
            send_gathered(v.me, v.link, v.guard, up);
            if late && let Link::Tcp(stream) = &mut *v.link {
                stream.gather.was_late();
            }
        });
    }
}
