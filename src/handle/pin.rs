//! Read-side sections that cost two plain stores: what a section can reach stays valid while
//! it lasts.
//!
//! This is read-copy-update with an asymmetric barrier. A reader marks its section in a record
//! of its own thread, without a fence; whoever takes something away first makes it unreachable,
//! then lets the kernel run a barrier on every core the process uses (`membarrier(2)`), and
//! waits for the sections that may still see it. Where the kernel refuses `membarrier` (seccomp,
//! valgrind) readers pay for a full fence instead; the rest stays the same.
//!
//! A lookup happens on every call of the API, a free hardly ever: that is why all the cost is
//! on the side of the free.

mod own;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::compiler_fence;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, local_static, relax, shared_static};

/// One thread's mark. Records are never given back to the allocator: another thread may be
/// reading one at any time. A finished thread's record is reused by the next new thread.
#[repr(align(128))] // two lines: neighbours are prefetched in pairs
struct Record {
    /// 0 outside of a section, otherwise the epoch that was current when it began.
    active: AtomicU64,
    /// Belongs to a living thread.
    taken: AtomicBool,
    /// Sections nest; only the owning thread looks at this.
    depth: Cell<u32>,
    /// The owning thread retired something inside its section, or put something off.
    busy_at_end: Cell<bool>,
    /// It retired something.
    collect_at_end: Cell<bool>,
    /// What it put off. Here, and not a thread-local: those with a destructor are gone while
    /// the last destructors of a thread run.
    deferred: RefCell<Vec<Box<dyn FnOnce()>>>,
}

// SAFETY: the cells are touched by the thread that owns the record alone; a record changes its
// owner through `taken` (acquire/release). What is in `deferred` leaves with the section in which
// it came, so it stays in its thread.
unsafe impl Sync for Record {}

shared_static! {
    static READERS: Readers = Readers {
        epoch: AtomicU64::new(1),
        fence: AtomicBool::new(true),
        left: AtomicBool::new(false),
    };
    /// All records ever made.
    static RECORDS: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());
    /// Process that owns [`RECORDS`]: in a forked child the other threads are gone, their marks
    /// not.
    static OWNER: AtomicU32 = AtomicU32::new(0);
    /// What waits for sections to end.
    static GARBAGE: Mutex<Vec<Retired>> = Mutex::new(Vec::new());
}

/// What the beginning of a section looks at.
struct Readers {
    /// Counts the things that were taken away. It starts at 1 because 0 means "no section".
    epoch: AtomicU64,
    /// They need a fence of their own: `membarrier` is not available.
    fence: AtomicBool,
    /// There is garbage. Set with that locked, by who has looked for what can be freed.
    left: AtomicBool,
}

/// How often [`collect`] looks again for sections that are about to end before it leaves what
/// they hold back to the next one, or to [`sweep`]. Short: the caller may hold a lock that a
/// section waits for.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 100 };

struct Retired {
    epoch: u64,
    free: Box<dyn FnOnce() + Send>,
}

local_static! {
    /// Gives the record back at the end of the thread.
    static GIVE_BACK: GiveBack = GiveBack(Cell::new(None));
}

struct GiveBack(Cell<Option<&'static Record>>);

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(record) = self.0.get() {
            // Destructors that run after this one may begin a section again.
            own::set(std::ptr::null());
            record.taken.store(false, Ordering::Release);
        }
    }
}

/// The record of this thread if it is inside a section.
fn own_section() -> Option<&'static Record> {
    // SAFETY: records live as long as the process.
    let record = unsafe { own::get().as_ref() }?;
    (record.depth.get() != 0).then_some(record)
}

/// The running thread.
#[derive(Clone, Copy)]
pub struct Thread {
    record: &'static Record,
    _not_send: PhantomData<*const ()>,
}

