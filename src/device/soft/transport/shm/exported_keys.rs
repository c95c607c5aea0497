//! Our own keys, where peers of this host see them, and how a key is taken from them.
//!
//! There is nothing of this before the first peer comes. The table that peers see is a copy of
//! our own, not the table itself: a child that is forked shares the copy with its parent and
//! must not touch it.
//!
//! The copy is as large as the keys in use need it, and grows with them, because files may be
//! limited in size (`RLIMIT_FSIZE`). A key that it has no room for is not given out at all
//! ([`make_room`]): peers would be refused, and nobody could tell why.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::memfd::Growing;
use super::segment::{EndPhase, SharedSegment};
use crate::device::Access;
use crate::device::soft::mem::key_entry::KeyEntry;
use crate::device::soft::mem::key_table;
use crate::sync::relax;

/// The copy.
struct ExportedKeys {
    memory: Growing,
    /// For peers.
    fd: Arc<OwnedFd>,
    /// Whose keys these are.
    pid: u32,
}

impl ExportedKeys {
    fn slots(&self) -> &[KeyEntry] {
        // SAFETY: slots are made of atomics.
        unsafe { self.memory.as_slice::<KeyEntry>() }
    }

    fn slot(&self, index: u32) -> Option<&KeyEntry> {
        if self.pid != std::process::id() {
            return None;
        }
        self.slots().get(index as usize)
    }

    /// Sees to it that there are as many slots.
    fn make_room(&mut self, count: usize) -> Result<(), Errno> {
        if count <= self.slots().len() {
            return Ok(());
        }
        let len = count * size_of::<KeyEntry>();
        self.memory.grow(len.next_multiple_of(STEP).min(TABLE_LEN))
    }
}

/// Also orders what happens to a key in both tables.
static EXPORTED: Mutex<Option<ExportedKeys>> = Mutex::new(None);

/// Peers that may be inside our memory.
static VISITORS: Mutex<Vec<Arc<SharedSegment>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How long an end of a visit is waited for. A visit is a copy of limited size; who is inside
/// for that long was stopped, or lies, and could write to our memory at any other time as well:
/// the kernel would let it.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_secs(2)
} else {
    Duration::from_secs(10)
};

/// Bytes of the table at most.
pub(super) const TABLE_LEN: usize = key_table::MAX_KEYS as usize * size_of::<KeyEntry>();

/// Bytes by which it grows.
const STEP: usize = 16 << 10;

/// The file with our keys, for peers.
///
/// # Errors
/// Of the kernel, and `ECHILD` in a child that was forked.
pub(crate) fn file() -> Result<Arc<OwnedFd>, Errno> {
    let mut published = EXPORTED.lock();
    if let Some(published) = &*published {
        let ours = published.pid == std::process::id();
        return ours.then(|| published.fd.clone()).ok_or(Errno::CHILD);
    }
    let (fd, memory) = Growing::create(c"libdat-keys", TABLE_LEN)?;
    let mut new = ExportedKeys {
        memory,
        fd: Arc::new(fd),
        pid: std::process::id(),
    };
    // Whoever takes a slot after this finds the table made, and asks it for room.
    new.make_room(key_table::used_entries() as usize)?;
    key_table::for_each_entry(|(index, slot)| {
        if slot.key() != 0
            && let Some(copy) = new.slot(index)
        {
            copy.fill(&slot.contents());
            copy.set_key(slot.key());
        }
    });
    let fd = new.fd.clone();
    *published = Some(new);
    Ok(fd)
}

/// Sees to it that peers can see the slot with that number, if there are any. False if they
/// could not.
pub(crate) fn make_room(index: u32) -> bool {
    let mut published = EXPORTED.lock();
    match &mut *published {
        Some(published) if published.pid == std::process::id() => {
            published.make_room(index as usize + 1).is_ok()
        }
        _ => true,
    }
}

/// `key` opens what `slot` holds from now on, here and for peers.
pub(crate) fn open(index: u32, key: u32, slot: &KeyEntry) {
    let published = EXPORTED.lock();
    slot.set_key(key);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.fill(&slot.contents());
        copy.set_key(key);
    }
}

/// The slot opens nothing from now on for who begins later. When this returns no peer is
/// inside; others of this process may still be.
pub(crate) fn shut(index: u32, slot: &KeyEntry) {
    let published = EXPORTED.lock();
    slot.set_key(0);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.set_key(0);
    }
    drop(published);
    wait_for_visitors();
}

/// Takes rights from a slot; gives those it had.
pub(crate) fn restrict(index: u32, slot: &KeyEntry, rights: Access) -> Access {
    let published = EXPORTED.lock();
    let before = slot.restrict(rights);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.restrict(rights);
    }
    drop(published);
    wait_for_visitors();
    before
}

/// A peer may be inside from now on.
pub(crate) fn admit(segment: &Arc<SharedSegment>) {
    let mut all = VISITORS.lock();
    all.push(segment.clone());
    COUNT.store(all.len(), Ordering::SeqCst);
}

/// It may not any more: it finds our side shut.
pub(super) fn dismiss(segment: &Arc<SharedSegment>) {
    wait_for(segment);
    let mut all = VISITORS.lock();
    all.retain(|other| !Arc::ptr_eq(other, segment));
    COUNT.store(all.len(), Ordering::SeqCst);
}

fn wait_for_visitors() {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    let all = VISITORS.lock().clone();
    all.iter().for_each(wait_for);
}

/// Waits until a visit of that peer which goes on has ended. A peer that is dead has none.
fn wait_for(segment: &Arc<SharedSegment>) {
    if segment.given_up.load(Ordering::Relaxed) {
        return;
    }
    let visits = &segment.theirs().visits;
    let Some(number) = visits.seen() else {
        return;
    };
    let begun = Instant::now();
    let mut round = 0;
    while visits.is_inside(number) {
        relax(round);
        round += 1;
        // From here on a round is a sleep. A peer that was killed inside takes a moment to go.
        if round >= 1024 {
            if segment.peer().is_gone() {
                return;
            }
            if begun.elapsed() > PATIENCE {
                log::warn!("a peer on this host does not leave our memory; connection broken");
                // What it asks for from now on is refused, and nobody waits for it again.
                segment.ours().set_state(EndPhase::Broken);
                segment.given_up.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}
