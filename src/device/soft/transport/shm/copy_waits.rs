//! Waiting for peers that copy from or to our registered memory when they may do so no longer.
//!
//! A copy section lasts for a copy of limited size, and an honest peer reports an operation as
//! complete when its section has ended. So a revocation finds a section with the revoked key only if
//! the program revokes a key that its peer still uses, which a card answers with an error and the end
//! of the connection; so do we, if the section does not end soon.
//!
//! A peer that was stopped in a section, by a signal or a debugger, may continue its copy at any time
//! later. What it reaches through the memory file ([`mapped`](mod@super::mapped)) is *abandoned* then:
//! those addresses are not moved into the file again before the section has ended or the process has
//! exited, so that the copy ends in pages of the file which nothing uses. A copy by the kernel is not
//! interrupted by a stop. A peer that lies about its sections gains nothing: the kernel would let it
//! write to our memory at any other time as well.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;

use super::remote_keys::FoundSection;
use super::segment::{EndPhase, SharedSegment};
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange};
use crate::device::soft::mem::key_table;
use crate::process::PerProcess;
use crate::sync::relax;

/// How long the end of a section is waited for that uses a region which the program frees.
pub(super) const REGION_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a window, for rights that a peer takes away, and at the end of a connection. That
/// happens in threads that serve other connections too.
pub(super) const SHORT_TIMEOUT: Duration = Duration::from_millis(20);

/// A connection whose peer may access our memory, or is still doing so.
struct Accessor {
    segment: Arc<SharedSegment>,
    /// Whether the connection has ended. Its peer may be in its last section.
    ended: bool,
}

impl Accessor {
    /// Whether a later revocation may have to wait for the peer.
    fn is_needed(&self) -> bool {
        !self.ended || (running(&self.segment).is_some() && !self.segment.peer().has_exited())
    }
}

/// The section that a peer is in. `None` if it is in none, and if the peer was given up.
fn running(segment: &SharedSegment) -> Option<FoundSection> {
    if segment.peer_stuck.load(Ordering::Relaxed) {
        return None;
    }
    segment.theirs().copy_guard.running()
}

static ACCESSORS: PerProcess<Mutex<Vec<Accessor>>> = PerProcess::new(Mutex::default);
/// Length of [`ACCESSORS`], to be read without the lock.
static ACCESSOR_COUNT: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// Addresses of the memory file that a peer which was given up may still reach in its section.
struct Abandoned {
    segment: Arc<SharedSegment>,
    section: FoundSection,
    range: MappedRange,
}

impl Abandoned {
    fn is_over(&self) -> bool {
        !self.segment.theirs().copy_guard.is_running(self.section)
            || self.segment.peer().has_exited()
    }
}

static ABANDONED: PerProcess<Mutex<Vec<Abandoned>>> = PerProcess::new(Mutex::default);

/// Remembers addresses that a peer which was given up may still reach.
fn abandon(abandoned: Abandoned) {
    let pid = abandoned.segment.peer().pid();
    let mut all = ABANDONED.lock();
    all.push(abandoned);
    all.retain(|abandoned| !abandoned.is_over());
    forget_oldest(&mut all, |one| one.segment.peer().pid() == pid);
}

/// For how many peers that were given up addresses are remembered.
#[cfg(test)]
pub(in crate::device::soft) fn abandoned() -> usize {
    ABANDONED.lock().len()
}

/// How many connections of a process are remembered that have ended in a section, and how many whose peer was
/// given up. An honest process has one for each of its threads that were stopped in one at the same time; one
/// that lies shall not make us keep the memory of each connection that it makes.
const MOST_ENDED: usize = 128;

/// Forgets the oldest of those for which `counts` holds, beyond the limit.
fn forget_oldest<T>(all: &mut Vec<T>, counts: impl Fn(&T) -> bool) {
    let count = all.iter().filter(|one| counts(one)).count();
    let mut excess = count.saturating_sub(MOST_ENDED);
    all.retain(|one| {
        let forgotten = excess > 0 && counts(one);
        excess -= usize::from(forgotten);
        !forgotten
    });
}

/// Changes [`ACCESSORS`], and removes those that are not needed any more.
fn update(change: impl FnOnce(&mut Vec<Accessor>)) {
    let mut all = ACCESSORS.lock();
    change(&mut all);
    all.retain(Accessor::is_needed);
    ACCESSOR_COUNT.store(all.len(), Ordering::SeqCst);
}

