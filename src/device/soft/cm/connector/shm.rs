//! What precedes the request to a process of this host: the two processes prove to each other that
//! they may have access to each other's memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Connector, Progress, Stage, State};
use crate::device::netif;
use crate::device::soft::cm::error::ShmUnavailable;
use crate::device::soft::cm::{Transport, UNWATCHED, watch_handshake};
use crate::device::soft::engine::{EventFlags, Timer, Watch};
use crate::device::soft::transport::shm::{
    self, ActiveHandshake, EndAddresses, Incomplete, NO_ANSWER, ShmRefusal,
};
use crate::device::soft::upcalls::Upcalls;
use crate::kernel::Instant;

/// How long the handshakes of an attempt may take in all. A process that holds the name of a port
/// and sends nothing delays the attempt over TCP by no more than that.
const SHM_TIMEOUT: Duration = Duration::from_secs(2);

/// The first and the longest pause of an attempt before it asks a process again whose local socket had no room.
const BUSY_PAUSES: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(64));

/// The handshakes of an attempt with processes of this host, one after the other.
pub(super) struct ShmHandshake {
    /// How long the handshakes may take in all.
    limit: Duration,
    /// When that time is over; `None` before the first handshake.
    deadline: Option<Instant>,
    /// The next pause because a process has no room for a connection.
    busy_pause: Duration,
    /// Fires at the deadline; `None` while there is no handshake.
    timer: Option<Timer>,
    /// The handshake that is under way.
    active: Option<ActiveHandshake>,
}

impl ShmHandshake {
    /// The handshakes of an attempt with that timeout and these transports.
    pub fn new(timeout: Option<Duration>, transports: &[Transport]) -> ShmHandshake {
        // There shall be time left for TCP.
        let most = timeout.filter(|_| transports.contains(&Transport::Tcp));
        ShmHandshake {
            limit: most.map_or(SHM_TIMEOUT, |timeout| SHM_TIMEOUT.min(timeout / 2)),
            deadline: None,
            busy_pause: BUSY_PAUSES.0,
            timer: None,
            active: None,
        }
    }

    /// Whether a handshake is under way.
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// How long is left; all of it when a process is found for the first time.
    fn left(&mut self) -> Duration {
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert(now + self.limit);
        deadline.saturating_duration_since(now)
    }

    /// How long to wait for a process that has no room for a connection.
    pub fn wait_for_room(&mut self) -> Duration {
        let pause = self.busy_pause;
        self.busy_pause = (pause * 2).min(BUSY_PAUSES.1);
        pause.min(self.left())
    }

    fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Ends the handshake that is under way; gives what the handshake held.
    pub fn end(&mut self) -> impl Sized + use<> {
        (self.active.take(), self.timer.take())
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

    /// Begins the handshake with the process that holds the name of a port, for an end with the port
    /// `local_port`; `None` if there is no such process.
    pub(super) fn connect_shm(
        self: &Arc<Self>,
        handshake: &mut ShmHandshake,
        target: SocketAddr,
        local_port: u16,
    ) -> Result<Option<Watch>, ShmRefusal> {
        if handshake.is_late() {
            return Err(NO_ANSWER);
        }
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
        handshake.timer = Some(self.device.engine.timer(handshake.left(), resume));
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
}
