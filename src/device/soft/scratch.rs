//! What serving sockets needs and all of them share: a buffer, and the order of ends.
//!
//! Sockets are served in any order. A peer that waits until all its connections are up before it
//! ends the first causes events here in that order all the same, because the end of a stream is
//! acted upon only when all that had arrived with it, on any socket, has been told.

use std::time::{Duration, Instant};

/// Bytes of the buffer that all sockets are read into.
pub(super) const RX: usize = 512 * 1024;
/// Sockets served in one round.
pub(super) const BATCH: usize = 64;
/// How long upcalls may hold up the ends of other connections: they may run an agent of the
/// consumer that waits for one.
const TELLING: Duration = Duration::from_millis(100);

/// What serving needs and all sockets share.
#[derive(Default)]
pub(super) struct Scratch {
    rx: Vec<u8>,
    /// How often all sockets that were ready have been served.
    sweeps: u64,
    /// Sockets served since the last time.
    served: usize,
    /// As many of the sweeps are over, with their upcalls.
    told: u64,
}

/// When the end of a stream was seen for the first time.
pub(super) struct Seen {
    sweep: u64,
    at: Instant,
}

impl Scratch {
    /// Notes that the end of a stream is there.
    pub fn seen(&self) -> Seen {
        Seen {
            sweep: self.sweeps,
            at: Instant::now(),
        }
    }

    /// Whether everything that had arrived on any socket by then has been served and told.
    pub fn is_last(&self, seen: &Seen) -> bool {
        // The sweep that was going on may have passed a socket by; the next one has not.
        self.told >= seen.sweep + 2 || seen.at.elapsed() >= TELLING
    }

    /// A round begins; `told` if no upcalls of earlier ones are left.
    pub fn begin(&mut self, told: bool) {
        if told {
            self.told = self.sweeps;
        }
    }

    /// A round is over that has served `ready` of `sockets`. The kernel passes round those that
    /// stay ready.
    pub fn end(&mut self, ready: usize, sockets: usize) {
        self.served += ready;
        if ready < BATCH || self.served >= sockets {
            self.sweeps += 1;
            self.served = 0;
        }
    }

    /// Memory for received bytes, there from the first use on.
    pub fn rx(&mut self) -> &mut [u8] {
        if self.rx.is_empty() {
            self.rx = vec![0; RX];
        }
        &mut self.rx
    }
}
