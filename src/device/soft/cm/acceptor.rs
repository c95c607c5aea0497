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

use super::failure::Trouble;
use super::listener::{ConnRequest, Listening, Origin};
use super::socket;
use crate::device::DeviceError;
use crate::device::connection_log::{self, Identity, LogEntry, Outcome, Path};
use crate::device::qualifier::{self, QualHeader, needs_header};
use crate::device::soft::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::iwarp::mpa::{self, FRAME_MAX, Frame, Kind, Parsed};
use crate::device::soft::transport::shm::{self, Answer, Ends, Halt, Why, Wire};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;

/// Connections of a port that have not said what they want; beyond that the oldest go.
const GREETINGS: usize = if cfg!(test) { 100 } else { 1024 };
/// How long one may take to say it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Connections taken in one round.
const TURNS: usize = 64;
/// Rest after the system has run out of descriptors.
const REST: Duration = Duration::from_millis(100);

/// A port that a device listens on, for one qualifier or more.
pub(crate) struct Port {
    number: u16,
    device: Weak<Soft>,
    pub quals: Mutex<HashMap<u64, Arc<Listening>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watch: Option<Watch>,
    /// Where processes of this host ask that share memory with us.
    door: Option<Watch>,
    rest: Option<Timer>,
    door_rest: Option<Timer>,
    greetings: VecDeque<Arc<Greeting>>,
}

impl Port {
    /// Serves a socket that listens, and a local one if there is one.
    pub fn new(
        device: &Arc<Soft>,
        socket: OwnedFd,
        door: Option<OwnedFd>,
        number: u16,
    ) -> Result<Arc<Port>, DeviceError> {
        let port = Arc::new(Port {
            number,
            device: Arc::downgrade(device),
            quals: Mutex::default(),
            state: Mutex::default(),
        });
        // Watched under the lock: the first connection waits until there is a watch.
        let mut state = port.state.lock();
        let source = port.clone();
        state.watch = Some(device.engine.watch(socket, EventFlags::IN, source)?);
        if let Some(door) = door {
            let source = Arc::new(Door(Arc::downgrade(&port)));
            state.door = Some(device.engine.watch(door, EventFlags::IN, source)?);
        }
        drop(state);
        Ok(port)
    }

    /// Stops listening; requests that are not complete are dropped.
    pub fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        for greeting in &state.greetings {
            greeting.cancel(&Trouble::Closed);
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
            self.greet(device, state, fd, Some((local, remote)));
        }
        Ok(true)
    }

    /// Hears what a connection wants. Those of this host say themselves between whom it is.
    fn greet(
        self: &Arc<Self>,
        device: &Arc<Soft>,
        state: &mut State,
        fd: OwnedFd,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        while let Some(oldest) = state.greetings.front()
            && (state.greetings.len() >= GREETINGS || oldest.is_over())
        {
            oldest.cancel(&Trouble::Crowd);
            state.greetings.pop_front();
        }
        let greeting = Arc::new(Greeting {
            port: Arc::downgrade(self),
            state: Mutex::new(None),
        });
        let mut hello = greeting.state.lock();
        let source = greeting.clone();
        let Ok(watch) = device.engine.watch(fd, EventFlags::IN, source) else {
            return;
        };
        let weak = Arc::downgrade(&greeting);
        let timer = watch.timer(PATIENCE, move |_| {
            if let Some(greeting) = weak.upgrade() {
                greeting.cancel(&Trouble::NoRequest);
            }
        });
        *hello = Some(Hello {
            number: self.number,
            watch,
            kin: ends
                .is_none()
                .then(|| Answer::new(device.params.shares_memory())),
            ends,
            wire: None,
            request: Vec::new(),
            _timer: timer,
        });
        drop(hello);
        state.greetings.push_back(greeting);
    }
}

/// What the engine knows of the local socket of a port.
struct Door(Weak<Port>);

impl Source for Door {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, _up: &mut Upcalls) {
        let Some(port) = self.0.upgrade() else {
            return;
        };
        let Some(device) = port.device.upgrade() else {
            return;
        };
        let mut state = port.state.lock();
        for _ in 0..TURNS {
            let Some(door) = &state.door else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(door, flags) {
                Ok(fd) if shm::is_kin(&fd) => port.greet(&device, &mut state, fd, None),
                // Whoever is refused goes over TCP.
                Ok(_) => {}
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    state.door_rest = rest(&mut state.door, &port, |state| &mut state.door);
                    return;
                }
                Err(_) => {}
            }
        }
    }
}

/// Leaves connections in the queue of the kernel for a while: there are no descriptors for them.
fn rest(
    watch: &mut Option<Watch>,
    port: &Arc<Port>,
    which: fn(&mut State) -> &mut Option<Watch>,
) -> Option<Timer> {
    let watch = watch.as_mut()?;
    let _ = watch.set(EventFlags::empty());
    let weak = Arc::downgrade(port);
    Some(watch.timer(REST, move |_| {
        if let Some(port) = weak.upgrade()
            && let Some(watch) = which(&mut port.state.lock())
        {
            let _ = watch.set(EventFlags::IN);
        }
    }))
}

impl Source for Port {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, _up: &mut Upcalls) {
        let Some(device) = self.device.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        for _ in 0..TURNS {
            match self.take(&device, &mut state) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    state.rest = rest(&mut state.watch, &self, |state| &mut state.watch);
                    break;
                }
            }
        }
        drop(state);
    }
}

/// A connection that has not said what it wants.
struct Greeting {
    port: Weak<Port>,
    state: Mutex<Option<Hello>>,
}

