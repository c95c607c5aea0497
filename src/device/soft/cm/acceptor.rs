//! The passive side of a TCP connection: from a listening socket to the request of the
//! initiator.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use super::failure::ConnectError;
use super::listener::{ConnRequest, Listening, Origin, is_wide};
use super::socket;
use crate::device::DeviceError;
use crate::device::qualifier::{self, QualHeader};
use crate::device::report::{self, Identity, Line, Outcome, Path};
use crate::device::soft::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::iwarp::mpa::{self, FRAME_MAX, Frame, Kind, Parsed};
use crate::device::soft::transport::shm::{
    self, EndAddresses, Incomplete, PassiveHandshake, SharedSegment, ShmRefusal,
};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;

/// Connections of a port that have not said what they want; beyond that the oldest go.
const MAX_PENDING: usize = if cfg!(test) { 100 } else { 1024 };
/// How long one may take to say it.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections taken in one round.
const MAX_ACCEPTS: usize = 64;
/// Rest after the system has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that a device listens on, for one qualifier or more.
pub(crate) struct Acceptor {
    number: u16,
    device: Weak<Soft>,
    pub quals: Mutex<HashMap<u64, Arc<Listening>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watch: Option<Watch>,
    /// Where processes of this host ask that share memory with us.
    shm_listener: Option<Watch>,
    pause: Option<Timer>,
    shm_pause: Option<Timer>,
    pending: VecDeque<Arc<PendingRequest>>,
}

impl Acceptor {
    /// Serves a socket that listens, and a local one if there is one.
    pub fn new(
        device: &Arc<Soft>,
        socket: OwnedFd,
        shm_listener: Option<OwnedFd>,
        number: u16,
    ) -> Result<Arc<Acceptor>, DeviceError> {
        let port = Arc::new(Acceptor {
            number,
            device: Arc::downgrade(device),
            quals: Mutex::default(),
            state: Mutex::default(),
        });
        // Watched under the lock: the first connection waits until there is a watch.
        let mut state = port.state.lock();
        let source = port.clone();
        state.watch = Some(device.engine.watch(socket, EventFlags::IN, source)?);
        if let Some(shm_listener) = shm_listener {
            let source = Arc::new(ShmAcceptor(Arc::downgrade(&port)));
            state.shm_listener = Some(device.engine.watch(shm_listener, EventFlags::IN, source)?);
        }
        drop(state);
        Ok(port)
    }

    /// Stops listening; requests that are not complete are dropped.
    pub fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        for pending in &state.pending {
            pending.cancel(&ConnectError::Closed);
        }
    }

    fn take(self: &Arc<Self>, device: &Arc<Soft>, state: &mut State) -> Result<bool, Errno> {
        let Some(watch) = &state.watch else {
            return Ok(false);
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = match rustix::net::accept_with(watch, flags) {
            Ok(fd) => fd,
            Err(Errno::AGAIN) => return Ok(false),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                return Err(error);
            }
            // That connection is gone already.
            Err(_) => return Ok(true),
        };
        socket::tune(&fd, &device.params);
        if let (Some(local), Some(remote)) = (socket::local(&fd), socket::remote(&fd)) {
            self.start_handshake(device, state, fd, Some((local, remote)));
        }
        Ok(true)
    }

    /// Hears what a connection wants. Those of this host say themselves between whom it is.
    fn start_handshake(
        self: &Arc<Self>,
        device: &Arc<Soft>,
        state: &mut State,
        fd: OwnedFd,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        while let Some(oldest) = state.pending.front()
            && (state.pending.len() >= MAX_PENDING || oldest.is_over())
        {
            oldest.cancel(&ConnectError::TooManyPending);
            state.pending.pop_front();
        }
        let pending = Arc::new(PendingRequest {
            port: Arc::downgrade(self),
            state: Mutex::new(None),
        });
        let mut request_state = pending.state.lock();
        let source = pending.clone();
        let Ok(watch) = device.engine.watch(fd, EventFlags::IN, source) else {
            return;
        };
        let weak = Arc::downgrade(&pending);
        let timer = watch.timer(REQUEST_TIMEOUT, move |_| {
            if let Some(pending) = weak.upgrade() {
                pending.cancel(&ConnectError::NoRequest);
            }
        });
        *request_state = Some(RequestState {
            number: self.number,
            watch,
            shm_handshake: ends
                .is_none()
                .then(|| PassiveHandshake::new(device.params.shares_memory())),
            ends,
            segment: None,
            request: Vec::new(),
            _timer: timer,
        });
        drop(request_state);
        state.pending.push_back(pending);
    }
}

/// What the engine knows of the local socket of a port.
struct ShmAcceptor(Weak<Acceptor>);

