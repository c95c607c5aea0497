//! Making connections: the active side, step by step as the connection manager tells, and what
//! both sides do when one is there.
//!
//! The queue pairs are ours, not librdmacm's: it is told their number, and we take them through
//! their states with the attributes that it gives. So receives can be posted before there is a
//! connection, and the accepting side can bring any queue pair.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::adapter::{Adapter, Target, check};
use super::cm::Said;
use super::dial::{self, Dial};
use super::handshake::{parameters, ready, respond};
use super::id::CmId;
use super::listen::ConnRequest;
use super::qp::Qp;
use super::service::Job;
use super::{Verbs, sys};
use crate::device::attempt::Phase;
use crate::device::connection_log::{
    Cause, LogEntry, NoAnswer, NobodyListens, PEER_GONE, REJECTED,
};
use crate::device::events::QpEvent;
use crate::device::netif;
use crate::device::qualifier::{self, QualHeader};
use crate::device::{CmEvent, DeviceError};
use crate::log_sink::CONNECTIONS;

/// Why a connection is broken that the peer has ended after the device had stopped it.
const PEER_FAILED: &str = "a request of the peer failed";

/// What an event of the connection manager says.
pub(super) struct News {
    pub target: Option<Target>,
    pub kind: c_int,
    pub status: c_int,
    pub private_data: Box<[u8]>,
    pub rd_in: u8,
    pub rd_out: u8,
    /// The identifier that came with a request.
    pub request: Option<CmId>,
}

impl News {
    /// # Safety
    /// The event was just read and is not acknowledged.
    pub unsafe fn read(adapter: &Arc<Adapter>, event: &sys::CmEvent) -> News {
        // SAFETY: the data of a connection event is as long as it says; events have no data
        // otherwise.
        let private_data = unsafe {
            let conn = &event.conn;
            if conn.private_data.is_null() {
                &[]
            } else {
                let len = usize::from(conn.private_data_len);
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len)
            }
        };
        let asks = event.event == sys::CM_CONNECT_REQUEST;
        // SAFETY: the ids are valid until the event is acknowledged.
        let target = unsafe {
            let id = if asks { event.listen_id } else { event.id };
            adapter.target((*id).context)
        };
        let request = asks.then(|| {
            let nobody = Target::Request(Weak::new());
            // SAFETY: a request comes with an id that is the reader's.
            unsafe { CmId::adopt(adapter, event.id, nobody) }
        });
        News {
            target,
            kind: event.event,
            status: event.status,
            private_data: private_data.into(),
            rd_in: event.conn.initiator_depth,
            rd_out: event.conn.responder_resources,
            request,
        }
    }
}

/// Begins an attempt to connect; gives its number.
fn begin(qp: &Qp, addrs: (SocketAddr, SocketAddr), qual: u64) -> Result<u64, DeviceError> {
    let mut state = qp.state.lock();
    let before = state.attempt.phase;
    let attempt = state.attempt.begin()?;
    state.addrs = Some(addrs);
    state.qual = qual;
    state.local_end = false;
    state.told = None;
    let old = state.id.take();
    drop(state);
    drop(old);
    if let Err(error) = qp.renew() {
        qp.state.lock().attempt.phase = before;
        return Err(error);
    }
    qp.rq.lock().early = None;
    Ok(attempt)
}

/// Takes an attempt back, of which nobody has heard yet.
fn withdraw(qp: &Qp, attempt: u64) {
    let mut state = qp.state.lock();
    if state.attempt.withdraw(attempt) {
        state.dial = None;
        let id = state.id.take();
        let withheld = state.withheld.take();
        drop(state);
        drop(withheld);
        drop(id);
    }
}

