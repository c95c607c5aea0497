//! The records of threads, in which they mark their sections, and which are what a thread is known by.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
#[cfg(not(loom))]
use std::mem::offset_of;

use super::barriers::prepare_barriers;
#[cfg(not(loom))]
use super::{EPOCH_WORD, GARBAGE, GARBAGE_LEFT, Garbage};
use super::{Patience, own};
use crate::handle::biased::OUTER;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, local_static, shared_static};

/// The record of one thread. Records are never freed, as another thread may read one at any time.
/// The record of a thread that has ended is reused by the next new thread.
#[repr(C, align(128))] // two cache lines, because the processor prefetches them in pairs
pub(super) struct Record {
    /// 0 outside of a section, otherwise the epoch that was current when it began.
    pub(super) active: AtomicU64,
    /// Which biased lock of the outer level the thread holds as its owner ([`Thread::mark`]). At an odd multiple of
    /// eight bytes, as the other mark is, and no owner of a lock: see [`Biased`](crate::handle::Biased).
    pub(super) outer: AtomicUsize,
    /// What the end of a section has to do besides ending it: mostly nothing. [`WORK`], and [`INNER`] for
    /// each section that has begun inside another one and not ended.
    pub(super) at_end: Cell<u32>,
    /// The owning thread has retired objects inside its section.
    pub(super) collect_at_end: Cell<bool>,
    /// The record belongs to a running thread.
    taken: AtomicBool,
    /// The same as `outer` for the inner level.
    pub(super) inner: AtomicUsize,
    /// What the owning thread counts.
    patience: Patience,
    /// Calls that [`outside`](super::outside) has deferred to the end of the section. They are not a thread-local,
    /// because that would be destroyed before the last destructors of the thread run.
    pub(super) deferred: RefCell<Vec<Box<dyn FnOnce()>>>,
    /// The record that was made before this one.
    older: Option<&'static Record>,
}

#[cfg(not(loom))]
const _: () = {
    #[cfg(target_pointer_width = "64")]
    assert!(offset_of!(Record, outer) % 16 == 8 && offset_of!(Record, inner) % 16 == 8);
    assert!(
        offset_of!(Record, deferred) <= 64,
        "what calls use is in one cache line"
    );
};

// SAFETY: only the thread that owns the record accesses the cells; a record changes its owner
// through `taken` (acquire/release). The calls in `deferred` are made at the end of the section that
// deferred them, so they never change the thread.
unsafe impl Sync for Record {}

/// In [`Record::at_end`]: `collect_at_end` is set, `deferred` is not empty, or there was garbage at the
/// beginning of the section.
pub(super) const WORK: u32 = 1;
/// The unit by which [`Record::at_end`] counts sections inside another one.
pub(super) const INNER: u32 = 2;

impl Record {
    /// Whether the thread is in no section and holds no biased lock as its owner: one test for all.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        let marks = self.outer.load(Ordering::Relaxed) | self.inner.load(Ordering::Relaxed);
        self.active.load(Ordering::Relaxed) | marks as u64 == 0
    }

    /// The mark of a level of biased locks.
    #[inline(always)]
    fn mark(&self, level: usize) -> &AtomicUsize {
        match level {
            OUTER => &self.outer,
            _ => &self.inner,
        }
    }

    /// The outermost section has work at its end.
    pub(super) fn add_work(&self) {
        self.at_end.set(self.at_end.get() | WORK);
    }
}

shared_static! {
    /// All records ever made.
    static RECORDS: Mutex<Records> = Mutex::new(Records(None));
}

/// Records, by the newest. Linked, and in no array: there may be any number of them, and no call can
/// fail because an array does not grow.
struct Records(Option<&'static Record>);

impl Records {
    fn iter(&self) -> impl Iterator<Item = &'static Record> {
        std::iter::successors(self.0, |record| record.older)
    }
}

local_static! {
    /// Releases the record at the end of the thread.
    static RETURN_RECORD: ReturnRecord = ReturnRecord(Cell::new(None));
}

