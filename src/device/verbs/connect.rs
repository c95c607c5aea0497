//! Making connections: the active end, step by step with the events of the connection manager, the
//! passive end, and what both do when a connection is established.
//!
//! librdmacm does not own the queue pairs: it gets their number, and this device takes them through
//! their states with the attributes that librdmacm gives. So receives can be posted before there is
//! a connection, and a request can be accepted on any queue pair.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::active::{self, ActiveConnect, next_port_or_end};
use super::adapter::Target;
use super::cm_event::{CmEventData, CmEventKind};
use super::datagram::exchange;
use super::handshake::{parameters, ready, respond};
use super::id::CmId;
use super::listen::ConnRequest;
use super::qp::Qp;
use super::service::Job;
use super::{Verbs, sys};
use crate::device::attempt::Phase;
use crate::device::connection_log::{
    self, Cause, LogEntry, NoAnswer, NoListener, PEER_GONE, REJECTED, Step,
};
use crate::device::events::QpEvent;
use crate::device::netif;
use crate::device::qualifier::{self, QualHeader, Sought};
use crate::device::{CmEvent, DeviceError};
use crate::guarded;

/// Why a connection is broken that the peer has ended after the device had stopped the queue pair.
const PEER_FAILED: &str = "a request of the peer failed";

/// Begins an attempt to connect and gives its number: the active end from `active`, the passive one with
/// the identifier of the request. Nothing has changed after an error.
fn begin(
    qp: &Qp,
    addrs: (SocketAddr, SocketAddr),
    qual: u64,
    active: Option<ActiveConnect>,
    id: Option<Arc<CmId>>,
) -> Result<u64, DeviceError> {
    // Until the end: a thread that frees the endpoint meanwhile takes the queue pair of the device away
    // afterwards, or has done so and none is made.
    let mut state = qp.state.lock();
    // The service thread, which sets this, takes the lock afterwards to end attempts.
    if qp.device.adapter.has_failed() {
        return Err(DeviceError::Resources);
    }
    let before = state.attempt.phase;
    let attempt = state.attempt.begin()?;
    if let Err(error) = qp.renew() {
        state.attempt.phase = before;
        return Err(error);
    }
    state.addrs = Some(addrs);
    state.qual = qual;
    state.active = active;
    state.disconnect_requested = false;
    state.disconnect_sent = None;
    state.unreported_since = None;
    let old = std::mem::replace(&mut state.id, id);
    drop(state);
    drop(old);
    Ok(attempt)
}

/// An attempt is not taken back any more: the queue pair of the device stays the one to which the receives were posted
/// that are there.
fn forget_preposted(qp: &Qp, attempt: u64) {
    let state = qp.state.lock();
    if state.attempt.is_current(attempt) {
        qp.rq.lock().preposted = None;
    }
}

/// Takes back an attempt of which neither the consumer nor the peer knows; `false` if it has ended.
fn withdraw(qp: &Qp, attempt: u64) -> bool {
    let mut state = qp.state.lock();
    let withdrawn = state.attempt.withdraw(attempt);
    if withdrawn {
        state.active = None;
        let id = state.id.take();
        let withheld = state.withheld.take();
        drop(state);
        drop(withheld);
        drop(id);
    }
    withdrawn
}

/// See [`Device::connect`](crate::device::Device::connect). Qualifier 0 names nothing and is
/// refused with [`DeviceError::BadAddress`].
pub(super) fn connect(
    device: &Arc<Verbs>,
    qp: &Arc<Qp>,
    remote: SocketAddr,
    sought: Sought,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let qual = sought.qual;
    qualifier::check(qual)?;
    let remote = netif::peer_address(remote, device.address)?;
    if remote.is_ipv6() != device.address.is_ipv6() {
        return Err(DeviceError::BadAddress);
    }
    if !device.start_service() {
        return Err(DeviceError::Resources);
    }
    if let Some(exchanges) = &qp.exchanges {
        return exchange::ask(qp, exchanges, remote, sought, timeout, private_data);
    }
    let active = ActiveConnect::new(remote, sought, private_data, timeout, &device.params.tuning);
    if active.private_data().len() > device.max_private {
        return Err(DeviceError::Limit);
    }
    let first = active.next().ok_or(DeviceError::BadAddress)?;
    let attempt = begin(qp, (device.address, first), qual, Some(active), None)?;
    let deadline = deadline(timeout);
    match active::try_next_port(qp, attempt) {
        Ok(_) => forget_preposted(qp, attempt),
        // The address cannot be resolved: the event of the attempt reports that.
        Err(Some(error)) => {
            qp.end_attempt(attempt, CmEvent::Unreachable, &format_args!("{error}"));
        }
        Err(None) if withdraw(qp, attempt) => return Err(DeviceError::Resources),
        // Another thread has ended the attempt.
        Err(None) => {}
    }
    limit(qp, attempt, deadline);
    Ok(())
}

