//! Connecting a queue pair, from the side of the queue pair: its attempts, and the lock domain that
//! two queue pairs of a process share while they are connected.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::lock::Mutex;
use crate::process::PerProcess;

use super::Qp;
use super::link::{Pending, PendingConnect, Transport};
use super::place::{DomainState, LockDomain, QpPlace};
use super::state::QpState;
use crate::device::attempt::Phase;
use crate::device::connection_log::{self, Cause, LogEntry, Outcome, Path};
use crate::device::soft::engine::Timer;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, DeviceError};
use crate::handle::pin::pin;

/// Held while two queue pairs are connected with each other, which takes the locks of both: with
/// one thread at a time there is no order of locks to keep.
static PAIRING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// Why two queue pairs of the process cannot be connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PairError {
    /// The active one is not at that attempt any more.
    PeerGone,
    /// The passive one has another connection.
    NotFree,
}

impl<L: Transport> Qp<L> {
    /// Moves to a place in another lock domain, which may be `paired`, if `check` agrees.
    fn move_to(
        &self,
        domain: &Arc<LockDomain<L>>,
        state: &mut DomainState<L>,
        (index, paired): (usize, bool),
        check: impl FnOnce(&QpState) -> bool,
    ) -> bool {
        let guard = pin();
        loop {
            let Some(place) = self.place.get(&guard) else {
                return false;
            };
            let mut old = place.domain.state.lock();
            let Some(own) = old.states[place.index].take() else {
                continue;
            };
            if !check(&own) {
                old.states[place.index] = Some(own);
                return false;
            }
            // It may hold what is left of an attempt, which is released without the lock.
            let link = std::mem::take(&mut old.link);
            state.states[index] = Some(own);
            self.place
                .set(Some(QpPlace::new(domain.clone(), index, paired)));
            drop(old);
            drop(link);
            return true;
        }
    }

    /// Moves to a lock domain of its own.
    pub(super) fn leave(&self) {
        let domain = Arc::new(LockDomain::new());
        let mut state = domain.state.lock();
        self.move_to(&domain, &mut state, (0, false), |_| true);
    }

    /// Connects two queue pairs of the process: `active`, if it is still at the given attempt,
    /// and `passive`.
    ///
    /// # Errors
    /// Which of the two is not ready for it.
    pub(crate) fn pair(
        active: &Qp<L>,
        attempt: u64,
        passive: &Qp<L>,
        addrs: (SocketAddr, SocketAddr),
        qual: u64,
        private_data: &[u8],
        up: &mut Upcalls,
    ) -> Result<(), PairError> {
        let _pairing = PAIRING.lock();
        let domain = Arc::new(LockDomain::new());
        let mut state = domain.state.lock();
        let waits = |s: &QpState| s.attempt.is_connecting(attempt);
        let free = |s: &QpState| matches!(s.attempt.phase, Phase::Idle | Phase::Ended);
        if !active.move_to(&domain, &mut state, (0, true), waits) {
            return Err(PairError::PeerGone);
        }
        if !passive.move_to(&domain, &mut state, (1, true), free) {
            drop(state);
            active.leave();
            return Err(PairError::NotFree);
        }
        state.link = L::loopback();
        let [Some(a), Some(p)] = &mut state.states else {
            unreachable!("both states have just been put there");
        };
        let begun = p.attempt.begin();
        debug_assert!(
            begun.is_ok(),
            "a queue pair that is free can begin an attempt"
        );
        p.addrs = Some((addrs.1, addrs.0));
        (p.qual, p.path) = (qual, Path::Loopback);
        a.ord = a.id.attr.max_rd_out.min(p.id.attr.max_rd_in);
        p.ord = p.id.attr.max_rd_out.min(a.id.attr.max_rd_in);
        a.establish(private_data.into(), None, up);
        p.establish(Box::default(), None, up);
        Ok(())
    }

    /// Begins an attempt to connect; returns its number.
    pub(crate) fn begin(
        &self,
        addrs: Option<(SocketAddr, SocketAddr)>,
        qual: u64,
        path: Path<'static>,
    ) -> Result<u64, DeviceError> {
        if self.with(|locked| locked.me.attempt.phase == Phase::Ended) {
            self.leave();
        }
        self.with(|locked| {
            let attempt = locked.me.attempt.begin()?;
            locked.me.addrs = addrs;
            (locked.me.qual, locked.me.path) = (qual, path);
            Ok(attempt)
        })
    }

    /// The port of this end, which is known once the attempt has a socket.
    pub(crate) fn set_local_port(&self, attempt: u64, port: u16) {
        self.with(|locked| {
            if locked.me.attempt.is_connecting(attempt)
                && let Some((local, _)) = &mut locked.me.addrs
            {
                local.set_port(port);
            }
        });
    }

    /// Takes an attempt back of which neither the consumer nor the peer knows yet.
    pub(crate) fn withdraw(&self, attempt: u64) {
        self.with(|locked| {
            locked.me.attempt.withdraw(attempt);
        });
    }

    /// Keeps what drives and limits an attempt as long as the attempt lasts.
    pub(crate) fn holds(
        &self,
        attempt: u64,
        timer: Option<Timer>,
        connector: Option<Arc<dyn PendingConnect>>,
    ) {
        let pending = Pending {
            _timer: timer,
            connector,
        };
        let over = self.with(|locked| {
            if locked.me.attempt.is_connecting(attempt) {
                std::mem::replace(locked.link, L::pending(pending))
            } else {
                L::pending(pending)
            }
        });
        drop(over);
    }

    /// Limits how long a graceful end over loopback waits for receives of the peer.
    pub(super) fn limit_linger(self: &Arc<Self>, attempt: u64) {
        let qp = Arc::downgrade(self);
        let timer = self
            .device
            .engine
            .timer(self.device.params.linger, move |up| {
                if let Some(qp) = qp.upgrade() {
                    qp.with(|locked| {
                        if locked.me.attempt.is_current(attempt) && locked.is_lingering() {
                            locked.break_loopback(up);
                        }
                    });
                }
            });
        let unused = self.with(|locked| {
            if locked.me.attempt.is_current(attempt) && locked.is_lingering() {
                locked.me.linger.replace(timer)
            } else {
                Some(timer)
            }
        });
        drop(unused);
    }

    /// Ends an attempt to connect, if the queue pair is still at that attempt.
    pub(crate) fn give_up(
        &self,
        attempt: u64,
        event: CmEvent,
        cause: &dyn Cause,
        up: &mut Upcalls,
    ) {
        let link = self.with(|locked| {
            if !locked.me.attempt.is_connecting(attempt) {
                return L::default();
            }
            locked.note_path();
            locked.me.end(event, cause, up);
            std::mem::take(locked.link)
        });
        drop(link);
    }

    /// Logs that an attempt uses another path than the preferred one.
    pub(crate) fn log_detour(&self, attempt: u64, cause: &dyn Cause) {
        let entry = self.with(|locked| {
            locked.note_path();
            let current = locked.me.attempt.is_connecting(attempt);
            current.then(|| LogEntry::new(|| locked.me.name(), Outcome::Detour, cause))
        });
        connection_log::write(entry.flatten());
    }
}
