//! Completion queues.
//!
//! A poll goes to the device and to nothing else while that is all there is. Completions pass
//! through a queue of ours only when a connection ends (everything outstanding must be there
//! before the event), when work is flushed that the device no longer gets, and when completions
//! that must not notify are sorted out. Whoever takes completions out of the device that way
//! first keeps polls away from it ([`Cq::hold`]), so that the order is kept.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::adapter::{Ops, Target};
use super::hw::Hw;
use super::table::{Near, RECEIVE, SHARED, slot};
use super::wc::completion;
use super::{Verbs, sys};
use crate::device::{Completion, CompletionQueue, CqHandler, DeviceError};
use crate::handle::Guard;
use crate::handle::pin::{self, pin};

/// Room beyond what was asked for: completions that are ours alone (see [`Hw`]).
const SLACK: u32 = 64;

/// What the device was last asked to notify.
const NOTHING: u8 = 0;
const SOLICITED: u8 = 1;
const EVERYTHING: u8 = 2;

/// A completion queue.
pub struct Cq {
    pub(super) device: Arc<Verbs>,
    /// Those of the device, within reach.
    ops: Ops,
    raw: AtomicPtr<sys::Cq>,
    /// The queue pair of the last completion.
    near: Near<Hw>,
    token: u64,
    handler: Arc<dyn CqHandler>,
    /// Polls take the lock.
    held: AtomicBool,
    queue: Mutex<Queue>,
    /// Somebody wants to be notified.
    wanted: AtomicBool,
    /// What the device was asked for, and has not told yet.
    asked: AtomicU8,
    /// Completions that must not notify are posted to this queue.
    sorted: AtomicBool,
    /// There if the completions are nobody's (see [`unheard`](super::unheard)); held by who takes
    /// them.
    pub(super) unheard: Option<Mutex<()>>,
    /// Queues of queue pairs that complete here: those of which only solicited completions
    /// notify, and the others.
    solicited: AtomicU32,
    unsolicited: AtomicU32,
}

#[derive(Default)]
struct Queue {
    /// Completions taken from the device or made by us, and whether they notify.
    entries: VecDeque<(Completion, bool)>,
    /// Holders of [`Hold`], and those in `withheld`.
    holders: u32,
    /// Contexts of queue pairs whose consumer was not told of the connection yet: their
    /// completions wait.
    withheld: Vec<u64>,
}

impl Queue {
    /// The oldest completion that does not wait.
    fn next(&self) -> Option<usize> {
        let waits = |context| self.withheld.contains(&context);
        let mut entries = self.entries.iter();
        entries.position(|(completion, _)| !waits(completion.context))
    }
}

// SAFETY: libibverbs is thread-safe, and the queue is valid until the drop.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// A queue of the device that was exchanged. Dropping it destroys it.
struct Retired(Arc<Verbs>, *mut sys::Cq);

// SAFETY: libibverbs is thread-safe.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it any more.
        unsafe { (self.0.adapter.lib.ibv_destroy_cq)(self.1) };
    }
}

/// Keeps polls away from the device while it lives.
pub(super) struct Hold<'a>(&'a Cq);

/// Keeps the completions of a queue pair from the consumer while it exists. Its drop notifies: the
/// holder has no lock that the handler may wait for.
pub(super) struct Withheld {
    cq: Arc<Cq>,
    /// [`QpAttr::context`](crate::device::QpAttr::context) of the queue pair.
    context: u64,
}

