//! Our own keys, where peers of this host see them, and how a key is taken from them.
//!
//! There is nothing of this before the first peer comes. The table that peers see is a copy of
//! our own, not the table itself: a child that is forked shares the copy with its parent and
//! must not touch it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::memory::Memory;
use super::wire::{State, Wire};
use crate::device::Access;
use crate::device::soft::keys;
use crate::device::soft::slot::Slot;
use crate::sync::relax;

/// The copy.
struct Published {
    memory: Memory,
    fd: Arc<OwnedFd>,
    /// Whose keys these are.
    pid: u32,
}

impl Published {
    fn slot(&self, index: u32) -> Option<&Slot> {
        if self.pid != std::process::id() {
            return None;
        }
        // SAFETY: slots are made of atomics.
        unsafe { self.memory.as_slice::<Slot>() }.get(index as usize)
    }
}

/// Also orders what happens to a key in both tables.
static PUBLISHED: Mutex<Option<Published>> = Mutex::new(None);

/// Peers that may be inside our memory.
static VISITORS: Mutex<Vec<Arc<Wire>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How long an end of a visit is waited for. A visit is a copy of limited size; who is inside
/// for that long was stopped, or lies, and could write to our memory at any other time as well:
/// the kernel would let it.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_secs(2)
} else {
    Duration::from_secs(10)
};

/// Bytes of the table.
pub(super) const TABLE_LEN: usize = keys::SLOTS as usize * size_of::<Slot>();

/// The file with our keys; `None` if there can be none.
pub(super) fn file() -> Option<Arc<OwnedFd>> {
    let mut published = PUBLISHED.lock();
    if let Some(published) = &*published {
        return (published.pid == std::process::id()).then(|| published.fd.clone());
    }
    // Memory is only used for the slots that are.
    let (fd, memory) = Memory::create(c"libdat-keys", TABLE_LEN, false).ok()?;
    let new = Published {
        memory,
        fd: Arc::new(fd),
        pid: std::process::id(),
    };
    keys::each(|(index, slot)| {
        if slot.key() != 0
            && let Some(copy) = new.slot(index)
        {
            copy.fill(&slot.contents());
            copy.set_key(slot.key());
        }
    });
    let fd = new.fd.clone();
    *published = Some(new);
    Some(fd)
}

/// `key` opens what `slot` holds from now on, here and for peers.
pub(in crate::device::soft) fn open(index: u32, key: u32, slot: &Slot) {
    let published = PUBLISHED.lock();
    slot.set_key(key);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.fill(&slot.contents());
        copy.set_key(key);
    }
}

/// The slot opens nothing from now on for who begins later. When this returns no peer is
/// inside; others of this process may still be.
pub(in crate::device::soft) fn shut(index: u32, slot: &Slot) {
    let published = PUBLISHED.lock();
    slot.set_key(0);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.set_key(0);
    }
    drop(published);
    wait_for_visitors();
}

/// Takes rights from a slot; gives those it had.
pub(in crate::device::soft) fn restrict(index: u32, slot: &Slot, rights: Access) -> Access {
    let published = PUBLISHED.lock();
    let before = slot.restrict(rights);
    if let Some(copy) = published.as_ref().and_then(|p| p.slot(index)) {
        copy.restrict(rights);
    }
    drop(published);
    wait_for_visitors();
    before
}

/// A peer may be inside from now on.
pub(super) fn admit(wire: &Arc<Wire>) {
    let mut all = VISITORS.lock();
    all.push(wire.clone());
    COUNT.store(all.len(), Ordering::SeqCst);
}

/// It may not any more: it finds our side shut.
pub(super) fn dismiss(wire: &Arc<Wire>) {
    wait_for(wire);
    let mut all = VISITORS.lock();
    all.retain(|other| !Arc::ptr_eq(other, wire));
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
fn wait_for(wire: &Arc<Wire>) {
    if wire.given_up.load(Ordering::Relaxed) {
        return;
    }
    let visits = &wire.theirs().visits;
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
            if wire.peer().is_gone() {
                return;
            }
            if begun.elapsed() > PATIENCE {
                log::warn!("a peer on this host does not leave our memory; connection broken");
                // What it asks for from now on is refused, and nobody waits for it again.
                wire.ours().set_state(State::Broken);
                wire.given_up.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}
