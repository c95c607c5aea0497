//! Read-side critical sections that cost two plain stores: objects that a section can reach remain
//! valid until it ends.
//!
//! This is read-copy-update with an asymmetric barrier. A reader marks its section in a record
//! of its own thread, without a fence. A thread that removes an object first makes it unreachable,
//! then has the kernel run a barrier on every core the process uses (`membarrier(2)`), and waits
//! for the sections that may still access it. Where the kernel refuses `membarrier` (seccomp,
//! valgrind) readers execute a full fence instead; all else is the same.
//!
//! Every call of the API looks up a handle, few free an object: that is why the cost is on the
//! free.

mod barriers;
mod garbage;
mod own;
mod patience;
mod reclaim;
mod record;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::cancel::Disabled;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Mutex, barrier, shared_static};
pub(crate) use barriers::fences_needed;
pub(super) use barriers::{heavy_barrier, light_barrier};
use garbage::{Garbage, Retired};
pub use patience::Patience;
use reclaim::collect;
pub use reclaim::{outside, retire, sweep, synchronize};
pub(super) use record::SharedThread;
use record::{INNER, Record};
pub use record::{Thread, thread};

shared_static! {
    /// Counts the retired objects, in steps of [`EPOCH`]. It starts with one step because 0 means "no section".
    /// The bits below are [`FENCED`] and [`GARBAGE_LEFT`]: what a section reads at its beginning is in
    /// one word.
    static EPOCH_WORD: AtomicU64 = AtomicU64::new(FENCED | EPOCH);
    /// Retired objects that wait for sections to end.
    static GARBAGE: Mutex<Garbage> = Mutex::new(Garbage::EMPTY);
}

/// Readers have to execute a fence, because `membarrier` is not available.
const FENCED: u64 = 1;
/// [`GARBAGE`] was not empty after the last attempt to free it. Changed while that is locked.
const GARBAGE_LEFT: u64 = 2;
/// The step from one epoch to the next. The bits below say whether a section begins specially: one instruction
/// tests low bits.
const EPOCH: u64 = 4;
/// The bits of the word that are no part of the number of the epoch.
const SPECIAL: u64 = EPOCH - 1;

/// Begins the next epoch; gives the number of the one that has ended.
fn next_epoch() -> u64 {
    EPOCH_WORD.fetch_add(EPOCH, Ordering::SeqCst) & !SPECIAL
}

/// The proof that the thread is in a section, which what was reached in it is borrowed from. It is the
/// record of the thread: a reference to it is passed in a register, where one to a local variable would keep
/// that in memory.
#[repr(transparent)]
pub struct Guard {
    record: Record,
    /// The thread whose record it is has the section.
    _not_send: PhantomData<*const ()>,
}

/// A section. Not `Send`: the record of the thread that began it is marked. A section inside another one
/// ends before that, as local variables do: none is kept in a structure. It is passed in a register.
#[repr(transparent)]
pub struct Section {
    record: &'static Record,
    _not_send: PhantomData<*const ()>,
}

impl Deref for Section {
    type Target = Guard;
    #[inline(always)]
    fn deref(&self) -> &Guard {
        // SAFETY: the layout of a guard is that of its record. The reference is valid as long as the section
        // is borrowed, and cannot leave the thread.
        unsafe { &*std::ptr::from_ref(self.record).cast::<Guard>() }
    }
}

/// Begins a section. Sections may be nested. Inside one a thread must not block, as that would
/// delay every free.
#[inline(always)]
pub fn pin() -> Section {
    // The models run that as well.
    if cfg!(loom)
        && let Some(section) = pin_plainly()
    {
        return section;
    }
    let record = thread().record;
    if record.active.load(Ordering::Relaxed) == 0 {
        barrier::begin();
        // Acquire: a thread that sees the epoch after a removal sees the removal. Release: a thread
        // that sees this section sees the end of the one before it. Both cost nothing on x86.
        let epoch = EPOCH_WORD.load(Ordering::Acquire);
        if epoch & SPECIAL == 0 {
            record.active.store(epoch, Ordering::Release);
            light_barrier();
        } else {
            begin_specially(record, epoch);
        }
    } else {
        begin_inner(record);
    }
    Section {
        record,
        _not_send: PhantomData,
    }
}

