//! The active side of a TCP connection: from `connect` to the reply of the responder.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::Soft;
use super::engine::{EventFlags, Scratch, Source, Watch};
use super::iwarp::mpa::{self, Agreed, FRAME_MAX, Failure, Frame, Kind, Local, Parsed, Rtr};
use super::iwarp::terminate::{self, TERMINATE_FPDU_MAX};
use super::listen;
use super::qp::Qp;
use super::socket;
use super::stream::linger::linger;
use super::upcall::Upcalls;
use super::wide::{self, Word};
use crate::device::CmEvent;

/// An attempt to connect over TCP.
pub(super) struct Dial {
    device: Arc<Soft>,
    qp: Weak<Qp>,
    attempt: u64,
    target: SocketAddr,
    qual: u64,
    private_data: Box<[u8]>,
    local: Local,
    state: Mutex<State>,
}

struct State {
    /// Ports to try, the next one last.
    ports: Vec<u16>,
    /// The one that is tried.
    port: u16,
    /// Revision of MPA to ask for.
    revision: u8,
    stage: Stage,
}

enum Stage {
    /// The next port is to be tried.
    Start,
    /// TCP is connecting.
    Connecting(Watch),
    /// The request is being sent, as far as the number says.
    Asking(Watch, Vec<u8>, usize),
    /// The reply is being received.
    Listening(Watch, Vec<u8>),
    /// It is over.
    Over,
}

/// How the attempt went on.
enum Step {
    Wait,
    /// Look at the next stage.
    Next,
    Failed(CmEvent),
    Done(Watch, Agreed, Box<[u8]>),
}

impl Dial {
    pub fn new(
        qp: &Arc<Qp>,
        attempt: u64,
        target: SocketAddr,
        qual: u64,
        private_data: &[u8],
    ) -> Arc<Dial> {
        let device = qp.device.clone();
        let attr = qp.attr();
        let mut ports: Vec<u16> = listen::candidates(qual).collect();
        ports.reverse();
        Arc::new(Dial {
            qp: Arc::downgrade(qp),
            attempt,
            target,
            qual,
            private_data: wide::wrap(Word::Ask, qual, private_data).into(),
            local: Local {
                crc: device.params.crc,
                ird: attr.max_rd_in as u16,
                ord: attr.max_rd_out as u16,
                rtr: Rtr::WRITE | Rtr::READ,
            },
            device,
            state: Mutex::new(State {
                ports,
                port: 0,
                revision: 2,
                stage: Stage::Start,
            }),
        })
    }

    /// Goes on as far as possible.
    pub fn drive(self: &Arc<Self>, up: &mut Upcalls) {
        let mut state = self.state.lock();
        let step = loop {
            match self.step(&mut state) {
                Step::Next => {}
                step => break step,
            }
        };
        if !matches!(step, Step::Wait) {
            state.stage = Stage::Over;
        }
        // The queue pair may cancel us in return.
        drop(state);
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        match step {
            Step::Wait | Step::Next => {}
            Step::Failed(event) => qp.give_up(self.attempt, event, up),
            Step::Done(watch, agreed, private_data) => {
                qp.attach(self.attempt, watch, &agreed, true, private_data, up);
            }
        }
    }

    /// Forgets the attempt.
    pub fn cancel(&self) {
        let stage = std::mem::replace(&mut self.state.lock().stage, Stage::Over);
        drop(stage);
    }

    fn step(self: &Arc<Self>, state: &mut State) -> Step {
        match std::mem::replace(&mut state.stage, Stage::Over) {
            Stage::Over => Step::Wait,
            Stage::Start => self.call(state),
            Stage::Connecting(watch) => self.connected(state, watch),
            Stage::Asking(watch, frame, sent) => self.ask(state, watch, frame, sent),
            Stage::Listening(watch, reply) => self.hear(state, watch, reply),
        }
    }

    /// The port leads nowhere: to the next one.
    fn next_port(&self, state: &mut State) -> Step {
        if state.ports.is_empty() {
            return Step::Failed(CmEvent::NonPeerRejected);
        }
        state.stage = Stage::Start;
        Step::Next
    }

    fn call(self: &Arc<Self>, state: &mut State) -> Step {
        let Some(port) = state.ports.pop() else {
            return Step::Failed(CmEvent::NonPeerRejected);
        };
        state.port = port;
        let mut target = self.target;
        target.set_port(port);
        let fd = match self.open(target) {
            Ok(fd) => fd,
            Err(error) => return self.no_connection(state, error),
        };
        match self.device.engine.watch(fd, EventFlags::OUT, self.clone()) {
            Ok(watch) => state.stage = Stage::Connecting(watch),
            Err(_) => return Step::Failed(CmEvent::NonPeerRejected),
        }
        Step::Wait
    }