impl Cq {
    pub(super) fn new(
        device: &Arc<Verbs>,
        entries: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Arc<Cq>, DeviceError> {
        Cq::make(device, entries, handler, None)
    }

    pub(super) fn make(
        device: &Arc<Verbs>,
        entries: u32,
        handler: Arc<dyn CqHandler>,
        unheard: Option<Mutex<()>>,
    ) -> Result<Arc<Cq>, DeviceError> {
        let max = device.attr.max_cqe;
        if entries > max {
            return Err(DeviceError::Limit);
        }
        let adapter = &device.adapter;
        let cq = Arc::new_cyclic(|me: &Weak<Cq>| {
            let token = adapter.enter(Target::Cq(me.clone()));
            let raw = create(device, entries, token.as_ptr());
            Cq {
                device: device.clone(),
                ops: adapter.ops,
                raw: AtomicPtr::new(raw),
                near: Near::new(),
                token: token.keep(),
                handler,
                held: AtomicBool::new(false),
                queue: Mutex::default(),
                wanted: AtomicBool::new(false),
                asked: AtomicU8::new(NOTHING),
                sorted: AtomicBool::new(false),
                unheard,
                solicited: AtomicU32::new(0),
                unsolicited: AtomicU32::new(0),
            }
        });
        if cq.raw().is_null() {
            return Err(DeviceError::Resources);
        }
        Ok(cq)
    }

    /// The queue of the device.
    #[inline]
    pub(super) fn raw(&self) -> *mut sys::Cq {
        self.raw.load(Ordering::Acquire)
    }

    /// A queue of a queue pair begins or ceases to complete here.
    pub(super) fn attach(&self, solicited_only: bool) {
        let solicited_only = self.hears_solicited(solicited_only);
        // Not while the queue of the device is exchanged.
        let queue = self.queue.lock();
        self.users(solicited_only).fetch_add(1, Ordering::Relaxed);
        drop(queue);
        if self.unheard.is_some() {
            self.arm();
        } else if self.wanted.load(Ordering::Relaxed) {
            self.ask();
        }
    }

    pub(super) fn detach(&self, solicited_only: bool) {
        let solicited_only = self.hears_solicited(solicited_only);
        self.users(solicited_only).fetch_sub(1, Ordering::Relaxed);
    }

    fn users(&self, solicited_only: bool) -> &AtomicU32 {
        if solicited_only {
            &self.solicited
        } else {
            &self.unsolicited
        }
    }

    /// A completion that must not notify is about to be posted.
    #[inline]
    pub(super) fn sort(&self) {
        if !self.sorted.load(Ordering::Relaxed) {
            self.sorted.store(true, Ordering::Relaxed);
            self.held.store(true, Ordering::Release);
        }
    }

    /// Takes one completion of the device that is the consumer's; the flag as in
    /// [`completion`].
    #[inline(always)]
    fn poll_device<'a>(
        &self,
        place: &'a mut MaybeUninit<Completion>,
        guard: &Guard,
    ) -> Option<(&'a mut Completion, bool)> {
        loop {
            let mut wc = MaybeUninit::<sys::Wc>::uninit();
            // SAFETY: the queue is valid, and there is room for one completion.
            let n = unsafe { (self.ops.poll_cq)(self.raw(), 1, wc.as_mut_ptr()) };
            if n <= 0 {
                return None;
            }
            // SAFETY: one completion was written.
            let wc = unsafe { wc.assume_init_ref() };
            if let Some(notifies) = self.translate(wc, place, guard) {
                // SAFETY: `translate` has written it.
                return Some((unsafe { place.assume_init_mut() }, notifies));
            }
        }
    }

    /// Writes what a completion of the device means, and says whether it notifies; `None` if
    /// nobody is to hear of it.
    #[inline(always)]
    fn translate(
        &self,
        wc: &sys::Wc,
        place: &mut MaybeUninit<Completion>,
        guard: &Guard,
    ) -> Option<bool> {
        let adapter = &self.device.adapter;
        if wc.wr_id & SHARED != 0 {
            return self.translate_shared(wc, place, guard);
        }
        let hw = adapter.queues.get_near(wc.wr_id, &self.near, guard)?;
        let slot = slot(wc.wr_id);
        if wc.wr_id & RECEIVE != 0 {
            return Some(completion(hw, &hw.recv.retire(slot), wc, false, place).1);
        }
        let posted = hw.send.retire(slot);
        let success = wc.status == sys::WC_SUCCESS;
        if posted.is_plain() {
            return Some(completion(hw, &posted, wc, false, place).1);
        }
        if success && posted.silent() {
            hw.finish(slot, &posted, true);
            return None;
        }
        let (completion, notifies) = completion(hw, &posted, wc, false, place);
        if let Some(op) = hw.finish(slot, &posted, success) {
            completion.op = op;
        }
        Some(notifies)
    }

    /// [`Cq::translate`] for a receive from a shared queue.
    #[inline(never)]
    fn translate_shared(
        &self,
        wc: &sys::Wc,
        place: &mut MaybeUninit<Completion>,
        guard: &Guard,
    ) -> Option<bool> {
        let srq = self.device.adapter.srqs.get(wc.wr_id, guard)?;
        let (hw, buffer) = srq.take(slot(wc.wr_id), wc.qp_num, guard);
        Some(completion(hw?, &buffer, wc, true, place).1)
    }

