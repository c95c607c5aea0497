//! Shared receive queues.

use std::io;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::adapter::Target;
use super::hw::Hw;
use super::library_use::LibraryUse;
use super::post::receive;
use super::ring::{Kind, PostedWr};
use super::wr_table::{Numbered, RECEIVE, SHARED};
use super::{Pd, Verbs, limits, sys};
use crate::device::{DeviceError, PostError, RecvWr, SharedReceiveQueue, SrqHandler, WrFlags};
use crate::handle::{Biased, Guard, INNER, Shared};

/// A shared receive queue.
pub struct Srq {
    device: Arc<Verbs>,
    pub(super) raw: *mut sys::Srq,
    token: u64,
    max_sge: u32,
    handler: Arc<dyn SrqHandler>,
    /// Buffers that the device has room for.
    room: AtomicU32,
    posted: Arc<PostedBuffers>,
    pd: Arc<Pd>,
}

/// The part of the queue that polls use, which may outlive the queue until they have ended.
pub(super) struct PostedBuffers {
    /// Number in the `wr_id` of the buffers.
    number: u64,
    buffers: Biased<Buffers, INNER>,
    /// The queue pairs that take buffers, ordered by their numbers on the wire.
    users: Shared<Vec<(u32, Arc<Hw>)>>,
    /// Held while `users` is changed.
    changing: Mutex<()>,
}

/// The buffers that are posted. They complete in any order.
struct Buffers {
    /// The numbers that the consumer has given the buffers, by slot.
    wr_ids: Vec<u64>,
    /// Slots that were used and are free.
    free: Vec<u32>,
    /// Buffers that are posted.
    used: u32,
    /// Buffers that may be posted.
    limit: u32,
}

// SAFETY: libibverbs is thread-safe, and the queue is valid until the drop.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Numbered for PostedBuffers {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Buffers {
    /// Makes room for that many buffers.
    fn make_room(&mut self, max_wr: u32) -> Result<(), DeviceError> {
        let no_memory = |_| DeviceError::Resources;
        let max_wr = max_wr as usize;
        let ids = max_wr.saturating_sub(self.wr_ids.len());
        let free = max_wr.saturating_sub(self.free.len());
        self.wr_ids.try_reserve_exact(ids).map_err(no_memory)?;
        self.free.try_reserve_exact(free).map_err(no_memory)
    }

    /// Takes a free slot; `None` if the queue is full.
    fn take(&mut self, wr_id: u64) -> Option<u32> {
        if self.used >= self.limit {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.wr_ids.push(0);
            self.wr_ids.len() as u32 - 1
        });
        self.wr_ids[slot as usize] = wr_id;
        self.used += 1;
        Some(slot)
    }

    /// Frees a slot and gives the number of its buffer.
    fn free_slot(&mut self, slot: u32) -> u64 {
        self.free.push(slot);
        self.used -= 1;
        self.wr_ids[slot as usize]
    }
}

impl Srq {
    /// Number of buffers that are posted and have not completed.
    fn left(&self) -> u32 {
        // The device reports only which buffers have completed.
        let users = self.posted.users.get_shared();
        for (_, hw) in users.iter().flat_map(|users| users.iter()) {
            hw.recv_cq.collect_and_notify();
        }
        self.posted.buffers.lock().used
    }

    pub(super) fn new(
        device: &Arc<Verbs>,
        pd: &Arc<Pd>,
        max_wr: u32,
        max_sge: u32,
        handler: Arc<dyn SrqHandler>,
    ) -> Result<Arc<Srq>, DeviceError> {
        let attr = &device.attr;
        if attr.max_srq == 0 {
            return Err(DeviceError::Unsupported);
        }
        if max_wr > attr.max_srq_wr || max_sge > device.max_srq_sge {
            return Err(DeviceError::Limit);
        }
        let mut buffers = Buffers {
            wr_ids: Vec::new(),
            free: Vec::new(),
            used: 0,
            limit: max_wr,
        };
        buffers.make_room(max_wr)?;
        let adapter = &device.adapter;
        let number = adapter.srqs.reserve().ok_or(DeviceError::Resources)?;
        let srq = Arc::new_cyclic(|me: &Weak<Srq>| {
            let token = adapter.register(Target::Srq(me.clone())).keep();
            let mut init = sys::SrqInitAttr {
                srq_context: with_exposed_provenance_mut(token as usize),
                attr: sys::SrqAttr {
                    max_wr: max_wr.max(1),
                    max_sge: max_sge.max(1),
                    srq_limit: 0,
                },
            };
            let _use = LibraryUse::begin();
            // SAFETY: the protection domain is valid, and we keep it.
            let raw = unsafe { (adapter.lib.ibv_create_srq)(pd.raw, &mut init) };
            Srq {
                device: device.clone(),
                raw,
                token,
                max_sge,
                handler,
                room: AtomicU32::new(init.attr.max_wr),
                posted: Arc::new(PostedBuffers {
                    number,
                    buffers: Biased::new(buffers),
                    users: Shared::empty(),
                    changing: Mutex::default(),
                }),
                pd: pd.clone(),
            }
        });
        adapter.srqs.publish(&srq.posted);
        if srq.raw.is_null() {
            let error = io::Error::last_os_error();
            limits::report("the creation of a shared receive queue", &error);
            return Err(DeviceError::Resources);
        }
        Ok(srq)
    }

