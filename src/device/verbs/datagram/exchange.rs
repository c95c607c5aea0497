//! Where a peer receives datagrams: a SIDR exchange of rdma_cm, in which both ends learn that of each
//! other.
//!
//! The asking end goes through the events of an identifier as for a connection, port by port if the
//! qualifier is no port, and ends with the answer. The answering end gets no event behind its answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::Mutex;

use super::address::{Destination, Peer};
use super::wire::End;
use crate::device::connection_log::{
    self, Cause, Identity, LogEntry, NoAnswer, NoListener, Outcome, Path, REJECTED, Step,
};
use crate::device::events::QpEvent;
use crate::device::qualifier::{self, QualHeader, Sought};
use crate::device::verbs::active::{ActiveConnect, NO_IDENTIFIER};
use crate::device::verbs::adapter::Target;
use crate::device::verbs::cm_event::CmEventData;
use crate::device::verbs::connect::{deadline, limit};
use crate::device::verbs::handshake::parameters;
use crate::device::verbs::id::CmId;
use crate::device::verbs::listen::ConnRequest;
use crate::device::verbs::qp::Qp;
use crate::device::verbs::{Verbs, sys};
use crate::device::{CmEvent, ConnectionRequest, DeviceError, Resolved};

/// Why a peer is not resolved although it has answered.
const NO_ADDRESS_HANDLE: &str = "the device makes no address handle for the peer";

/// Why an answer has no effect.
const NO_DATAGRAMS: &str = "the peer has refused without a word of its consumer";

/// An attempt to resolve a peer.
struct Exchange {
    active: ActiveConnect,
    /// The identifier of the request that was sent last.
    id: Option<Arc<CmId>>,
    /// Where that request goes.
    remote: SocketAddr,
}

/// The attempts of a queue pair to resolve peers, by number.
#[derive(Default)]
pub(in crate::device::verbs) struct Exchanges(Mutex<State>);

#[derive(Default)]
struct State {
    pending: BTreeMap<u64, Exchange>,
    /// Number of the last attempt.
    last: u64,
    /// The queue pair was destroyed.
    closed: bool,
}

impl Exchanges {
    /// Begins an attempt.
    fn begin(&self, exchange: Exchange) -> Result<u64, DeviceError> {
        let mut state = self.0.lock();
        if state.closed {
            return Err(DeviceError::Unsupported);
        }
        state.last += 1;
        let number = state.last;
        state.pending.insert(number, exchange);
        Ok(number)
    }

    /// Something of an attempt; `None` if that has ended.
    fn with<R>(&self, number: u64, f: impl FnOnce(&mut Exchange) -> R) -> Option<R> {
        self.0.lock().pending.get_mut(&number).map(f)
    }

    /// Whether an attempt has not ended.
    pub fn is_pending(&self, number: u64) -> bool {
        self.with(number, |_| ()).is_some()
    }

    /// Ends an attempt. What it had is to be dropped without a lock; `None` if it has ended before.
    fn take(&self, number: u64) -> Option<Exchange> {
        self.0.lock().pending.remove(&number)
    }

    /// Ends all attempts without an event, and lets none begin.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        drop(pending);
    }
}

/// What log entries have of an attempt.
fn identity(qp: &Qp, addrs: (SocketAddr, SocketAddr), qual: u64) -> Identity<'_> {
    Identity {
        endpoint: Some(qp.parts.lock().1.context),
        addrs: Some(addrs),
        qual,
        path: Path::Device(&qp.device.name),
    }
}

/// Where the peer of an attempt is, and the qualifier.
fn target(exchange: &mut Exchange) -> (SocketAddr, u64) {
    (exchange.remote, exchange.active.qual)
}

/// The end that this queue pair is, for the peer.
fn own_end(qp: &Qp) -> Result<End, DeviceError> {
    let device = &qp.device;
    let hw = qp.hw().ok_or(DeviceError::Resources)?;
    let lid = match device.infiniband {
        true => {
            let port = device.adapter.query(device.port);
            port.map_err(|_| DeviceError::Resources)?.1.lid
        }
        false => 0,
    };
    Ok(End {
        qp_number: hw.qp_num,
        lid,
    })
}

/// Checks the length of private data.
fn check_private_data(device: &Verbs, private_data: &[u8]) -> Result<(), DeviceError> {
    match private_data.len() <= device.attr.max_datagram_private_data as usize {
        true => Ok(()),
        false => Err(DeviceError::Limit),
    }
}

