//! Setting up connections: connect, accept, reject.

pub(super) mod acceptor;
pub(crate) mod connector;
pub(crate) mod failure;
pub(crate) mod listener;
pub(crate) mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use self::acceptor::Asked;
use self::connector::Dial;
use self::failure::Trouble;
use self::listener::{ConnRequest, Listening, Origin};
use super::Soft;
use super::iwarp::mpa::{Local, PRIVATE_MAX, Rtr};
use super::params::Path;
use super::qp::Qp;
use super::transport::shm::Opened;
use super::upcalls::Upcalls;
use crate::device::connection_log::{self, NoAnswer};
use crate::device::netif::is_own_address;
use crate::device::qualifier::{self, QualHeader};
use crate::device::{CmEvent, DeviceError};

/// Private data of the consumer, each way. An MPA frame holds 512 bytes; 4 are for the read
/// depths (RFC 6581), 16 for a wide qualifier.
pub(super) const MAX_PRIVATE: usize = PRIVATE_MAX - qualifier::HEADER_LEN;

/// See [`Device::connect`](crate::device::Device::connect). Qualifier 0 names nothing and is
/// refused with [`DeviceError::BadAddress`]; a queue pair that is connected, or about to be,
/// with [`DeviceError::Unsupported`].
pub(crate) fn connect(
    device: &Arc<Soft>,
    qp: &Arc<Qp>,
    remote: SocketAddr,
    qual: u64,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let ip = remote.ip();
    if qual == 0 || ip.is_multicast() || ip.is_unspecified() {
        return Err(DeviceError::BadAddress);
    }
    if private_data.len() > MAX_PRIVATE {
        return Err(DeviceError::Limit);
    }
    device.engine.start()?;
    let port = u16::try_from(qual).unwrap_or(0);
    let target = SocketAddr::new(ip, port);
    let here = device.params.path == Path::Auto && is_own_address(ip);
    let listening = here.then(|| listener::find(ip, qual)).flatten();
    let socket = match listening {
        Some(_) => None,
        None => Dial::socket(remote)?,
    };
    let path = match listening {
        Some(_) => connection_log::Path::Loopback,
        None => connection_log::Path::Undecided,
    };
    let attempt = qp.begin(Some((device.params.address, target)), qual, path)?;
    let timer = timeout.map(|timeout| {
        let qp = Arc::downgrade(qp);
        device.engine.timer(timeout, move |up| {
            if let Some(qp) = qp.upgrade() {
                qp.give_up(attempt, CmEvent::TimedOut, &NoAnswer(timeout), up);
            }
        })
    });
    let dial = match listening {
        Some(_) => None,
        None => Some(Dial::new(
            qp,
            attempt,
            remote,
            qual,
            timeout,
            private_data,
            socket,
        )),
    };
    qp.holds(attempt, timer, dial.clone());
    let mut up = Upcalls::default();
    if let Some(listening) = listening {
        request_here(
            qp,
            attempt,
            listening,
            (target, qual),
            private_data,
            &mut up,
        );
    }
    if let Some(dial) = dial {
        dial.drive(&mut up);
    }
    up.run();
    Ok(())
}

/// A request to a listener of this process.
fn request_here(
    qp: &Arc<Qp>,
    attempt: u64,
    listening: Arc<Listening>,
    (target, qual): (SocketAddr, u64),
    private_data: &[u8],
    up: &mut Upcalls,
) {
    let attr = qp.attr();
    let request = ConnRequest {
        origin: Some(Origin::Loop {
            active: Arc::downgrade(qp),
            attempt,
        }),
        qual,
        private_data: private_data.into(),
        local: target,
        remote: qp.device.params.address,
        rd_in: Some(attr.max_rd_in),
        rd_out: Some(attr.max_rd_out),
    };
    up.request(listening, request);
}