struct ReturnRecord(Cell<Option<&'static Record>>);

impl Drop for ReturnRecord {
    fn drop(&mut self) {
        if let Some(record) = self.0.get() {
            // Destructors that run after this one may begin a section, with a new record.
            own::set(std::ptr::null());
            record.taken.store(false, Ordering::Release);
        }
    }
}

/// In a forked child: the threads whose records there are do not exist, and what they have retired is
/// the parent's. The thread that has forked gets another record, so that it owns no lock of its
/// parent ([`Thread::id`]).
#[cfg(not(loom))]
static FORGET_THREADS: fn() = || {
    own::set(std::ptr::null());
    EPOCH_WORD.fetch_and(!GARBAGE_LEFT, Ordering::Relaxed);
    // SAFETY: this is the only thread, and it is in no function of this module.
    unsafe {
        crate::lock::reset(&RECORDS, Records(None));
        crate::lock::reset(&GARBAGE, Garbage::EMPTY);
    }
};

/// The record of this thread if it is inside a section.
pub(super) fn own_section() -> Option<&'static Record> {
    // SAFETY: records live as long as the process.
    let record = unsafe { own::get().as_ref() }?;
    (record.active.load(Ordering::Relaxed) != 0).then_some(record)
}

/// The running thread.
#[derive(Clone, Copy)]
pub struct Thread {
    pub(super) record: &'static Record,
    pub(super) _not_send: PhantomData<*const ()>,
}

impl Thread {
    /// A number that no other running thread has, and not 0.
    #[inline]
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.record).addr()
    }

    /// The biased lock of a level that the thread holds as its owner, or is about to; 0 if there is
    /// none. Written by the thread alone.
    #[inline(always)]
    pub(in crate::handle) fn mark(self, level: usize) -> &'static AtomicUsize {
        self.record.mark(level)
    }

    /// A count that belongs to the thread.
    #[inline]
    pub fn patience(&self) -> &Patience {
        &self.record.patience
    }

    /// The thread, for others that ask about it.
    #[inline]
    pub(in crate::handle) fn shared(self) -> SharedThread {
        SharedThread(self.record)
    }
}

/// A thread that may have ended. One that has, and a later thread with the same [`Thread::id`], are
/// the same.
#[derive(Clone, Copy)]
pub(in crate::handle) struct SharedThread(&'static Record);

impl SharedThread {
    /// [`Thread::id`].
    #[inline]
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// [`Thread::mark`].
    pub fn mark(self, level: usize) -> &'static AtomicUsize {
        self.0.mark(level)
    }
}

/// The running thread.
#[inline]
pub fn thread() -> Thread {
    let record = own::get();
    let record = if record.is_null() {
        new_record()
    } else {
        // SAFETY: records live as long as the process.
        unsafe { &*record }
    };
    Thread {
        record,
        _not_send: PhantomData,
    }
}

#[cold]
fn new_record() -> &'static Record {
    #[cfg(not(loom))]
    crate::process::in_child(&FORGET_THREADS);
    let mut records = RECORDS.lock();
    if records.0.is_none() {
        prepare_barriers();
    }
    let free = records.iter().find(|r| {
        r.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
    let record = match free {
        Some(record) => record,
        None => {
            let record: &'static Record = Box::leak(Box::new(Record {
                active: AtomicU64::new(0),
                outer: AtomicUsize::new(0),
                at_end: Cell::new(0),
                collect_at_end: Cell::new(false),
                taken: AtomicBool::new(true),
                inner: AtomicUsize::new(0),
                deferred: RefCell::new(Vec::new()),
                patience: Patience::default(),
                older: records.0,
            }));
            records.0 = Some(record);
            record
        }
    };
    drop(records);
    own::set(record);
    // While a thread ends its thread-locals may be destroyed already; the record is never reused
    // then.
    let _ = RETURN_RECORD.try_with(|owner| owner.0.set(Some(record)));
    record
}

/// The oldest epoch in which a section runs, [`u64::MAX`] if none does.
pub(super) fn oldest_section() -> u64 {
    let records = RECORDS.lock();
    records
        .iter()
        .map(|r| r.active.load(Ordering::Acquire))
        .filter(|epoch| *epoch != 0)
        .min()
        .unwrap_or(u64::MAX)
}
