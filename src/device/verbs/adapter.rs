//! What one IA has open of a device: its context, the channels of its events, and the objects that
//! events are for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::lock::Mutex;

use super::address;
use super::blocking_calls::BlockingCalls;
use super::cq::Cq;
use super::device_event::{self, DeviceEvent};
use super::driver::Ops;
use super::hw::Hw;
use super::library::{Library, library};
use super::library_use::LibraryUse;
use super::listen::{ListenerState, RequestState};
use super::qp::Qp;
use super::service::Jobs;
use super::srq::{PostedBuffers, Srq};
use super::sys;
use super::unanswered::Unanswered;
use super::wr_table::WrTable;
use crate::delay;
use crate::descriptor::Foreign;
use crate::device::DeviceHandler;

/// The object that an event is for. The libraries hand back a number, never a pointer of ours: the
/// number of an object that was freed has no target.
#[derive(Clone)]
pub(super) enum Target {
    /// A completion queue.
    Cq(Weak<Cq>),
    /// A queue pair.
    Qp(Weak<Qp>),
    /// A shared receive queue.
    Srq(Weak<Srq>),
    /// An attempt of a queue pair to connect, by its number, and the connection it led to.
    Conn(Weak<Qp>, u64),
    /// A listener.
    Listener(Weak<ListenerState>),
    /// A connection request that was not answered.
    Request(Weak<RequestState>),
}

#[derive(Default)]
struct Targets {
    /// The last number that was given out.
    last: u64,
    map: BTreeMap<u64, Target>,
    /// The numbers of queue pairs that take no more buffers of their shared receive queue.
    done_with_srq: BTreeSet<u64>,
}

/// Connection requests that may wait for TCP at the same time. A program that tries a host that does
/// not answer once a second, and gives up each time, has some 130 of them.
const MAX_CONNECT_CALLS: usize = 256;

/// See the module.
pub(super) struct Adapter {
    pub lib: &'static Library,
    /// Name of the device.
    pub name: String,
    /// Number of the port of the IA.
    pub port: u8,
    /// The device is one for iWARP.
    pub iwarp: bool,
    pub ctx: *mut sys::Context,
    pub ops: Ops,
    /// Channel of the events of completion queues.
    pub comp_channel: *mut sys::CompChannel,
    /// Channel of the events of connections.
    pub cm_channel: *mut sys::EventChannel,
    /// The queue pairs by the number in the `wr_id` of their completions.
    pub queues: WrTable<Hw>,
    /// The buffers of shared receive queues, by the same.
    pub srqs: WrTable<PostedBuffers>,
    /// Work for the service thread.
    pub jobs: Jobs,
    /// Connection requests that block the thread which sends them.
    pub connect_calls: Arc<BlockingCalls>,
    /// Connection requests whose identifiers and queue pairs the kernel still uses.
    pub unanswered: Unanswered,
    targets: Mutex<Targets>,
    /// Events of the device that were read and not handled.
    device_events: Mutex<VecDeque<DeviceEvent>>,
    /// The device is expected to report that a queue pair which was stopped takes no more buffers of its shared
    /// receive queue: all do but some of those made of software. Set by such a report, cleared if there was none.
    pub reports_last_buffer: AtomicBool,
    /// See [`Adapter::has_failed`].
    failed: AtomicBool,
    /// Receives the failure of the device.
    pub handler: OnceLock<Arc<dyn DeviceHandler>>,
    /// The descriptors of the context and the channels, which a forked child closes: the kernel ends connections and
    /// gives ports back when the last copy is closed.
    descriptors: Vec<Foreign>,
}

// SAFETY: the libraries are thread-safe, and the pointers stay valid until the drop.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Drop for Adapter {
    fn drop(&mut self) {
        let _use = LibraryUse::begin();
        self.descriptors.clear();
        // SAFETY: all of them are ours and not used any more; objects that are made from them hold
        // a reference to the adapter.
        unsafe {
            if !self.comp_channel.is_null() {
                (self.lib.ibv_destroy_comp_channel)(self.comp_channel);
            }
            (self.lib.ibv_close_device)(self.ctx);
            (self.lib.rdma_destroy_event_channel)(self.cm_channel);
        }
    }
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DevicePort {
    /// Name of the RDMA device.
    pub device: String,
    /// Number of the port.
    pub port: u8,
    /// `sys::TRANSPORT_*`.
    pub transport: c_int,
}

