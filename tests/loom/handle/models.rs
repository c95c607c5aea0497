//! Models of the handles under loom: every interleaving of a few threads, within a bound of
//! preemptions, and every value that the memory model lets a load see. They run the code that
//! ships, in the mode that `prepare` of the test program has chosen; see `scripts/loom.sh`.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as StdUsize, Ordering::Relaxed as Plain};

use dat_core::testing::handle::{self, Biased, Object, Shared, pin};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, Ordering};
use loom::thread;

static TABLE: u64 = 0;
const LIVE: u32 = 0x600d;

/// loom ends the model if its drop is not ordered after every use.
#[repr(align(64))]
struct Thing {
    value: UnsafeCell<u32>,
    drops: Arc<StdUsize>,
}

// SAFETY: that it is used as if it were is what the models check.
unsafe impl Sync for Thing {}
// SAFETY: a tag that no other type of these models has, aligned to 64.
unsafe impl Object for Thing {
    const TAG: usize = 63;
}

impl Thing {
    fn new(drops: &Arc<StdUsize>) -> Arc<Self> {
        Arc::new(Thing {
            value: UnsafeCell::new(LIVE),
            drops: drops.clone(),
        })
    }

    fn check(&self) {
        // SAFETY: loom checks that no other thread writes meanwhile.
        self.value.with(|v| assert_eq!(unsafe { *v }, LIVE));
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        // SAFETY: loom checks that it is exclusive.
        self.value.with_mut(|v| unsafe { *v = 0xdead });
        self.drops.fetch_add(1, Plain);
    }
}

/// A handle, to be sent to other threads.
#[derive(Clone, Copy, PartialEq)]
struct Handle(*mut c_void);

/// `None` if no slot is left.
fn try_insert(drops: &Arc<StdUsize>) -> Option<Handle> {
    handle::insert(std::ptr::from_ref(&TABLE).cast(), Thing::new(drops)).map(Handle)
}

fn insert(drops: &Arc<StdUsize>) -> Handle {
    try_insert(drops).unwrap()
}

/// Looks the handle up and uses the object. Whether there was one.
fn look(h: Handle) -> bool {
    let guard = pin::pin();
    let thing = handle::get::<Thing>(h.0, &guard);
    if let Some(thing) = thing {
        thing.check();
    }
    thing.is_some()
}

fn remove(h: Handle) -> bool {
    let guard = pin::pin();
    handle::get::<Thing>(h.0, &guard).is_some_and(|thing| handle::remove(h.0, thing))
}

/// What is left over is freed at the next removal.
fn free_the_rest() {
    pin::synchronize();
    pin::retire(|| ());
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    super::prepare();
    super::model::model(f);
}

fn long_model(f: impl Fn() + Send + Sync + 'static) {
    super::prepare();
    super::model::long_model(f);
}

#[test]
fn an_object_lives_as_long_as_the_sections_that_found_it() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let h = insert(&drops);
        let reader = thread::spawn(move || {
            look(h);
            // The mark of the first section is overwritten here.
            look(h);
        });
        assert!(remove(h));
        assert!(!look(h));
        reader.join().unwrap();
        free_the_rest();
        assert_eq!(drops.load(Plain), 1);
    });
}

/// A thread that frees must not free what another thread retires after it looked for sections.
#[test]
fn nobody_frees_what_was_retired_while_it_looked() {
    long_model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let h = insert(&drops);
        let reader = thread::spawn(move || look(h));
        let other = thread::spawn(|| pin::retire(|| ()));
        assert!(remove(h));
        reader.join().unwrap();
        other.join().unwrap();
        free_the_rest();
        assert_eq!(drops.load(Plain), 1);
    });
}

#[test]
fn synchronize_waits_for_the_sections_that_run() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let thing = Arc::into_raw(Thing::new(&drops)).cast_mut();
        let current = Arc::new(AtomicPtr::new(thing));
        // Both threads have a record before the race: fewer interleavings of no interest.
        drop(pin::pin());
        let reader = {
            let current = current.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let _guard = pin::pin();
                    // SAFETY: null or alive for the section.
                    if let Some(thing) = unsafe { current.load(Ordering::Acquire).as_ref() } {
                        thing.check();
                    }
                }
            })
        };
        let old = current.swap(std::ptr::null_mut(), Ordering::AcqRel);
        pin::synchronize();
        // SAFETY: from `into_raw`, unreachable, out of use.
        drop(unsafe { Arc::from_raw(old) });
        assert_eq!(drops.load(Plain), 1);
        reader.join().unwrap();
    });
}

#[test]
fn one_of_two_removers_wins() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let h = insert(&drops);
        let first = thread::spawn(move || remove(h));
        let second = remove(h);
        let first = first.join().unwrap();
        assert!(first != second);
        assert_eq!(handle::table_of(h.0), None);
        free_the_rest();
        assert_eq!(drops.load(Plain), 1);
    });
}

