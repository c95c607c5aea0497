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

mod garbage;
mod own;
mod patience;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::compiler_fence;

use crate::cancel::Disabled;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, barrier, local_static, relax, shared_static};
use garbage::{Garbage, Retired};
pub use patience::Patience;

/// Levels of biased locks.
const LEVELS: usize = 2;

/// The record of one thread. Records are never freed, as another thread may read one at any time.
/// The record of a thread that has ended is reused by the next new thread.
#[repr(align(128))] // two cache lines, because the processor prefetches them in pairs
struct Record {
    /// 0 outside of a section, otherwise the epoch that was current when it began.
    active: AtomicU64,
    /// The record belongs to a running thread.
    taken: AtomicBool,
    /// What the end of a section has to do besides ending it: mostly nothing. [`WORK`], and [`INNER`] for
    /// each section that has begun inside another one and not ended.
    at_end: Cell<u32>,
    /// The owning thread has retired objects inside its section.
    collect_at_end: Cell<bool>,
    /// Calls that [`outside`] has deferred to the end of the section. They are not a thread-local,
    /// because that would be destroyed before the last destructors of the thread run.
    deferred: RefCell<Vec<Box<dyn FnOnce()>>>,
    /// What the owning thread counts.
    patience: Patience,
    /// By level: which biased lock the thread holds as its owner ([`Thread::mark`]).
    marks: [AtomicUsize; LEVELS],
    /// The record that was made before this one.
    older: Option<&'static Record>,
}

// SAFETY: only the thread that owns the record accesses the cells; a record changes its owner
// through `taken` (acquire/release). The calls in `deferred` are made at the end of the section that
// deferred them, so they never change the thread.
unsafe impl Sync for Record {}

/// In [`Record::at_end`]: `collect_at_end` is set, `deferred` is not empty, or there was garbage at the
/// beginning of the section.
const WORK: u32 = 1;
/// The unit by which [`Record::at_end`] counts sections inside another one.
const INNER: u32 = 2;

impl Record {
    /// The outermost section has work at its end.
    fn add_work(&self) {
        self.at_end.set(self.at_end.get() | WORK);
    }
}

shared_static! {
    /// Counts the retired objects, in the bits of [`EPOCH`]. It starts at 1 because 0 means "no section".
    /// The other bits are [`FENCED`] and [`GARBAGE_LEFT`]: what a section reads at its beginning is in
    /// one word.
    static EPOCH_WORD: AtomicU64 = AtomicU64::new(FENCED | 1);
    /// All records ever made.
    static RECORDS: Mutex<Records> = Mutex::new(Records(None));
    /// Retired objects that wait for sections to end.
    static GARBAGE: Mutex<Garbage> = Mutex::new(Garbage::EMPTY);
}

/// Readers have to execute a fence, because `membarrier` is not available.
const FENCED: u64 = 1 << 63;
/// [`GARBAGE`] was not empty after the last attempt to free it. Changed while that is locked.
const GARBAGE_LEFT: u64 = 1 << 62;
/// The number of the epoch.
const EPOCH: u64 = GARBAGE_LEFT - 1;

/// Whether readers have to execute a fence.
#[inline]
fn is_fenced() -> bool {
    EPOCH_WORD.load(Ordering::Relaxed) & FENCED != 0
}

/// Begins the next epoch; gives the number of the one that has ended.
fn next_epoch() -> u64 {
    EPOCH_WORD.fetch_add(1, Ordering::SeqCst) & EPOCH
}

/// How often [`collect`] checks whether sections have ended before it leaves the objects that they
/// may access to the next one, or to [`sweep`]. Few, since the caller may hold a lock that a
/// section waits for.
const COLLECT_ROUNDS: u32 = if cfg!(loom) { 1 } else { 100 };

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
fn own_section() -> Option<&'static Record> {
    // SAFETY: records live as long as the process.
    let record = unsafe { own::get().as_ref() }?;
    (record.active.load(Ordering::Relaxed) != 0).then_some(record)
}

