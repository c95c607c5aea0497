//! The active side of a TCP connection: from `connect` to the reply of the responder.

pub(crate) mod local;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use self::local::Meeting;
use super::failure::{Refusal, Trouble, is_listened_on};
use super::socket;
use crate::device::netif::is_own_address;
use crate::device::qualifier::{self, QualHeader};
use crate::device::soft::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::iwarp::mpa::{
    self, Agreed, FRAME_MAX, Failure, Frame, Kind, Local, Parsed, Rtr,
};
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::params::Path;
use crate::device::soft::qp::Qp;
use crate::device::soft::transport::shm::{self, Opened, Wire};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, DeviceError, connection_log};

/// How long nobody need be listening before the attempt counts as refused. On the adapters that
/// programs were written for, finding the way takes milliseconds before anybody is asked: there
/// are clients that are told where to connect a moment before their server begins to listen.
const GRACE: Duration = Duration::from_millis(250);
/// The first pause before another try; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// An attempt to connect over TCP.
pub(crate) struct Dial {
    device: Arc<Soft>,
    qp: Weak<Qp>,
    attempt: u64,
    target: SocketAddr,
    qual: u64,
    private_data: Box<[u8]>,
    local: Local,
    routes: &'static [Route],
    /// Until when it is tried again if nobody listens.
    patience: Instant,
    /// The last try was one through shared memory. Read without the lock.
    shares: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// What to try, the next one last.
    tries: Vec<Try>,
    /// Somebody listened on a port, but not for us: that is an answer.
    answered: bool,
    /// Why the last try failed, or the last one that was answered; nothing if nobody listened.
    trouble: Option<Trouble>,
    /// Why shared memory is not used, if that was tried.
    refused: Option<Refusal>,
    /// Before the next try of all ports.
    pause: Duration,
    timer: Option<Timer>,
    /// The one that is tried.
    current: Try,
    /// With a process of this host.
    meeting: Meeting,
    /// What is shared with a responder of this host, once it is there.
    wire: Option<Arc<Wire>>,
    /// For the first attempt.
    socket: Option<OwnedFd>,
    /// Revision of MPA to ask for.
    revision: u8,
    stage: Stage,
}

enum Stage {
    /// The next port is to be tried.
    Start,
    /// TCP is connecting.
    Connecting(Watch),
    /// A process of this host is to prove that it may be shown our memory.
    Meeting(Watch),
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
    Failed(CmEvent, Trouble),
    Done(Watch, Agreed, Box<[u8]>),
}

/// How a responder is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// Through a local socket, with shared memory.
    Shm,
    Tcp,
}

type Try = (Route, u16);

/// The ways to whoever has a qualifier, the first one last.
fn all_tries(qual: u64, routes: &[Route]) -> Vec<Try> {
    let ports = qualifier::candidates(qual);
    let mut tries: Vec<Try> = ports
        .flat_map(|port| routes.iter().map(move |route| (*route, port)))
        .collect();
    tries.reverse();
    tries
}

