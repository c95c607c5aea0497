//! What a thread counts until something is to be done about it.

use std::cell::Cell;

/// How often something may happen to a thread until something is to be done about it. It is over at
/// the first time.
#[derive(Default)]
pub struct Patience {
    /// How often it may happen still; not above 0 if it has happened often enough.
    left: Cell<i32>,
    /// How often it could happen at the beginning.
    length: Cell<i32>,
    /// What was noted when it last began.
    note: Cell<i64>,
}

impl Patience {
    /// It has happened so many times. True if it has happened often enough.
    #[inline]
    pub fn is_over(&self, times: i32) -> bool {
        let left = self.left.get().wrapping_sub(times);
        self.left.set(left);
        left <= 0
    }

    /// Begins anew.
    pub fn begin(&self, length: i32) {
        self.left.set(length);
        self.length.set(length);
    }

    /// Notes something for the next beginning, and returns what was noted before; 0 at first.
    pub fn note(&self, note: i64) -> i64 {
        self.note.replace(note)
    }

    /// How often it could happen when it last began; 0 before that.
    pub fn length(&self) -> i32 {
        self.length.get()
    }
}