/// The end of an attempt that begins now, and the time until then.
pub(super) fn deadline(timeout: Option<Duration>) -> Option<(Instant, Duration)> {
    let timeout = timeout?;
    Some((Instant::now().checked_add(timeout)?, timeout))
}

/// Has an attempt of a queue pair end at a [`deadline`].
pub(super) fn limit(qp: &Arc<Qp>, attempt: u64, deadline: Option<(Instant, Duration)>) {
    if let Some((when, timeout)) = deadline {
        let job = Job::Deadline(when, Arc::downgrade(qp), attempt, timeout);
        qp.device.adapter.jobs.add(job);
    }
}

impl Qp {
    /// Ends an attempt to connect, or the connection it led to.
    pub(super) fn end_attempt(&self, attempt: u64, event: CmEvent, cause: &dyn Cause) {
        let state = self.state.lock();
        if state.attempt.is_current(attempt) {
            self.end_locked(state, event, cause);
        }
    }

    /// The identifier and the phase of an attempt, if it is the current one.
    fn attempt(&self, attempt: u64) -> Option<(Phase, Arc<CmId>)> {
        let state = self.state.lock();
        let id = state.id.clone()?;
        let current = state.attempt.is_current(attempt);
        current.then_some((state.attempt.phase, id))
    }
}

/// Whether the end of its time means something to an attempt.
pub(super) fn is_being_made(qp: &Qp, attempt: u64) -> bool {
    match &qp.exchanges {
        Some(exchanges) => exchanges.is_pending(attempt),
        None => qp.state.lock().attempt.is_connecting(attempt),
    }
}

/// The time of an attempt has passed.
pub(super) fn expire(qp: &Qp, attempt: u64, timeout: Duration) {
    if let Some(exchanges) = &qp.exchanges {
        return exchange::expire(qp, exchanges, attempt, timeout);
    }
    let state = qp.state.lock();
    if state.attempt.is_connecting(attempt) {
        qp.end_locked(state, CmEvent::TimedOut, &NoAnswer(timeout));
    }
}

/// Data arrived on a connection whose last message of the handshake may be lost.
pub(super) fn on_early_data(qp: &Qp) {
    let id = qp.state.lock().id.clone();
    if let Some(id) = id {
        // SAFETY: the id is valid.
        unsafe { (qp.device.adapter.lib.rdma_notify)(id.raw, sys::EVENT_COMM_EST) };
    }
}