/// A channel for connection events, with which addresses are looked up. Dropping it closes it.
pub(super) struct Probe {
    lib: &'static Library,
    channel: *mut sys::EventChannel,
    /// That of the channel.
    descriptor: Option<Foreign>,
}

impl Probe {
    /// Opens a channel.
    pub fn open(lib: &'static Library) -> Result<Probe, String> {
        // Until the descriptor is noted.
        let _use = LibraryUse::begin_opening();
        // SAFETY: no arguments.
        let channel = unsafe { (lib.rdma_create_event_channel)() };
        if channel.is_null() {
            let error = io::Error::last_os_error();
            return Err(format!("no connection manager: {error}"));
        }
        // SAFETY: the channel is open until the probe or the adapter is dropped, and no child reaches those.
        let descriptor = unsafe { Foreign::note((*channel).fd) };
        Ok(Probe {
            lib,
            channel,
            descriptor: Some(descriptor),
        })
    }

    /// The port of the RDMA device that has this address of the host, if one has.
    pub fn port_of(&self, address: SocketAddr) -> Option<DevicePort> {
        let mut id = null_mut();
        let mut storage = address::storage(address);
        let _use = LibraryUse::begin_opening();
        // SAFETY: the channel is open; the id is destroyed before we return; what it points to
        // is valid as long as it exists.
        unsafe {
            if (self.lib.rdma_create_id)(self.channel, &mut id, null_mut(), sys::PS_TCP) != 0 {
                return None;
            }
            let bound = (self.lib.rdma_bind_addr)(id, storage.as_mut_ptr()) == 0;
            let port = bound.then(|| port_of(id)).flatten();
            (self.lib.rdma_destroy_id)(id);
            port
        }
    }

    fn into_channel(self) -> (*mut sys::EventChannel, Option<Foreign>) {
        let mut probe = std::mem::ManuallyDrop::new(self);
        (probe.channel, probe.descriptor.take())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _use = LibraryUse::begin();
        self.descriptor = None;
        // SAFETY: opened by us, and all ids on it are destroyed.
        unsafe { (self.lib.rdma_destroy_event_channel)(self.channel) };
    }
}

/// # Safety
/// `id` is a bound id.
unsafe fn port_of(id: *mut sys::CmId) -> Option<DevicePort> {
    // SAFETY: the caller's promise; the device of a context has a terminated name.
    unsafe {
        let device = (*id).verbs.as_ref()?.device.as_ref()?;
        Some(DevicePort {
            device: device_name(device),
            port: (*id).port_num,
            transport: device.transport_type,
        })
    }
}

