//! What precedes the request to a process of this host: the two processes prove to each other that
//! they may have access to each other's memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::turn::Turn;
use super::{Candidate, Connector, Progress, Stage, State};
use crate::device::netif;
use crate::device::soft::cm::error::ShmUnavailable;
use crate::device::soft::cm::{Transport, UNWATCHED, local_port, watch_handshake};
use crate::device::soft::engine::{EventFlags, Timer, Watch};
use crate::device::soft::transport::shm::{
    self, ActiveHandshake, EndAddresses, Incomplete, NO_ANSWER, ShmRefusal,
};
use crate::device::soft::upcalls::Upcalls;
use crate::kernel::Instant;

/// How long an attempt waits for a process that does not answer, or has no room for a connection, while there is
/// something else to be tried: another port, or TCP. A process that holds the name of a port and sends nothing
/// delays the attempt by no more than that.
const SHM_TIMEOUT: Duration = Duration::from_secs(2);

/// The same if nothing else is left to be tried, from the time on at which the attempt has its turn. A process that listens
/// may be stopped, or have no processor.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);

/// The first and the longest pause of an attempt before it asks a process again that had no room for it.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(64));

/// The handshakes of an attempt with processes of this host, one after the other.
pub(super) struct ShmHandshake {
    /// How long processes may keep the attempt from what else there is to be tried.
    limit: Duration,
    /// When the process of the current candidate has had its time; `None` before it has been asked, or while the attempt
    /// waits for its turn and there is nothing else to be tried.
    deadline: Option<Instant>,
    /// There is nothing else to be tried than the current candidate.
    is_last: bool,
    /// The first process that has not answered in time, if shared memory alone is allowed.
    silent: Option<Candidate>,
    /// The attempt waits until there are fewer handshakes with the port.
    is_queued: bool,
    /// The attempt is one of those that may have a handshake with the port.
    turn: Option<Turn>,
    /// The next pause because a process has no room for a connection.
    busy_pause: Duration,
    /// Fires at the deadline; `None` while there is no handshake.
    timer: Option<Timer>,
    /// The handshake that is under way.
    active: Option<ActiveHandshake>,
}

impl ShmHandshake {
    /// The handshakes of an attempt with that timeout.
    pub fn new(timeout: Option<Duration>) -> ShmHandshake {
        ShmHandshake {
            // There shall be time left for what else there is.
            limit: timeout.map_or(SHM_TIMEOUT, |timeout| SHM_TIMEOUT.min(timeout / 2)),
            deadline: None,
            is_last: false,
            silent: None,
            is_queued: false,
            turn: None,
            busy_pause: BUSY_PAUSES.0,
            timer: None,
            active: None,
        }
    }

    /// Whether a handshake is under way.
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether the attempt waits for its turn.
    pub fn is_queued(&self) -> bool {
        self.is_queued
    }

    /// The process that has not answered in time, to be tried again when nothing else is left.
    pub fn take_silent(&mut self) -> Option<Candidate> {
        self.silent.take()
    }

    /// How long is left, if there is a limit.
    fn left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    fn is_late(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Ends the handshake that is under way; gives what the handshake held.
    fn end_exchange(&mut self) -> impl Sized + use<> {
        (self.active.take(), self.timer.take())
    }

    /// The same, and lets other attempts have handshakes.
    pub fn end(&mut self) -> impl Sized + use<> {
        self.is_queued = false;
        (self.end_exchange(), self.turn.take())
    }
}

impl Connector {
    /// Goes on with the handshake. The handshake may have ended a moment ago.
    fn resume(self: &Arc<Self>, up: &mut Upcalls) {
        let state = self.state.lock();
        if state.handshake.is_active() {
            self.advance_locked(state, up);
        }
    }

    /// Whether a process holds the name of a port at the peer's address.
    pub(super) fn has_local_socket(&self, port: u16) -> bool {
        matches!(
            shm::connect(self.target(port)),
            Ok(Some(_)) | Err(shm::BUSY)
        )
    }

    /// Begins to try the current candidate, through shared memory.
    pub(super) fn try_shm(self: &Arc<Self>, state: &mut State, target: SocketAddr) -> Progress {
        let handshake = &mut state.handshake;
        handshake.is_last = state.candidates.is_empty() && state.otherwise.is_none();
        if !handshake.is_last {
            let limit = Instant::now() + handshake.limit;
            handshake.deadline.get_or_insert(limit);
        }
        if handshake.is_late() {
            return self.shm_failed(state, Some(NO_ANSWER));
        }
        if handshake.turn.is_none() {
            handshake.turn = Turn::take(self, target, handshake.is_queued);
        }
        handshake.is_queued = handshake.turn.is_none();
        if handshake.is_queued {
            let left = handshake.left();
            state.candidates.push(state.current);
            return self.try_when_called(left, state);
        }
        let limit = Instant::now() + LAST_TIMEOUT;
        handshake.deadline.get_or_insert(limit);
        let port = local_port::next();
        match self.connect_shm(handshake, target, port) {
            Ok(Some(watch)) => {
                state.local_port = Some(port);
                state.stage = Stage::ShmHandshake(watch);
                Progress::Wait
            }
            Ok(None) => self.shm_failed(state, None),
            Err(why) => self.shm_failed(state, Some(why)),
        }
    }