impl Thread {
    /// A number that no other living thread has, and that is not 0.
    #[inline]
    pub fn id(self) -> usize {
        std::ptr::from_ref(self.record).addr()
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

/// What the thread did before is seen by whoever runs [`heavy_barrier`], or the thread sees
/// afterwards what that one did before. For those that need no fence: see [`fences_needed`].
#[inline]
pub(super) fn light_barrier() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    } else {
        // The processor may still order a store behind later loads; the barrier that the other
        // side asks the kernel for makes up for it.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Whether [`light_barrier`] is not enough.
pub(super) fn fences_needed() -> bool {
    !cfg!(loom) && READERS.fence.load(Ordering::Relaxed)
}

/// A running section. Not `Send`: it marks the thread that began it.
pub struct Guard {
    record: &'static Record,
    _not_send: PhantomData<*const ()>,
}

/// Begins a section. It may be nested; blocking inside one delays every free, so do not.
#[inline]
pub fn pin() -> Guard {
    let record = thread().record;
    let depth = record.depth.get();
    record.depth.set(depth + 1);
    if depth == 0 {
        // Acquire: who sees the epoch after a removal sees the removal. Release: who sees this
        // section sees that the one before it has ended. Both are free on x86.
        record
            .active
            .store(READERS.epoch.load(Ordering::Acquire), Ordering::Release);
        if READERS.fence.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
        } else {
            light_barrier();
        }
    }
    Guard {
        record,
        _not_send: PhantomData,
    }
}

impl Guard {
    /// The thread whose section it is.
    #[inline]
    pub fn thread(&self) -> Thread {
        Thread {
            record: self.record,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let depth = self.record.depth.get() - 1;
        self.record.depth.set(depth);
        if depth == 0 {
            self.record.active.store(0, Ordering::Release);
            if self.record.busy_at_end.get() {
                at_end(self.record);
            }
        }
    }
}

#[cold]
fn new_record() -> &'static Record {
    let mut records = RECORDS.lock();
    if records.is_empty() {
        READERS
            .fence
            .store(!register_membarrier(), Ordering::SeqCst);
        OWNER.store(std::process::id(), Ordering::Relaxed);
    }
    let free = records.iter().find(|r| {
        r.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
    let record = match free {
        Some(record) => *record,
        None => {
            let record: &'static Record = Box::leak(Box::new(Record {
                active: AtomicU64::new(0),
                taken: AtomicBool::new(true),
                depth: Cell::new(0),
                busy_at_end: Cell::new(false),
                collect_at_end: Cell::new(false),
                deferred: RefCell::new(Vec::new()),
            }));
            records.push(record);
            record
        }
    };
    drop(records);
    own::set(record);
    // Late in the life of a thread its destructors have run already; then the record simply
    // stays taken.
    let _ = GIVE_BACK.try_with(|owner| owner.0.set(Some(record)));
    record
}

