//! The active end until its request was sent: address, route, request, and the next port if
//! there is no listener on one.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::adapter::Target;
use super::handshake::parameters;
use super::id::CmId;
use super::qp::Qp;
use super::sys;
use super::tuning::Tuning;
use crate::device::CmEvent;
use crate::device::connection_log::{Cause, NoListener, Step};
use crate::device::netif::at_port;
use crate::device::qualifier::{QualHeader, Sought, add_header, places};

/// How often a request is sent again because the connection manager had chosen a local port that
/// the network stack has given to another socket: the connection manager knows its own ports only.
const LOCAL_PORT_RETRIES: u8 = 5;

/// Why an attempt ends that gets no identifier.
pub(super) const NO_IDENTIFIER: &str = "the connection manager is out of resources";

/// What the active end needs until the connection is established.
pub(super) struct ActiveConnect {
    /// Address of the peer; the port is not used.
    remote: SocketAddr,
    /// The connection qualifier that the request is for.
    pub qual: u64,
    /// Ports that were not tried yet and the qualifiers they belong to, the next one last.
    ports: Vec<(u16, u64)>,
    /// Private data of the request, without the header of the qualifier.
    private_data: Box<[u8]>,
    /// The time in which the address is to be resolved.
    pub arp_timeout: Duration,
    /// The time in which the route is to be resolved.
    pub route_timeout: Duration,
    /// How often the request may still be sent from another local port.
    local_port_retries: u8,
}

impl ActiveConnect {
    /// An attempt that has not begun; `private_data` is without the header of the qualifier.
    pub fn new(
        remote: SocketAddr,
        sought: Sought,
        private_data: &[u8],
        timeout: Option<Duration>,
        tuning: &Tuning,
    ) -> ActiveConnect {
        let limited = |time: Duration| timeout.map_or(time, |timeout| timeout.min(time));
        let otherwise = sought.otherwise.into_iter().flat_map(places);
        let mut ports: Vec<_> = places(sought.qual).chain(otherwise).collect();
        ports.reverse();
        ActiveConnect {
            remote,
            qual: sought.qual,
            ports,
            private_data: private_data.into(),
            arp_timeout: limited(tuning.arp_timeout),
            route_timeout: limited(tuning.route_timeout),
            local_port_retries: LOCAL_PORT_RETRIES,
        }
    }

    /// Where the next request goes.
    pub fn next(&self) -> Option<SocketAddr> {
        let (port, _) = self.ports.last()?;
        Some(at_port(self.remote, *port))
    }

    /// The same; that port is not tried again. The request is for its qualifier.
    pub fn take_next(&mut self) -> Option<SocketAddr> {
        let (port, qual) = self.ports.pop()?;
        self.qual = qual;
        Some(at_port(self.remote, port))
    }

    /// The private data of the request, with the header of the qualifier if that needs one.
    pub fn private_data(&self) -> Vec<u8> {
        add_header(QualHeader::Request, self.qual, &self.private_data)
    }
}

/// Tries the next port; `false` if all were tried. An error without cause means that there is no
/// identifier for it.
pub(super) fn try_next_port(qp: &Qp, attempt: u64) -> Result<bool, Option<io::Error>> {
    let device = &qp.device;
    let target = Target::Conn(qp.weak.clone(), attempt);
    let id = CmId::new(&device.adapter, sys::PS_TCP, target).map_err(|_| None)?;
    let id = Arc::new(id);
    let mut state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return Ok(true);
    }
    let active = state.active.as_mut();
    let next = active.and_then(|active| Some((active.take_next()?, active.arp_timeout)));
    let Some((to, timeout)) = next else {
        return Ok(false);
    };
    let old = state.id.replace(id.clone());
    if let Some((_, remote)) = &mut state.addrs {
        *remote = to;
    }
    drop(state);
    drop(old);
    qp.log_step(Step::ResolvingAddress);
    id.resolve_addr(device.address, to, timeout).map_err(Some)?;
    Ok(true)
}

/// The address is resolved: starts to resolve the route.
pub(super) fn resolve_route(qp: &Qp, attempt: u64, id: &CmId) {
    let timeout = {
        let mut state = qp.state.lock();
        // The kernel has chosen the port of this end.
        if let (Some((local, _)), (Some(chosen), _)) = (&mut state.addrs, id.addrs()) {
            local.set_port(chosen.port());
        }
        let active = state.active.as_ref();
        active.map_or(qp.device.params.tuning.route_timeout, |active| {
            active.route_timeout
        })
    };
    if let Err(error) = id.resolve_route(timeout) {
        let cause = format_args!("no route: {error}");
        qp.end_attempt(attempt, CmEvent::Unreachable, &cause);
    }
}