    /// Begins the handshake with the process that holds the name of a port, for an end with the port
    /// `local_port`; `None` if there is no such process.
    fn connect_shm(
        self: &Arc<Self>,
        handshake: &mut ShmHandshake,
        target: SocketAddr,
        local_port: u16,
    ) -> Result<Option<Watch>, ShmRefusal> {
        let Some(fd) = shm::connect(target)? else {
            return Ok(None);
        };
        let params = &self.device.params;
        if params.may_be_traced {
            shm::permit_peers();
        }
        let source = if params.bound { params.address } else { target };
        let source = netif::at_port(source, local_port);
        let ends = EndAddresses { source, target };
        let active = ActiveHandshake::send(&fd, &ends, self.purpose, params.shares_memory())?;
        let watch = self.device.engine.watch(fd, EventFlags::IN, self.clone());
        let watch = watch.map_err(|_| UNWATCHED)?;
        let connector = Arc::downgrade(self);
        let resume = move |up: &mut Upcalls| {
            if let Some(connector) = connector.upgrade() {
                connector.resume(up);
            }
        };
        let left = handshake.left();
        handshake.timer = left.map(|left| self.device.engine.timer(left, resume));
        handshake.active = Some(active);
        Ok(Some(watch))
    }

    /// Goes on with the handshake as far as the peer has sent its messages; `true` if the request
    /// may be sent, or the handshake is complete.
    pub(super) fn advance_handshake(
        self: &Arc<Self>,
        state: &mut State,
        watch: &mut Watch,
    ) -> Result<bool, ShmRefusal> {
        let Some(active) = &mut state.handshake.active else {
            return Ok(true);
        };
        let connector = Arc::downgrade(self);
        let resume = move || {
            if let Some(connector) = connector.upgrade() {
                let mut up = Upcalls::default();
                connector.resume(&mut up);
                up.run();
            }
        };
        match active.advance(&*watch, resume) {
            Ok(None) => Ok(true),
            Ok(Some(segment)) => {
                state.handshake.end();
                state.segment = Some(segment);
                // The peer listens on the port. Its reply counts, whatever the reply is.
                let port = state.current.port;
                state.candidates.retain(|candidate| candidate.port != port);
                Ok(true)
            }
            Err(Incomplete::Refused(why)) => Err(why),
            Err(_) if state.handshake.is_late() => Err(NO_ANSWER),
            Err(incomplete) => {
                watch_handshake(watch, incomplete == Incomplete::Verifying)?;
                Ok(false)
            }
        }
    }

    /// Goes on with the handshake that precedes the request.
    pub(super) fn continue_handshake(
        self: &Arc<Self>,
        state: &mut State,
        mut watch: Watch,
    ) -> Progress {
        match self.advance_handshake(state, &mut watch) {
            Ok(true) => self.begin_request(state, watch),
            Ok(false) => {
                state.stage = Stage::ShmHandshake(watch);
                Progress::Wait
            }
            Err(why) => self.shm_failed(state, Some(why)),
        }
    }

    /// There is no shared memory with the process that listens on the port, which counts as if the
    /// port had no listener; without a reason no process holds the name of the port.
    pub(super) fn shm_failed(
        self: &Arc<Self>,
        state: &mut State,
        why: Option<ShmRefusal>,
    ) -> Progress {
        match why {
            Some(why) if why.is_passing() => return self.wait_for_room(state),
            Some(NO_ANSWER) if self.transports == [Transport::Shm] && !state.handshake.is_last => {
                state.handshake.silent.get_or_insert(state.current);
            }
            _ => {}
        }
        if self.transports == [Transport::Shm] {
            // The next process has as much time.
            state.handshake.deadline = None;
        }
        // An earlier reason is more precise than that the process is gone by now, or about to be.
        let earlier_is_better = match (why, state.no_sharing) {
            (None, earlier) => earlier.is_some(),
            (Some(why), earlier) => why.is_silence() && earlier.is_some_and(|e| e.0.is_some()),
        };
        if !earlier_is_better {
            state.no_sharing = Some(ShmUnavailable(why));
        }
        state.handshake.end();
        self.try_next(state)
    }

    /// Tries the current candidate again in a moment: its process listens, and accepts as fast as it can.
    fn wait_for_room(self: &Arc<Self>, state: &mut State) -> Progress {
        let handshake = &mut state.handshake;
        if handshake.is_active() && handshake.is_last {
            // It has answered.
            handshake.deadline = None;
        }
        handshake.end_exchange();
        let pause = handshake.busy_pause;
        handshake.busy_pause = (pause * 2).min(BUSY_PAUSES.1);
        let pause = handshake.left().map_or(pause, |left| pause.min(left));
        state.candidates.push(state.current);
        self.try_after(pause, state)
    }
}
