//! Who may use keys.

use std::sync::atomic::{AtomicU32, Ordering};

/// Keys with these numbers are open to a queue pair and its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// The protection domain: that of regions and of the windows of all its queue pairs.
    pub pd: u32,
    /// The queue pair: that of windows for this queue pair alone. 0 if there is none.
    pub qp: u32,
}

impl Scope {
    /// That of a protection domain without a queue pair.
    #[inline(always)]
    pub fn of_pd(pd: u32) -> Scope {
        Scope { pd, qp: pd }
    }

    /// Whether keys with this number are open.
    #[inline(always)]
    pub fn has(self, number: u32) -> bool {
        number == self.pd || number == self.qp
    }
}

/// A number for a queue pair, which is none of a protection domain. They are used again after 2^31 queue
/// pairs.
pub(crate) fn next_qp() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) | 1 << 31
}