fn device_name(device: &sys::IbvDevice) -> String {
    // SAFETY: the library terminates the name.
    let name = unsafe { CStr::from_ptr(device.name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

impl Adapter {
    /// Opens the device of a port, with the channel of `probe`.
    ///
    /// # Errors
    /// What failed, for the log.
    pub fn open(probe: Probe, port: &DevicePort) -> Result<Adapter, String> {
        let lib = probe.lib;
        let device = port.device.as_str();
        let jobs = Jobs::new()?;
        // Until the descriptors are noted.
        let _use = LibraryUse::begin_opening();
        let ctx = open_device(lib, device)?;
        // SAFETY: the context is open.
        let Some(ops) = Ops::of(unsafe { &(*ctx).ops }) else {
            // SAFETY: as above, and nothing was made from the context.
            unsafe { (lib.ibv_close_device)(ctx) };
            return Err(format!("the driver of {device} is incomplete"));
        };
        let (cm_channel, descriptor) = probe.into_channel();
        let mut adapter = Adapter {
            queues: WrTable::new(),
            srqs: WrTable::new(),
            jobs,
            connect_calls: BlockingCalls::new(MAX_CONNECT_CALLS),
            unanswered: Unanswered::default(),
            lib,
            name: device.to_owned(),
            port: port.port,
            iwarp: port.transport == sys::TRANSPORT_IWARP,
            ctx,
            ops,
            comp_channel: null_mut(),
            cm_channel,
            targets: Mutex::default(),
            device_events: Mutex::default(),
            reports_last_buffer: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            handler: OnceLock::new(),
            descriptors: descriptor.into_iter().collect(),
        };
        // SAFETY: the context is open until the adapter is dropped, which no child reaches.
        let context = unsafe { [(*ctx).cmd_fd, (*ctx).async_fd].map(|fd| Foreign::note(fd)) };
        adapter.descriptors.extend(context);
        // SAFETY: the context is open.
        adapter.comp_channel = unsafe { (lib.ibv_create_comp_channel)(ctx) };
        if adapter.comp_channel.is_null() {
            let error = io::Error::last_os_error();
            return Err(format!("{device}: no completion channel: {error}"));
        }
        // SAFETY: the context is open, the channel was just made.
        let (async_fd, comp_fd, cm_fd) = unsafe {
            let comp = adapter.comp_channel.cast::<sys::Channel>();
            ((*ctx).async_fd, (*comp).fd, (*adapter.cm_channel).fd)
        };
        // SAFETY: as that of the context.
        adapter.descriptors.push(unsafe { Foreign::note(comp_fd) });
        for fd in [async_fd, comp_fd, cm_fd] {
            // SAFETY: the descriptor is open as long as the adapter.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::io::ioctl_fionbio(fd, true).map_err(|e| format!("{device}: {e}"))?;
        }
        Ok(adapter)
    }

    /// Whether the device has failed or was removed: it completes and reports nothing any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The device has failed or was removed; `false` if that was known.
    pub fn set_failed(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// Limits of the device and of a port.
    pub fn query(&self, port: u8) -> Result<(sys::DeviceAttr, sys::PortAttr), String> {
        let mut device = MaybeUninit::<sys::DeviceAttr>::zeroed();
        // SAFETY: the context is open; all zero is valid for the attributes, which have their size.
        let device = unsafe {
            let error = (self.lib.ibv_query_device)(self.ctx, device.as_mut_ptr());
            if error != 0 {
                return Err(format!("cannot query the device: error {error}"));
            }
            device.assume_init()
        };
        Ok((device, self.query_port(port)?))
    }

    /// State and limits of a port.
    pub fn query_port(&self, port: u8) -> Result<sys::PortAttr, String> {
        let mut attr = MaybeUninit::<sys::PortAttr>::zeroed();
        // SAFETY: as above.
        unsafe {
            let error = (self.lib.ibv_query_port)(self.ctx, port, attr.as_mut_ptr());
            if error != 0 {
                return Err(format!("cannot query port {port}: error {error}"));
            }
            Ok(attr.assume_init())
        }
    }

    /// The first GID of a port, in the order of the network, if it has one.
    pub fn first_gid(&self, port: u8) -> Option<[u8; 16]> {
        let mut gid = [0; 2];
        // SAFETY: the context is open, the place for the result valid.
        let error = unsafe { (self.lib.ibv_query_gid)(self.ctx, port, 0, &mut gid) };
        let octets = gid.map(u64::to_ne_bytes).concat();
        octets.try_into().ok().filter(|_| error == 0)
    }

    /// Gives out a number, whose events are for `target`.
    pub fn register(&self, target: Target) -> Token<'_> {
        let mut targets = self.targets.lock();
        // The libraries take it as a pointer; numbers of 32 bits come again.
        let mut token = targets.last;
        while token == targets.last || token == 0 || targets.map.contains_key(&token) {
            token = (token as usize).wrapping_add(1) as u64;
        }
        targets.last = token;
        targets.map.insert(token, target);
        Token(self, token)
    }

    /// The target of a number.
    pub fn target(&self, token: *mut c_void) -> Option<Target> {
        self.targets.lock().map.get(&(token.addr() as u64)).cloned()
    }

    /// Events of a number are for another target from now on.
    pub fn retarget(&self, token: u64, target: Target) {
        if let Some(entry) = self.targets.lock().map.get_mut(&token) {
            *entry = target;
        }
    }

    /// Takes a number back.
    pub fn unregister(&self, token: u64) {
        let mut targets = self.targets.lock();
        targets.map.remove(&token);
        targets.done_with_srq.remove(&token);
    }

    /// Reads the events of the device that have arrived, for the service thread to handle, but for those of which
    /// [`Adapter::is_done_with_srq`] tells. Any thread may do so.
    pub fn read_device_events(&self) {
        let mut events = self.device_events.lock();
        while let Some((kind, token)) = device_event::read(self) {
            delay::point("verbs.device_event");
            let mut targets = self.targets.lock();
            let target = targets.map.get(&token).cloned();
            if kind.event != sys::EVENT_QP_LAST_WQE_REACHED {
                drop(targets);
                let event = DeviceEvent {
                    kind,
                    token,
                    target,
                };
                events.push_back(event);
                self.jobs.wake();
            } else if target.is_some() {
                targets.done_with_srq.insert(token);
                self.reports_last_buffer.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Takes an event of the device that was read.
    pub fn take_device_event(&self) -> Option<DeviceEvent> {
        self.device_events.lock().pop_front()
    }

    /// The queue pair of this number, which was stopped, is to go on.
    pub fn takes_buffers_again(&self, token: u64) {
        self.targets.lock().done_with_srq.remove(&token);
    }

    /// Whether the queue pair of this number, which was stopped, takes no more buffers of its shared receive queue,
    /// by an event that was read.
    pub fn is_done_with_srq(&self, token: u64) -> bool {
        self.targets.lock().done_with_srq.contains(&token)
    }

    /// All queue pairs.
    pub fn queue_pairs(&self) -> Vec<Arc<Qp>> {
        let targets = self.targets.lock();
        let qps = targets.map.values().filter_map(|target| match target {
            Target::Qp(qp) => qp.upgrade(),
            _ => None,
        });
        // Collected before the lock is released: dropping the last reference takes it.
        let qps: Vec<_> = qps.collect();
        drop(targets);
        qps
    }
}

/// A number that [`Adapter::register`] gave out, taken back by the drop unless it is kept.
pub(super) struct Token<'a>(&'a Adapter, u64);

impl Token<'_> {
    /// As the libraries take it.
    pub fn as_ptr(&self) -> *mut c_void {
        with_exposed_provenance_mut(self.1 as usize)
    }

    /// The number, for an owner that calls [`Adapter::unregister`].
    pub fn keep(self) -> u64 {
        std::mem::ManuallyDrop::new(self).1
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.0.unregister(self.1);
    }
}

fn open_device(lib: &Library, name: &str) -> Result<*mut sys::Context, String> {
    let mut count = 0;
    // SAFETY: a valid place for the number.
    let list = unsafe { (lib.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return Err(format!("no RDMA devices: {}", io::Error::last_os_error()));
    }
    // SAFETY: the list has `count` devices, which are valid until it is freed; an open context
    // keeps its own.
    let ctx = unsafe {
        let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
        let found = devices.iter().find(|d| device_name(&***d) == name);
        let ctx = found.map(|device| (lib.ibv_open_device)(*device));
        (lib.ibv_free_device_list)(list);
        ctx
    };
    match ctx {
        Some(ctx) if !ctx.is_null() => Ok(ctx),
        Some(_) => Err(format!(
            "cannot open {name}: {}",
            io::Error::last_os_error()
        )),
        None => Err(format!(
            "no RDMA device {name}, or libibverbs has no driver for it"
        )),
    }
}

/// What a function of librdmacm returned, with `errno`.
pub(super) fn check(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The libraries, with a channel for looking up addresses.
pub(super) fn probe() -> Result<Probe, String> {
    Probe::open(library()?)
}