/// See [`Device::accept`](crate::device::Device::accept).
pub(crate) fn accept(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    if private_data.len() > MAX_PRIVATE {
        return Err(DeviceError::Limit);
    }
    let addrs = (request.remote, request.local);
    let mut up = Upcalls::default();
    let qual = request.qual;
    let path = match &request.origin {
        None => connection_log::Path::Undecided,
        Some(Origin::Loop { .. }) => connection_log::Path::Loopback,
        Some(Origin::Tcp(asked)) => asked.path(),
    };
    let answered = match request.origin.take() {
        None => Ok(Err(Trouble::PeerGone)),
        Some(Origin::Loop { active, attempt }) => match active.upgrade() {
            None => Ok(Err(Trouble::PeerGone)),
            Some(active) => {
                let done = Qp::pair(&active, attempt, qp, addrs, qual, private_data, &mut up);
                if let Err(trouble) = &done {
                    active.give_up(attempt, CmEvent::NonPeerRejected, trouble, &mut up);
                }
                Ok(done)
            }
        },
        Some(Origin::Tcp(asked)) => {
            let addrs = Some((request.local, request.remote));
            accept_tcp(asked, addrs, qp, private_data, &mut up)
        }
    };
    // The peer gave up before it could be answered: the attempt ends as it would a moment later.
    let result = match answered {
        Ok(Ok(())) => Ok(()),
        Ok(Err(trouble)) => qp
            .begin(Some((request.local, request.remote)), qual, path)
            .map(|attempt| qp.give_up(attempt, CmEvent::AcceptError, &trouble, &mut up)),
        Err(error) => Err(error),
    };
    up.run();
    result
}

/// Answers a request that came over TCP, unless the peer is gone.
fn accept_tcp(
    asked: Asked,
    addrs: Option<(SocketAddr, SocketAddr)>,
    qp: &Arc<Qp>,
    private_data: &[u8],
    up: &mut Upcalls,
) -> Result<Result<(), Trouble>, DeviceError> {
    let attr = qp.attr();
    let local = Local {
        crc: qp.device.params.crc,
        ird: attr.max_rd_in as u16,
        ord: attr.max_rd_out as u16,
        rtr: Rtr::all(),
    };
    let private_data = qualifier::add_header(QualHeader::Reply, asked.qual, private_data);
    let attempt = qp.begin(addrs, asked.qual, asked.path())?;
    let handshake = asked.watch.handshakes().begin();
    let pd = qp.with(|v| v.me.id.pd);
    let wire = asked.wire.clone().map(|wire| Opened::new(wire, pd));
    let answer = asked
        .frame()
        .map(|frame| frame.answer(&local, &private_data));
    let agreed = match answer {
        Some(Ok((reply, agreed))) if asked.is_alive() && acceptor::reply(&asked.watch, &reply) => {
            agreed
        }
        other => {
            qp.withdraw(attempt);
            if let Some(Err(error)) = other {
                // Nothing that the consumer can do anything about.
                asked.reject(b"");
                return Ok(Err(Trouble::Terms(error)));
            }
            return Ok(Err(Trouble::PeerGone));
        }
    };
    let told = (Box::default(), handshake);
    qp.attach(attempt, asked.watch, &agreed, wire, false, told, up);
    Ok(Ok(()))
}

/// See [`Device::reject`](crate::device::Device::reject). Private data beyond the maximum is
/// cut off.
pub(crate) fn reject(mut request: ConnRequest, private_data: &[u8]) {
    let private_data = private_data[..private_data.len().min(MAX_PRIVATE)].into();
    let event = CmEvent::PeerRejected { private_data };
    refuse(&mut request, event, &Trouble::Rejected);
}

/// Answers a request, unless it was answered, so that its sender sees `event`.
pub(crate) fn refuse(request: &mut ConnRequest, event: CmEvent, trouble: &Trouble) {
    match request.origin.take() {
        None => {}
        Some(Origin::Loop { active, attempt }) => {
            if let Some(active) = active.upgrade() {
                let mut up = Upcalls::default();
                active.give_up(attempt, event, trouble, &mut up);
                up.run();
            }
        }
        Some(Origin::Tcp(asked)) => {
            // A connection that just ends was refused, but not by the consumer.
            if let CmEvent::PeerRejected { private_data } = event {
                asked.reject(&private_data);
            }
        }
    }
}
