//! The active end of a connection between processes: from `connect` to the reply of the peer.

mod exchange;
mod shm;
mod tcp;
mod turn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::descriptor::OwnedFd;
use crate::kernel;
use crate::kernel::Instant;
use crate::lock::{Mutex, MutexGuard};
use rustix::io::Errno;

use self::shm::ShmHandshake;
use super::Transport;
use super::error::{ConnectError, ShmUnavailable};
use super::initiator::{Accepted, Initiator};
use crate::device::connection_log::{self, LogEntry};
use crate::device::qualifier::{self, Sought};
use crate::device::soft::device::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::iwarp::mpa::{Agreed, Local, Rtr};
use crate::device::soft::qp::link::PendingConnect;
use crate::device::soft::socket;
use crate::device::soft::transport::shm::{Purpose, SharedSegment};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, DeviceError};

/// How long ports without a listener are tried again before the attempt counts as refused; they are
/// tried for the last time when this has passed. On the adapters that programs were written for, resolving the route takes milliseconds before the peer
/// gets the request: there are clients that learn where to connect a moment before their server
/// begins to listen.
const LISTENER_GRACE: Duration = Duration::from_millis(250);
/// The pause before all candidates are tried a second time; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// An attempt to connect to a listener that is not in this process.
pub(crate) struct Connector {
    /// The device that connects.
    device: Arc<Soft>,
    /// Who wants to know what becomes of the attempt.
    initiator: Box<dyn Initiator>,
    /// The handle of the endpoint, for the log.
    endpoint: u64,
    /// The address of the peer; the port is that of the candidate.
    target: SocketAddr,
    /// The qualifier to connect to.
    qual: u64,
    /// The private data of the request, without the header of a wide qualifier.
    private_data: Box<[u8]>,
    /// What this end wants and can do.
    local: Local,
    /// The transports that are allowed, in the order in which they are tried.
    transports: &'static [Transport],
    /// What memory is to be shared for.
    purpose: Purpose,
    /// Until when all candidates are tried again if none has a listener.
    retry_until: Instant,
    /// Whether the current candidate is tried through shared memory. Read without the lock.
    uses_shm: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The qualifier that is tried once it is known that nobody listens for the one to connect to; `None`
    /// if there is no such, or it is being tried.
    otherwise: Option<u64>,
    /// Candidates that were not tried yet, the next one last.
    candidates: Vec<Candidate>,
    /// The candidate that is being tried, or was tried last.
    current: Candidate,
    /// Whether a port had a listener, although not the wanted one. Such an answer is final.
    answered: bool,
    /// Why the last candidate failed, or the last one with a listener; `None` if no candidate had
    /// a listener.
    failure: Option<ConnectError>,
    /// Why there is no shared memory with the peer; `None` if that was not tried or has not failed.
    no_sharing: Option<ShmUnavailable>,
    /// The pause before all candidates are tried again.
    retry_pause: Duration,
    /// Ends the pause.
    retry_timer: Option<Timer>,
    /// The handshake with a process of this host.
    handshake: ShmHandshake,
    /// The memory that is shared with a peer on this host, once the handshake is complete.
    segment: Option<Arc<SharedSegment>>,
    /// The port of this end, once there is a socket.
    local_port: Option<u16>,
    /// The TCP socket for the first candidate.
    socket: Option<OwnedFd>,
    /// The revision of MPA that requests have: 2, or 1 for a peer that knows no other.
    revision: u8,
    /// The line for the log that the request was sent, until it is queued for the log.
    sent_line: Option<LogEntry>,
    stage: Stage,
}

/// What the attempt waits for.
enum Stage {
    /// The next candidate is to be tried.
    NextCandidate,
    /// TCP is connecting.
    Connecting(Watch),
    /// A process of this host is to prove that it may have access to our memory.
    ShmHandshake(Watch),
    /// The request is being sent: the frame, and the number of bytes that were sent.
    SendingRequest(Watch, Vec<u8>, usize),
    /// The reply is being received: the bytes that have arrived.
    AwaitingReply(Watch, Vec<u8>),
    /// The attempt is over.
    Over,
}

/// What a stage has led to.
enum Progress {
    /// The attempt waits for the peer, or for a timer.
    Wait,
    /// The next stage can be entered at once.
    Continue,
    /// The attempt has failed.
    Failed(CmEvent, ConnectError),
    /// The peer has accepted: the connection, the agreed parameters, the peer's private data.
    Accepted(Watch, Agreed, Box<[u8]>),
}

/// A way that may lead to the listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    transport: Transport,
    port: u16,
    /// The qualifier that the port is one of.
    qual: u64,
}

/// All ways that may lead to the listener of a qualifier, the first one last.
fn all_candidates(qual: u64, transports: &[Transport]) -> Vec<Candidate> {
    let places = qualifier::places(qual);
    let mut candidates: Vec<Candidate> = places
        .flat_map(|(port, qual)| {
            let with = move |&transport| Candidate {
                transport,
                port,
                qual,
            };
            transports.iter().map(with)
        })
        .collect();
    candidates.reverse();
    candidates
}

