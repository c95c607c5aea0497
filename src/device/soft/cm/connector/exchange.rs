//! The request and the reply, over whichever transport the current candidate has.

use std::sync::Arc;

use crate::kernel;
use crate::kernel::net::SendFlags;
use rustix::io::Errno;

use super::{Connector, Progress, Stage, State, unwatched};
use crate::device::CmEvent;
use crate::device::connection_log::{Identity, LogEntry, Step};
use crate::device::qualifier::{self, QualHeader, needs_header};
use crate::device::soft::cm::error::ConnectError;
use crate::device::soft::engine::{EventFlags, Watch};
use crate::device::soft::iwarp::mpa::{self, FRAME_MAX, Failure, Frame, Kind, Parsed};
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::socket;
use crate::device::soft::transport::shm::PEER_GONE;
use crate::device::soft::transport::tcp::linger::{End, linger};

impl Connector {
    /// Puts the request together.
    pub(super) fn begin_request(self: &Arc<Self>, state: &mut State, mut watch: Watch) -> Progress {
        let qual = state.current.qual;
        let private_data = qualifier::add_header(QualHeader::Request, qual, &self.private_data);
        let request = self.local.request(state.revision, &private_data);
        let mut frame = [0; FRAME_MAX];
        let Ok(frame) = request.encode(&mut frame) else {
            // Cannot happen: the length of the private data was checked when the attempt began.
            return Progress::Failed(
                CmEvent::NonPeerRejected,
                ConnectError::Negotiation(WireError::MPA_NEGOTIATION),
            );
        };
        if watch.set(EventFlags::OUT).is_err() {
            return unwatched();
        }
        state.stage = Stage::SendingRequest(watch, frame.to_vec(), 0);
        Progress::Continue
    }

    /// Sends what is left of the request.
    pub(super) fn send_request(
        self: &Arc<Self>,
        state: &mut State,
        mut watch: Watch,
        frame: Vec<u8>,
        sent: usize,
    ) -> Progress {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match kernel::net::send(&watch, &frame[sent..], flags) {
            Ok(n) => sent + n,
            Err(error) if socket::is_passing(error) => sent,
            Err(_) if state.handshake.is_active() => {
                // The peer may have said why before it has gone.
                let why = self.advance_handshake(state, &mut watch).err();
                return self.shm_failed(state, why.or(Some(PEER_GONE)));
            }
            Err(error) => return self.tcp_failed(state, error),
        };
        if sent < frame.len() {
            state.stage = Stage::SendingRequest(watch, frame, sent);
            return Progress::Wait;
        }
        state.sent_line = LogEntry::step(|| self.identity(state, &watch), Step::RequestSent);
        if watch.set(EventFlags::IN).is_err() {
            return unwatched();
        }
        state.stage = Stage::AwaitingReply(watch, Vec::new());
        Progress::Wait
    }

    /// The connection that the current candidate may become, for the log.
    fn identity(&self, state: &State, watch: &Watch) -> Identity<'static> {
        let addrs = socket::local(watch).zip(socket::remote(watch));
        Identity {
            endpoint: Some(self.endpoint),
            // A local socket has no such addresses.
            addrs: Some(addrs.unwrap_or_else(|| {
                let target = self.target(state.current.port);
                (self.device.params.address, target)
            })),
            qual: state.current.qual,
            path: state.current.transport.path(),
        }
    }

    /// Receives the reply, and what a process of this host sends of the handshake before it.
    pub(super) fn receive_reply(
        self: &Arc<Self>,
        state: &mut State,
        mut watch: Watch,
        mut reply: Vec<u8>,
    ) -> Progress {
        match self.advance_handshake(state, &mut watch) {
            Ok(true) => {}
            Ok(false) => {
                state.stage = Stage::AwaitingReply(watch, reply);
                return Progress::Wait;
            }
            Err(why) => return self.shm_failed(state, Some(why)),
        }
        loop {
            let missing = match mpa::parse(Kind::Reply, &reply) {
                Ok(Parsed::Frame(frame, _)) => return self.evaluate_reply(state, watch, &frame),
                Ok(Parsed::NeedMore(n)) => n,
                Err(error) => return self.try_next_port(state, ConnectError::Reply(error)),
            };
            match socket::receive(&watch, &mut reply, missing) {
                // The responder has dropped the request.
                Ok(0) => return self.try_next_port(state, ConnectError::NoReply),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    state.stage = Stage::AwaitingReply(watch, reply);
                    return Progress::Wait;
                }
                Err(error @ Errno::TIMEDOUT) => {
                    return Progress::Failed(CmEvent::Unreachable, ConnectError::System(error));
                }
                Err(error) => return self.try_next_port(state, ConnectError::System(error)),
            }
        }
    }

    /// Decides what a reply means for the attempt.
    fn evaluate_reply(
        self: &Arc<Self>,
        state: &mut State,
        watch: Watch,
        frame: &Frame<'_>,
    ) -> Progress {
        let agreed = self.local.conclude(state.revision, frame);
        let asked = state.current.qual;
        let needs_header = needs_header(asked);
        let private_data = match qualifier::split_header(frame.private_data) {
            // A responder of revision 1 has not understood the request.
            _ if matches!(agreed, Err(Failure::Revision1)) => &[][..],
            Some((QualHeader::Reply, qual, rest)) if needs_header && qual == asked => rest,
            _ if needs_header => {
                return self.try_next_port(state, ConnectError::NoListener(self.qual));
            }
            _ => frame.private_data,
        };
        let private_data = private_data.into();
        match agreed {
            Ok(agreed) => Progress::Accepted(watch, agreed, private_data),
            Err(Failure::Rejected) => Progress::Failed(
                CmEvent::PeerRejected { private_data },
                ConnectError::Rejected,
            ),
            Err(Failure::Revision1) => {
                state.revision = 1;
                state.candidates.push(state.current);
                self.try_next_port(state, ConnectError::NoReply)
            }
            Err(Failure::Error(error)) => {
                let mut bytes = [0; TERMINATE_FPDU_MAX];
                let bytes = terminate::encode(error, &[], frame.crc || self.local.crc, &mut bytes);
                linger(watch, bytes.to_vec(), End::Graceful);
                Progress::Failed(CmEvent::NonPeerRejected, ConnectError::Negotiation(error))
            }
        }
    }
}