/// An event of the connection manager about an attempt, or the connection that it led to.
pub(super) fn on_event(qp: &Arc<Qp>, attempt: u64, event: CmEventData) {
    if let Some(exchanges) = &qp.exchanges {
        return exchange::on_event(qp, exchanges, attempt, &event);
    }
    let Some((phase, id)) = qp.attempt(attempt) else {
        return;
    };
    let active = qp.state.lock().active.is_some();
    let connecting = phase == Phase::Connecting;
    let kind = event.kind;
    if let Some(step) = kind.step() {
        let entry = LogEntry::step_with(|| qp.identity(&qp.state.lock()), step, &kind);
        connection_log::write(entry);
    }
    match kind.event {
        sys::CM_ADDR_RESOLVED if connecting => active::resolve_route(qp, attempt, &id),
        sys::CM_ROUTE_RESOLVED if connecting => active::send_request(qp, attempt, &id),
        sys::CM_CONNECT_RESPONSE if connecting => {
            if let Err(error) = respond(qp, &id) {
                id.reject(&[], false);
                let cause = format_args!("the connection could not be completed: {error}");
                qp.end_attempt(attempt, CmEvent::NonPeerRejected, &cause);
            } else {
                established(qp, attempt, &id, event.private_data);
            }
        }
        sys::CM_ESTABLISHED if connecting => established(qp, attempt, &id, event.private_data),
        sys::CM_REJECTED if connecting && active => rejected(qp, attempt, &event),
        sys::CM_ADDR_ERROR | sys::CM_ROUTE_ERROR | sys::CM_UNREACHABLE if connecting && active => {
            qp.end_attempt(attempt, CmEvent::Unreachable, &kind);
        }
        sys::CM_CONNECT_ERROR | sys::CM_DISCONNECTED if connecting && active => {
            qp.end_attempt(attempt, CmEvent::NonPeerRejected, &kind);
        }
        sys::CM_REJECTED | sys::CM_UNREACHABLE | sys::CM_CONNECT_ERROR | sys::CM_DISCONNECTED
            if connecting =>
        {
            qp.end_attempt(attempt, CmEvent::AcceptError, &kind);
        }
        sys::CM_DISCONNECTED => {
            // A peer disconnects after a failure too; the device has stopped the queue pair then.
            let failed = !qp.device.iwarp && qp.hw().is_some_and(|hw| hw.is_stopped());
            let end = if failed {
                CmEvent::Broken
            } else {
                CmEvent::Disconnected
            };
            qp.end_attempt(attempt, end, &PEER_FAILED);
        }
        // A peer that died after its reply and before it got the last message of the handshake: its
        // kernel takes the reply back.
        sys::CM_REJECTED if phase == Phase::Connected => {
            qp.end_attempt(attempt, CmEvent::Broken, &kind);
        }
        _ => {}
    }
}

/// Active end: the request was rejected.
fn rejected(qp: &Qp, attempt: u64, event: &CmEventData) {
    let kind: &CmEventKind = &event.kind;
    let qual = {
        let state = qp.state.lock();
        state.active.as_ref().map_or(0, |active| active.qual)
    };
    let by_consumer = qp.device.iwarp || kind.status == sys::REJ_CONSUMER;
    let no_listener = NoListener(qual);
    let cause: &dyn Cause = if kind.is_no_listener() {
        &no_listener
    } else {
        kind
    };
    let private_data = match rejection(qual, by_consumer, &event.private_data) {
        Rejection::ByConsumer(data) => data.into(),
        Rejection::NotMine => return next_port_or_end(qp, attempt, &no_listener),
        Rejection::Other => return next_port_or_end(qp, attempt, cause),
    };
    let rejected = CmEvent::PeerRejected { private_data };
    qp.end_attempt(attempt, rejected, &REJECTED);
}

/// Who has rejected a request.
#[derive(PartialEq, Eq, Debug)]
enum Rejection<'a> {
    /// The consumer that listens for the qualifier, with these private data.
    ByConsumer(&'a [u8]),
    /// A listener for another qualifier that leads to the same port.
    NotMine,
    /// Nobody who listens for the qualifier.
    Other,
}

/// What a rejection says. `by_consumer` is set if it may be that of a consumer: an iWARP adapter reports a port
/// without a listener in the same way.
fn rejection(qual: u64, by_consumer: bool, private_data: &[u8]) -> Rejection<'_> {
    match qualifier::split_header(private_data) {
        Some((QualHeader::Reply, own, data)) if own == qual => Rejection::ByConsumer(data),
        Some((QualHeader::NotMine, ..)) => Rejection::NotMine,
        // Who listens for a qualifier that is no port names it in every answer of the consumer.
        _ if !by_consumer || qualifier::needs_header(qual) => Rejection::Other,
        _ => Rejection::ByConsumer(private_data),
    }
}