    fn open(&self, target: SocketAddr) -> Result<OwnedFd, Errno> {
        let fd = socket::tcp(target.is_ipv6())?;
        socket::tune(&fd, &self.device.params);
        let own = self.device.params.address;
        if self.device.params.bound && own.is_ipv4() == target.is_ipv4() {
            rustix::net::bind(&fd, &own)?;
        }
        match rustix::net::connect(&fd, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
            Err(error) => Err(error),
        }
    }

    fn no_connection(&self, state: &mut State, error: Errno) -> Step {
        match error {
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::TIMEDOUT => {
                Step::Failed(CmEvent::Unreachable)
            }
            Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => {
                Step::Failed(CmEvent::Unreachable)
            }
            _ => self.next_port(state),
        }
    }

    fn connected(&self, state: &mut State, mut watch: Watch) -> Step {
        match sockopt::socket_error(&watch) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return self.no_connection(state, error),
        }
        // Without a listener TCP may connect a port to itself.
        let ends = (socket::local(&watch), socket::remote(&watch));
        match ends {
            (Some(local), Some(remote)) if local != remote => {}
            _ => return self.next_port(state),
        }
        let request = self.local.request(state.revision, &self.private_data);
        let mut frame = [0; FRAME_MAX];
        let Ok(frame) = request.encode(&mut frame) else {
            return Step::Failed(CmEvent::NonPeerRejected);
        };
        if watch.set(EventFlags::OUT).is_err() {
            return Step::Failed(CmEvent::NonPeerRejected);
        }
        state.stage = Stage::Asking(watch, frame.to_vec(), 0);
        Step::Next
    }

    fn ask(&self, state: &mut State, mut watch: Watch, frame: Vec<u8>, sent: usize) -> Step {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match rustix::net::send(&watch, &frame[sent..], flags) {
            Ok(n) => sent + n,
            Err(Errno::AGAIN | Errno::INTR) => sent,
            Err(error) => return self.no_connection(state, error),
        };
        if sent < frame.len() {
            state.stage = Stage::Asking(watch, frame, sent);
            return Step::Wait;
        }
        if watch.set(EventFlags::IN).is_err() {
            return Step::Failed(CmEvent::NonPeerRejected);
        }
        state.stage = Stage::Listening(watch, Vec::new());
        Step::Wait
    }

    fn hear(&self, state: &mut State, watch: Watch, mut reply: Vec<u8>) -> Step {
        loop {
            let missing = match mpa::parse(Kind::Reply, &reply) {
                Ok(Parsed::Frame(frame, _)) => return self.conclude(state, watch, &frame),
                Ok(Parsed::NeedMore(n)) => n,
                Err(_) => return self.next_port(state),
            };
            let seen = reply.len();
            reply.resize(seen + missing, 0);
            match rustix::net::recv(&watch, &mut reply[seen..], RecvFlags::DONTWAIT) {
                // The responder refused without a word.
                Ok((_, 0)) => return self.next_port(state),
                Ok((_, n)) => reply.truncate(seen + n),
                Err(Errno::AGAIN | Errno::INTR) => {
                    reply.truncate(seen);
                    state.stage = Stage::Listening(watch, reply);
                    return Step::Wait;
                }
                Err(Errno::TIMEDOUT) => return Step::Failed(CmEvent::Unreachable),
                Err(_) => return self.next_port(state),
            }
        }
    }

    fn conclude(&self, state: &mut State, watch: Watch, frame: &Frame<'_>) -> Step {
        let agreed = self.local.conclude(state.revision, frame);
        let is_wide = listen::is_wide(self.qual);
        let private_data = match wide::unwrap(frame.private_data) {
            // A revision 1 responder has not understood anything yet.
            _ if matches!(agreed, Err(Failure::Revision1)) => &[][..],
            Some((Word::Own, qual, rest)) if is_wide && qual == self.qual => rest,
            _ if is_wide => return self.next_port(state),
            _ => frame.private_data,
        };
        let private_data = private_data.into();
        match agreed {
            Ok(agreed) => Step::Done(watch, agreed, private_data),
            Err(Failure::Rejected) => Step::Failed(CmEvent::PeerRejected { private_data }),
            Err(Failure::Revision1) => {
                state.revision = 1;
                state.ports.push(state.port);
                self.next_port(state)
            }
            Err(Failure::Error(error)) => {
                let mut bytes = [0; TERMINATE_FPDU_MAX];
                let bytes = terminate::encode(error, &[], frame.crc || self.local.crc, &mut bytes);
                linger(watch, bytes.to_vec());
                Step::Failed(CmEvent::NonPeerRejected)
            }
        }
    }
}

impl Source for Dial {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.drive(up);
    }
}