impl Source for ShmAcceptor {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, _up: &mut Upcalls) {
        let Some(port) = self.0.upgrade() else {
            return;
        };
        let Some(device) = port.device.upgrade() else {
            return;
        };
        let mut state = port.state.lock();
        for _ in 0..MAX_ACCEPTS {
            let Some(shm_listener) = &state.shm_listener else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(shm_listener, flags) {
                Ok(fd) if shm::is_same_user(&fd) => {
                    port.start_handshake(&device, &mut state, fd, None)
                }
                // Whoever is refused goes over TCP.
                Ok(_) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    state.shm_pause = pause(&mut state.shm_listener, &port, |state| {
                        &mut state.shm_listener
                    });
                    return;
                }
                Err(_) => {}
            }
        }
    }
}

/// Leaves connections in the queue of the kernel for a while: there are no descriptors for them.
fn pause(
    watch: &mut Option<Watch>,
    port: &Arc<Acceptor>,
    which: fn(&mut State) -> &mut Option<Watch>,
) -> Option<Timer> {
    let watch = watch.as_mut()?;
    let _ = watch.set(EventFlags::empty());
    let weak = Arc::downgrade(port);
    Some(watch.timer(ACCEPT_PAUSE, move |_| {
        if let Some(port) = weak.upgrade()
            && let Some(watch) = which(&mut port.state.lock())
        {
            let _ = watch.set(EventFlags::IN);
        }
    }))
}

impl Source for Acceptor {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, _up: &mut Upcalls) {
        let Some(device) = self.device.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        for _ in 0..MAX_ACCEPTS {
            match self.take(&device, &mut state) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    state.pause = pause(&mut state.watch, &self, |state| &mut state.watch);
                    break;
                }
            }
        }
        drop(state);
    }
}

/// A connection that has not said what it wants.
struct PendingRequest {
    port: Weak<Acceptor>,
    state: Mutex<Option<RequestState>>,
}

struct RequestState {
    /// The port.
    number: u16,
    watch: Watch,
    /// Local and remote address, once they are known.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// A process of this host that is not known yet.
    shm_handshake: Option<PassiveHandshake>,
    /// What is shared with a process of this host.
    segment: Option<Arc<SharedSegment>>,
    request: Vec<u8>,
    _timer: Timer,
}

impl RequestState {
    /// Tells the log why there was no request that the consumer could have got.
    fn report(&self, failure: &ConnectError) {
        let identity = || Identity {
            endpoint: None,
            addrs: self.ends,
            qual: self.number.into(),
            path: path(self.segment.as_ref()),
        };
        report::write(Line::new(identity, Outcome::NotAccepted, failure));
    }
}

impl PendingRequest {
    fn is_over(&self) -> bool {
        self.state.lock().is_none()
    }

    fn cancel(&self, failure: &ConnectError) {
        let request_state = self.state.lock().take();
        if let Some(request_state) = request_state {
            request_state.report(failure);
        }
    }

    /// For the log. `asked` is what the process says that it wants.
    fn say_why_not(&self, asked: Option<EndAddresses>, why: ShmRefusal) {
        let Some(port) = self.port.upgrade() else {
            return;
        };
        match asked {
            Some(EndAddresses { source, target }) => log::info!(
                "no shared memory with a process at {source} that asks for {target}: {why}"
            ),
            None => log::info!(
                "no shared memory with a process of this host that asks for port {}: {why}",
                port.number
            ),
        }
    }

    /// Hands the request to the listener it is for.
    fn complete(&self, request_state: RequestState, up: &mut Upcalls) {
        let RequestState {
            mut watch,
            request,
            segment,
            ends,
            ..
        } = request_state;
        let Some((local, remote)) = ends else {
            return;
        };
        let Ok(Parsed::Frame(frame, _)) = mpa::parse(Kind::Request, &request) else {
            return;
        };
        let Some(port) = self.port.upgrade() else {
            return;
        };
        let (qual, private_data) = match qualifier::unwrap(frame.private_data) {
            Some((QualHeader::Request, qual, pause)) => (qual, pause),
            _ => (u64::from(port.number), frame.private_data),
        };
        let listening = port.quals.lock().get(&qual).cloned();
        let Some(listening) = listening else {
            // Somebody else's: the connector goes on to look for the owner. A port without a
            // listener of its own is as good as closed.
            if is_wide(qual) {
                let private_data = qualifier::wrap(QualHeader::NotMine, qual, b"");
                refuse(watch, &frame, &private_data);
            }
            return;
        };
        // Until there is an answer the peer has nothing to say.
        if watch.set(EventFlags::empty()).is_err() {
            return;
        }
        let enhanced = frame.enhanced;
        let depth = |d: u16| (d != mpa::DEPTH_UNNEGOTIATED).then_some(u32::from(d));
        let request = ConnRequest {
            private_data: private_data.into(),
            rd_in: enhanced.and_then(|e| depth(e.ird)),
            rd_out: enhanced.and_then(|e| depth(e.ord)),
            qual,
            origin: Some(Origin::Socket(SocketRequest {
                watch,
                request: request.clone(),
                qual,
                segment,
            })),
            local,
            remote,
        };
        up.request(listening, request);
    }
}

