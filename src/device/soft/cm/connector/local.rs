//! What comes before the request to a process of this host: the two prove to each other that they
//! may be shown each other's memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::soft::cm::connector::{Connector, Stage, State, Step};
use crate::device::soft::cm::failure::ShmUnavailable;
use crate::device::soft::engine::{EventFlags, Timer, Watch};
use crate::device::soft::transport::shm::{
    self, ActiveHandshake, EndAddresses, Incomplete, ShmRefusal,
};
use crate::device::soft::upcalls::Upcalls;

/// How long processes of this host may take for it, in all ports of an attempt. One that has the
/// name of a port and says nothing keeps nobody from TCP for longer.
const SHM_TIMEOUT: Duration = Duration::from_secs(2);

/// Why memory is not shared with somebody who does not answer in time.
const SILENT: ShmRefusal = ShmRefusal::new("who has the name of the port does not answer");
/// Why not with somebody who has ended the connection.
pub(super) const GONE: ShmRefusal =
    ShmRefusal::new("who has the name of the port has ended the connection");

/// See the module.
pub(super) struct ShmHandshake {
    patience: Duration,
    /// Until when, once somebody was asked.
    until: Option<Instant>,
    /// When that time is over.
    timer: Option<Timer>,
    /// What a responder was offered, until it has given what it shares.
    offer: Option<ActiveHandshake>,
}

impl ShmHandshake {
    /// Of an attempt with that time limit.
    pub fn new(timeout: Option<Duration>) -> ShmHandshake {
        ShmHandshake {
            // There shall be time left for TCP.
            patience: timeout.map_or(SHM_TIMEOUT, |timeout| SHM_TIMEOUT.min(timeout / 2)),
            until: None,
            timer: None,
            offer: None,
        }
    }

    /// Whether a responder is to give what it shares.
    pub fn goes_on(&self) -> bool {
        self.offer.is_some()
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Gives what is to be dropped.
    pub fn end(&mut self) -> impl Sized + use<> {
        (self.offer.take(), self.timer.take())
    }
}

impl Connector {
    /// Goes on if there is a meeting. It may have ended a moment ago.
    fn nudge(self: &Arc<Self>, up: &mut Upcalls) {
        let state = self.state.lock();
        if state.meeting.goes_on() {
            self.go_from(state, up);
        }
    }

    /// Asks whoever has the name of a port; `None` if that is nobody.
    pub(super) fn connect_shm(
        self: &Arc<Self>,
        meeting: &mut ShmHandshake,
        target: SocketAddr,
    ) -> Result<Option<Watch>, ShmRefusal> {
        if meeting.is_late() {
            return Err(SILENT);
        }
        let Some(fd) = shm::connect(target)? else {
            return Ok(None);
        };
        let params = &self.device.params;
        let source = if params.bound {
            params.address.ip()
        } else {
            target.ip()
        };
        let offer = ActiveHandshake::send(
            &fd,
            &EndAddresses { source, target },
            params.shares_memory(),
        )?;
        let watch = self.device.engine.watch(fd, EventFlags::IN, self.clone());
        let watch = watch.map_err(|_| UNWATCHED)?;
        let now = Instant::now();
        let until = *meeting.until.get_or_insert(now + meeting.patience);
        let connector = Arc::downgrade(self);
        let late = move |up: &mut Upcalls| {
            if let Some(connector) = connector.upgrade() {
                connector.nudge(up);
            }
        };
        let left = until.saturating_duration_since(now);
        meeting.timer = Some(self.device.engine.timer(left, late));
        meeting.offer = Some(offer);
        Ok(Some(watch))
    }

    /// Goes on with a process that was made an offer. True if it has been shown our files, or
    /// has given its own.
    pub(super) fn offer(
        self: &Arc<Self>,
        state: &mut State,
        watch: &mut Watch,
    ) -> Result<bool, ShmRefusal> {
        let Some(offer) = &mut state.meeting.offer else {
            return Ok(true);
        };
        let connector = Arc::downgrade(self);
        let wake = move || {
            if let Some(connector) = connector.upgrade() {
                let mut up = Upcalls::default();
                connector.nudge(&mut up);
                up.run();
            }
        };
        match offer.advance(&*watch, wake) {
            Ok(None) => Ok(true),
            Ok(Some(segment)) => {
                state.meeting.end();
                state.segment = Some(segment);
                // This is who has the port. Its answer counts, whatever it is.
                state.tries.retain(|(_, port)| *port != state.current.1);
                Ok(true)
            }
            Err(Incomplete::Refused(why)) => Err(why),
            Err(_) if state.meeting.is_late() => Err(SILENT),
            Err(halt) => {
                let looking = halt == Incomplete::Verifying;
                let events = if looking {
                    EventFlags::empty()
                } else {
                    EventFlags::IN
                };
                watch.set(events).map_err(|_| UNWATCHED)?;
                Ok(false)
            }
        }
    }

    pub(super) fn meet(self: &Arc<Self>, state: &mut State, mut watch: Watch) -> Step {
        match self.offer(state, &mut watch) {
            Ok(true) => self.request(state, watch),
            Ok(false) => {
                state.stage = Stage::ShmHandshake(watch);
                Step::Wait
            }
            Err(why) => self.shm_refused(state, Some(why)),
        }
    }

    /// There is no shared memory with whoever has the port, as if nobody listened there; no reason
    /// is that nobody has its name.
    pub(super) fn shm_refused(
        self: &Arc<Self>,
        state: &mut State,
        why: Option<ShmRefusal>,
    ) -> Step {
        // A reason that was given is better than that nobody is there any more.
        if why.is_some() || state.refused.is_none() {
            state.refused = Some(ShmUnavailable(why));
        }
        state.meeting.end();
        self.go_on(state)
    }
}

const UNWATCHED: ShmRefusal = ShmRefusal::new("its socket cannot be watched");