/// What an attempt is to reach, and what its request says.
pub(super) struct Plan<'a> {
    /// The handle of the endpoint, for the log.
    pub endpoint: u64,
    /// The address of the peer; the port is ignored.
    pub target: SocketAddr,
    /// The qualifier to connect to.
    pub sought: Sought,
    /// How long the consumer waits.
    pub timeout: Option<Duration>,
    /// The transports that are allowed, in the order in which they are tried.
    pub transports: &'static [Transport],
    /// What memory is to be shared for.
    pub purpose: Purpose,
    /// Private data of the request.
    pub private_data: &'a [u8],
    /// Read depths of this end: those of the peer that it can hold, and its own.
    pub depths: (u16, u16),
}

impl Connector {
    /// The socket for the first candidate, if there can be one for this kind of address.
    ///
    /// # Errors
    /// [`DeviceError::Resources`], which the call had better report than an event.
    pub fn socket(target: SocketAddr) -> Result<Option<OwnedFd>, DeviceError> {
        match socket::tcp(target.is_ipv6()) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if socket::is_out_of_resources(error) => Err(DeviceError::Resources),
            Err(_) => Ok(None),
        }
    }

    /// An attempt that has not begun; `socket` is from [`Connector::socket`].
    pub fn new(
        device: &Arc<Soft>,
        initiator: Box<dyn Initiator>,
        plan: &Plan<'_>,
        socket: Option<OwnedFd>,
    ) -> Arc<Connector> {
        let Plan {
            endpoint,
            target,
            sought: Sought { qual, otherwise },
            timeout,
            transports,
            purpose,
            private_data,
            depths: (ird, ord),
        } = *plan;
        // A consumer with a shorter timeout shall still learn that there is no listener.
        let grace = timeout.map_or(LISTENER_GRACE, |timeout| LISTENER_GRACE.min(timeout / 2));
        Arc::new(Connector {
            initiator,
            endpoint,
            target,
            qual,
            private_data: private_data.into(),
            local: Local {
                crc: device.params.crc,
                ird,
                ord,
                rtr: Rtr::WRITE | Rtr::READ,
                acknowledge: device.params.acknowledge,
                extensions: device.params.acknowledge,
            },
            transports,
            purpose,
            device: device.clone(),
            retry_until: Instant::now() + grace,
            uses_shm: AtomicBool::new(false),
            state: Mutex::new(State {
                otherwise,
                candidates: all_candidates(qual, transports),
                current: Candidate {
                    transport: Transport::Tcp,
                    port: 0,
                    qual,
                },
                answered: false,
                failure: None,
                no_sharing: None,
                retry_pause: FIRST_PAUSE,
                retry_timer: None,
                handshake: ShmHandshake::new(timeout),
                segment: None,
                local_port: None,
                socket,
                revision: 2,
                sent_line: None,
                stage: Stage::NextCandidate,
            }),
        })
    }

    /// Goes on with the attempt as far as possible without waiting.
    pub fn advance(self: &Arc<Self>, up: &mut Upcalls) {
        self.advance_locked(self.state.lock(), up);
    }

    /// The same for a caller that has taken the lock.
    fn advance_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>, up: &mut Upcalls) {
        let progress = loop {
            match self.advance_stage(&mut state) {
                Progress::Continue => {}
                progress => break progress,
            }
        };
        if !matches!(progress, Progress::Wait) {
            state.stage = Stage::Over;
            state.handshake.end();
        }
        let accepted = matches!(progress, Progress::Accepted(..));
        let segment = state.segment.take_if(|_| accepted);
        let port = state.current.port;
        let no_sharing = state.no_sharing.filter(|_| segment.is_none());
        let local_port = state.local_port;
        if let Some(line) = state.sent_line.take() {
            // Under the lock, so that the log has this line before what the reply leads to.
            self.initiator.log(line, up);
        }
        // The initiator may cancel the attempt in return.
        drop(state);
        if let Some(port) = local_port {
            self.initiator.set_local_port(port);
        }
        match progress {
            Progress::Wait | Progress::Continue => {}
            Progress::Failed(event, failure) => self.initiator.failed(event, &failure, up),
            Progress::Accepted(watch, agreed, private_data) => {
                let accepted = Accepted {
                    watch,
                    agreed,
                    private_data,
                    segment,
                    detour: no_sharing.map(|why| ConnectError::NotOffered(port, why)),
                };
                self.initiator.accepted(accepted, up);
            }
        }
    }

    /// The path of the current candidate.
    pub fn path(&self) -> connection_log::Path<'static> {
        match self.uses_shm.load(Ordering::Relaxed) {
            true => Transport::Shm.path(),
            false => Transport::Tcp.path(),
        }
    }

    /// Ends the attempt; the consumer is not notified.
    pub fn cancel(&self) {
        let mut state = self.state.lock();
        let stage = std::mem::replace(&mut state.stage, Stage::Over);
        let timers = (state.retry_timer.take(), state.handshake.end());
        drop(state);
        drop((stage, timers));
    }

    /// Does what the current stage waited for.
    fn advance_stage(self: &Arc<Self>, state: &mut State) -> Progress {
        match std::mem::replace(&mut state.stage, Stage::Over) {
            Stage::Over => Progress::Wait,
            Stage::NextCandidate => self.try_candidate(state),
            Stage::Connecting(watch) => self.tcp_connected(state, watch),
            Stage::ShmHandshake(watch) => self.continue_handshake(state, watch),
            Stage::SendingRequest(watch, frame, sent) => {
                self.send_request(state, watch, frame, sent)
            }
            Stage::AwaitingReply(watch, reply) => self.receive_reply(state, watch, reply),
        }
    }

    /// The current port has a listener, but not the wanted one.
    fn try_next_port(self: &Arc<Self>, state: &mut State, failure: ConnectError) -> Progress {
        state.answered = true;
        state.failure = Some(failure);
        self.try_next(state)
    }

    /// Goes on to the next candidate. After the last, all of them are tried again if none had a
    /// listener, until that is certain; then those of the other qualifier, if there is one.
    fn try_next(self: &Arc<Self>, state: &mut State) -> Progress {
        if !state.candidates.is_empty() {
            state.stage = Stage::NextCandidate;
            return Progress::Continue;
        }
        let left = self.retry_until.saturating_duration_since(Instant::now());
        if state.answered || left.is_zero() {
            if let Some(otherwise) = state.otherwise.take() {
                state.candidates = all_candidates(otherwise, self.transports);
                state.stage = Stage::NextCandidate;
                return Progress::Continue;
            }
            // Nothing else is left to be tried.
            if let Some(silent) = state.handshake.take_silent() {
                state.candidates.push(silent);
                state.stage = Stage::NextCandidate;
                return Progress::Continue;
            }
            let failure = self.final_failure(state);
            let event = match failure {
                // Or the host has no address from which it could reach the peer.
                ConnectError::System(Errno::ADDRNOTAVAIL) => CmEvent::Unreachable,
                _ => CmEvent::NonPeerRejected,
            };
            return Progress::Failed(event, failure);
        }
        state.candidates = all_candidates(self.qual, self.transports);
        let pause = state.retry_pause.min(left);
        state.retry_pause *= 2;
        self.try_after(pause, state)
    }

    /// Tries the next candidate when the attempt is [called](turn::Turn), after `most` at the latest.
    fn try_when_called(self: &Arc<Self>, most: Option<Duration>, state: &mut State) -> Progress {
        if let Some(most) = most {
            return self.try_after(most, state);
        }
        state.stage = Stage::NextCandidate;
        Progress::Wait
    }

    /// Tries the next candidate after a pause.
    fn try_after(self: &Arc<Self>, pause: Duration, state: &mut State) -> Progress {
        state.stage = Stage::NextCandidate;
        let connector = Arc::downgrade(self);
        let resume = move |up: &mut Upcalls| {
            if let Some(connector) = connector.upgrade() {
                connector.advance(up);
            }
        };
        state.retry_timer = Some(self.device.engine.timer(pause, resume));
        Progress::Wait
    }

    /// Why the attempt has failed, when all candidates were tried.
    fn final_failure(&self, state: &State) -> ConnectError {
        let port = state.current.port;
        match (state.failure, state.no_sharing) {
            (Some(failure), _) => failure,
            (None, Some(why))
                if self.transports == [Transport::Shm] && self.never_shares(port, why) =>
            {
                ConnectError::NotShared(port, why)
            }
            _ => ConnectError::NoListener(self.qual),
        }
    }

    /// Whether the port has a listener that will never share memory, after the last candidate
    /// failed for `why`. A process that had no local socket may just not have listened yet. A port to which a wide
    /// qualifier leads may be that of any program.
    fn never_shares(&self, port: u16, why: ShmUnavailable) -> bool {
        u64::from(port) == self.qual
            && kernel::is_listened_on(port)
            && (why.0.is_some() || !self.has_local_socket(port))
    }

    /// The address of the peer with a port.
    fn target(&self, port: u16) -> SocketAddr {
        let mut target = self.target;
        target.set_port(port);
        target
    }

    /// Begins to try the next candidate.
    fn try_candidate(self: &Arc<Self>, state: &mut State) -> Progress {
        let Some(current) = state.candidates.pop() else {
            return Progress::Failed(CmEvent::NonPeerRejected, self.final_failure(state));
        };
        if !state.answered {
            state.failure = None;
        }
        // What ends a pause is not to end what follows.
        state.retry_timer = None;
        state.current = current;
        state.segment = None;
        let target = self.target(current.port);
        let shm = current.transport == Transport::Shm;
        self.uses_shm.store(shm, Ordering::Relaxed);
        match current.transport {
            Transport::Shm => self.try_shm(state, target),
            Transport::Tcp => self.connect_tcp(state, target),
        }
    }
}

/// The engine cannot watch a socket.
fn unwatched() -> Progress {
    Progress::Failed(CmEvent::NonPeerRejected, ConnectError::System(Errno::NOMEM))
}

impl PendingConnect for Connector {
    fn cancel(&self) {
        Connector::cancel(self);
    }

    fn path(&self) -> connection_log::Path<'static> {
        Connector::path(self)
    }
}

impl Source for Connector {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.advance(up);
    }
}