/// From now on a revocation waits for copy sections of this peer.
pub(super) fn add_peer(segment: &Arc<SharedSegment>) {
    update(|all| {
        all.push(Accessor {
            segment: segment.clone(),
            ended: false,
        });
    });
}

/// Waits a little for the end of the section that this peer is in.
pub(super) fn wait_for_peer(segment: &Arc<SharedSegment>) {
    if let Some(section) = running(segment) {
        wait(vec![(segment.clone(), section)], SHORT_TIMEOUT);
    }
}

/// The phase of our end of the segment permits no access any longer. Waits a little for the section
/// of this peer, which is the last one. If the section lasts longer, revocations of its key wait for
/// it.
pub(super) fn remove_peer(segment: &Arc<SharedSegment>) {
    wait_for_peer(segment);
    update(|all| {
        let same = |accessor: &&mut Accessor| Arc::ptr_eq(&accessor.segment, segment);
        if let Some(accessor) = all.iter_mut().find(same) {
            accessor.ended = true;
            if running(segment).is_some() {
                let pid = segment.peer().pid();
                forget_oldest(all, |one| one.ended && one.segment.peer().pid() == pid);
            }
        }
    });
}

/// Waits until no peer copies by `key`, which is or was that of `entry` and is revoked, or has fewer
/// rights than before; for a region also by the keys of its windows. Peers that take longer than
/// `timeout` are given up, and their connections end.
pub(super) fn wait_for_key(key: u32, entry: &KeyEntry, timeout: Duration) {
    if ACCESSOR_COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    let region = entry.is_region();
    let uses_key = |section: &FoundSection| {
        section.key().is_none_or(|used| {
            used == key || region && key_table::is_window_of(used, key, entry.serial())
        })
    };
    let sections = find(uses_key);
    if sections.is_empty() {
        return;
    }
    for (segment, section) in wait(sections, timeout) {
        log::warn!(
            "a peer on this host does not end its access to registered memory that is freed; \
             connection broken"
        );
        // The peer's later accesses are refused, and no revocation waits for it again.
        segment.ours().set_phase(EndPhase::Broken);
        segment.peer_stuck.store(true, Ordering::Relaxed);
        let range = entry.mapped_range();
        if !range.is_empty() {
            abandon(Abandoned {
                segment,
                section,
                range,
            });
        }
    }
}

/// Called by the owner of pages that are [announced](super::moving_pages) as moving: waits a little for the end of the
/// sections that may have begun before, and in which the kernel may copy from or to the pages. False if one of them
/// does not end.
pub(super) fn wait_for_pages(pages: &Range<u64>) -> bool {
    // With this barrier, a connection that is not counted yet has sections that find the pages announced.
    fence(Ordering::SeqCst);
    if ACCESSOR_COUNT.load(Ordering::SeqCst) == 0 {
        return true;
    }
    let sections = find(|section| {
        let reaches = |key| key_table::opens_any(key, pages);
        section.key().is_none_or(reaches)
    });
    sections.is_empty() || wait(sections, SHORT_TIMEOUT).is_empty()
}

/// The sections for which `counts` holds.
fn find(counts: impl Fn(&FoundSection) -> bool) -> Vec<Running> {
    let accessors = ACCESSORS.lock();
    let found = accessors.iter().filter_map(|accessor| {
        let section = running(&accessor.segment).filter(&counts)?;
        Some((accessor.segment.clone(), section))
    });
    found.collect()
}

/// A section that was found in the segment of its connection.
type Running = (Arc<SharedSegment>, FoundSection);

/// Waits for the ends of sections, all together for as long as `timeout`. Returns those that have not
/// ended. A process that has exited is in none.
fn wait(mut sections: Vec<Running>, timeout: Duration) -> Vec<Running> {
    let begun = Instant::now();
    let mut round = 0;
    loop {
        sections.retain(|(segment, section)| segment.theirs().copy_guard.is_running(*section));
        // From this round on `relax` sleeps. A peer that was killed in a copy section takes a
        // moment to exit.
        if round >= 1024 {
            sections.retain(|(segment, _)| !segment.peer().has_exited());
        }
        if sections.is_empty() || begun.elapsed() > timeout {
            return sections;
        }
        relax(round);
        round += 1;
    }
}

/// Whether a peer that was given up may still write to some of these addresses of the memory file.
pub(super) fn is_abandoned(pages: &Range<u64>) -> bool {
    let mut all = ABANDONED.lock();
    all.retain(|abandoned| !abandoned.is_over());
    all.iter()
        .any(|abandoned| abandoned.range.start < pages.end && pages.start < abandoned.range.end)
}