/// Asks the consumer that listens for what is sought at `remote`. The answer is an event of the queue pair.
///
/// # Errors
/// [`DeviceError::Limit`] for private data that is too long, [`DeviceError::BadAddress`],
/// [`DeviceError::Resources`].
pub(in crate::device::verbs) fn ask(
    qp: &Arc<Qp>,
    exchanges: &Exchanges,
    remote: SocketAddr,
    sought: Sought,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(&qp.device, private_data)?;
    let private_data = own_end(qp)?.add_to(private_data);
    let active = ActiveConnect::new(
        remote,
        sought,
        &private_data,
        timeout,
        &qp.device.params.tuning,
    );
    let remote = active.next().ok_or(DeviceError::BadAddress)?;
    let deadline = deadline(timeout);
    let number = exchanges.begin(Exchange {
        active,
        id: None,
        remote,
    })?;
    match try_next_port(qp, exchanges, number) {
        Ok(_) => {}
        // The address cannot be resolved: the event of the attempt reports that.
        Err(Some(error)) => {
            let cause = format_args!("{error}");
            finish(qp, exchanges, number, CmEvent::Unreachable, Some(&cause));
        }
        Err(None) => {
            drop(exchanges.take(number));
            return Err(DeviceError::Resources);
        }
    }
    limit(qp, number, deadline);
    Ok(())
}

/// Tries the next port; `false` if all were tried. An error without cause means that there is no
/// identifier for it.
fn try_next_port(
    qp: &Qp,
    exchanges: &Exchanges,
    number: u64,
) -> Result<bool, Option<std::io::Error>> {
    let device = &qp.device;
    let target = Target::Conn(qp.weak.clone(), number);
    let id = CmId::new(&device.adapter, sys::PS_UDP, target).map_err(|_| None)?;
    let id = Arc::new(id);
    let next = exchanges.with(number, |exchange| {
        let to = exchange.active.take_next()?;
        exchange.remote = to;
        let old = exchange.id.replace(id.clone());
        Some((to, exchange.active.arp_timeout, old))
    });
    let Some(next) = next else {
        // The attempt has ended.
        return Ok(true);
    };
    let Some((to, timeout, old)) = next else {
        return Ok(false);
    };
    drop(old);
    log_step(qp, exchanges, number, Step::ResolvingAddress);
    id.resolve_addr(device.address, to, timeout).map_err(Some)?;
    Ok(true)
}

/// Logs a step of an attempt.
fn log_step(qp: &Qp, exchanges: &Exchanges, number: u64, step: Step) {
    if let Some((remote, qual)) = exchanges.with(number, target) {
        let addrs = (qp.device.address, remote);
        connection_log::write(LogEntry::step(|| identity(qp, addrs, qual), step));
    }
}

/// Ends an attempt, unless it has ended before, and reports `event`; `cause` is why it is a failure.
fn finish(qp: &Qp, exchanges: &Exchanges, number: u64, event: CmEvent, cause: Option<&dyn Cause>) {
    let Some(mut exchange) = exchanges.take(number) else {
        return;
    };
    if let (Some(cause), Some(outcome)) = (cause, Outcome::of(&event, true)) {
        let (remote, qual) = target(&mut exchange);
        let addrs = (qp.device.address, remote);
        if let Some(entry) = LogEntry::new(|| identity(qp, addrs, qual), outcome, cause) {
            qp.events.push(QpEvent::Log(entry));
        }
    }
    drop(exchange);
    qp.events.push(QpEvent::Connection(event));
    qp.events.deliver();
}

/// The time of an attempt has passed.
pub(in crate::device::verbs) fn expire(
    qp: &Qp,
    exchanges: &Exchanges,
    number: u64,
    timeout: Duration,
) {
    let cause = NoAnswer(timeout);
    finish(qp, exchanges, number, CmEvent::TimedOut, Some(&cause));
}

/// An event of the connection manager about an attempt.
pub(in crate::device::verbs) fn on_event(
    qp: &Qp,
    exchanges: &Exchanges,
    number: u64,
    event: &CmEventData,
) {
    let parts =
        |exchange: &mut Exchange| Some((exchange.id.clone()?, exchange.active.route_timeout));
    let Some((id, timeout)) = exchanges.with(number, parts).flatten() else {
        return;
    };
    let kind = event.kind;
    if let Some(step) = kind.step()
        && let Some((remote, qual)) = exchanges.with(number, target)
    {
        let addrs = (qp.device.address, remote);
        let entry = LogEntry::step_with(|| identity(qp, addrs, qual), step, &kind);
        connection_log::write(entry);
    }
    let failed = |event, cause: &dyn Cause| finish(qp, exchanges, number, event, Some(cause));
    match kind.event {
        sys::CM_ADDR_RESOLVED => {
            if let Err(error) = id.resolve_route(timeout) {
                failed(CmEvent::Unreachable, &format_args!("no route: {error}"));
            }
        }
        sys::CM_ROUTE_RESOLVED => send_request(qp, exchanges, number, &id),
        sys::CM_ESTABLISHED => answered(qp, exchanges, number, event),
        _ if kind.refusal().is_some() => refused(qp, exchanges, number, event),
        sys::CM_ADDR_ERROR | sys::CM_ROUTE_ERROR | sys::CM_UNREACHABLE | sys::CM_DEVICE_REMOVAL => {
            failed(CmEvent::Unreachable, &kind);
        }
        sys::CM_REJECTED | sys::CM_CONNECT_ERROR => failed(CmEvent::NonPeerRejected, &kind),
        _ => {}
    }
}

