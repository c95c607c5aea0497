//! A queue pair of the device: made for one connection, destroyed when the connection has ended.
//!
//! Between connections there is a new one, to which receives can be posted already. The consumer's
//! queue pair ([`super::qp`]) stays the same.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::lock::Mutex;

use super::adapter::Target;
use super::completion_order::CompletionOrder;
use super::cq::Cq;
use super::datagram::{self, SentTo};
use super::driver::Ops;
use super::id::CmId;
use super::library_use::LibraryUse;
use super::mw::{Bind, BoundWindows};
use super::qp::{Parts, Qp};
use super::ring::{Kind, PostedWr, WrRing};
use super::service::Job;
use super::srq::Srq;
use super::wr_table::Numbered;
use super::{Pd, Verbs, limits, sys};
use crate::device::{Access, Completion, DeviceError, QpAttr, WcOp, WcStatus};

/// See the module.
pub(super) struct Hw {
    pub device: Arc<Verbs>,
    /// A copy of the functions of the adapter, which saves posts two loads.
    pub ops: Ops,
    /// The queue pair of libibverbs, null once closed. Posts use it under the lock of their queue,
    /// everything else under `open`.
    raw: AtomicPtr<sys::Qp>,
    /// Held by calls that use the queue pair, so that it is not closed meanwhile.
    open: Mutex<()>,
    /// Number of the queue pair on the wire.
    pub qp_num: u32,
    /// Number in the `wr_id` of its completions.
    number: u64,
    /// Number by which events name the queue pair. None has it before or afterwards.
    pub token: u64,
    /// [`QpAttr::context`].
    pub context: u64,
    /// Requests that are outstanding.
    pub send: WrRing,
    /// Receives that are outstanding, unless they are from a shared receive queue.
    pub recv: WrRing,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub srq: Option<Arc<Srq>>,
    pub attr: QpAttr,
    /// Whether RDMA reads and atomic operations may be outstanding: by its attributes, and by what the peer of the
    /// connection answers.
    pub may_fetch: AtomicBool,
    /// Restores the order of completions, for a device that completes requests in any order.
    pub order: Option<Mutex<CompletionOrder>>,
    /// Bytes of payload that the driver copies into a request.
    pub inline: u32,
    /// The address handles of the datagrams that were sent last, by slot.
    pub addresses: Mutex<SentTo>,
    qp: Weak<Qp>,
    /// Status of the first request that failed.
    failed: OnceLock<WcStatus>,
    /// Binds that are outstanding, by slot.
    binds: Mutex<BTreeMap<u32, Bind>>,
    /// Type 2 windows that are bound on this queue pair, or are being bound, by their keys. They are closed with
    /// it.
    windows: Mutex<BoundWindows>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs is thread-safe, and the objects are valid until `close`.
unsafe impl Send for Hw {}
// SAFETY: as above.
unsafe impl Sync for Hw {}

impl Numbered for Hw {
    #[inline]
    fn number(&self) -> u64 {
        self.number
    }
}

/// Why the device has not made a queue pair.
fn resources() -> DeviceError {
    let error = io::Error::last_os_error();
    limits::report("the creation of a queue pair", &error);
    match error.raw_os_error() {
        Some(libc::EINVAL) => DeviceError::Limit,
        _ => DeviceError::Resources,
    }
}

impl Hw {
    /// Makes a queue pair to which receives can be posted.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    pub fn new(
        device: &Arc<Verbs>,
        qp: &Weak<Qp>,
        parts: &Parts,
        attr: &QpAttr,
    ) -> Result<Arc<Hw>, DeviceError> {
        let adapter = &device.adapter;
        let max_recv_wr = match &parts.srq {
            Some(_) => 0,
            None => attr.max_recv_wr,
        };
        let send_cq = match &parts.send_cq {
            Some(cq) => cq.clone(),
            None => Cq::discarding(device, attr.max_send_wr)?,
        };
        let recv_cq = match (&parts.recv_cq, &parts.srq) {
            (Some(cq), _) => cq.clone(),
            (None, None) => Cq::discarding(device, max_recv_wr)?,
            // The consumer is to learn what became of shared buffers.
            (None, Some(_)) => return Err(DeviceError::Unsupported),
        };
        let no_memory = |_| DeviceError::Resources;
        let mut hw = Hw {
            // First, as nothing has to be undone if there is no memory.
            send: WrRing::new(attr.max_send_wr).map_err(no_memory)?,
            recv: WrRing::new(max_recv_wr)
                .map_err(no_memory)?
                .with_datagrams(attr.datagrams),
            device: device.clone(),
            ops: adapter.ops,
            raw: AtomicPtr::default(),
            open: Mutex::default(),
            qp_num: 0,
            number: adapter.queues.reserve().ok_or(DeviceError::Resources)?,
            token: adapter.register(Target::Qp(qp.clone())).keep(),
            context: attr.context,
            send_cq,
            recv_cq,
            srq: parts.srq.clone(),
            attr: *attr,
            may_fetch: AtomicBool::new(attr.max_rd_out > 0),
            order: device.siw.then(Mutex::default),
            inline: 0,
            addresses: Mutex::default(),
            qp: qp.clone(),
            failed: OnceLock::new(),
            binds: Mutex::default(),
            windows: Mutex::default(),
            pd: parts.pd.clone(),
        };
        hw.attach();
        if let Err(error) = hw.create() {
            adapter.queues.release(hw.number);
            hw.detach();
            return Err(error);
        }
        let hw = Arc::new(hw);
        adapter.queues.publish(&hw);
        if let Some(srq) = &hw.srq {
            srq.attach(&hw);
        }
        Ok(hw)
    }

