//! Which of the attempts of a device have a handshake with a port of this host at a time.
//!
//! A program that connects thousands of queue pairs at once would fill the queue of the port with their sockets, which
//! all processes that connect share, and take the descriptors of both ends meanwhile. So few of the attempts have a
//! handshake, and the others wait for their turn, the first one first.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use super::engine::Timer;
use super::upcalls::Upcalls;
use crate::lock::Mutex;

/// The most attempts that have a turn at a port.
const MOST: usize = if cfg!(any(test, dat_sim)) { 4 } else { 256 };

/// An attempt that waits for a turn.
pub(super) trait Waiting: Send + Sync {
    /// The attempt may have a turn, if it waits still.
    fn called(self: Arc<Self>, up: &mut Upcalls);
}

/// The attempts at a port.
#[derive(Default)]
struct Port {
    /// How many have a turn.
    with_turn: usize,
    /// Those that wait for one, the first one first. Some may be over.
    waiting: VecDeque<Weak<dyn Waiting>>,
    /// Calls those that wait.
    call: Option<Timer>,
}

impl Port {
    fn is_unused(&self) -> bool {
        self.with_turn == 0 && self.waiting.is_empty() && self.call.is_none()
    }
}

/// The attempts of a device at each port.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<SocketAddr, Port>>);

impl Turns {
    /// Gives an attempt a turn; or false, and the attempt is [called](Waiting::called) later. `is_called` says that it
    /// was, so that the attempt is the next one.
    pub fn take<T: Waiting + 'static>(
        &self,
        target: SocketAddr,
        attempt: &Arc<T>,
        is_called: bool,
    ) -> bool {
        let mut ports = self.0.lock();
        let port = ports.entry(target).or_default();
        let is_next = is_called || port.waiting.is_empty();
        // Without memory for the queue nobody waits.
        if (port.with_turn >= MOST || !is_next) && port.waiting.try_reserve(1).is_ok() {
            let attempt: Weak<T> = Arc::downgrade(attempt);
            match is_called {
                true => port.waiting.push_front(attempt),
                false => port.waiting.push_back(attempt),
            }
            return false;
        }
        port.with_turn += 1;
        true
    }

    /// An attempt has no turn any longer. `timer` makes a timer that calls [`Turns::call`].
    pub fn give_back(&self, target: SocketAddr, timer: impl FnOnce() -> Timer) {
        let mut ports = self.0.lock();
        let Some(port) = ports.get_mut(&target) else {
            return;
        };
        port.with_turn -= 1;
        if port.is_unused() {
            ports.remove(&target);
        } else if !port.waiting.is_empty() && port.call.is_none() {
            // Not here: the lock of an attempt may be held.
            port.call = Some(timer());
        }
    }

    /// Calls as many attempts as may have a turn.
    pub fn call(&self, target: SocketAddr, up: &mut Upcalls) {
        let mut ports = self.0.lock();
        let fired = ports.get_mut(&target).and_then(|port| port.call.take());
        drop(ports);
        drop(fired);
        while let Some(attempt) = self.next(target) {
            attempt.called(up);
        }
    }

    /// The first attempt that waits, if it may have a turn.
    fn next(&self, target: SocketAddr) -> Option<Arc<dyn Waiting>> {
        let mut ports = self.0.lock();
        let port = ports.get_mut(&target)?;
        while port.with_turn < MOST {
            let Some(attempt) = port.waiting.pop_front() else {
                break;
            };
            if let Some(attempt) = attempt.upgrade() {
                return Some(attempt);
            }
        }
        if port.is_unused() {
            ports.remove(&target);
        }
        None
    }
}
