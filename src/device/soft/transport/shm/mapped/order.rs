//! The order between moves of memory out of the file and registrations that do not wait for moves.
//!
//! A registration publishes its key, and waits then for moves that may have begun before, if there is a
//! memory file. A move, of a file that exists, takes its lock, and searches the published keys then.
//! With a full barrier between the two steps on both ends, either the move finds the key and leaves
//! the pages where they are, or the registration waits for the move.

use std::ops::Range;

use super::range_set::RangeSet;
use crate::device::Access;
use crate::device::soft::mem::key_entry::KeyEntry;
use crate::sync::atomic::{Ordering, fence};

/// To be called after a key was published: `moves_end` waits until no thread holds the lock of moves, if
/// there is a memory file.
pub fn after_publishing(moves_end: impl FnOnce()) {
    fence(Ordering::SeqCst);
    moves_end();
}

/// Called with the lock of moves held: the parts of `pages` that are in no region which peers may
/// access. `pages_of` gives the pages of a range of addresses, `each` calls a function with every
/// entry of the key table.
pub fn unregistered(
    pages: impl IntoIterator<Item = Range<u64>>,
    pages_of: impl Fn(u64, u64) -> Range<u64>,
    each: impl FnOnce(&mut dyn FnMut(&KeyEntry)),
) -> Vec<Range<u64>> {
    let mut free = RangeSet::default();
    pages.into_iter().for_each(|part| free.insert(part));
    if free.is_empty() {
        return Vec::new();
    }
    fence(Ordering::SeqCst);
    each(&mut |entry| {
        if entry.key() == 0 || !entry.is_region() {
            return;
        }
        let contents = entry.contents();
        // The kernel may be copying to such a page for a peer, and would finish in the page of the
        // file.
        let remote = Access::REMOTE;
        if contents.access.intersects(remote) {
            free.remove(&pages_of(contents.addr, contents.len));
        }
    });
    free.all()
}