struct Hello {
    /// The port.
    number: u16,
    watch: Watch,
    /// Local and remote address, once they are known.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// A process of this host that is not known yet.
    kin: Option<Answer>,
    /// What is shared with a process of this host.
    wire: Option<Arc<Wire>>,
    request: Vec<u8>,
    _timer: Timer,
}

impl Hello {
    /// Tells the log why there was no request that the consumer could have got.
    fn report(&self, trouble: &Trouble) {
        let identity = || Identity {
            endpoint: None,
            addrs: self.ends,
            qual: self.number.into(),
            path: path(self.wire.as_ref()),
        };
        connection_log::write(LogEntry::new(identity, Outcome::NotAccepted, trouble));
    }
}

impl Greeting {
    fn is_over(&self) -> bool {
        self.state.lock().is_none()
    }

    fn cancel(&self, trouble: &Trouble) {
        let hello = self.state.lock().take();
        if let Some(hello) = hello {
            hello.report(trouble);
        }
    }

    /// For the log. `asked` is what the process says that it wants.
    fn say_why_not(&self, asked: Option<Ends>, why: Why) {
        let Some(port) = self.port.upgrade() else {
            return;
        };
        match asked {
            Some(Ends { source, target }) => log::info!(
                "no shared memory with a process at {source} that asks for {target}: {why}"
            ),
            None => log::info!(
                "no shared memory with a process of this host that asks for port {}: {why}",
                port.number
            ),
        }
    }

    /// Hands the request to the listener it is for.
    fn complete(&self, hello: Hello, up: &mut Upcalls) {
        let Hello {
            mut watch,
            request,
            wire,
            ends,
            ..
        } = hello;
        let Some((local, remote)) = ends else {
            return;
        };
        let Ok(Parsed::Frame(frame, _)) = mpa::parse(Kind::Request, &request) else {
            return;
        };
        let Some(port) = self.port.upgrade() else {
            return;
        };
        let (qual, private_data) = match qualifier::split_header(frame.private_data) {
            Some((QualHeader::Request, qual, rest)) => (qual, rest),
            _ => (u64::from(port.number), frame.private_data),
        };
        let listening = port.quals.lock().get(&qual).cloned();
        let Some(listening) = listening else {
            // Somebody else's: the connector goes on to look for the owner. A port without a
            // listener of its own is as good as closed.
            if needs_header(qual) {
                let private_data = qualifier::add_header(QualHeader::NotMine, qual, b"");
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
            origin: Some(Origin::Tcp(Asked {
                watch,
                request: request.clone(),
                qual,
                wire,
            })),
            local,
            remote,
        };
        up.request(listening, request);
    }
}

impl Source for Greeting {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.go_on(up);
    }
}

impl Greeting {
    /// Hears what there is to hear.
    fn go_on(self: &Arc<Self>, up: &mut Upcalls) {
        let mut state = self.state.lock();
        let Some(hello) = &mut *state else {
            return;
        };
        if let Some(kin) = &mut hello.kin {
            let greeting = Arc::downgrade(self);
            let wake = move || {
                if let Some(greeting) = greeting.upgrade() {
                    let mut up = Upcalls::default();
                    greeting.go_on(&mut up);
                    up.run();
                }
            };
            let result = kin.go_on(&hello.watch, wake);
            let looking = matches!(result, Err(Halt::Looking));
            let events = if looking {
                EventFlags::empty()
            } else {
                EventFlags::IN
            };
            let watched = hello.watch.set(events);
            match result {
                Ok((wire, ends)) if watched.is_ok() => {
                    hello.kin = None;
                    hello.wire = Some(wire);
                    hello.ends = Some((ends.target, SocketAddr::new(ends.source, 0)));
                }
                Err(Halt::Wait | Halt::Looking) if watched.is_ok() => return,
                other => {
                    let why = match other {
                        Err(Halt::Refused(why)) => why,
                        _ => Why::new("its socket cannot be watched"),
                    };
                    let asked = kin.ends();
                    let hello = state.take();
                    drop(state);
                    drop(hello);
                    self.say_why_not(asked, why);
                    return;
                }
            }
        }
        let trouble = loop {
            let missing = match mpa::parse(Kind::Request, &hello.request) {
                Ok(Parsed::Frame(..)) => {
                    let hello = state.take();
                    drop(state);
                    if let Some(hello) = hello {
                        self.complete(hello, up);
                    }
                    return;
                }
                Ok(Parsed::NeedMore(n)) => n,
                Err(error) => break Trouble::Request(error),
            };
            let seen = hello.request.len();
            hello.request.resize(seen + missing, 0);
            let buffer = &mut hello.request[seen..];
            match rustix::net::recv(&hello.watch, buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break Trouble::HalfRequest,
                Ok((_, n)) => hello.request.truncate(seen + n),
                Err(Errno::AGAIN | Errno::INTR) => {
                    hello.request.truncate(seen);
                    return;
                }
                Err(error) => break Trouble::System(error),
            }
        };
        drop(state);
        self.cancel(&trouble);
    }
}

/// How a peer is reached with which these rings are shared, or none.
fn path(wire: Option<&Arc<Wire>>) -> Path<'static> {
    match wire {
        Some(_) => Path::SharedMemory,
        None => Path::Tcp,
    }
}

/// A request over TCP that waits for an answer.
pub(crate) struct Asked {
    pub watch: Watch,
    /// The frame as it came.
    request: Vec<u8>,
    pub qual: u64,
    /// What is shared with a process of this host.
    pub wire: Option<Arc<Wire>>,
}

impl Asked {
    /// How the peer is reached.
    pub fn path(&self) -> Path<'static> {
        path(self.wire.as_ref())
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
        let private_data = qualifier::add_header(QualHeader::Reply, self.qual, private_data);
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