    /// Moves completions of the device to our queue, until that has `enough`.
    fn fill(&self, queue: &mut Queue, guard: &Guard, enough: impl Fn(&Queue) -> bool) {
        let poll = self.ops.poll_cq;
        while !enough(queue) {
            let mut wc = MaybeUninit::<sys::Wc>::uninit();
            // SAFETY: the queue is valid, and there is room for one completion.
            if unsafe { poll(self.raw(), 1, wc.as_mut_ptr()) } <= 0 {
                return;
            }
            // SAFETY: one completion was written.
            let wc = unsafe { wc.assume_init_ref() };
            let requests = wc.wr_id & RECEIVE == 0;
            let hw = self.device.adapter.queues.get(wc.wr_id, guard);
            if let Some((hw, order)) = hw.and_then(|hw| Some((hw, hw.order.as_ref()?)))
                && requests
            {
                let slot = slot(wc.wr_id);
                let mut place = MaybeUninit::uninit();
                let posted = hw.send.posted(slot);
                let (made, notifies) = completion(hw, &posted, wc, false, &mut place);
                let entry = (*made, notifies);
                let entries = &mut queue.entries;
                let mut order = order.lock();
                order.complete(&hw.send, slot, entry, |entry| entries.push_back(entry));
            } else {
                let mut place = MaybeUninit::uninit();
                if let Some(notifies) = self.translate(wc, &mut place, guard) {
                    // SAFETY: `translate` has written it.
                    let completion = unsafe { place.assume_init() };
                    queue.entries.push_back((completion, notifies));
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_queue(&self, guard: &Guard) -> Option<Completion> {
        let mut queue = self.queue.lock();
        self.fill(&mut queue, guard, |queue| queue.next().is_some());
        let next = queue.next().and_then(|at| queue.entries.remove(at));
        self.let_go(&queue);
        next.map(|(completion, _)| completion)
    }

    /// Polls may go to the device again, if nothing stands against it.
    fn let_go(&self, queue: &Queue) {
        let free = queue.holders == 0 && queue.entries.is_empty();
        if free && !self.sorted.load(Ordering::Relaxed) {
            self.held.store(false, Ordering::Release);
        }
    }

    /// Keeps polls away from the device. The caller is in no read-side section, and holds no
    /// lock that a poll may wait for.
    pub(super) fn hold(&self) -> Hold<'_> {
        self.add_holder(|_| {});
        Hold(self)
    }

    /// Completions of the queue pair with this context wait from now on. The caller is in no
    /// read-side section, and holds no lock that a poll may wait for.
    pub(super) fn withhold(cq: &Arc<Cq>, context: u64) -> Withheld {
        cq.add_holder(|queue| queue.withheld.push(context));
        let cq = cq.clone();
        Withheld { cq, context }
    }

    /// Has polls wait for the lock and take nothing from the device, with a change under it.
    fn add_holder(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        queue.holders += 1;
        change(&mut queue);
        self.held.store(true, Ordering::Release);
        drop(queue);
        // Polls that did not see that are over after this.
        pin::synchronize();
    }

    /// Undoes [`Cq::add_holder`].
    fn remove_holder(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        queue.holders -= 1;
        change(&mut queue);
        self.let_go(&queue);
    }

    /// Moves what the device has to our queue, and notifies. The caller is in no read-side
    /// section, and holds no lock that a poll or the handler may wait for.
    pub(super) fn collect_and_notify(&self) {
        self.hold().collect();
        self.notify();
    }

    /// Adds a completion that we made.
    pub(super) fn push(&self, completion: Completion, notifies: bool) {
        let mut queue = self.queue.lock();
        queue.entries.push_back((completion, notifies));
        self.held.store(true, Ordering::Release);
    }

    /// Removes the completions of the queue pair with this context; gives how many of them are
    /// of buffers of a shared queue.
    pub(super) fn purge(&self, context: u64) -> u32 {
        let mut queue = self.queue.lock();
        let mut from_srq = 0;
        queue.entries.retain(|(completion, _)| {
            let stays = completion.context != context;
            from_srq += u32::from(!stays && completion.from_srq);
            stays
        });
        self.let_go(&queue);
        from_srq
    }

    /// Tells the consumer, if it waits and there is something to tell of.
    pub(super) fn notify(&self) {
        let found = self.queue.lock().entries.iter().any(|entry| entry.1);
        if found && self.wanted.swap(false, Ordering::AcqRel) {
            self.handler.notify();
        }
    }

    /// The device told that something arrived. Called by the service thread.
    pub(super) fn on_event(&self) {
        self.asked.store(NOTHING, Ordering::Release);
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        if self.sorted.load(Ordering::Relaxed) && self.unheard.is_none() {
            let hold = self.hold();
            if !hold.collect() {
                self.ask();
                // What came before the question is not told.
                hold.collect();
            }
            drop(hold);
            self.notify();
        } else if self.wanted.swap(false, Ordering::AcqRel) {
            self.handler.notify();
        }
    }

    pub(super) fn on_overflow(&self) {
        self.handler.overflow();
    }

    /// Puts a larger queue of the device in place of one that it cannot resize, as long as no
    /// queue pair completes there.
    fn exchange(&self, entries: u32) -> Result<(), DeviceError> {
        let queue = self.queue.lock();
        let users =
            self.users(true).load(Ordering::Relaxed) + self.users(false).load(Ordering::Relaxed);
        if users > 0 {
            return Err(DeviceError::Resources);
        }
        let token = with_exposed_provenance_mut(self.token as usize);
        let new = create(&self.device, entries, token);
        if new.is_null() {
            return Err(DeviceError::Resources);
        }
        let old = Retired(self.device.clone(), self.raw.swap(new, Ordering::AcqRel));
        self.asked.store(NOTHING, Ordering::Release);
        drop(queue);
        // A poll may be looking at it.
        pin::retire(move || drop(old));
        if self.wanted.load(Ordering::Acquire) {
            self.ask();
        }
        Ok(())
    }

    /// Asks the device to tell of the next completion.
    fn ask(&self) {
        let solicited = self.solicited.load(Ordering::Relaxed);
        let what = match self.unsolicited.load(Ordering::Relaxed) {
            // Nothing can come; whoever begins to complete here has us ask.
            0 if solicited == 0 => return,
            0 if !self.device.siw => SOLICITED,
            _ => EVERYTHING,
        };
        // What it was asked before and has not told yet may include this.
        if self.asked.fetch_max(what, Ordering::AcqRel) >= what {
            return;
        }
        // The queue may be exchanged meanwhile.
        let _guard = pin();
        // SAFETY: the queue is valid for the section.
        unsafe { (self.ops.req_notify_cq)(self.raw(), (what == SOLICITED).into()) };
    }
}

impl Hold<'_> {
    /// Moves what the device has to our queue. `true` if there is something that notifies.
    pub fn collect(&self) -> bool {
        let mut queue = self.0.queue.lock();
        let guard = pin();
        self.0.fill(&mut queue, &guard, |_| false);
        queue.entries.iter().any(|entry| entry.1)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.remove_holder(|_| {});
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.cq.remove_holder(|queue| {
            let at = queue.withheld.iter().position(|c| *c == self.context);
            at.map(|at| queue.withheld.swap_remove(at));
        });
        self.cq.notify();
    }
}

impl CompletionQueue for Cq {
    #[inline(always)]
    fn poll_in<'a>(
        &self,
        place: &'a mut MaybeUninit<Completion>,
        guard: &Guard,
    ) -> Option<&'a mut Completion> {
        if self.held.load(Ordering::Acquire) {
            return self
                .poll_queue(guard)
                .map(|completion| place.write(completion));
        }
        self.poll_device(place, guard)
            .map(|(completion, _)| completion)
    }