fn register_membarrier() -> bool {
    // ThreadSanitizer and loom do not know of membarrier and would report what it orders.
    if cfg!(any(dat_tsan, loom)) {
        return false;
    }
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// After this every section, and whoever runs [`light_barrier`], either is seen by the caller or
/// sees what the caller did before.
pub(super) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if READERS.fence.load(Ordering::Relaxed)
        || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        // In a forked child: the registration is not inherited by all kernels.
        || (register_membarrier() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    {
        return;
    }
    // A system call filter was set up since. Readers use fences from now on; what those did who
    // have not noticed leaves their store buffers long before the sleep is over.
    READERS.fence.store(true, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(1));
}

/// The oldest epoch in which a section runs, [`u64::MAX`] if none does.
fn oldest_section() -> u64 {
    let records = RECORDS.lock();
    let pid = std::process::id();
    if OWNER.swap(pid, Ordering::Relaxed) != pid {
        let own = own::get();
        for record in records.iter().filter(|r| !std::ptr::eq(**r, own)) {
            record.active.store(0, Ordering::Relaxed);
        }
    }
    records
        .iter()
        .map(|r| r.active.load(Ordering::Acquire))
        .filter(|epoch| *epoch != 0)
        .min()
        .unwrap_or(u64::MAX)
}

/// Waits until every section that was running has ended. What the caller made unreachable
/// before is then out of use.
///
/// # Panics
/// Inside a section of the same thread, which would wait for itself.
pub fn synchronize() {
    assert!(own_section().is_none(), "synchronize() inside a section");
    let epoch = READERS.epoch.fetch_add(1, Ordering::SeqCst);
    heavy_barrier();
    let mut rounds = 0u32;
    while oldest_section() <= epoch {
        relax(rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// Runs `free` once every section that is running now has ended: at once if none is or those
/// that are end soon, otherwise in the next thread that retires something.
pub fn retire(free: impl FnOnce() + Send + 'static) {
    let epoch = READERS.epoch.fetch_add(1, Ordering::SeqCst);
    GARBAGE.lock().push(Retired {
        epoch,
        free: Box::new(free),
    });
    match own_section() {
        Some(record) => {
            record.collect_at_end.set(true);
            record.busy_at_end.set(true);
        }
        None => collect(),
    }
}

/// Runs `f` outside of any section of this thread: at once, or when the section ends. For calls
/// into the consumer's code, which may do anything.
pub fn outside(f: impl FnOnce() + 'static) {
    match own_section() {
        Some(record) => {
            record.deferred.borrow_mut().push(Box::new(f));
            record.busy_at_end.set(true);
        }
        None => f(),
    }
}

/// What was left to the end of a section.
#[cold]
#[inline(never)]
fn at_end(record: &Record) {
    record.busy_at_end.set(false);
    if record.collect_at_end.replace(false) {
        collect();
    }
    for f in record.deferred.take() {
        f();
    }
}

/// Frees what no section can see any more.
#[cold]
fn collect() {
    // Read before the barrier: what other threads retire after it may be in sight of sections
    // that the barrier did not see.
    let limit = READERS.epoch.load(Ordering::SeqCst);
    heavy_barrier();
    for round in 0..PATIENCE {
        if free_before(oldest_section().min(limit), limit) {
            return;
        }
        relax(round);
    }
}

/// Frees what was left over when it was retired, if sections of other threads have held it back
/// and are over. For who holds no lock: the end of a call. Nobody may retire anything again.
#[inline]
pub fn sweep() {
    if READERS.left.load(Ordering::Relaxed) {
        sweep_left();
    }
}

#[cold]
#[inline(never)]
fn sweep_left() {
    if own_section().is_some() {
        return;
    }
    let oldest = oldest_section();
    let is_free = |retired: &Retired| retired.epoch < oldest;
    if GARBAGE.lock().iter().any(is_free) {
        collect();
    }
}

/// Frees what was retired in epochs before `oldest`. `true` if nothing from before `limit` is
/// left.
fn free_before(oldest: u64, limit: u64) -> bool {
    let mut free = Vec::new();
    let mut done = true;
    let mut garbage = GARBAGE.lock();
    garbage.retain_mut(|retired| {
        if retired.epoch >= oldest {
            done &= retired.epoch >= limit;
            return true;
        }
        free.push(std::mem::replace(&mut retired.free, Box::new(|| ())));
        false
    });
    READERS.left.store(!garbage.is_empty(), Ordering::Relaxed);
    drop(garbage);
    // Outside of the lock: freeing may retire again.
    for f in free {
        f();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

    #[test]
    fn retire_waits_for_the_section() {
        let freed = Arc::new(AtomicBool::new(false));
        let guard = pin();
        let nested = pin();
        let flag = freed.clone();
        retire(move || flag.store(true, Ordering::SeqCst));
        drop(nested);
        assert!(!freed.load(Ordering::SeqCst));
        drop(guard);
        // Sections of other tests of this process may hold it back for a moment.
        while !freed.load(Ordering::SeqCst) {
            synchronize();
            collect();
        }
    }

    #[test]
    fn what_was_left_is_freed_by_a_later_call() {
        let freed = Arc::new(AtomicBool::new(false));
        let (pinned, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|s| {
            s.spawn(|| {
                let guard = pin();
                pinned.wait();
                go.wait();
                drop(guard);
            });
            pinned.wait();
            let flag = freed.clone();
            retire(move || flag.store(true, Ordering::SeqCst));
            sweep();
            assert!(!freed.load(Ordering::SeqCst));
            go.wait();
        });
        // As above.
        while !freed.load(Ordering::SeqCst) {
            sweep();
        }
    }

    #[test]
    fn outside_waits_for_the_end_of_the_section() {
        let ran = std::rc::Rc::new(Cell::new(0));
        let again = ran.clone();
        outside(move || again.set(again.get() + 1));
        assert_eq!(ran.get(), 1);
        let guard = pin();
        let again = ran.clone();
        outside(move || {
            synchronize();
            again.set(again.get() + 1);
        });
        assert_eq!(ran.get(), 1);
        drop(guard);
        assert_eq!(ran.get(), 2);
    }

    #[test]
    fn synchronize_waits_for_other_threads() {
        let inside = Arc::new(AtomicBool::new(false));
        let leave = Arc::new(AtomicBool::new(false));
        let left = Arc::new(AtomicBool::new(false));
        let thread = {
            let (inside, leave, left) = (inside.clone(), leave.clone(), left.clone());
            std::thread::spawn(move || {
                let guard = pin();
                inside.store(true, Ordering::SeqCst);
                while !leave.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                left.store(true, Ordering::SeqCst);
                drop(guard);
            })
        };
        while !inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let waiter = std::thread::spawn(move || {
            synchronize();
            assert!(left.load(Ordering::SeqCst));
        });
        leave.store(true, Ordering::SeqCst);
        waiter.join().unwrap();
        thread.join().unwrap();
    }

    /// Readers follow a pointer that a writer replaces all the time: none may see a freed value.
    #[test]
    fn readers_never_see_freed_memory() {
        const LIVE: usize = 0x600d;
        let current = Arc::new(AtomicPtr::new(Box::into_raw(Box::new(AtomicUsize::new(
            LIVE,
        )))));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (current, stop) = (current.clone(), stop.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _guard = pin();
                        // SAFETY: reachable inside a section, so not freed yet.
                        let value = unsafe { &*current.load(Ordering::Acquire) };
                        assert_eq!(value.load(Ordering::Relaxed), LIVE);
                    }
                })
            })
            .collect();
        for _ in 0..2000 {
            let new = Box::into_raw(Box::new(AtomicUsize::new(LIVE)));
            let old = current.swap(new, Ordering::AcqRel) as usize;
            retire(move || {
                // SAFETY: made by `Box::into_raw`, unreachable, and no section sees it.
                let old = unsafe { Box::from_raw(old as *mut AtomicUsize) };
                old.store(0, Ordering::Relaxed);
            });
        }
        stop.store(true, Ordering::Relaxed);
        for r in readers {
            r.join().unwrap();
        }
        // SAFETY: the last value, no reader is left.
        drop(unsafe { Box::from_raw(current.load(Ordering::Relaxed)) });
    }
}