/// See [`Device::connect`](crate::device::Device::connect). Qualifier 0 names nothing and is
/// refused with [`DeviceError::BadAddress`].
pub(super) fn connect(
    device: &Arc<Verbs>,
    qp: &Arc<Qp>,
    remote: SocketAddr,
    qual: u64,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    qualifier::check(qual)?;
    netif::check_remote(remote)?;
    if remote.is_ipv6() != device.address.is_ipv6() {
        return Err(DeviceError::BadAddress);
    }
    let private_data = qualifier::add_header(QualHeader::Request, qual, private_data);
    if private_data.len() > device.max_private {
        return Err(DeviceError::Limit);
    }
    if !device.start_service() {
        return Err(DeviceError::Resources);
    }
    let dial = Dial::new(remote, qual, private_data, timeout);
    let first = dial.next().ok_or(DeviceError::BadAddress)?;
    let attempt = begin(qp, (device.address, first), qual)?;
    let deadline = timeout.and_then(|timeout| {
        let when = Instant::now().checked_add(timeout)?;
        Some((when, timeout))
    });
    qp.state.lock().dial = Some(dial);
    match dial::dial(qp, attempt) {
        Ok(_) => {}
        // The address leads nowhere; that is for the event to say.
        Err(Some(error)) => {
            qp.end_attempt(attempt, CmEvent::Unreachable, &format_args!("{error}"));
        }
        Err(None) => {
            withdraw(qp, attempt);
            return Err(DeviceError::Resources);
        }
    }
    if let Some((when, timeout)) = deadline {
        let job = Job::Deadline(when, Arc::downgrade(qp), attempt, timeout);
        device.adapter.jobs.add(job);
    }
    Ok(())
}