    fn arm(&self) {
        self.device.start_service();
        self.wanted.store(true, Ordering::Release);
        self.ask();
    }

    fn disarm(&self) {
        self.wanted.store(false, Ordering::Release);
    }

    fn capacity(&self) -> u32 {
        let _guard = pin();
        // SAFETY: the queue is valid for the section.
        unsafe { (*self.raw()).cqe }.max(1) as u32
    }

    fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        let max = self.device.attr.max_cqe;
        if entries > max || self.queue.lock().entries.len() > entries as usize {
            return Err(DeviceError::Limit);
        }
        // SAFETY: the queue is valid.
        let room = unsafe { (*self.raw()).cqe };
        // What is larger than asked for needs no change, and not every device can make one.
        let wanted = room_for(&self.device, entries);
        if room >= wanted {
            return Ok(());
        }
        // SAFETY: as above.
        match unsafe { (self.device.adapter.lib.ibv_resize_cq)(self.raw(), wanted) } {
            0 => Ok(()),
            _ => self.exchange(entries),
        }
    }
}

/// Entries to ask the device for.
fn room_for(device: &Verbs, entries: u32) -> c_int {
    entries.saturating_add(SLACK).min(device.attr.max_cqe) as c_int
}

/// Makes a queue of the device.
fn create(device: &Verbs, entries: u32, token: *mut c_void) -> *mut sys::Cq {
    let adapter = &device.adapter;
    let entries = room_for(device, entries);
    // SAFETY: the context and the channel are open.
    unsafe { (adapter.lib.ibv_create_cq)(adapter.ctx, entries, token, adapter.comp, 0) }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.device.adapter.leave(self.token);
        let raw = *self.raw.get_mut();
        if !raw.is_null() {
            // SAFETY: ours; queue pairs that complete here hold a reference; the service thread
            // acknowledges an event before it does anything else.
            unsafe { (self.device.adapter.lib.ibv_destroy_cq)(raw) };
        }
    }
}