/// [`pin`] if it takes no more than to mark the record, as nearly always, and the thread holds no biased lock as its
/// owner ([`Biased::own_unmarked`](super::Biased::own_unmarked)); `None` leaves everything as it is. There
/// is no call in line, so that a function in which calls come last need not save registers.
#[inline(always)]
pub fn pin_plainly() -> Option<Section> {
    // SAFETY: records live as long as the process.
    let record = unsafe { own::get().as_ref() }?;
    if !record.is_idle() {
        return None;
    }
    barrier::begin();
    // As in `pin`.
    let epoch = EPOCH_WORD.load(Ordering::Acquire);
    if epoch & SPECIAL != 0 {
        barrier::end();
        return None;
    }
    record.active.store(epoch, Ordering::Release);
    light_barrier();
    Some(Section {
        record,
        _not_send: PhantomData,
    })
}

/// Begins a section inside another one.
#[cold]
#[inline(never)]
fn begin_inner(record: &Record) {
    record.at_end.set(record.at_end.get() + INNER);
}

/// Begins a section that has to execute a fence, or that may have to free something at its end.
#[cold]
#[inline(never)]
fn begin_specially(record: &Record, word: u64) {
    record.active.store(word & !SPECIAL, Ordering::Release);
    if word & FENCED != 0 {
        fence(Ordering::SeqCst);
    } else {
        light_barrier();
    }
    if word & GARBAGE_LEFT != 0 {
        record.add_work();
    }
}

impl Guard {
    /// The thread whose section it is.
    #[inline]
    pub fn thread(&self) -> Thread {
        Thread {
            // SAFETY: records live as long as the process.
            record: unsafe { &*std::ptr::from_ref(&self.record) },
            _not_send: PhantomData,
        }
    }
}

impl Section {
    /// Ends the section at the end of a call of the API, where no lock is held, and [sweeps](sweep) if
    /// there was garbage when the section began.
    #[inline(always)]
    pub fn end_call(self) {
        let section = ManuallyDrop::new(self);
        section.end(|record| {
            end_specially(record);
            sweep();
        });
    }

    /// [`Section::end_call`] if that takes no more than to mark the record, as nearly always. Otherwise the
    /// section is not ended.
    ///
    /// # Errors
    /// The section.
    #[inline(always)]
    pub fn end_plainly(self) -> Result<(), Section> {
        if self.record.at_end.get() != 0 {
            return Err(self);
        }
        let section = ManuallyDrop::new(self);
        end_outermost(section.record);
        Ok(())
    }

    /// Ends the section, by `specially` if that takes more than to mark the record.
    #[inline(always)]
    fn end(&self, specially: impl FnOnce(&Record)) {
        let record = self.record;
        if record.at_end.get() == 0 {
            end_outermost(record);
        } else {
            specially(record);
        }
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        self.end(end_specially);
    }
}

/// Marks that the thread is in no section any more.
#[inline(always)]
fn end_outermost(record: &Record) {
    barrier::point();
    record.active.store(0, Ordering::Release);
    barrier::end();
}

/// Ends a section inside another one, or one with work at its end.
#[cold]
#[inline(never)]
fn end_specially(record: &Record) {
    let at_end = record.at_end.get();
    if at_end >= INNER {
        record.at_end.set(at_end - INNER);
        return;
    }
    end_outermost(record);
    let _disabled = Disabled::begin();
    record.at_end.set(0);
    if record.collect_at_end.replace(false) {
        collect();
    }
    for f in record.deferred.take() {
        f();
    }
}

#[cfg(test)]
mod tests;