/// The route is resolved: sends the request.
fn send_request(qp: &Qp, exchanges: &Exchanges, number: u64, id: &CmId) {
    let data = exchanges.with(number, |exchange| exchange.active.private_data());
    let (Some(data), Some(hw)) = (data, qp.hw()) else {
        return;
    };
    log_step(qp, exchanges, number, Step::RequestSent);
    let mut param = parameters(&qp.device, &hw, 0, 0);
    param.private_data = data.as_ptr().cast();
    param.private_data_len = data.len() as u8;
    // SAFETY: the data is there until the end of this function.
    if let Err(error) = unsafe { id.connect(&mut param) } {
        let cause = format_args!("the request could not be sent: {error}");
        let event = CmEvent::NonPeerRejected;
        finish(qp, exchanges, number, event, Some(&cause));
    }
}

/// The private data of an answer without the header of the qualifier.
fn without_qualifier(private_data: &[u8], own: u64) -> &[u8] {
    match qualifier::split_header(private_data) {
        Some((QualHeader::Reply, qual, data)) if qual == own => data,
        _ => private_data,
    }
}

/// The peer has said where it receives datagrams.
fn answered(qp: &Qp, exchanges: &Exchanges, number: u64, event: &CmEventData) {
    let (Some((remote, qual)), Some(to)) = (exchanges.with(number, target), event.destination)
    else {
        return;
    };
    let Some(peer) = Peer::new(&qp.pd(), to, remote) else {
        let event = CmEvent::Unreachable;
        return finish(qp, exchanges, number, event, Some(&NO_ADDRESS_HANDLE));
    };
    let data = without_qualifier(&event.private_data, qual);
    // The number in front of it is that of the event; an end that is not of this library has none.
    let data = End::split_from(data).map_or(data, |(_, data)| data);
    let resolved = Resolved {
        to: peer,
        private_data: data.into(),
        accepted: false,
    };
    finish(qp, exchanges, number, CmEvent::Resolved(resolved), None);
}

/// The peer has refused: its consumer has only if there is the header in front of the private data.
fn refused(qp: &Qp, exchanges: &Exchanges, number: u64, event: &CmEventData) {
    let Some((_, qual)) = exchanges.with(number, target) else {
        return;
    };
    let no_listener = NoListener(qual);
    let not_mine = matches!(
        qualifier::split_header(&event.private_data),
        Some((QualHeader::NotMine, ..))
    );
    if not_mine || event.kind.refusal() != Some(sys::SIDR_REJECT) {
        return next_port_or_end(qp, exchanges, number, &no_listener);
    }
    let data = without_qualifier(&event.private_data, qual);
    match End::split_from(data) {
        Some((_, data)) => {
            let private_data = data.into();
            let event = CmEvent::PeerRejected { private_data };
            finish(qp, exchanges, number, event, Some(&REJECTED));
        }
        None => next_port_or_end(qp, exchanges, number, &NO_DATAGRAMS),
    }
}

/// A port has failed for `cause`: tries the next one, and ends the attempt if there is none.
fn next_port_or_end(qp: &Qp, exchanges: &Exchanges, number: u64, cause: &dyn Cause) {
    let failed = |cause: &dyn Cause| {
        let event = CmEvent::NonPeerRejected;
        finish(qp, exchanges, number, event, Some(cause));
    };
    match try_next_port(qp, exchanges, number) {
        Ok(true) => {}
        Ok(false) => failed(cause),
        Err(Some(error)) => failed(&format_args!("{error}")),
        Err(None) => failed(&NO_IDENTIFIER),
    }
}

/// Answers the request of a peer, and reports where the peer receives datagrams.
///
/// # Errors
/// [`DeviceError::Limit`] for private data that is too long, [`DeviceError::Resources`] if the device
/// makes no address handle for the peer or the answer cannot be sent.
pub(in crate::device::verbs) fn answer(
    mut request: ConnRequest,
    peer: End,
    qp: &Arc<Qp>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let device = &qp.device;
    check_private_data(device, private_data)?;
    let (remote, qual) = (request.remote, request.qual);
    let hw = qp.hw().ok_or(DeviceError::Resources)?;
    let data = own_end(qp)?.add_to(private_data);
    let data = qualifier::add_header(QualHeader::Reply, qual, &data);
    let to = Destination::of_asker(device, remote.ip(), peer);
    let to = to.and_then(|to| Peer::new(hw.pd(), to, remote));
    let to = to.ok_or(DeviceError::Resources)?;
    let id = request.take().ok_or(DeviceError::Resources)?;
    let mut param = parameters(device, &hw, 0, 0);
    param.private_data = data.as_ptr().cast();
    param.private_data_len = data.len() as u8;
    let addrs = (request.local_addr(), remote);
    let step = Step::RequestAccepted;
    connection_log::write(LogEntry::step(|| identity(qp, addrs, qual), step));
    // SAFETY: the data is there until the end of this function.
    unsafe { id.accept(&mut param) }.map_err(|_| DeviceError::Resources)?;
    drop(id);
    let resolved = Resolved {
        to,
        private_data: request.private_data().into(),
        accepted: true,
    };
    let event = CmEvent::Resolved(resolved);
    qp.events.push(QpEvent::Connection(event));
    qp.events.deliver();
    Ok(())
}