/// The running thread.
#[derive(Clone, Copy)]
pub struct Thread {
    record: &'static Record,
    _not_send: PhantomData<*const ()>,
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
    pub(super) fn mark(self, level: usize) -> &'static AtomicUsize {
        &self.record.marks[level]
    }

    /// A count that belongs to the thread.
    #[inline]
    pub fn patience(&self) -> &Patience {
        &self.record.patience
    }

    /// The thread, for others that ask about it.
    #[inline]
    pub(super) fn shared(self) -> SharedThread {
        SharedThread(self.record)
    }
}

/// A thread that may have ended. One that has, and a later thread with the same [`Thread::id`], are
/// the same.
#[derive(Clone, Copy)]
pub(super) struct SharedThread(&'static Record);

impl SharedThread {
    /// [`Thread::id`].
    #[inline]
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// [`Thread::mark`].
    pub fn mark(self, level: usize) -> &'static AtomicUsize {
        &self.0.marks[level]
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

/// Pairs with [`heavy_barrier`] in another thread: either that thread sees the stores of this
/// thread before the light barrier, or this thread sees the stores of that thread before the heavy
/// one. Sufficient unless [`fences_needed`].
#[inline]
pub(super) fn light_barrier() {
    if cfg!(loom) && is_fenced() {
        fence(Ordering::SeqCst);
    } else {
        // The processor may still order a store after later loads; the barrier that the kernel runs
        // for the other thread prevents that.
        compiler_fence(Ordering::SeqCst);
        barrier::point();
    }
}

/// Whether [`light_barrier`] is not enough.
pub(super) fn fences_needed() -> bool {
    !cfg!(loom) && is_fenced()
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
        if epoch <= EPOCH {
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

/// [`pin`] if it takes no more than to mark the record, as nearly always; `None` leaves everything as it is. There
/// is no call in line, so that a function in which calls come last need not save registers.
#[inline(always)]
pub fn pin_plainly() -> Option<Section> {
    // SAFETY: records live as long as the process.
    let record = unsafe { own::get().as_ref() }?;
    if record.active.load(Ordering::Relaxed) != 0 {
        return None;
    }
    barrier::begin();
    // As in `pin`.
    let epoch = EPOCH_WORD.load(Ordering::Acquire);
    if epoch > EPOCH {
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
    record.active.store(word & EPOCH, Ordering::Release);
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

#[cold]
fn new_record() -> &'static Record {
    #[cfg(not(loom))]
    crate::process::in_child(&FORGET_THREADS);
    let mut records = RECORDS.lock();
    if records.0.is_none() {
        match register_membarrier() {
            true => EPOCH_WORD.fetch_and(!FENCED, Ordering::SeqCst),
            false => EPOCH_WORD.fetch_or(FENCED, Ordering::SeqCst),
        };
        // A thread that still finds the fence needed in `heavy_barrier` runs no barrier: sections of
        // this thread see what that thread has stored before.
        fence(Ordering::SeqCst);
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
                taken: AtomicBool::new(true),
                at_end: Cell::new(0),
                collect_at_end: Cell::new(false),
                deferred: RefCell::new(Vec::new()),
                patience: Patience::default(),
                marks: Default::default(),
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

fn register_membarrier() -> bool {
    // ThreadSanitizer does not model membarrier, and would report accesses that it orders.
    !cfg!(dat_tsan) && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(loom)]
fn membarrier(command: libc::c_int) -> bool {
    let modelled = barrier::MODELLED.load(std::sync::atomic::Ordering::Relaxed);
    if modelled && command == libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED {
        barrier::run();
    }
    modelled
}

/// After this every section, and every thread that runs [`light_barrier`], either is seen by the
/// caller or sees the stores of the caller before.
pub(super) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if is_fenced()
        || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        // In a forked child: the registration is not inherited by all kernels.
        || (register_membarrier() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    {
        return;
    }
    // A system call filter was installed since. Readers use fences from now on; the stores of those
    // that have not noticed yet leave their store buffers long before the sleep ends.
    EPOCH_WORD.fetch_or(FENCED, Ordering::SeqCst);
    crate::sync::sleep(std::time::Duration::from_millis(1));
}

/// The oldest epoch in which a section runs, [`u64::MAX`] if none does.
fn oldest_section() -> u64 {
    let records = RECORDS.lock();
    records
        .iter()
        .map(|r| r.active.load(Ordering::Acquire))
        .filter(|epoch| *epoch != 0)
        .min()
        .unwrap_or(u64::MAX)
}

/// Waits until every section that was running has ended. Objects that the caller made unreachable
/// before are then out of use.
///
/// # Panics
/// Inside a section of the same thread, which would wait for itself.
pub fn synchronize() {
    assert!(own_section().is_none(), "synchronize() inside a section");
    let epoch = next_epoch();
    heavy_barrier();
    let mut rounds = 0u32;
    while oldest_section() <= epoch {
        relax(rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// Runs `free` once every section that is running now has ended: at once if there is none or all
/// of them end soon, otherwise in the next thread that retires an object or [sweeps](sweep).
pub fn retire(free: impl FnOnce() + Send + 'static) {
    let epoch = next_epoch();
    let retired = Box::new(Retired {
        epoch,
        free: Box::new(free),
        older: None,
    });
    GARBAGE.lock().push(retired);
    match own_section() {
        Some(record) => {
            record.collect_at_end.set(true);
            record.add_work();
        }
        None => collect(),
    }
}

/// Runs `f` outside of any section of this thread: at once, or when the section ends. For calls
/// of the consumer's code, which may block.
pub fn outside(f: impl FnOnce() + 'static) {
    match own_section() {
        Some(record) => {
            record.deferred.borrow_mut().push(Box::new(f));
            record.add_work();
        }
        None => f(),
    }
}

/// Frees the retired objects that no section can access any more.
#[cold]
fn collect() {
    // What is freed may have any point of cancellation.
    let _disabled = Disabled::begin();
    // Read before the barrier: objects that other threads retire after it may be accessible to
    // sections that began after the barrier.
    let limit = EPOCH_WORD.load(Ordering::SeqCst) & EPOCH;
    heavy_barrier();
    for round in 0..COLLECT_ROUNDS {
        if free_before(oldest_section().min(limit), limit) {
            return;
        }
        relax(round);
    }
}

/// Frees retired objects that sections of other threads kept from being freed, if those have ended.
/// Called at the end of a call, where no lock is held; without it objects would wait for the next
/// that is retired, which may never happen.
#[inline]
pub fn sweep() {
    if EPOCH_WORD.load(Ordering::Relaxed) & GARBAGE_LEFT != 0 {
        sweep_garbage();
    }
}

#[cold]
#[inline(never)]
fn sweep_garbage() {
    if own_section().is_some() {
        return;
    }
    let oldest = oldest_section();
    let is_free = |retired: &Retired| retired.epoch < oldest;
    if GARBAGE.lock().iter().any(is_free) {
        collect();
    }
}

/// Frees the objects retired in epochs before `oldest`. `true` if none retired before `limit`
/// remains.
fn free_before(oldest: u64, limit: u64) -> bool {
    let mut free = Garbage::EMPTY;
    let mut done = true;
    let mut garbage = GARBAGE.lock();
    let mut all = std::mem::replace(&mut *garbage, Garbage::EMPTY).reversed();
    while let Some(retired) = all.pop() {
        if retired.epoch >= oldest {
            done &= retired.epoch >= limit;
            garbage.push(retired);
        } else {
            free.push(retired);
        }
    }
    if garbage.is_empty() {
        EPOCH_WORD.fetch_and(!GARBAGE_LEFT, Ordering::Relaxed);
    } else {
        EPOCH_WORD.fetch_or(GARBAGE_LEFT, Ordering::Relaxed);
    }
    drop(garbage);
    // Without the lock, as this may retire more objects.
    let mut free = free.reversed();
    while let Some(retired) = free.pop() {
        (retired.free)();
    }
    done
}

#[cfg(test)]
mod tests;
