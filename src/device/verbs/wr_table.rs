//! Numbers for queues, which the device hands back in the `wr_id` of completions, and the table that
//! leads from a number to its queue.
//!
//! ```text
//! receive 1 | shared 1 | index 18 | generation 20 | slot 24
//! ```
//!
//! A poll looks the queue of a completion up without a lock. A number is not used again before its
//! generation wraps around, so a completion that a driver left behind leads to no queue once its own
//! was freed.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::lock::Mutex;

use crate::handle::{Guard, Shared};

/// Slots of a queue that a `wr_id` can name.
pub(super) const MAX_SLOTS: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;
const INDEX_BITS: u32 = 18;
/// Set in the `wr_id` of receives.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Set in the `wr_id` of receives from a shared queue.
pub(super) const SHARED: u64 = 1 << 62;

const CHUNK: usize = 1 << 9;

/// An object of the table.
pub(super) trait Numbered: Send + Sync + 'static {
    /// The number that [`WrTable::reserve`] gave.
    fn number(&self) -> u64;
}

/// See the module.
pub(super) struct WrTable<T: Numbered> {
    chunks: [OnceLock<Box<[Shared<T>; CHUNK]>>; 1 << (INDEX_BITS as usize - 9)],
    free: Mutex<Free>,
    /// An entry that has never an object.
    empty: Shared<T>,
}

#[derive(Default)]
struct Free {
    /// Indices that were used and are free.
    list: Vec<u32>,
    /// The first index that was never used.
    next: u32,
    /// Generation of the last number that was given out.
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

impl<T: Numbered> WrTable<T> {
    pub fn new() -> Self {
        WrTable {
            chunks: std::array::from_fn(|_| OnceLock::new()),
            free: Mutex::default(),
            empty: Shared::empty(),
        }
    }

    /// A number that no object has; `None` if there is none, or no memory.
    pub fn reserve(&self) -> Option<u64> {
        let mut free = self.free.lock();
        let index = match free.list.pop() {
            Some(index) => index,
            None => {
                let fresh = free.next;
                // For all of them, so that a number can always be released.
                let reserved = free.list.try_reserve(fresh as usize + 1);
                if fresh >= 1 << INDEX_BITS || reserved.is_err() {
                    return None;
                }
                free.next += 1;
                fresh
            }
        };
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

    /// Enters an object under its number.
    pub fn publish(&self, object: &Arc<T>) {
        self.entry(object.number()).set(Some(object.clone()));
    }

    /// Removes the object of a number, which can be given out again.
    pub fn release(&self, number: u64) {
        self.entry(number).set(None);
        self.free.lock().list.push(index(number) as u32);
    }

    /// The object that a `wr_id` names, if it is in the table.
    #[inline]
    pub fn get<'g>(&self, wr_id: u64, guard: &'g Guard) -> Option<&'g T> {
        let number = number(wr_id);
        let index = index(number);
        let object = self.chunks[index / CHUNK].get()?[index % CHUNK].get(guard)?;
        (object.number() == number).then_some(object)
    }

    /// [`WrTable::get`], after [`LookupHint::get`] has found nothing.
    #[inline(never)]
    pub fn get_and_hint<'g>(
        &self,
        wr_id: u64,
        hint: &LookupHint<T>,
        guard: &'g Guard,
    ) -> Option<&'g T> {
        let index = index(number(wr_id));
        let place = &self.chunks[index / CHUNK].get()?[index % CHUNK];
        hint.0
            .store(std::ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
        self.get(wr_id, guard)
    }
}

/// The entry that was found last, for a caller that mostly asks for the same object: its address does not
/// depend on the `wr_id`, which was just written. For one table alone, which lives longer. Before the first
/// it is an entry without an object, which saves a test.
pub(super) struct LookupHint<T: Numbered>(AtomicPtr<Shared<T>>);

impl<T: Numbered> LookupHint<T> {
    pub fn new(table: &WrTable<T>) -> Self {
        LookupHint(AtomicPtr::new(std::ptr::from_ref(&table.empty).cast_mut()))
    }

    /// The object that a `wr_id` names, if it is that which was found last. `None` for one with [`SHARED`],
    /// which no number has.
    #[inline(always)]
    pub fn get<'g>(&self, wr_id: u64, guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: a place in the table or in one of its chunks, which live as long as the table.
        let place = unsafe { &*self.0.load(Ordering::Relaxed) };
        let object = place.get(guard)?;
        (object.number() == wr_id & !(RECEIVE | u64::from(MAX_SLOTS - 1))).then_some(object)
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
        let table = WrTable::new();
        let first = Arc::new(Thing(table.reserve().unwrap()));
        let second = Arc::new(Thing(table.reserve().unwrap()));
        table.publish(&first);
        table.publish(&second);
        let guard = pin();
        let hint = LookupHint::new(&table);
        for number in [first.0, first.0, second.0, first.0] {
            let found = table.get_and_hint(number | 3, &hint, &guard).unwrap();
            assert_eq!(found.0, number);
            let found = hint.get(number | 5 | RECEIVE, &guard).unwrap();
            assert_eq!(found.0, number);
        }
        assert!(hint.get(second.0, &guard).is_none());
        let found = table.get(first.0 | 7 | RECEIVE, &guard).unwrap();
        assert!(std::ptr::eq(found, &*first));
        assert_eq!(slot(first.0 | 7 | RECEIVE), 7);
        table.release(first.0);
        assert!(table.get(first.0, &guard).is_none());
        assert!(hint.get(first.0, &guard).is_none());
        // The index is used again, the number is not.
        let third = Arc::new(Thing(table.reserve().unwrap()));
        table.publish(&third);
        assert_eq!(index(third.0), index(first.0));
        assert!(table.get(first.0, &guard).is_none());
        assert!(hint.get(first.0, &guard).is_none());
        assert!(table.get(third.0 | SHARED, &guard).is_some());
        assert!(hint.get(third.0 | SHARED, &guard).is_none());
        assert!(hint.get(third.0, &guard).is_some());
    }
}