impl Qp {
    /// Ends an attempt to connect, or what came of it.
    pub(super) fn end_attempt(&self, attempt: u64, event: CmEvent, cause: &dyn Cause) {
        if self.state.lock().attempt.is_current(attempt) {
            self.end(event, cause);
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

/// The time of an attempt has passed.
pub(super) fn expire(qp: &Qp, attempt: u64, timeout: Duration) {
    if qp.state.lock().attempt.is_connecting(attempt) {
        qp.end(CmEvent::TimedOut, &NoAnswer(timeout));
    }
}

/// Data came on a connection whose last message of the handshake may be lost.
pub(super) fn data_came(qp: &Qp) {
    let id = qp.state.lock().id.clone();
    if let Some(id) = id {
        // SAFETY: the id is valid.
        unsafe { (qp.device.adapter.lib.rdma_notify)(id.raw, sys::EVENT_COMM_EST) };
    }
}

/// What the connection manager tells of an attempt.
pub(super) fn on_event(qp: &Arc<Qp>, attempt: u64, news: News) {
    let Some((phase, id)) = qp.attempt(attempt) else {
        return;
    };
    let active = qp.state.lock().dial.is_some();
    let connecting = phase == Phase::Connecting;
    // What is told of a request that is under way is its answer.
    id.set_waiting(false);
    let said = Said {
        kind: news.kind,
        status: news.status,
        iwarp: qp.device.iwarp,
    };
    if log::log_enabled!(target: CONNECTIONS, log::Level::Debug) {
        let name = qp.name(&qp.state.lock()).to_string();
        log::debug!(target: CONNECTIONS, "{name}: {said}");
    }
    match news.kind {
        sys::CM_ADDR_RESOLVED if connecting => dial::resolve_route(qp, attempt, &id),
        sys::CM_ROUTE_RESOLVED if connecting => dial::ask(qp, attempt, &id),
        sys::CM_CONNECT_RESPONSE if connecting => {
            if let Err(error) = respond(qp, &id) {
                id.reject(&[], false);
                let cause = format_args!("the connection could not be completed: {error}");
                qp.end_attempt(attempt, CmEvent::NonPeerRejected, &cause);
            } else {
                established(qp, attempt, &id, news.private_data);
            }
        }
        sys::CM_ESTABLISHED if connecting => established(qp, attempt, &id, news.private_data),
        sys::CM_REJECTED if connecting && active => rejected(qp, attempt, &news, &said),
        sys::CM_ADDR_ERROR | sys::CM_ROUTE_ERROR | sys::CM_UNREACHABLE if connecting && active => {
            qp.end_attempt(attempt, CmEvent::Unreachable, &said);
        }
        sys::CM_CONNECT_ERROR | sys::CM_DISCONNECTED if connecting && active => {
            qp.end_attempt(attempt, CmEvent::NonPeerRejected, &said);
        }
        sys::CM_REJECTED | sys::CM_UNREACHABLE | sys::CM_CONNECT_ERROR | sys::CM_DISCONNECTED
            if connecting =>
        {
            qp.end_attempt(attempt, CmEvent::AcceptError, &said);
        }
        sys::CM_DISCONNECTED => {
            // A peer hangs up after a failure too; our device has seen what the peer did wrong.
            let failed = !qp.device.iwarp && qp.hw().is_some_and(|hw| hw.is_stopped());
            let event = if failed {
                CmEvent::Broken
            } else {
                CmEvent::Disconnected
            };
            qp.end_attempt(attempt, event, &PEER_FAILED);
        }
        // A peer that died when it had answered and not heard from us again: its kernel takes the
        // answer back.
        sys::CM_REJECTED if phase == Phase::Connected => {
            qp.end_attempt(attempt, CmEvent::Broken, &said);
        }
        sys::CM_DEVICE_REMOVAL => qp.end_attempt(attempt, CmEvent::Broken, &said),
        _ => {}
    }
}

fn rejected(qp: &Qp, attempt: u64, news: &News, said: &Said) {
    let qual = {
        let state = qp.state.lock();
        state.dial.as_ref().map_or(0, |dial| dial.qual)
    };
    let by_consumer = qp.device.iwarp || news.status == sys::REJ_CONSUMER;
    let nobody = NobodyListens(qual);
    let cause: &dyn Cause = if said.nobody_listens() { &nobody } else { said };
    let data = match qualifier::split_header(&news.private_data) {
        Some((QualHeader::Reply, own, data)) if own == qual => data,
        Some((QualHeader::NotMine, ..)) => return dial::next_port(qp, attempt, &nobody),
        _ if !by_consumer => return dial::next_port(qp, attempt, cause),
        _ => &news.private_data,
    };
    let private_data = data.into();
    let event = CmEvent::PeerRejected { private_data };
    qp.end_attempt(attempt, event, &REJECTED);
}

/// Data can flow.
fn established(qp: &Qp, attempt: u64, id: &CmId, private_data: Box<[u8]>) {
    let mut state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return;
    }
    let data: Box<[u8]> = match state.dial.take() {
        Some(dial) => match qualifier::split_header(&private_data) {
            Some((QualHeader::Reply, qual, data)) if qual == dial.qual => data.into(),
            _ => private_data,
        },
        None => Box::default(),
    };
    if let (Some(local), Some(remote)) = id.addrs() {
        state.addrs = Some((local, remote));
    }
    // Before anybody is told, so that requests are taken then.
    qp.sq.lock().up = true;
    state.attempt.phase = Phase::Connected;
    if let Some(line) = LogEntry::connected(|| qp.name(&state)) {
        qp.events.push(QpEvent::Log(line));
    }
    qp.events.push(QpEvent::Established {
        private_data: data,
        qp: qp.me.clone(),
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
    let data = qualifier::add_header(QualHeader::Reply, request.qual, private_data);
    if data.len() > device.max_private {
        return Err(DeviceError::Limit);
    }
    let Some(id) = request.take() else {
        return Err(DeviceError::Resources);
    };
    let addrs = (request.local, request.remote);
    let attempt = begin(qp, addrs, request.qual)?;
    let id = Arc::new(id);
    qp.state.lock().id = Some(id.clone());
    let target = Target::Conn(Arc::downgrade(qp), attempt);
    device.adapter.redirect(id.token, target);
    // A peer that gave up before its events were ours.
    if request.is_gone() {
        qp.end_attempt(attempt, CmEvent::AcceptError, &PEER_GONE);
        return Ok(());
    }
    let Some(hw) = qp.hw() else {
        withdraw(qp, attempt);
        return Err(DeviceError::Resources);
    };
    // Without enhanced set-up an iWARP peer says nothing of its depths.
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
    let result = ready(qp, &id, Some(depths)).and_then(|()| {
        // SAFETY: the id is valid, the parameters are during the call.
        check(unsafe { (device.adapter.lib.rdma_accept)(id.raw, &mut param) })
    });
    if let Err(error) = result {
        let cause = format_args!("the answer could not be sent: {error}");
        qp.end_attempt(attempt, CmEvent::AcceptError, &cause);
    }
    Ok(())
}
