//! Where a peer receives datagrams: asked and answered by the exchange that makes connections.
//!
//! Both ends put what the other is to know in front of their private data
//! ([`wire::End`]). The exchange goes over TCP, whatever the path of the device, and its connection ends
//! with the reply.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connector::{Connector, Plan};
use super::error::ConnectError;
use super::initiator::{Accepted, Initiator};
use super::request::{ConnRequest, Origin, SocketOrigin};
use super::{MAX_DATAGRAM_PRIVATE, Transport, log_accepted};
use crate::device::connection_log::{self, Cause, Identity, LogEntry, NoAnswer, Outcome};
use crate::device::qualifier::{self, QualHeader};
use crate::device::soft::engine::Timer;
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Local, Rtr};
use crate::device::soft::qp::link::Pending;
use crate::device::soft::transport::Qp;
use crate::device::soft::transport::datagram::{DatagramEnd, address_handle, wire};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, DeviceError, Resolved};

/// The question of a queue pair for a peer.
struct Question {
    /// The queue pair.
    qp: Weak<Qp>,
    /// What the queue pair has for datagrams.
    end: Weak<DatagramEnd>,
    /// The number of the attempt.
    number: u64,
    /// The address of the peer.
    remote: SocketAddr,
    /// The qualifier, for the log.
    qual: u64,
}

impl Question {
    /// Ends the attempt, unless it has ended before, and reports `event`.
    fn finish(&self, event: CmEvent, cause: Option<&dyn Cause>, up: &mut Upcalls) {
        let pending = self.end.upgrade().and_then(|end| end.finish(self.number));
        if pending.is_none() {
            return;
        }
        drop(pending);
        if let Some(qp) = self.qp.upgrade() {
            if let (Some(cause), Some(outcome)) = (cause, Outcome::of(&event, true)) {
                let identity = || Identity {
                    endpoint: Some(qp.attr().context),
                    addrs: Some((qp.device.params.address, self.remote)),
                    qual: self.qual,
                    path: connection_log::Path::Tcp,
                };
                up.log(&qp.events, LogEntry::new(identity, outcome, cause));
            }
            up.event(&qp.events, event);
        }
    }
}

impl Initiator for Question {
    fn log(&self, line: LogEntry, up: &mut Upcalls) {
        if let Some(qp) = self.qp.upgrade() {
            up.log(&qp.events, Some(line));
        }
    }

    fn set_local_port(&self, _port: u16) {}

    fn failed(&self, event: CmEvent, failure: &ConnectError, up: &mut Upcalls) {
        self.finish(event, Some(failure), up);
    }

    fn accepted(&self, accepted: Accepted, up: &mut Upcalls) {
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        match wire::End::split_from(&accepted.private_data) {
            Some((end, private_data)) => {
                let resolved = Resolved {
                    to: address_handle(&qp.device, self.remote, end),
                    private_data: private_data.into(),
                    accepted: false,
                };
                self.finish(CmEvent::Resolved(resolved), None, up);
            }
            None => {
                let cause = ConnectError::NoDatagrams;
                self.finish(CmEvent::NonPeerRejected, Some(&cause), up);
            }
        }
    }
}

/// Checks the length of private data.
fn check_private_data(private_data: &[u8]) -> Result<(), DeviceError> {
    match private_data.len() <= MAX_DATAGRAM_PRIVATE {
        true => Ok(()),
        false => Err(DeviceError::Limit),
    }
}

/// Asks the consumer that listens for `qual` at `remote`. The answer is an event of the queue pair.
///
/// # Errors
/// [`DeviceError::Limit`] for private data that is too long, [`DeviceError::Resources`].
pub(super) fn ask(
    qp: &Arc<Qp>,
    end: &Arc<DatagramEnd>,
    remote: SocketAddr,
    qual: u64,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(private_data)?;
    let socket = Connector::socket(remote)?;
    let private_data = end.end().add_to(private_data);
    let plan = Plan {
        endpoint: qp.attr().context,
        target: remote,
        qual,
        timeout,
        transports: &[Transport::Tcp],
        private_data: &private_data,
        depths: (0, 0),
    };
    let question = |number| Question {
        qp: Arc::downgrade(qp),
        end: Arc::downgrade(end),
        number,
        remote,
        qual,
    };
    let mut connector = None;
    end.begin(|number| {
        let new = Connector::new(&qp.device, Box::new(question(number)), &plan, socket);
        connector = Some(new.clone());
        Pending {
            _timer: timeout.map(|timeout| limit(qp, question(number), timeout)),
            connector: Some(new),
        }
    });
    if let Some(connector) = connector {
        let mut up = Upcalls::default();
        connector.advance(&mut up);
        up.run();
    }
    Ok(())
}

/// Ends an attempt after `timeout`, unless the timer is dropped before.
fn limit(qp: &Arc<Qp>, question: Question, timeout: Duration) -> Timer {
    qp.device.engine.timer(timeout, move |up| {
        question.finish(CmEvent::TimedOut, Some(&NoAnswer(timeout)), up);
    })
}

/// Answers the request of a peer, and reports where the peer receives datagrams.
///
/// # Errors
/// [`DeviceError::Unsupported`] if the request is for a connection, [`DeviceError::Limit`] for private data
/// that is too long.
pub(super) fn answer(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    end: &DatagramEnd,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(private_data)?;
    let Some(peer) = request.datagrams else {
        return Err(DeviceError::Unsupported);
    };
    let Some(Origin::Socket(origin)) = request.origin.take() else {
        return Err(DeviceError::Unsupported);
    };
    let private_data = end.end().add_to(private_data);
    send_answer(origin, request.qual, &private_data, qp.device.params.crc);
    log_accepted(&request, qp);
    let resolved = Resolved {
        to: address_handle(&qp.device, request.remote, peer),
        private_data: Box::default(),
        accepted: true,
    };
    let mut up = Upcalls::default();
    up.event(&qp.events, CmEvent::Resolved(resolved));
    up.run();
    Ok(())
}

/// Sends the answer. A peer that is gone meanwhile does not get it, which is as if it went a moment later.
fn send_answer(origin: SocketOrigin, qual: u64, private_data: &[u8], crc: bool) {
    let local = Local {
        crc,
        ird: 0,
        ord: 0,
        rtr: Rtr::all(),
        acknowledge: false,
        extensions: false,
    };
    let private_data = qualifier::add_header(QualHeader::Reply, qual, private_data);
    let mut bytes = [0; FRAME_MAX];
    if let Ok((reply, _)) = origin.frame.answer(&local, &private_data)
        && let Ok(bytes) = reply.encode(&mut bytes)
    {
        linger(origin.watch, bytes.to_vec(), End::Graceful);
    }
}
