//! Completion queues.
//!
//! A poll normally goes to the device and to nothing else. Completions pass through a queue of this
//! library ([`hold`]) only when a connection ends (everything outstanding must be there before the
//! event), when requests are flushed that the device no longer gets, and when completions that must
//! not notify are separated from others ([`notify`]). Polls are kept away from the device
//! meanwhile, so that the order is kept.

mod hold;
mod notify;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use self::hold::Queue;
pub(super) use self::hold::{Hold, Withheld};
use super::adapter::Target;
use super::arming::Arming;
use super::driver::Ops;
use super::hw::Hw;
use super::library_use::LibraryUse;
use super::wc::{completion, plain_receive, plain_request};
use super::wr_table::{LookupHint, RECEIVE, SHARED, slot};
use super::{Verbs, limits, sys};
use crate::device::{Completion, CompletionQueue, CqHandler, DeviceError, Taker};
use crate::handle::Guard;
use crate::handle::pin::{self, pin};

/// Entries beyond those that were asked for, for completions that the consumer does not get (see
/// [`Hw`]).
const SLACK: u32 = 64;

/// A completion queue.
pub struct Cq {
    pub(super) device: Arc<Verbs>,
    /// A copy of the functions of the adapter, which saves polls two loads.
    ops: Ops,
    /// The queue of libibverbs.
    raw: AtomicPtr<sys::Cq>,
    /// Where the queue pair of the last completion is.
    hint: LookupHint<Hw>,
    /// Number by which events name the queue.
    token: u64,
    handler: Arc<dyn CqHandler>,
    /// Polls take completions from `queue`, under its lock.
    held: AtomicBool,
    queue: Mutex<Queue>,
    /// Whether the consumer has armed the queue, and what the device was asked for.
    arming: Arming,
    /// Requests were posted whose completions must not notify.
    filtered: AtomicBool,
    /// For a queue whose completions are discarded (see [`discard`](super::discard)); held by the
    /// thread that takes them.
    pub(super) discard: Option<Mutex<()>>,
    /// Work queues that complete here and notify of solicited completions only.
    solicited: AtomicU32,
    /// The other work queues that complete here.
    unsolicited: AtomicU32,
}

// SAFETY: libibverbs is thread-safe, and the queue is valid until the drop.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// A queue of the device that another one has replaced. Dropping it destroys it.
struct Retired(Arc<Verbs>, *mut sys::Cq);

// SAFETY: libibverbs is thread-safe.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        let _use = LibraryUse::begin();
        // SAFETY: ours, and not used any more.
        unsafe { (self.0.adapter.lib.ibv_destroy_cq)(self.1) };
    }
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
        discard: Option<Mutex<()>>,
    ) -> Result<Arc<Cq>, DeviceError> {
        let max = device.attr.max_cqe;
        if entries > max {
            return Err(DeviceError::Limit);
        }
        let mut queue = Queue::default();
        queue.make_room(device, entries)?;
        let adapter = &device.adapter;
        let cq = Arc::new_cyclic(|me: &Weak<Cq>| {
            let token = adapter.register(Target::Cq(me.clone()));
            let raw = create(device, entries, token.as_ptr());
            Cq {
                device: device.clone(),
                ops: adapter.ops,
                raw: AtomicPtr::new(raw),
                hint: LookupHint::new(&adapter.queues),
                token: token.keep(),
                handler,
                held: AtomicBool::new(false),
                queue: Mutex::new(queue),
                arming: Arming::new(),
                filtered: AtomicBool::new(false),
                discard,
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

    /// Takes one completion of the device.
    #[inline(always)]
    fn poll_raw<'a>(&self, place: &'a mut MaybeUninit<sys::Wc>) -> Option<&'a sys::Wc> {
        // SAFETY: the queue is valid, and there is room for one completion.
        let n = unsafe { (self.ops.poll_cq)(self.raw(), 1, place.as_mut_ptr()) };
        if n <= 0 {
            return None;
        }
        // SAFETY: one completion was written.
        Some(unsafe { place.assume_init_ref() })
    }

    /// Takes one completion of the device that the consumer gets.
    #[inline(always)]
    fn poll_device<T: Taker>(&self, guard: &Guard, taker: T) -> Option<T::Taken> {
        let mut place = MaybeUninit::uninit();
        let wc = self.poll_raw(&mut place)?;
        match self.translate_plain(wc, guard) {
            Some(completion) => Some(taker.take(&completion)),
            None => self.poll_device_on(wc, guard, taker),
        }
    }

    /// [`Cq::poll_device`] after it has taken a completion that is not as nearly all are.
    #[inline(never)]
    fn poll_device_on<T: Taker>(
        &self,
        first: &sys::Wc,
        guard: &Guard,
        taker: T,
    ) -> Option<T::Taken> {
        let mut translated = self.translate(first, guard);
        let mut place = MaybeUninit::uninit();
        loop {
            if let Some((completion, _)) = translated {
                return Some(taker.take(&completion));
            }
            translated = self.translate(self.poll_raw(&mut place)?, guard);
        }
    }

    /// The completion for the consumer, if it is one as nearly all are: see [`plain_request`] and
    /// [`plain_receive`]. `None` if it is another, with nothing done.
    #[inline(always)]
    fn translate_plain(&self, wc: &sys::Wc, guard: &Guard) -> Option<Completion> {
        let hw = match self.hint.get(wc.wr_id, guard) {
            Some(hw) => hw,
            None => self.look_up(wc.wr_id, guard)?,
        };
        let slot = slot(wc.wr_id);
        if wc.wr_id & RECEIVE == 0 {
            let completion = plain_request(hw, &hw.send.posted(slot), wc)?;
            hw.send.retire_to(slot);
            Some(completion)
        } else {
            let completion = plain_receive(hw, &hw.recv.posted(slot), wc)?;
            hw.recv.retire_to(slot);
            Some(completion)
        }
    }

    /// The queue pair that a `wr_id` names, if that is not the one of the last completion. `None` for a
    /// shared receive queue.
    #[inline(never)]
    fn look_up<'g>(&self, wr_id: u64, guard: &'g Guard) -> Option<&'g Hw> {
        if wr_id & SHARED != 0 {
            return None;
        }
        let queues = &self.device.adapter.queues;
        queues.get_and_hint(wr_id, &self.hint, guard)
    }

    /// The completion for the consumer; `true` if it notifies. `None` if the consumer gets none.
    #[inline(never)]
    fn translate(&self, wc: &sys::Wc, guard: &Guard) -> Option<(Completion, bool)> {
        let adapter = &self.device.adapter;
        let slot = slot(wc.wr_id);
        if wc.wr_id & SHARED != 0 {
            let (hw, buffer) = adapter
                .srqs
                .get(wc.wr_id, guard)?
                .take(slot, wc.qp_num, guard);
            return Some(completion(hw?, &buffer, wc, true));
        }
        let hw = adapter.queues.get(wc.wr_id, guard)?;
        if wc.wr_id & RECEIVE != 0 {
            return Some(completion(hw, &hw.recv.retire(slot), wc, false));
        }
        let posted = hw.send.retire(slot);
        let success = wc.status == sys::WC_SUCCESS;
        if success && posted.unsignaled() {
            hw.finish(slot, &posted, true);
            return None;
        }
        let (mut completion, notifies) = completion(hw, &posted, wc, false);
        if posted.is_marker() {
            return None;
        }
        if let Some(op) = hw.finish(slot, &posted, success) {
            completion.op = op;
        }
        Some((completion, notifies))
    }

    #[cold]
    #[inline(never)]
    fn poll_queue(&self, guard: &Guard) -> Option<Completion> {
        let mut queue = self.queue.lock();
        self.fill(&mut queue, guard, |queue| queue.next().is_some());
        let next = queue.next().and_then(|at| queue.entries.remove(at));
        self.reopen(&queue);
        next.map(|(completion, _)| completion)
    }

    /// Replaces a queue that the device cannot resize by a larger one, if no work queue completes
    /// here.
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
        self.arming.answered();
        drop(queue);
        // A poll may be using the old one.
        pin::retire(move || drop(old));
        if self.arming.is_armed() {
            self.request_notify();
        }
        Ok(())
    }
}