/// Data can flow.
fn established(qp: &Qp, attempt: u64, id: &CmId, private_data: Box<[u8]>) {
    let mut state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return;
    }
    let data: Box<[u8]> = match state.active.take() {
        Some(active) => match qualifier::split_header(&private_data) {
            Some((QualHeader::Reply, qual, data)) if qual == active.qual => data.into(),
            _ => private_data,
        },
        None => Box::default(),
    };
    if let (Some(local), Some(remote)) = id.addrs() {
        state.addrs = Some((local, remote));
    }
    guarded::install_handlers();
    // Before the consumer is notified, so that it can post requests then.
    {
        let mut sq = qp.sq.lock();
        sq.open = sq.hw.clone();
    }
    state.attempt.phase = Phase::Connected;
    qp.push_step(&state, Step::Connected);
    qp.events.push(QpEvent::Established {
        private_data: data,
        qp: qp.weak.clone(),
        until_delivered: None,
    });
    drop(state);
    qp.events.deliver();
}

/// See [`Device::accept`](crate::device::Device::accept).
pub(super) fn accept(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let device = &qp.device;
    if let (Some(peer), true) = (request.datagrams, qp.is_for_datagrams()) {
        return exchange::answer(request, peer, qp, private_data);
    }
    if request.datagrams.is_some() || qp.is_for_datagrams() {
        return Err(DeviceError::Unsupported);
    }
    if private_data.len() > device.attr.max_private_data as usize {
        return Err(DeviceError::Limit);
    }
    let data = qualifier::add_header(QualHeader::Reply, request.qual, private_data);
    let Some(id) = request.take() else {
        return Err(DeviceError::Resources);
    };
    let addrs = (request.local, request.remote);
    let id = Arc::new(id);
    let attempt = begin(qp, addrs, request.qual, None, Some(id.clone()))
        .inspect_err(|_| request.refuse(&id))?;
    forget_preposted(qp, attempt);
    let target = Target::Conn(Arc::downgrade(qp), attempt);
    device.adapter.retarget(id.token, target);
    // The peer gave up before the events of the request were for this attempt.
    if request.is_withdrawn() {
        qp.end_attempt(attempt, CmEvent::AcceptError, &PEER_GONE);
        return Ok(());
    }
    // Another thread has ended the attempt.
    let Some(hw) = qp.hw() else { return Ok(()) };
    // Without enhanced connection set-up (RFC 6581) an iWARP peer does not advertise its depths.
    let agree = |own: u32, peer: u8| match peer {
        0 if device.iwarp => own,
        peer => own.min(peer.into()),
    };
    let rd_in = agree(hw.attr.max_rd_in, request.rd_out);
    let rd_out = agree(hw.attr.max_rd_out, request.rd_in);
    let mut param = parameters(device, &hw, rd_in, rd_out);
    param.private_data = data.as_ptr().cast();
    param.private_data_len = data.len() as u8;
    let depths = (param.responder_resources, param.initiator_depth);
    qp.log_step(Step::RequestAccepted);
    let result = ready(qp, &id, Some(depths)).and_then(|()| {
        // SAFETY: the data is valid during the call.
        unsafe { id.accept(&mut param) }
    });
    if let Err(error) = result {
        let cause = format_args!("the answer could not be sent: {error}");
        qp.end_attempt(attempt, CmEvent::AcceptError, &cause);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_rejected_a_request() {
        let (port, other) = (4711, 0x1_0000);
        let reply = |kind| qualifier::add_header(kind, other, b"no");
        assert_eq!(rejection(port, true, b"no"), Rejection::ByConsumer(b"no"));
        assert_eq!(rejection(port, true, b""), Rejection::ByConsumer(b""));
        assert_eq!(rejection(port, false, b""), Rejection::Other);
        let by_consumer = reply(QualHeader::Reply);
        assert_eq!(
            rejection(other, true, &by_consumer),
            Rejection::ByConsumer(b"no")
        );
        assert_eq!(
            rejection(other, true, &reply(QualHeader::NotMine)),
            Rejection::NotMine
        );
        // There is no listener, or another program listens at the port.
        for data in [&b""[..], b"no", &[0; 148]] {
            assert_eq!(rejection(other, true, data), Rejection::Other);
        }
        let of_another = qualifier::add_header(QualHeader::Reply, other + 1, b"no");
        assert_eq!(rejection(other, true, &of_another), Rejection::Other);
    }
}
