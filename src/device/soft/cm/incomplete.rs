//! The connections of the process whose request has not arrived whole, and how many there may be.
//!
//! Anyone who reaches a port can open connections and send nothing, or very slowly. Each takes a
//! descriptor of the process. So all ports together hold no more of them than a quarter of the
//! descriptors that the process may have, and fewer if the program needs the rest: then the oldest
//! is dropped for a new one. What a peer in order sends first arrives with its connection, and the
//! rest of its request soon after, so that a connection is dropped only if it is a moment old;
//! until then new ones wait in the queue of the kernel. Nor is one dropped that something has arrived
//! on which this process, which may have had no processor, has not read.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::kernel::process::Resource;
use crate::kernel::{Instant, limit_of};

use super::Transport;
use super::acceptor::Acceptor;
use super::pending::{PendingRequest, REQUEST_TIMEOUT};
use crate::lock::Mutex;
use crate::process::PerProcess;

/// The most descriptors that incomplete requests take, whatever the process may have.
const MAX_DESCRIPTORS: u64 = if cfg!(test) { 100 } else { 1024 };
/// The fewest that they may take.
const MIN_DESCRIPTORS: u64 = 8;
/// The part of the descriptors of the process that incomplete requests may take.
const SHARE: u64 = 4;
/// The part of the descriptors of the process that stays free while there are requests to drop.
const RESERVE: u64 = 8;
/// How old a connection is before it is dropped for another one if nothing has arrived on it.
const SILENT_GRACE: Duration = Duration::from_millis(50);
/// The same if a part of the request has arrived, which a peer sends in one piece.
const TCP_GRACE: Duration = Duration::from_millis(100);
/// The same if the handshake has begun. Each end proves something to the other, which takes time
/// when many processes connect at once.
const SHM_GRACE: Duration = Duration::from_secs(1);
/// The same if the handshake is complete: not before the time for the whole request is over. The kernel lets such a peer
/// change the memory of this process, so that it needs no connections to do harm; and its request, which it sends at once,
/// may have to wait for this process.
const VERIFIED_GRACE: Duration = REQUEST_TIMEOUT;
/// How long to wait until a request may be old enough.
const RECHECK: Duration = Duration::from_millis(10);

struct Entry {
    /// The request.
    request: Weak<PendingRequest>,
    /// The address of the acceptor of the request.
    acceptor: usize,
    /// When the connection was accepted.
    since: Instant,
    /// How old the request is before it is dropped for another one.
    grace: Duration,
    /// Number of descriptors that the request takes.
    descriptors: u64,
}

#[derive(Default)]
struct Incomplete {
    /// The requests, by a number that grows: the oldest first.
    entries: BTreeMap<u64, Entry>,
    /// The number of the next request.
    next: u64,
    /// Number of descriptors of all requests.
    descriptors: u64,
}

static INCOMPLETE: PerProcess<Mutex<Incomplete>> = PerProcess::new(Mutex::default);

impl Incomplete {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.descriptors -= entry.descriptors;
        Some(entry)
    }
}

/// Counts a request as incomplete until it is dropped.
pub(super) struct Slot(u64);

impl Slot {
    /// Counts a request that has just been accepted.
    pub fn new(request: &Arc<PendingRequest>, acceptor: &Arc<Acceptor>) -> Slot {
        let mut all = INCOMPLETE.lock();
        let number = all.next;
        all.next += 1;
        all.descriptors += 1;
        let entry = Entry {
            request: Arc::downgrade(request),
            acceptor: Arc::as_ptr(acceptor).addr(),
            since: Instant::now(),
            grace: SILENT_GRACE,
            descriptors: 1,
        };
        all.entries.insert(number, entry);
        Slot(number)
    }

    /// A part of the request has arrived, or of the handshake before it.
    pub fn begun(&self, transport: Transport) {
        let mut all = INCOMPLETE.lock();
        let all = &mut *all;
        if let Some(entry) = all.entries.get_mut(&self.0)
            && entry.grace == SILENT_GRACE
        {
            match transport {
                Transport::Tcp => entry.grace = TCP_GRACE,
                Transport::Shm => {
                    entry.grace = SHM_GRACE;
                    // That of the process which is verified.
                    entry.descriptors += 1;
                    all.descriptors += 1;
                }
            }
        }
    }

    /// The handshake is complete.
    pub fn verified(&self) {
        if let Some(entry) = INCOMPLETE.lock().entries.get_mut(&self.0) {
            entry.grace = VERIFIED_GRACE;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        INCOMPLETE.lock().remove(self.0);
    }
}

/// Number of descriptors that the process may have.
fn limit() -> u64 {
    limit_of(Resource::Nofile).unwrap_or(u64::MAX)
}

/// Whether few descriptors are left when the kernel gives out this one: it gives out the lowest
/// that is free.
pub(super) fn are_descriptors_scarce(newest: i32) -> bool {
    let limit = limit();
    u64::try_from(newest).is_ok_and(|newest| newest >= limit - limit / RESERVE)
}

/// Drops the oldest requests until there is room for one more, and one at least if descriptors are
/// `scarce`. Returns how long to wait before the next connection is accepted, if the requests are
/// too young to be dropped.
pub(super) fn make_room(mut scarce: bool) -> Option<Duration> {
    let most = (limit() / SHARE).clamp(MIN_DESCRIPTORS, MAX_DESCRIPTORS);
    let mut first = 0;
    loop {
        let (number, oldest) = {
            let all = INCOMPLETE.lock();
            if all.descriptors < most && !scarce {
                return None;
            }
            if all.entries.is_empty() {
                return None;
            }
            let mut entries = all.entries.range(first..);
            let Some((&number, entry)) = entries.find(|(_, e)| e.since.elapsed() >= e.grace) else {
                return Some(RECHECK);
            };
            (number, entry.request.upgrade())
        };
        first = number + 1;
        // Its lock is not taken under that of the requests.
        if oldest.as_ref().is_some_and(|oldest| oldest.has_unread()) {
            continue;
        }
        INCOMPLETE.lock().remove(number);
        scarce = false;
        if let Some(oldest) = oldest {
            oldest.give_way();
        }
    }
}

/// Drops the oldest request for a descriptor; false if none is old enough.
pub(super) fn release_descriptor() -> bool {
    let before = INCOMPLETE.lock().entries.len();
    let waits = make_room(true).is_some();
    !waits && before > 0
}

/// The requests of an acceptor.
pub(super) fn of_acceptor(acceptor: &Acceptor) -> Vec<Arc<PendingRequest>> {
    let address = std::ptr::from_ref(acceptor).addr();
    let all = INCOMPLETE.lock();
    let own = all.entries.values().filter(|e| e.acceptor == address);
    own.filter_map(|entry| entry.request.upgrade()).collect()
}