#[test]
fn a_lookup_sees_a_slot_whole_or_empty() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let known = Arc::new(AtomicPtr::new(std::ptr::null_mut()));
        let looker = {
            let known = known.clone();
            thread::spawn(move || {
                // No order between this load and the slot: a handle may be a guess.
                let h = known.load(Ordering::Relaxed);
                let table = handle::table_of(h);
                assert!(table.is_none_or(|t| std::ptr::eq(t, std::ptr::from_ref(&TABLE).cast())));
                look(Handle(h));
            })
        };
        let h = insert(&drops);
        known.store(h.0, Ordering::Relaxed);
        assert!(remove(h));
        looker.join().unwrap();
        free_the_rest();
        assert_eq!(drops.load(Plain), 1);
    });
}

/// The arena comes into being while somebody asks for a small number.
#[test]
fn small_numbers_are_refused_from_the_first_moment() {
    model(|| {
        let looker = thread::spawn(|| {
            let h = std::ptr::without_provenance_mut(16);
            assert_eq!(handle::table_of(h), None);
            assert!(!handle::is_ours(h));
        });
        let drops = Arc::new(StdUsize::new(0));
        let h = insert(&drops);
        assert!(handle::table_of(h.0).is_some());
        looker.join().unwrap();
    });
}

/// A model page holds two slots. It is given back while its slots are looked up and the next
/// page is in use.
#[test]
fn a_page_goes_back_when_all_its_slots_are_done() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let (a, b) = (insert(&drops), insert(&drops));
        let other = thread::spawn(move || assert!(remove(a)));
        let c = insert(&drops);
        assert!(remove(b));
        assert!(look(c));
        other.join().unwrap();
        assert!(!look(a) && !look(b) && look(c));
        free_the_rest();
        assert_eq!(drops.load(Plain), 2);
        assert!(remove(c));
    });
}

/// When all pages have been used, those are used again of which no slot is in use, while another
/// thread looks up a handle that was freed.
#[test]
fn pages_are_used_again() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let handles = [(); 4].map(|()| insert(&drops));
        let [a, b, c, d] = handles;
        assert!(try_insert(&drops).is_none());
        assert!(remove(b));
        assert!(try_insert(&drops).is_none());
        assert!(remove(a));
        let other = thread::spawn(move || look(a));
        let again = insert(&drops);
        other.join().unwrap();
        assert!(again == a && look(a) && !look(b));
        let last = insert(&drops);
        assert!(last == b && try_insert(&drops).is_none());
        for handle in [again, last, c, d] {
            assert!(remove(handle));
        }
        free_the_rest();
        assert_eq!(drops.load(Plain), 9);
    });
}

/// The last slot of a page is taken while a thread that emptied the page thinks of giving it
/// back.
#[test]
fn a_page_in_use_stays() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let a = insert(&drops);
        let other = thread::spawn(move || assert!(remove(a)));
        let b = insert(&drops);
        other.join().unwrap();
        assert!(!look(a) && look(b));
        assert!(remove(b));
        free_the_rest();
        assert_eq!(drops.load(Plain), 2);
    });
}

#[test]
fn a_replaced_reference_lives_as_long_as_the_sections_that_found_it() {
    model(|| {
        let drops = Arc::new(StdUsize::new(0));
        let cell = Arc::new(Shared::empty());
        cell.set(Some(Thing::new(&drops)));
        let reader = {
            let cell = cell.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let guard = pin::pin();
                    cell.get(&guard).expect("never empty").check();
                }
            })
        };
        cell.set(Some(Thing::new(&drops)));
        cell.set(Some(Thing::new(&drops)));
        reader.join().unwrap();
        drop(cell);
        free_the_rest();
        assert_eq!(drops.load(Plain), 3);
    });
}

/// A lock has become a thread's own, and another thread takes it away, `times` times, while the
/// first takes it again: one of them at a time has the value, and each sees what the other did.
fn taken_away(times: u32) {
    model(move || {
        let lock: Arc<Biased<_>> = Arc::new(Biased::new(UnsafeCell::new(0u32)));
        let add = |lock: &Biased<UnsafeCell<u32>>| {
            // SAFETY: loom checks that no other thread is there.
            lock.lock().with_mut(|v| unsafe { *v += 1 });
        };
        // It takes one time in a model to own it.
        add(&lock);
        let other = {
            let lock = lock.clone();
            thread::spawn(move || (0..times).for_each(|_| add(&lock)))
        };
        add(&lock);
        other.join().unwrap();
        // SAFETY: as above.
        lock.lock().with(|v| assert_eq!(unsafe { *v }, 2 + times));
    });
}

#[test]
fn a_lock_is_taken_away_from_its_owner() {
    taken_away(1);
}

/// The owner may be anywhere in taking the lock while the other has it so often that it could
/// become the other's.
#[test]
fn a_lock_that_was_taken_away_is_taken_often() {
    taken_away(3);
}