    fn create(&mut self) -> Result<(), DeviceError> {
        let adapter = &self.device.adapter;
        let mut init = sys::QpInitAttr {
            qp_context: std::ptr::with_exposed_provenance_mut(self.token as usize),
            send_cq: self.send_cq.raw(),
            recv_cq: self.recv_cq.raw(),
            srq: self.srq.as_ref().map_or(null_mut(), |srq| srq.raw),
            cap: sys::QpCap {
                max_send_wr: self.send.limit().max(1),
                max_recv_wr: if self.srq.is_some() {
                    0
                } else {
                    self.recv.limit().max(1)
                },
                max_send_sge: self.attr.max_send_sge.max(1),
                max_recv_sge: self.attr.max_recv_sge.max(1),
                max_inline_data: 0,
            },
            qp_type: match self.attr.datagrams {
                true => sys::QPT_UD,
                false => sys::QPT_RC,
            },
            sq_sig_all: 0,
        };
        let cap = init.cap;
        let inline = self.device.params.tuning.inline;
        for inline in [inline, 0] {
            init.cap = sys::QpCap {
                max_inline_data: inline,
                ..cap
            };
            let _use = LibraryUse::begin();
            // SAFETY: the protection domain and the queues are valid, and `self` keeps them.
            let raw = unsafe { (adapter.lib.ibv_create_qp)(self.pd.raw, &mut init) };
            if !raw.is_null() {
                *self.raw.get_mut() = raw;
                // SAFETY: it was just made.
                self.qp_num = unsafe { (*raw).qp_num };
                self.inline = init.cap.max_inline_data.min(inline);
                break;
            }
        }
        if self.raw.get_mut().is_null() {
            return Err(resources());
        }
        match self.attr.datagrams {
            true => datagram::start(self),
            false => self.init(),
        }
        .map_err(|_| DeviceError::Resources)
    }