impl Dial {
    /// The socket of the first attempt, if there can be one for this kind of address.
    ///
    /// # Errors
    /// [`DeviceError::Resources`]: better told by the call than by an event.
    pub fn socket(target: SocketAddr) -> Result<Option<OwnedFd>, DeviceError> {
        match socket::tcp(target.is_ipv6()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                Err(DeviceError::Resources)
            }
            Err(_) => Ok(None),
        }
    }

    /// An attempt that has not begun; `socket` is from [`Dial::socket`].
    pub fn new(
        qp: &Arc<Qp>,
        attempt: u64,
        target: SocketAddr,
        qual: u64,
        timeout: Option<Duration>,
        private_data: &[u8],
        socket: Option<OwnedFd>,
    ) -> Arc<Dial> {
        let device = qp.device.clone();
        let attr = qp.attr();
        // Whoever gives it less time than that shall still learn that nobody listens.
        let grace = timeout.map_or(GRACE, |timeout| GRACE.min(timeout / 2));
        let routes: &[Route] = match device.params.path {
            Path::Tcp => &[Route::Tcp],
            _ if !is_own_address(target.ip()) => &[Route::Tcp],
            Path::Auto => &[Route::Shm, Route::Tcp],
            Path::Shm => &[Route::Shm],
        };
        let tries = all_tries(qual, routes);
        Arc::new(Dial {
            routes,
            qp: Arc::downgrade(qp),
            attempt,
            target,
            qual,
            private_data: qualifier::add_header(QualHeader::Request, qual, private_data).into(),
            local: Local {
                crc: device.params.crc,
                ird: attr.max_rd_in as u16,
                ord: attr.max_rd_out as u16,
                rtr: Rtr::WRITE | Rtr::READ,
            },
            device,
            patience: Instant::now() + grace,
            shares: AtomicBool::new(false),
            state: Mutex::new(State {
                tries,
                answered: false,
                trouble: None,
                refused: None,
                pause: FIRST_PAUSE,
                timer: None,
                current: (Route::Tcp, 0),
                meeting: Meeting::new(timeout),
                wire: None,
                socket,
                revision: 2,
                stage: Stage::Start,
            }),
        })
    }

    /// Goes on as far as possible.
    pub fn drive(self: &Arc<Self>, up: &mut Upcalls) {
        self.go_from(self.state.lock(), up);
    }

    fn go_from(self: &Arc<Self>, mut state: MutexGuard<'_, State>, up: &mut Upcalls) {
        let step = loop {
            match self.step(&mut state) {
                Step::Next => {}
                step => break step,
            }
        };
        if !matches!(step, Step::Wait) {
            state.stage = Stage::Over;
            state.meeting.end();
        }
        let wire = state.wire.take_if(|_| matches!(step, Step::Done(..)));
        let (_, port) = state.current;
        let refused = state.refused.filter(|_| wire.is_none());
        // The queue pair may cancel us in return.
        drop(state);
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        match step {
            Step::Wait | Step::Next => {}
            Step::Failed(event, trouble) => qp.give_up(self.attempt, event, &trouble, up),
            Step::Done(watch, agreed, private_data) => {
                if let Some(why) = refused {
                    qp.took_detour(self.attempt, &Trouble::NotOffered(port, why));
                }
                let told = (private_data, watch.handshakes().begin());
                let wire = wire.map(|wire| Opened::new(wire, qp.with(|v| v.me.id.pd)));
                qp.attach(self.attempt, watch, &agreed, wire, true, told, up);
            }
        }
    }

    /// The way that is tried.
    pub fn path(&self) -> connection_log::Path<'static> {
        match self.shares.load(Ordering::Relaxed) {
            true => connection_log::Path::SharedMemory,
            false => connection_log::Path::Tcp,
        }
    }

    /// Forgets the attempt.
    pub fn cancel(&self) {
        let mut state = self.state.lock();
        let stage = std::mem::replace(&mut state.stage, Stage::Over);
        let held = (state.timer.take(), state.meeting.end());
        drop(state);
        drop((stage, held));
    }

    fn step(self: &Arc<Self>, state: &mut State) -> Step {
        match std::mem::replace(&mut state.stage, Stage::Over) {
            Stage::Over => Step::Wait,
            Stage::Start => self.call(state),
            Stage::Connecting(watch) => self.connected(state, watch),
            Stage::Meeting(watch) => self.meet(state, watch),
            Stage::Asking(watch, frame, sent) => self.ask(state, watch, frame, sent),
            Stage::Listening(watch, reply) => self.hear(state, watch, reply),
        }
    }

    /// Whoever listens on the port is not who we want: to the next one.
    fn next_port(self: &Arc<Self>, state: &mut State, trouble: Trouble) -> Step {
        state.answered = true;
        state.trouble = Some(trouble);
        self.go_on(state)
    }

    /// To the next port, if there is one; otherwise all of them again, if nobody was there.
    fn go_on(self: &Arc<Self>, state: &mut State) -> Step {
        if !state.tries.is_empty() {
            state.stage = Stage::Start;
            return Step::Next;
        }
        if state.answered || Instant::now() + state.pause > self.patience {
            return Step::Failed(CmEvent::NonPeerRejected, self.trouble(state));
        }
        state.tries = all_tries(self.qual, self.routes);
        state.stage = Stage::Start;
        let again = Arc::downgrade(self);
        state.timer = Some(self.device.engine.timer(state.pause, move |up| {
            if let Some(dial) = again.upgrade() {
                dial.drive(up);
            }
        }));
        state.pause *= 2;
        Step::Wait
    }

    /// Why the attempt has failed, when all ports were tried.
    fn trouble(&self, state: &State) -> Trouble {
        let (_, port) = state.current;
        match (state.trouble, state.refused) {
            (Some(trouble), _) => trouble,
            (None, Some(why)) if self.routes == [Route::Shm] && self.is_shut(port, why) => {
                Trouble::NotShared(port, why)
            }
            _ => Trouble::NobodyListens(self.qual),
        }
    }

    /// Whether somebody listens on the port who will never share memory, after a refusal of the
    /// last try. Whoever refused that may just not have listened yet.
    fn is_shut(&self, port: u16, why: Refusal) -> bool {
        let mut target = self.target;
        target.set_port(port);
        is_listened_on(port) && (why.0.is_some() || !matches!(shm::call(target), Ok(Some(_))))
    }

    fn call(self: &Arc<Self>, state: &mut State) -> Step {
        let Some(current) = state.tries.pop() else {
            return Step::Failed(CmEvent::NonPeerRejected, self.trouble(state));
        };
        if !state.answered {
            state.trouble = None;
        }
        state.current = current;
        state.wire = None;
        let (route, port) = current;
        let mut target = self.target;
        target.set_port(port);
        self.shares.store(route == Route::Shm, Ordering::Relaxed);
        if route == Route::Shm {
            return match self.call_kin(&mut state.meeting, target) {
                Ok(Some(watch)) => {
                    state.stage = Stage::Meeting(watch);
                    Step::Wait
                }
                Ok(None) => self.no_kin(state, None),
                Err(why) => self.no_kin(state, Some(why)),
            };
        }
        let fd = match self.open(target, state.socket.take()) {
            Ok(fd) => fd,
            Err(error) => return self.no_connection(state, error),
        };
        match self.device.engine.watch(fd, EventFlags::OUT, self.clone()) {
            Ok(watch) => state.stage = Stage::Connecting(watch),
            Err(_) => return no_memory(),
        }
        Step::Wait
    }

    fn open(&self, target: SocketAddr, socket: Option<OwnedFd>) -> Result<OwnedFd, Errno> {
        let fd = match socket {
            Some(fd) => fd,
            None => socket::tcp(target.is_ipv6())?,
        };
        socket::tune(&fd, &self.device.params);
        // The port that it gets stays a qualifier that can be listened on, now and in the minute
        // after the end.
        let _ = sockopt::set_socket_reuseaddr(&fd, true);
        let own = self.device.params.address;
        if self.device.params.bound && own.is_ipv4() == target.is_ipv4() {
            socket::bind_address(&fd, own)?;
        }
        match rustix::net::connect(&fd, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
            Err(error) => Err(error),
        }
    }

    fn no_connection(self: &Arc<Self>, state: &mut State, error: Errno) -> Step {
        match error {
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::TIMEDOUT => {
                Step::Failed(CmEvent::Unreachable, Trouble::System(error))
            }
            Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => {
                Step::Failed(CmEvent::Unreachable, Trouble::System(error))
            }
            Errno::CONNREFUSED => self.go_on(state),
            // All our ports are taken for the moment.
            Errno::ADDRINUSE => {
                state.trouble.get_or_insert(Trouble::System(error));
                self.go_on(state)
            }
            _ => self.next_port(state, Trouble::System(error)),
        }
    }

    fn connected(self: &Arc<Self>, state: &mut State, watch: Watch) -> Step {
        match sockopt::socket_error(&watch) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return self.no_connection(state, error),
        }
        // Without a listener TCP may connect a port to itself.
        let ends = (socket::local(&watch), socket::remote(&watch));
        match ends {
            (Some(local), Some(remote)) if local != remote => {}
            _ => return self.go_on(state),
        }
        self.request(state, watch)
    }

    fn request(self: &Arc<Self>, state: &mut State, mut watch: Watch) -> Step {
        let request = self.local.request(state.revision, &self.private_data);
        let mut frame = [0; FRAME_MAX];
        let Ok(frame) = request.encode(&mut frame) else {
            // There is no more private data than fits.
            return Step::Failed(
                CmEvent::NonPeerRejected,
                Trouble::Terms(WireError::MPA_NEGOTIATION),
            );
        };
        if watch.set(EventFlags::OUT).is_err() {
            return no_memory();
        }
        state.stage = Stage::Asking(watch, frame.to_vec(), 0);
        Step::Next
    }

    fn ask(
        self: &Arc<Self>,
        state: &mut State,
        mut watch: Watch,
        frame: Vec<u8>,
        sent: usize,
    ) -> Step {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match rustix::net::send(&watch, &frame[sent..], flags) {
            Ok(n) => sent + n,
            Err(Errno::AGAIN | Errno::INTR) => sent,
            Err(_) if state.meeting.goes_on() => return self.no_kin(state, Some(local::GONE)),
            Err(error) => return self.no_connection(state, error),
        };
        if sent < frame.len() {
            state.stage = Stage::Asking(watch, frame, sent);
            return Step::Wait;
        }
        if watch.set(EventFlags::IN).is_err() {
            return no_memory();
        }
        state.stage = Stage::Listening(watch, Vec::new());
        Step::Wait
    }

    fn hear(self: &Arc<Self>, state: &mut State, mut watch: Watch, mut reply: Vec<u8>) -> Step {
        match self.offer(state, &mut watch) {
            Ok(true) => {}
            Ok(false) => {
                state.stage = Stage::Listening(watch, reply);
                return Step::Wait;
            }
            Err(why) => return self.no_kin(state, Some(why)),
        }
        loop {
            let missing = match mpa::parse(Kind::Reply, &reply) {
                Ok(Parsed::Frame(frame, _)) => return self.conclude(state, watch, &frame),
                Ok(Parsed::NeedMore(n)) => n,
                Err(error) => return self.next_port(state, Trouble::Reply(error)),
            };
            let seen = reply.len();
            reply.resize(seen + missing, 0);
            match rustix::net::recv(&watch, &mut reply[seen..], RecvFlags::DONTWAIT) {
                // The responder refused without a word.
                Ok((_, 0)) => return self.next_port(state, Trouble::NoWord),
                Ok((_, n)) => reply.truncate(seen + n),
                Err(Errno::AGAIN | Errno::INTR) => {
                    reply.truncate(seen);
                    state.stage = Stage::Listening(watch, reply);
                    return Step::Wait;
                }
                Err(error @ Errno::TIMEDOUT) => {
                    return Step::Failed(CmEvent::Unreachable, Trouble::System(error));
                }
                Err(error) => return self.next_port(state, Trouble::System(error)),
            }
        }
    }

    fn conclude(self: &Arc<Self>, state: &mut State, watch: Watch, frame: &Frame<'_>) -> Step {
        let agreed = self.local.conclude(state.revision, frame);
        let has_header = qualifier::needs_header(self.qual);
        let private_data = match qualifier::split_header(frame.private_data) {
            // A revision 1 responder has not understood anything yet.
            _ if matches!(agreed, Err(Failure::Revision1)) => &[][..],
            Some((QualHeader::Reply, qual, rest)) if has_header && qual == self.qual => rest,
            _ if has_header => return self.next_port(state, Trouble::NobodyListens(self.qual)),
            _ => frame.private_data,
        };
        let private_data = private_data.into();
        match agreed {
            Ok(agreed) => Step::Done(watch, agreed, private_data),
            Err(Failure::Rejected) => {
                Step::Failed(CmEvent::PeerRejected { private_data }, Trouble::Rejected)
            }
            Err(Failure::Revision1) => {
                state.revision = 1;
                state.tries.push(state.current);
                self.next_port(state, Trouble::NoWord)
            }
            Err(Failure::Error(error)) => {
                let mut bytes = [0; TERMINATE_FPDU_MAX];
                let bytes = terminate::encode(error, &[], frame.crc || self.local.crc, &mut bytes);
                linger(watch, bytes.to_vec(), End::Graceful);
                Step::Failed(CmEvent::NonPeerRejected, Trouble::Terms(error))
            }
        }
    }
}

/// The engine could not watch a socket.
fn no_memory() -> Step {
    Step::Failed(CmEvent::NonPeerRejected, Trouble::System(Errno::NOMEM))
}

impl Source for Dial {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.drive(up);
    }
}