    /// A queue pair begins to take buffers of this queue.
    pub(super) fn attach(&self, hw: &Arc<Hw>) {
        let user = (hw.qp_num, hw.clone());
        self.posted.change(|users| {
            // One that is destroyed and not detached yet: the device has given its number to another one.
            users.retain(|user| user.0 != hw.qp_num);
            users.push(user);
        });
    }

    /// A queue pair takes no more buffers of this queue. One that has its number on the wire by now stays.
    pub(super) fn detach(&self, hw: &Hw) {
        self.posted
            .change(|users| users.retain(|user| user.1.number() != hw.number()));
    }

    pub(super) fn on_limit(&self) {
        self.handler.limit();
    }

    /// The device reports that it has lost the queue. Called by the service thread.
    pub(super) fn on_failure(&self) {
        self.handler.failed();
    }

    fn modify(&self, attr: &mut sys::SrqAttr, mask: i32) -> io::Result<()> {
        // SAFETY: the queue is valid.
        match unsafe { (self.device.adapter.lib.ibv_modify_srq)(self.raw, attr, mask) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl PostedBuffers {
    fn change(&self, f: impl FnOnce(&mut Vec<(u32, Arc<Hw>)>)) {
        let _one = self.changing.lock();
        let users = self.users.get_shared();
        let mut users = users.map_or_else(Vec::new, |users| users.to_vec());
        f(&mut users);
        users.sort_unstable_by_key(|user| user.0);
        self.users.set(Some(Arc::new(users)));
    }

    /// A buffer has completed: the queue pair that took it, if it still exists, and what was
    /// posted.
    pub(super) fn take<'g>(
        &self,
        slot: u32,
        qp_num: u32,
        guard: &'g Guard,
    ) -> (Option<&'g Hw>, PostedWr) {
        let wr_id = self.buffers.lock().free_slot(slot);
        let users = self.users.get(guard);
        let hw = users.and_then(|users| {
            let at = users.binary_search_by_key(&qp_num, |user| user.0).ok()?;
            Some(&*users[at].1)
        });
        (hw, PostedWr::new(wr_id, 0, Kind::Recv, WrFlags::empty()))
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if wr.sges.len() as u32 > self.max_sge {
            return Err(PostError::TooManySegments);
        }
        self.device.check_receive(|| self.pd.clone(), wr)?;
        let mut buffers = self.posted.buffers.lock();
        let slot = buffers.take(wr.wr_id).ok_or(PostError::QueueFull)?;
        let wr_id = self.posted.number | RECEIVE | SHARED | u64::from(slot);
        let mut recv = receive(wr_id, wr.sges);
        let mut bad = null_mut();
        // SAFETY: the queue is valid; the request and its segments are until the call returns.
        let error = match unsafe { (*(*self.raw).context).ops.post_srq_recv } {
            // SAFETY: as above.
            Some(post) => unsafe { post(self.raw, &mut recv, &mut bad) },
            None => libc::EOPNOTSUPP,
        };
        if error != 0 {
            buffers.free_slot(slot);
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    fn resize(&self, max_wr: u32) -> Result<(), DeviceError> {
        let mut room = self.room.load(Ordering::Relaxed);
        if max_wr > self.device.attr.max_srq_wr {
            return Err(DeviceError::Limit);
        }
        self.posted.buffers.lock().make_room(max_wr)?;
        // What is larger than asked for needs no change, and not every device can make one.
        if max_wr > room {
            let mut attr = sys::SrqAttr {
                max_wr,
                max_sge: 0,
                srq_limit: 0,
            };
            self.modify(&mut attr, sys::SRQ_MAX_WR)
                .map_err(|_| DeviceError::Resources)?;
            // siw succeeds and does nothing.
            // SAFETY: the queue is valid, and there is room for its attributes.
            let known = unsafe { (self.device.adapter.lib.ibv_query_srq)(self.raw, &mut attr) };
            if known != 0 || attr.max_wr < max_wr {
                return Err(DeviceError::Resources);
            }
            room = attr.max_wr;
            self.room.store(room, Ordering::Relaxed);
        }
        let mut buffers = self.posted.buffers.lock();
        if buffers.used > max_wr {
            return Err(DeviceError::Limit);
        }
        buffers.limit = max_wr;
        Ok(())
    }

    fn arm_limit(&self, limit: u32) -> Result<(), DeviceError> {
        self.device.start_service();
        // The device compares only when it takes a buffer.
        let below = limit > 0 && self.left() < limit;
        let mut attr = sys::SrqAttr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: if below { 0 } else { limit },
        };
        let done = self.modify(&mut attr, sys::SRQ_LIMIT);
        if below {
            self.on_limit();
            return Ok(());
        }
        done.map_err(|_| DeviceError::Unsupported)
    }

    fn available(&self) -> Option<u32> {
        Some(self.left())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.device.adapter.unregister(self.token);
        self.device.adapter.srqs.release(self.posted.number);
        if !self.raw.is_null() {
            let _use = LibraryUse::begin();
            // SAFETY: ours, and queue pairs that use it hold a reference.
            unsafe { (self.device.adapter.lib.ibv_destroy_srq)(self.raw) };
        }
    }
}