impl CompletionQueue for Cq {
    #[inline(always)]
    fn poll_in<T: Taker>(&self, guard: &Guard, taker: T) -> Option<T::Taken> {
        if self.held.load(Ordering::Acquire) {
            let completion = self.poll_queue(guard)?;
            return Some(taker.take_rare(&completion));
        }
        self.poll_device(guard, taker)
    }

    fn arm(&self) {
        self.device.start_service();
        self.arming.arm();
        self.request_notify();
    }

    fn disarm(&self) {
        self.arming.disarm();
    }

    fn queued(&self) -> Option<u32> {
        None
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
        self.queue.lock().make_room(&self.device, entries)?;
        // SAFETY: the queue is valid.
        let room = unsafe { (*self.raw()).cqe };
        // A queue that is larger than asked for needs no change, and not every device can resize one.
        let wanted = room_for(&self.device, entries);
        if room >= wanted {
            return Ok(());
        }
        let library_use = LibraryUse::begin();
        // SAFETY: as above.
        let error = unsafe { (self.device.adapter.lib.ibv_resize_cq)(self.raw(), wanted) };
        drop(library_use);
        match error {
            0 => Ok(()),
            _ => self.exchange(entries),
        }
    }
}

impl Queue {
    /// Makes room for what the device's queue can hold. No page of it is used before it is needed.
    fn make_room(&mut self, device: &Verbs, entries: u32) -> Result<(), DeviceError> {
        let wanted = (room_for(device, entries) as usize).saturating_sub(self.entries.len());
        let reserved = self.entries.try_reserve_exact(wanted);
        reserved.map_err(|_| DeviceError::Resources)
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
    let _use = LibraryUse::begin();
    // SAFETY: the context and the channel are open.
    let cq = unsafe {
        (adapter.lib.ibv_create_cq)(adapter.ctx, entries, token, adapter.comp_channel, 0)
    };
    if cq.is_null() {
        let error = io::Error::last_os_error();
        limits::report("the creation of a completion queue", &error);
    }
    cq
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.device.adapter.unregister(self.token);
        let raw = *self.raw.get_mut();
        if !raw.is_null() {
            let _use = LibraryUse::begin();
            // SAFETY: ours; queue pairs that complete here hold a reference; the service thread
            // acknowledges an event before it does anything else.
            unsafe { (self.device.adapter.lib.ibv_destroy_cq)(raw) };
        }
    }
}
