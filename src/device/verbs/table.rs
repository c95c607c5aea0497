//! Numbers for queues, as they travel through the device in `wr_id`, and the way back.
//!
//! ```text
//! receive 1 | shared 1 | index 18 | generation 20 | slot 24
//! ```
//!
//! Poll finds the queue of a completion here without a lock. A number is not used again before
//! its generation has gone round, so a completion that a driver left behind for a queue that is
//! gone finds nobody.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::handle::{Guard, Shared};

/// Work requests a queue can hold: what a slot number can name.
pub(super) const MAX_SLOTS: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;
const INDEX_BITS: u32 = 18;
/// Set in the `wr_id` of receives.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Set in the `wr_id` of receives from a shared queue.
pub(super) const SHARED: u64 = 1 << 62;

const CHUNK: usize = 1 << 9;

/// Something the table holds.
pub(super) trait Numbered: Send + Sync + 'static {
    /// Its number.
    fn number(&self) -> u64;
}

/// See the module.
pub(super) struct Table<T: Numbered> {
    chunks: [OnceLock<Box<[Shared<T>; CHUNK]>>; 1 << (INDEX_BITS as usize - 9)],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Indices that are free again.
    list: Vec<u32>,
    /// The first that was never used.
    next: u32,
    generation: u64,
}

/// The slot in a `wr_id`.
#[inline]
pub(super) fn slot(wr_id: u64) -> u32 {
    wr_id as u32 & (MAX_SLOTS - 1)
}

#[inline]
fn index(number: u64) -> usize {
    (number >> (SLOT_BITS + GENERATION_BITS)) as usize & ((1 << INDEX_BITS) - 1)
}

impl<T: Numbered> Table<T> {
    pub fn new() -> Self {
        Table {
            chunks: std::array::from_fn(|_| OnceLock::new()),
            free: Mutex::default(),
        }
    }

    /// A number that nothing has; `None` if all are taken.
    pub fn reserve(&self) -> Option<u64> {
        let mut free = self.free.lock();
        let index = free.list.pop().or_else(|| {
            let fresh = free.next;
            (fresh < 1 << INDEX_BITS).then(|| {
                free.next += 1;
                fresh
            })
        })?;
        free.generation = (free.generation + 1) & ((1 << GENERATION_BITS) - 1);
        let number = u64::from(index) << GENERATION_BITS | free.generation;
        Some(number << SLOT_BITS)
    }

    fn entry(&self, number: u64) -> &Shared<T> {
        let index = index(number);
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Shared::empty())));
        &chunk[index % CHUNK]
    }

    /// Makes an object known under its number.
    pub fn publish(&self, object: &Arc<T>) {
        self.entry(object.number()).set(Some(object.clone()));
    }

    /// Forgets a number.
    pub fn release(&self, number: u64) {
        self.entry(number).set(None);
        self.free.lock().list.push(index(number) as u32);
    }

    /// The object a `wr_id` belongs to, if it is still known.
    #[inline]
    pub fn get<'g>(&self, wr_id: u64, guard: &'g Guard) -> Option<&'g T> {
        let number = number(wr_id);
        let index = index(number);
        let object = self.chunks[index / CHUNK].get()?[index % CHUNK].get(guard)?;
        (object.number() == number).then_some(object)
    }

    /// The same, for a caller that mostly asks for the same object: it begins at the place where
    /// that was last. The way there does not depend on the `wr_id`, which was just written.
    #[inline(always)]
    pub fn get_near<'g>(&self, wr_id: u64, near: &Near<T>, guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: null, or a place in a chunk of this table. Chunks live as long as the table.
        let place = unsafe { near.0.load(Ordering::Relaxed).as_ref() };
        if let Some(object) = place.and_then(|place| place.get(guard))
            && object.number() == number(wr_id)
        {
            return Some(object);
        }
        self.get_far(wr_id, near, guard)
    }

    #[inline(never)]
    fn get_far<'g>(&self, wr_id: u64, near: &Near<T>, guard: &'g Guard) -> Option<&'g T> {
        let index = index(number(wr_id));
        let place = &self.chunks[index / CHUNK].get()?[index % CHUNK];
        near.0
            .store(std::ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
        self.get(wr_id, guard)
    }
}

/// Where [`Table::get_near`] begins. For one table alone, which lives longer.
pub(super) struct Near<T: Numbered>(AtomicPtr<Shared<T>>);

impl<T: Numbered> Near<T> {
    pub fn new() -> Self {
        Near(AtomicPtr::default())
    }
}

/// The number in a `wr_id`.
#[inline]
fn number(wr_id: u64) -> u64 {
    wr_id & !(RECEIVE | SHARED | u64::from(MAX_SLOTS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::pin::pin;

    struct Thing(u64);

    impl Numbered for Thing {
        fn number(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn numbers_lead_to_their_object_and_to_no_other() {
        let table = Table::new();
        let first = Arc::new(Thing(table.reserve().unwrap()));
        let second = Arc::new(Thing(table.reserve().unwrap()));
        table.publish(&first);
        table.publish(&second);
        let guard = pin();
        let near = Near::new();
        for number in [first.0, first.0, second.0, first.0] {
            let found = table.get_near(number | 3, &near, &guard).unwrap();
            assert_eq!(found.0, number);
        }
        let found = table.get(first.0 | 7 | RECEIVE, &guard).unwrap();
        assert!(std::ptr::eq(found, &*first));
        assert_eq!(slot(first.0 | 7 | RECEIVE), 7);
        table.release(first.0);
        assert!(table.get(first.0, &guard).is_none());
        assert!(table.get_near(first.0, &near, &guard).is_none());
        // The index is used again, the number is not.
        let third = Arc::new(Thing(table.reserve().unwrap()));
        table.publish(&third);
        assert_eq!(index(third.0), index(first.0));
        assert!(table.get(first.0, &guard).is_none());
        assert!(table.get_near(first.0, &near, &guard).is_none());
        assert!(table.get(third.0 | SHARED, &guard).is_some());
        assert!(table.get_near(third.0, &near, &guard).is_some());
    }
}