    /// Lets receives be posted before there is a connection.
    fn init(&self) -> io::Result<()> {
        let mut attr = zeroed_attr(sys::QPS_INIT);
        attr.port_num = self.device.port;
        attr.qp_access_flags = self.device.remote_rights(Access::REMOTE) as u32;
        let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask)
    }

    fn attach(&self) {
        self.send_cq.attach(false);
        if self.order.is_some() {
            self.send_cq.filter_notifications();
        }
        self.recv_cq.attach(self.attr.recv_solicited_only);
    }

    fn detach(&self) {
        self.send_cq.detach(false);
        self.recv_cq.detach(self.attr.recv_solicited_only);
    }

    /// The queue pair; null once it is closed.
    #[inline]
    pub fn raw(&self) -> *mut sys::Qp {
        self.raw.load(Ordering::Relaxed)
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes attributes.
    pub fn modify(&self, attr: &mut sys::QpAttr, mask: i32) -> io::Result<()> {
        let lib = self.device.adapter.lib;
        let _open = self.open.lock();
        let raw = self.raw();
        if raw.is_null() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let _use = LibraryUse::begin();
        // SAFETY: the queue pair is open and stays so.
        match unsafe { (lib.ibv_modify_qp)(raw, attr, mask) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Whether the device itself has put the queue pair into the error state.
    pub fn is_stopped(&self) -> bool {
        self.state() == Some(sys::QPS_ERR)
    }

    /// The state of the queue pair (`sys::QPS_*`) as the device has it; `None` if it does not say, or the queue pair is
    /// closed.
    pub fn state(&self) -> Option<c_int> {
        let mut attr = zeroed_attr(sys::QPS_INIT);
        let mut init = MaybeUninit::zeroed();
        let lib = self.device.adapter.lib;
        let _open = self.open.lock();
        let raw = self.raw();
        if raw.is_null() {
            return None;
        }
        // SAFETY: the queue pair is open and stays so; the places for the results are valid.
        let error = unsafe { (lib.ibv_query_qp)(raw, &mut attr, sys::QP_STATE, init.as_mut_ptr()) };
        (error == 0).then_some(attr.qp_state)
    }

    /// Has the device flush everything outstanding.
    pub fn stop(&self) {
        let _ = self.modify(&mut zeroed_attr(sys::QPS_ERR), sys::QP_STATE);
    }

    /// A request has failed with this status; the service thread ends the connection, or has a queue
    /// pair for datagrams go on. May be called while polling.
    #[cold]
    pub fn fail(&self, status: WcStatus) {
        if self.failed.set(status).is_ok() || self.attr.datagrams {
            let job = Job::Failed(self.qp.clone(), self.token);
            self.device.adapter.jobs.add(job);
        }
    }

    /// Status of the first request that failed, if one has.
    pub fn failure(&self) -> Option<WcStatus> {
        self.failed.get().copied()
    }

    /// Keeps a bind until it completes.
    pub fn add_bind(&self, slot: u32, bind: Bind) {
        // A type 1 window is not closed with the queue pair.
        if let Some(key) = bind.key() {
            self.windows.lock().add(key, &bind.window);
        }
        self.binds.lock().insert(slot, bind);
    }

    /// The device has not taken a bind.
    pub fn drop_bind(&self, slot: u32) {
        self.finish_bind(slot, false);
    }

    /// A bind has completed, or not been taken. Gives its context.
    fn finish_bind(&self, slot: u32, success: bool) -> Option<u64> {
        let bind = self.binds.lock().remove(&slot)?;
        let context = bind.context;
        if let Some(key) = bind.finish(success) {
            self.windows.lock().remove(key);
        }
        Some(context)
    }

    /// A peer has invalidated a key.
    #[cold]
    pub fn key_invalidated(&self, key: u32) {
        let window = self.windows.lock().get(key);
        if let Some(window) = window {
            window.key_invalidated(self.number, key);
        }
    }

    /// A request has completed. Gives the operation of the completion for a bind and for a datagram.
    #[inline]
    pub fn finish(&self, slot: u32, posted: &PostedWr, success: bool) -> Option<WcOp> {
        if posted.kind() != Kind::Bind {
            return posted.is_datagram().then_some(WcOp::SendDatagram);
        }
        let context = self.finish_bind(slot, success)?;
        Some(WcOp::Bind { context })
    }

    /// Destroys the queue pair, to which nothing is posted any more. Completions that the device
    /// has queued are lost.
    pub fn close(&self) {
        if let Some(raw) = self.take() {
            self.destroy(raw);
        }
    }

    /// The same, with the identifier of the connection or of the attempt to make one: once the kernel uses
    /// both no more.
    pub fn close_with(self: &Arc<Self>, id: Option<&Arc<CmId>>) {
        let Some(id) = id.filter(|id| id.is_waiting()) else {
            return self.close();
        };
        if let Some(raw) = self.take() {
            let (hw, raw) = (self.clone(), AtomicPtr::new(raw));
            id.after_answer(move || hw.destroy(raw.into_inner()));
        }
    }

    /// Takes the queue pair out, if it was not closed.
    fn take(&self) -> Option<*mut sys::Qp> {
        let _open = self.open.lock();
        let raw = self.raw.swap(null_mut(), Ordering::AcqRel);
        if raw.is_null() {
            return None;
        }
        self.device.adapter.unregister(self.token);
        // The device may have executed binds whose completions were not polled.
        for bind in self.binds.lock().values_mut() {
            bind.cancel();
        }
        for window in self.windows.lock().take() {
            window.queue_pair_closed(self.number);
        }
        Some(raw)
    }

    fn destroy(&self, raw: *mut sys::Qp) {
        let _use = LibraryUse::begin();
        // SAFETY: ours, and not used any more.
        unsafe { (self.device.adapter.lib.ibv_destroy_qp)(raw) };
    }

    /// Gives the number of the queue pair back, so that completions which a driver left behind are
    /// ignored, and completes what is still outstanding as flushed if `flush` is set.
    pub fn retire(&self, flush: bool) {
        self.device.adapter.queues.release(self.number);
        if let Some(srq) = &self.srq {
            srq.detach(self);
        }
        self.detach();
        if flush {
            self.flush_outstanding();
        }
        for (_, bind) in std::mem::take(&mut *self.binds.lock()) {
            bind.finish(false);
        }
    }

    /// Retires the oldest requests, up to the first whose success the device would report: they are done.
    /// The conditions are those of [`Hw::flush_outstanding`].
    pub fn retire_unreported(&self) {
        while let Some((slot, _)) = self.send.oldest().filter(|(_, posted)| !posted.signal()) {
            self.send.retire(slot);
        }
    }

    /// Completes what is outstanding as flushed. Nothing is posted, and the device completes nothing any
    /// more.
    pub fn flush_outstanding(&self) {
        self.flush(&self.send, &self.send_cq);
        self.flush(&self.recv, &self.recv_cq);
    }

    fn flush(&self, ring: &WrRing, cq: &Cq) {
        while let Some((slot, posted)) = ring.oldest() {
            ring.retire(slot);
            if posted.is_marker() {
                continue;
            }
            let order = self.order.as_ref().filter(|_| posted.kind() != Kind::Recv);
            if let Some((completion, notifies)) = order.and_then(|order| order.lock().take(slot)) {
                cq.push(completion, notifies);
                continue;
            }
            let op = self.finish(slot, &posted, false);
            cq.push(self.flushed(&posted, op), true);
        }
    }

    fn flushed(&self, posted: &PostedWr, op: Option<WcOp>) -> Completion {
        Completion {
            context: self.context,
            wr_id: posted.wr_id,
            op: op.unwrap_or(posted.kind().op()),
            from_srq: false,
            status: WcStatus::Flushed,
            byte_len: 0,
        }
    }
}

impl Drop for Hw {
    fn drop(&mut self) {
        self.close();
        self.device.adapter.unregister(self.token);
    }
}

/// Attributes with nothing but a state.
pub(super) fn zeroed_attr(state: i32) -> sys::QpAttr {
    // SAFETY: all zero is valid.
    let mut attr: sys::QpAttr = unsafe { MaybeUninit::zeroed().assume_init() };
    attr.qp_state = state;
    attr
}
