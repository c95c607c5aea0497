//! Connections to a listening port whose request has not arrived whole.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::descriptor::OwnedFd;
use crate::lock::Mutex;
use rustix::io::Errno;

use super::acceptor::Acceptor;
use super::error::ConnectError;
use super::incomplete::Slot;
use super::request::{ConnRequest, Origin, SocketOrigin, send_rejection};
use super::{Transport, watch_handshake};
use crate::device::connection_log::{self, Identity, LogEntry, Outcome, Step};
use crate::device::log_limit::LogLimit;
use crate::device::qualifier::{self, QualHeader, needs_header};
use crate::device::soft::bad_keys::BadKeys;
use crate::device::soft::device::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::iwarp::mpa::{self, Frame, Kind, Parsed};
use crate::device::soft::socket;
use crate::device::soft::transport::datagram::wire;
use crate::device::soft::transport::shm::{
    EndAddresses, Incomplete, PassiveHandshake, Purpose, SharedSegment, ShmRefusal,
};
use crate::device::soft::upcalls::Upcalls;

/// How long a peer may take from the connection to its whole request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A request frame without its private data, and the private data.
type ReceivedRequest = (Frame<'static>, Box<[u8]>);

/// A connection to a listening port whose request has not arrived whole.
pub(super) struct PendingRequest {
    /// The acceptor of the port.
    acceptor: Weak<Acceptor>,
    /// The port.
    port: u16,
    /// The peers that have used keys which are not valid.
    bad_keys: Arc<BadKeys>,
    /// The connection; `None` once its request has been delivered or it was dropped.
    state: Mutex<Option<State>>,
}

struct State {
    /// Holds the socket.
    watch: Watch,
    /// Local and remote address; `None` until a process of this host has stated them.
    addrs: Option<(SocketAddr, SocketAddr)>,
    /// The handshake with a process of this host until it is complete; `None` over TCP.
    handshake: Option<PassiveHandshake>,
    /// The memory that is shared with a process of this host; `None` over TCP.
    segment: Option<Arc<SharedSegment>>,
    /// What that memory is shared for.
    purpose: Purpose,
    /// The bytes of the request frame that have arrived.
    request: Vec<u8>,
    /// Counts the connection among those without a whole request.
    slot: Slot,
    /// The whole request, while it waits because of the address of the peer.
    delayed: Option<ReceivedRequest>,
    /// Drops the connection after [`REQUEST_TIMEOUT`], or delivers the delayed request.
    timer: Timer,
}

impl State {
    fn transport(&self) -> Transport {
        match self.segment {
            Some(_) => Transport::Shm,
            None => Transport::Tcp,
        }
    }

    /// Receives what has arrived of the request; `None` if that is not the whole request.
    fn receive(&mut self) -> Result<Option<ReceivedRequest>, ConnectError> {
        loop {
            let missing = match mpa::parse(Kind::Request, &self.request) {
                Ok(Parsed::Frame(frame, _)) => {
                    let private_data = frame.private_data.into();
                    return Ok(Some((frame.without_private_data(), private_data)));
                }
                Ok(Parsed::NeedMore(n)) => n,
                Err(error) => return Err(ConnectError::Request(error)),
            };
            match socket::receive(&self.watch, &mut self.request, missing) {
                Ok(0) => return Err(ConnectError::HalfRequest),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(error) => return Err(ConnectError::System(error)),
            }
        }
    }
}

impl PendingRequest {
    /// Begins to receive the request of a connection that the acceptor has accepted. `addrs` are
    /// the local and the remote address of a TCP connection; a process of this host, with which
    /// there is a handshake first, states them itself. `None` if the socket cannot be watched.
    pub fn start(
        acceptor: &Arc<Acceptor>,
        device: &Arc<Soft>,
        fd: OwnedFd,
        addrs: Option<(SocketAddr, SocketAddr)>,
    ) -> Option<Arc<PendingRequest>> {
        let pending = Arc::new(PendingRequest {
            acceptor: Arc::downgrade(acceptor),
            port: acceptor.port,
            bad_keys: device.bad_keys.clone(),
            state: Mutex::new(None),
        });
        let mut state = pending.state.lock();
        let watch = device.engine.watch(fd, EventFlags::IN, pending.clone());
        let watch = watch.ok()?;
        let weak = Arc::downgrade(&pending);
        let timer = watch.timer(REQUEST_TIMEOUT, move |_| {
            if let Some(pending) = weak.upgrade() {
                pending.cancel(&ConnectError::NoRequest);
            }
        });
        let share = device.params.shares_memory();
        *state = Some(State {
            watch,
            addrs,
            handshake: addrs.is_none().then(|| PassiveHandshake::new(share)),
            segment: None,
            purpose: Purpose::Connection,
            request: Vec::new(),
            slot: Slot::new(&pending, acceptor),
            delayed: None,
            timer,
        });
        drop(state);
        Some(pending)
    }

    /// Whether something has arrived that was not read.
    pub fn has_unread(&self) -> bool {
        let state = self.state.lock();
        state
            .as_ref()
            .is_some_and(|state| socket::has_unread(&state.watch))
    }

    /// Drops the connection for a new one.
    pub fn give_way(&self) {
        static LOGGED: LogLimit = LogLimit::new();
        if let Some(state) = &*self.state.lock()
            && let Some(handshake) = &state.handshake
        {
            handshake.drop_for_others(&state.watch);
        }
        match LOGGED.admit() {
            Some(before) => self.cancel(&ConnectError::TooManyPending(before)),
            None => drop(self.state.lock().take()),
        }
    }

    /// Drops the connection, and logs why.
    pub fn cancel(&self, failure: &ConnectError) {
        let state = self.state.lock().take();
        let Some(state) = state else {
            return;
        };
        let identity = || Identity {
            endpoint: None,
            addrs: state.addrs,
            qual: self.port.into(),
            path: state.transport().path(),
        };
        connection_log::write(LogEntry::new(identity, Outcome::NotAccepted, failure));
    }

    /// Logs why memory is not shared with a process of this host. `ends` are the addresses that
    /// the process has stated, if it has.
    fn log_no_sharing(&self, ends: Option<EndAddresses>, why: ShmRefusal) {
        match ends {
            Some(EndAddresses { source, target }) => log::info!(
                "no shared memory with a process at {source} that connects to {target}: {why}"
            ),
            None => log::info!(
                "no shared memory with a process of this host that connects to port {}: {why}",
                self.port
            ),
        }
    }

    /// Goes on with the handshake and the request as far as the peer has sent them.
    pub fn advance(self: &Arc<Self>, up: &mut Upcalls) {
        let mut guard = self.state.lock();
        let Some(state) = &mut *guard else {
            return;
        };
        match self.advance_handshake(state) {
            Ok(true) => {}
            Ok(false) => {
                let handshake = state.handshake.as_ref();
                if handshake.is_some_and(|handshake| handshake.ends().is_some()) {
                    state.slot.begun(Transport::Shm);
                }
                return;
            }
            Err(why) => {
                let ends = state.handshake.as_ref().and_then(PassiveHandshake::ends);
                let state = guard.take();
                drop(guard);
                drop(state);
                self.log_no_sharing(ends, why);
                return;
            }
        }
        match state.receive() {
            Ok(None) if state.request.is_empty() => {}
            Ok(None) => state.slot.begun(state.transport()),
            Ok(Some(request)) => {
                let delay = match (&state.segment, state.addrs) {
                    (None, Some((_, remote))) => self.bad_keys.delay(remote.ip()),
                    _ => Duration::ZERO,
                };
                if !delay.is_zero() && state.watch.set(EventFlags::empty()).is_ok() {
                    state.delayed = Some(request);
                    let weak = Arc::downgrade(self);
                    state.timer = state.watch.timer(delay, move |up| {
                        if let Some(pending) = weak.upgrade() {
                            pending.deliver_delayed(up);
                        }
                    });
                    return;
                }
                let state = guard.take();
                drop(guard);
                if let Some(state) = state {
                    self.deliver(state, request, up);
                }
            }
            Err(failure) => {
                drop(guard);
                self.cancel(&failure);
            }
        }
    }

    /// Goes on with the handshake with a process of this host; `true` if there is none, or it is
    /// complete.
    fn advance_handshake(self: &Arc<Self>, state: &mut State) -> Result<bool, ShmRefusal> {
        let Some(handshake) = &mut state.handshake else {
            return Ok(true);
        };
        let pending = Arc::downgrade(self);
        let resume = move || {
            if let Some(pending) = pending.upgrade() {
                let mut up = Upcalls::default();
                pending.advance(&mut up);
                up.run();
            }
        };
        let result = handshake.advance(&state.watch, resume);
        let verifying = matches!(result, Err(Incomplete::Verifying));
        let watched = watch_handshake(&mut state.watch, verifying);
        match result {
            Ok((segment, ends)) => {
                watched?;
                state.purpose = handshake.purpose();
                state.handshake = None;
                state.segment = Some(segment);
                state.addrs = Some((ends.target, ends.source));
                state.slot.verified();
                Ok(true)
            }
            Err(Incomplete::Refused(why)) => Err(why),
            Err(Incomplete::AwaitingPeer | Incomplete::Verifying) => watched.map(|()| false),
        }
    }

    /// Delivers a request that has waited long enough.
    fn deliver_delayed(&self, up: &mut Upcalls) {
        let state = self.state.lock().take();
        if let Some(mut state) = state
            && let Some(request) = state.delayed.take()
        {
            self.deliver(state, request, up);
        }
    }

    /// Delivers the request to the listener of its qualifier.
    fn deliver(&self, state: State, (frame, data): ReceivedRequest, up: &mut Upcalls) {
        let path = state.transport().path();
        let State {
            mut watch,
            addrs,
            segment,
            purpose,
            ..
        } = state;
        let (Some((local, remote)), Some(acceptor)) = (addrs, self.acceptor.upgrade()) else {
            return;
        };
        let (qual, private_data) = match qualifier::split_header(&data) {
            Some((QualHeader::Request, qual, rest)) => (qual, rest),
            _ => (u64::from(self.port), &*data),
        };
        // Whoever shares memory has said before what it asks for.
        let may_resolve = segment.is_none() || purpose == Purpose::Datagrams;
        let end = wire::End::split_from(private_data).filter(|_| may_resolve);
        let (datagrams, private_data) = match end {
            Some((end, rest)) => (Some(end), rest),
            None if purpose == Purpose::Datagrams => return,
            None => (None, private_data),
        };
        let Some(listening) = acceptor.listener(qual) else {
            // The connecting end then tries the next port of the wide qualifier. A port without a
            // listener of its own behaves like one that is closed.
            if needs_header(qual) {
                let private_data = qualifier::add_header(QualHeader::NotMine, qual, b"");
                send_rejection(watch, &frame, &private_data);
            }
            return;
        };
        // The peer sends nothing before it has a reply.
        if watch.set(EventFlags::empty()).is_err() {
            return;
        }
        let depth = |d: u16| (d != mpa::DEPTH_UNNEGOTIATED).then_some(u32::from(d));
        let request = ConnRequest {
            qual,
            path,
            private_data: private_data.into(),
            local,
            remote,
            datagrams,
            rd_in: frame.enhanced.and_then(|e| depth(e.ird)),
            rd_out: frame.enhanced.and_then(|e| depth(e.ord)),
            origin: Some(Origin::Socket(SocketOrigin {
                watch,
                frame,
                segment,
            })),
        };
        request.log(None, Step::RequestArrived);
        up.request(listening, request);
    }
}

impl Source for PendingRequest {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.advance(up);
    }
}
