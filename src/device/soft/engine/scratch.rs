//! What serving sockets needs and all of them share. It goes with the engine lock.

use std::sync::Arc;

use super::rounds::ServiceClock;
use crate::device::soft::engine::{Backlog, EventFlags, Source};
use crate::device::soft::upcalls::Upcalls;

/// Bytes of the buffer that all sockets are read into.
pub(crate) const RX_BUFFER_LEN: usize = 512 * 1024;
/// How many times in a row the only socket that has anything is tried in vain before all are
/// looked at. A try takes the lock of the socket, and what comes for it meanwhile has to wait; a
/// look at all takes none, and is the pause between tries.
const TRIES: u32 = 2;
/// How many times in a row it has to have been the only one.
const STREAK: u32 = 4;

/// See the module.
#[derive(Default)]
pub(crate) struct Scratch {
    rx: Vec<u8>,
    /// Bytes were read.
    pub received: bool,
    /// There are several connections: they are served in [rounds](crate::device::soft::engine::rounds).
    pub in_rounds: bool,
    /// Connections that have read messages which are not delivered.
    pub backlog: Vec<Arc<dyn Backlog>>,
    /// The clock of the timers ran out.
    pub clock: bool,
    /// Counts their turns.
    pub turns: ServiceClock,
    /// The socket that was the only one with something the last time, how many times in a row
    /// that was so, and how many times it has had nothing since. Consumers that poll try it
    /// first: to ask the kernel which socket has something is a system call of its own.
    only: Option<Arc<dyn Source>>,
    streak: u32,
    tries: u32,
}

impl Scratch {
    /// Memory for received bytes, there from the first use on.
    pub fn rx(&mut self) -> &mut [u8] {
        if self.rx.is_empty() {
            self.rx = vec![0; RX_BUFFER_LEN];
        }
        &mut self.rx
    }

    /// A socket had something, `alone` if no other one had.
    pub fn note(&mut self, source: &Arc<dyn Source>, alone: bool) {
        let alone = alone && source.is_pollable();
        if alone && matches!(&self.only, Some(only) if Arc::ptr_eq(only, source)) {
            self.streak = self.streak.saturating_add(1);
        } else {
            self.only = alone.then(|| source.clone());
            self.streak = 0;
        }
    }

    /// Reads from the only socket that has had anything. False if all are to be looked at.
    pub fn try_only(&mut self, up: &mut Upcalls) -> bool {
        if self.tries >= TRIES || self.streak < STREAK {
            self.tries = 0;
            return false;
        }
        let Some(only) = self.only.clone() else {
            return false;
        };
        self.received = false;
        only.ready(EventFlags::IN, self, up);
        self.tries = if self.received { 0 } else { self.tries + 1 };
        true
    }
}