/// Sends the request. Where that blocks, a thread of its own does it.
pub(super) fn send_request(qp: &Qp, attempt: u64, id: &Arc<CmId>) {
    let device = &qp.device;
    if device.siw {
        let (qp, id) = (qp.weak.clone(), id.clone());
        let calls = &device.adapter.connect_calls;
        calls.run(move || send(&qp, attempt, &id));
    } else {
        send(&qp.weak, attempt, id);
    }
}

/// Sends the request. The queue pair may be freed meanwhile.
fn send(qp: &Weak<Qp>, attempt: u64, id: &CmId) {
    let request = qp.upgrade().and_then(|qp| prepare(&qp, attempt, id));
    let Some((data, mut param)) = request else {
        return;
    };
    param.private_data = data.as_ptr().cast();
    param.private_data_len = data.len() as u8;
    // SAFETY: the data is there until the end of this function.
    let result = unsafe { id.connect(&mut param) };
    let Err(error) = result else { return };
    id.not_sent();
    if let Some(qp) = qp.upgrade() {
        not_sent(&qp, attempt, &error);
    }
}

/// Private data and parameters of the request, if the attempt is still being made.
fn prepare(qp: &Qp, attempt: u64, id: &CmId) -> Option<(Vec<u8>, sys::ConnParam)> {
    let hw = qp.hw()?;
    if qp.device.iwarp {
        // The kernel makes the queue pair ready when the reply arrives, and notifies us later.
        qp.withhold();
    }
    let state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return None;
    }
    let data = state.active.as_ref()?.private_data();
    // Under the lock: a thread that ends the attempt from now on knows that the peer gets a
    // request.
    if qp.device.iwarp {
        id.wait_for_answer();
    }
    drop(state);
    qp.log_step(Step::RequestSent);
    let param = parameters(&qp.device, &hw, hw.attr.max_rd_in, hw.attr.max_rd_out);
    Some((data, param))
}

/// The request could not be sent: software iWARP connects its TCP socket first and reports how
/// that failed.
fn not_sent(qp: &Qp, attempt: u64, error: &io::Error) {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
            let qual = qp.state.lock().qual;
            next_port_or_end(qp, attempt, &NoListener(qual));
        }
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) if try_port_again(qp, attempt) => {
            next_port_or_end(qp, attempt, &format_args!("{error}"));
        }
        Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            qp.end_attempt(attempt, CmEvent::Unreachable, &format_args!("{error}"));
        }
        _ => {
            let cause = format_args!("the connection request could not be sent: {error}");
            qp.end_attempt(attempt, CmEvent::NonPeerRejected, &cause);
        }
    }
}

/// Makes the port of the peer that was tried last the next one; `false` if that has been done too
/// often.
fn try_port_again(qp: &Qp, attempt: u64) -> bool {
    let mut state = qp.state.lock();
    if !state.attempt.is_current(attempt) {
        return false;
    }
    let Some((_, remote)) = state.addrs else {
        return false;
    };
    let active = state.active.as_mut();
    let Some(active) = active.filter(|active| active.local_port_retries > 0) else {
        return false;
    };
    active.local_port_retries -= 1;
    active.ports.push((remote.port(), active.qual));
    true
}

/// A port has failed for `cause`: tries the next one, and ends the attempt if there is none.
pub(super) fn next_port_or_end(qp: &Qp, attempt: u64, cause: &dyn Cause) {
    let event = CmEvent::NonPeerRejected;
    match try_next_port(qp, attempt) {
        Ok(true) => {}
        Ok(false) => qp.end_attempt(attempt, event, cause),
        Err(Some(error)) => qp.end_attempt(attempt, event, &format_args!("{error}")),
        Err(None) => qp.end_attempt(attempt, event, &NO_IDENTIFIER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_is_tried_at_the_whole_address() {
        let qual = 0x1_0000;
        let remote = "[fe80::1%3]:0".parse().unwrap();
        let sought = Sought {
            qual,
            otherwise: Some(4711),
        };
        let mut active = ActiveConnect::new(remote, sought, b"data", None, &Tuning::default());
        for (port, _) in places(qual).chain([(4711, 4711)]) {
            let next = format!("[fe80::1%3]:{port}").parse().ok();
            assert_eq!(active.next(), next);
            assert_eq!(active.take_next(), next);
            let asked = if port == 4711 { 4711 } else { qual };
            assert_eq!(active.qual, asked);
            let data = add_header(QualHeader::Request, asked, b"data");
            assert_eq!(active.private_data(), data);
        }
        assert_eq!((active.next(), active.take_next()), (None, None));
    }
}