impl Source for PendingRequest {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.go_on(up);
    }
}

impl PendingRequest {
    /// Hears what there is to hear.
    fn go_on(self: &Arc<Self>, up: &mut Upcalls) {
        let mut state = self.state.lock();
        let Some(request_state) = &mut *state else {
            return;
        };
        if let Some(shm_handshake) = &mut request_state.shm_handshake {
            let pending = Arc::downgrade(self);
            let wake = move || {
                if let Some(pending) = pending.upgrade() {
                    let mut up = Upcalls::default();
                    pending.go_on(&mut up);
                    up.run();
                }
            };
            let result = shm_handshake.advance(&request_state.watch, wake);
            let looking = matches!(result, Err(Incomplete::Verifying));
            let events = if looking {
                EventFlags::empty()
            } else {
                EventFlags::IN
            };
            let watched = request_state.watch.set(events);
            match result {
                Ok((segment, ends)) if watched.is_ok() => {
                    request_state.shm_handshake = None;
                    request_state.segment = Some(segment);
                    request_state.ends = Some((ends.target, SocketAddr::new(ends.source, 0)));
                }
                Err(Incomplete::AwaitingPeer | Incomplete::Verifying) if watched.is_ok() => return,
                other => {
                    let why = match other {
                        Err(Incomplete::Refused(why)) => why,
                        _ => ShmRefusal::new("its socket cannot be watched"),
                    };
                    let asked = shm_handshake.ends();
                    let request_state = state.take();
                    drop(state);
                    drop(request_state);
                    self.say_why_not(asked, why);
                    return;
                }
            }
        }
        let failure = loop {
            let missing = match mpa::parse(Kind::Request, &request_state.request) {
                Ok(Parsed::Frame(..)) => {
                    let request_state = state.take();
                    drop(state);
                    if let Some(request_state) = request_state {
                        self.complete(request_state, up);
                    }
                    return;
                }
                Ok(Parsed::NeedMore(n)) => n,
                Err(error) => break ConnectError::Request(error),
            };
            let seen = request_state.request.len();
            request_state.request.resize(seen + missing, 0);
            let buffer = &mut request_state.request[seen..];
            match rustix::net::recv(&request_state.watch, buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break ConnectError::HalfRequest,
                Ok((_, n)) => request_state.request.truncate(seen + n),
                Err(Errno::AGAIN | Errno::INTR) => {
                    request_state.request.truncate(seen);
                    return;
                }
                Err(error) => break ConnectError::System(error),
            }
        };
        drop(state);
        self.cancel(&failure);
    }
}

/// How a peer is reached with which these rings are shared, or none.
fn path(segment: Option<&Arc<SharedSegment>>) -> Path<'static> {
    match segment {
        Some(_) => Path::SharedMemory,
        None => Path::Tcp,
    }
}

/// A request over TCP that waits for an answer.
pub(crate) struct SocketRequest {
    pub watch: Watch,
    /// The frame as it came.
    request: Vec<u8>,
    pub qual: u64,
    /// What is shared with a process of this host.
    pub segment: Option<Arc<SharedSegment>>,
}

impl SocketRequest {
    /// How the peer is reached.
    pub fn path(&self) -> Path<'static> {
        path(self.segment.as_ref())
    }

    /// The frame.
    pub fn frame(&self) -> Option<Frame<'_>> {
        match mpa::parse(Kind::Request, &self.request) {
            Ok(Parsed::Frame(frame, _)) => Some(frame),
            _ => None,
        }
    }

    /// Whether the peer is still there.
    pub fn is_alive(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recv(&self.watch, &mut [0u8; 1], flags) {
            Ok((_, n)) => n > 0,
            Err(error) => error == Errno::AGAIN,
        }
    }

    /// Refuses in the name of the consumer.
    pub fn reject(self, private_data: &[u8]) {
        let private_data = qualifier::wrap(QualHeader::Reply, self.qual, private_data);
        let request = self.request;
        if let Ok(Parsed::Frame(frame, _)) = mpa::parse(Kind::Request, &request) {
            refuse(self.watch, &frame, &private_data);
        }
    }
}

/// Sends a rejection, and ends the connection.
fn refuse(watch: Watch, frame: &Frame<'_>, private_data: &[u8]) {
    let mut bytes = [0; FRAME_MAX];
    if let Ok(bytes) = frame.rejection(private_data).encode(&mut bytes) {
        linger(watch, bytes.to_vec(), End::Graceful);
    }
}

/// Sends a reply. A socket that has sent nothing yet takes it whole.
pub(crate) fn reply(watch: &Watch, frame: &Frame<'_>) -> bool {
    let mut bytes = [0; FRAME_MAX];
    let Ok(bytes) = frame.encode(&mut bytes) else {
        return false;
    };
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(watch, bytes, flags) == Ok(bytes.len())
}
