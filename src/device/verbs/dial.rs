//! The active side until the peer has been asked: address, route, request, and the next port if
//! nobody listens at one.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::adapter::{Target, check};
use super::handshake::parameters;
use super::id::CmId;
use super::qp::Qp;
use super::{address, sys};
use crate::device::CmEvent;
use crate::device::connection_log::{Cause, NobodyListens};
use crate::device::netif::at_port;
use crate::device::qualifier::candidates;

/// How long addresses and routes are looked for, at most.
const RESOLVE: Duration = Duration::from_secs(10);

/// Times that the connection manager may choose a port of ours which the network stack cannot
/// give: it counts its own ports only.
const AGAIN: u8 = 5;

/// Why an attempt ends for which the connection manager has no room.
const NO_IDENTIFIER: &str = "the connection manager is out of resources";

/// What the active side needs until the connection is there.
pub(super) struct Dial {
    remote: SocketAddr,
    pub qual: u64,
    /// Ports that were not tried yet, the next one last.
    ports: Vec<u16>,
    private_data: Vec<u8>,
    timeout: Duration,
    /// How often another port of ours may be tried.
    again: u8,
}

impl Dial {
    /// The private data is what the peer is to get, with the qualifier where it is wide.
    pub fn new(
        remote: SocketAddr,
        qual: u64,
        private_data: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Dial {
        let mut ports: Vec<u16> = candidates(qual).collect();
        ports.reverse();
        Dial {
            remote,
            qual,
            ports,
            private_data,
            timeout: timeout.unwrap_or(RESOLVE).min(RESOLVE),
            again: AGAIN,
        }
    }

    /// Where the next request goes.
    pub fn next(&self) -> Option<SocketAddr> {
        self.ports.last().map(|port| at_port(self.remote, *port))
    }

    /// The same, which is not tried again.
    fn take_next(&mut self) -> Option<SocketAddr> {
        let next = self.next();
        self.ports.pop();
        next
    }
}

/// Tries the next port; `false` if there is none left. An error without cause means that the
/// attempt could not even begin.
pub(super) fn dial(qp: &Qp, attempt: u64) -> Result<bool, Option<io::Error>> {
    let device = &qp.device;
    let target = Target::Conn(qp.me.clone(), attempt);
    let id = Arc::new(CmId::new(&device.adapter, target).map_err(|_| None)?);
    let mut state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return Ok(true);
    }
    let next = state.dial.as_mut();
    let Some((to, timeout)) = next.and_then(|dial| Some((dial.take_next()?, dial.timeout))) else {
        return Ok(false);
    };
    let old = state.id.replace(id.clone());
    if let Some((_, remote)) = &mut state.addrs {
        *remote = to;
    }
    drop(state);
    drop(old);
    let mut from = address::storage(device.address);
    let mut to = address::storage(to);
    // SAFETY: the id and the addresses are valid.
    check(unsafe {
        (device.adapter.lib.rdma_resolve_addr)(
            id.raw,
            from.as_mut_ptr(),
            to.as_mut_ptr(),
            millis(timeout),
        )
    })
    .map_err(Some)?;
    Ok(true)
}

fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis())
        .unwrap_or(c_int::MAX)
        .max(1)
}

/// The address is known.
pub(super) fn resolve_route(qp: &Qp, attempt: u64, id: &CmId) {
    let timeout = {
        let state = qp.state.lock();
        state.dial.as_ref().map_or(RESOLVE, |dial| dial.timeout)
    };
    // SAFETY: the id is valid.
    let error = unsafe { (qp.device.adapter.lib.rdma_resolve_route)(id.raw, millis(timeout)) };
    if error != 0 {
        let error = io::Error::last_os_error();
        qp.end_attempt(
            attempt,
            CmEvent::Unreachable,
            &format_args!("no route: {error}"),
        );
    }
}

/// Sends the request, or has it sent where that takes time.
pub(super) fn ask(qp: &Qp, attempt: u64, id: &Arc<CmId>) {
    let device = &qp.device;
    if device.siw {
        let (qp, id) = (qp.me.clone(), id.clone());
        device.adapter.asks.run(move || send(&qp, attempt, &id));
    } else {
        send(&qp.me, attempt, id);
    }
}

/// The queue pair may go while its request is being sent.
fn send(qp: &Weak<Qp>, attempt: u64, id: &CmId) {
    let sending = id.sending();
    let Some((data, mut param)) = qp.upgrade().and_then(|qp| request(&qp, attempt, id)) else {
        return;
    };
    param.private_data = data.as_ptr().cast();
    param.private_data_len = data.len() as u8;
    // SAFETY: the data is there until the end of this function.
    let result = unsafe { id.connect(&mut param) };
    drop(sending);
    let Err(error) = result else { return };
    id.set_waiting(false);
    if let Some(qp) = qp.upgrade() {
        not_sent(&qp, attempt, &error);
    }
}

/// What the request says, if it is still wanted.
fn request(qp: &Qp, attempt: u64, id: &CmId) -> Option<(Vec<u8>, sys::ConnParam)> {
    let hw = qp.hw()?;
    if qp.device.iwarp {
        // The kernel makes the queue pair ready when the answer comes, and then tells us.
        qp.withhold();
    }
    let state = qp.state.lock();
    if !state.attempt.is_connecting(attempt) {
        return None;
    }
    let data = state.dial.as_ref()?.private_data.clone();
    // Under the lock: whoever ends the attempt from now on knows that the peer was asked.
    id.set_waiting(qp.device.iwarp);
    drop(state);
    let param = parameters(&qp.device, &hw, hw.attr.max_rd_in, hw.attr.max_rd_out);
    Some((data, param))
}

/// Software iWARP connects its TCP socket first and says how that went.
fn not_sent(qp: &Qp, attempt: u64, error: &io::Error) {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
            let qual = qp.state.lock().qual;
            next_port(qp, attempt, &NobodyListens(qual));
        }
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) if same_port(qp, attempt) => {
            next_port(qp, attempt, &format_args!("{error}"));
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

/// The peer's port that was tried last is to be tried once more; `false` if that was often
/// enough.
fn same_port(qp: &Qp, attempt: u64) -> bool {
    let mut state = qp.state.lock();
    if !state.attempt.is_current(attempt) {
        return false;
    }
    let Some((_, remote)) = state.addrs else {
        return false;
    };
    let Some(dial) = state.dial.as_mut().filter(|dial| dial.again > 0) else {
        return false;
    };
    dial.again -= 1;
    dial.ports.push(remote.port());
    true
}

/// Nobody listens at a port, or that port has failed for `cause`; a wide qualifier may be at
/// another.
pub(super) fn next_port(qp: &Qp, attempt: u64, cause: &dyn Cause) {
    let event = CmEvent::NonPeerRejected;
    match dial(qp, attempt) {
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
        let mut dial = Dial::new(remote, qual, Vec::new(), None);
        for port in candidates(qual) {
            let next = format!("[fe80::1%3]:{port}").parse().ok();
            assert_eq!(dial.next(), next);
            assert_eq!(dial.take_next(), next);
        }
        assert_eq!((dial.next(), dial.take_next()), (None, None));
    }
}
