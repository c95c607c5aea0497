//! The device trait: what a device can do.
//!
//! A device moves data and makes connections, and has no notion of DAT. Names are those of verbs
//! (queue pair, completion queue, memory region). The rules of DAT (states, flags, codes, thresholds)
//! are in [`crate::dapl`], which has no notion of sockets or verbs.
//!
//! # Upcalls and locks
//!
//! A device reports through three handlers: [`CqHandler`], [`QpHandler`], [`ListenHandler`].
//! It calls them with none of its own locks held, from any thread: one that is in a call of the
//! device itself (a post, [`Device::connect`], [`QueuePair::disconnect`]...), or one of its
//! own. Handlers may call back into the device.
//! Nothing is called back for a queue pair after [`QueuePair::destroy`] has returned, except an
//! upcall that another thread had begun before.

mod attempt;
mod attributes;
mod completion_queue;
mod connection;
mod connection_log;
mod datagram;
mod events;
mod identity;
pub(crate) mod local_address;
mod log_limit;
mod memory;
pub(crate) mod netif;
pub mod params;
pub(crate) mod qualifier;
mod queue_pair;
mod random;
pub mod soft;
pub(crate) mod threads;
pub mod verbs;
mod waker;
mod work_request;

use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::kernel::Instant;

pub use attributes::*;
pub use completion_queue::*;
pub use connection::*;
pub use datagram::*;
pub use identity::DeviceIdentity;
pub use memory::*;
pub use qualifier::Sought;
pub use queue_pair::*;
pub use work_request::*;

use self::params::Key;
use crate::handle::Guard;

/// How many connections the kernel may keep for a listener before the device accepts them; the kernel
/// takes its own limit if that is lower. The device accepts them at once, and their requests wait for
/// the consumer. A short queue in the kernel would only delay peers that connect at the same time.
const KERNEL_BACKLOG: i32 = 65536;

/// Receives what happens to a device as a whole. Implemented by the IA.
pub trait DeviceHandler: Send + Sync {
    /// The device has failed or was removed, and all its connections have ended. Called once.
    fn failed(&self);
}

/// Failure of a device call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// Out of memory, descriptors, ports or keys.
    Resources,
    /// The memory is not mapped, or not accessible as requested.
    BadMemory,
    /// The arguments exceed a limit of the device.
    Limit,
    /// The connection qualifier is taken.
    QualInUse,
    /// No connection qualifier is free.
    QualUnavailable,
    /// The process may not listen for the connection qualifier.
    QualPrivileged,
    /// The address cannot be used with this device.
    BadAddress,
    /// The device cannot do this at all.
    Unsupported,
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The thread was cancelled ([`crate::cancel`]).
    Cancelled,
    /// Woken, possibly without a reason: the caller checks again.
    Woken,
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// The result of [`Device::poll_events`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollOutcome {
    /// Nothing arrived.
    Nothing,
    /// Something arrived: there may be completions.
    Arrived,
    /// Only [`Device::progress`] can find out.
    NeedsProgress,
}

/// What hardware keeps a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HardwareCounter {
    /// The port.
    Port,
    /// The adapter.
    Adapter,
}

/// A device that is open.
pub trait Device: Sized + Send + Sync + 'static {
    /// Protection domain; dropping it frees it.
    type Pd: Send + Sync;
    /// Memory region.
    type Mr: MemoryRegion;
    /// Memory window.
    type Mw: MemoryWindow;
    /// Completion queue.
    type Cq: CompletionQueue;
    /// Shared receive queue.
    type Srq: SharedReceiveQueue;
    /// Queue pair.
    type Qp: QueuePair;
    /// Listener; dropping it stops listening.
    type Listener: Send + Sync;
    /// Connection request.
    type ConnRequest: ConnectionRequest;

    /// The name of the device in the library field of `dat.conf`: `builtin:NAME`.
    const NAME: &'static str;
    /// Number of the device among those of this library, for handle tags: 0 to 4.
    const INDEX: usize;
    /// Posts may be given segments where the consumer has them, who may not change them before the post
    /// returns: the device does not rely on finding what it has checked.
    const SEGMENTS_IN_PLACE: bool;
    /// Whether [`CompletionQueue::poll_plainly`], [`QueuePair::post_send_plainly`],
    /// [`QueuePair::post_write_plainly`] and [`QueuePair::post_recv_plainly`] are worth an attempt.
    const PLAIN_CALLS: bool = false;
    /// The parameters that [`Device::open`] takes.
    const KEYS: &'static [Key];

    /// The IAs that this machine offers without any configuration: names and parameters.
    fn discover() -> Vec<(String, String)>;
    /// Opens the device.
    ///
    /// `params` is the `ia_params` field of the `dat.conf` entry, without the parameters that
    /// [`crate::dapl`] takes.
    ///
    /// # Errors
    /// A message for the log: what is wrong with the parameters or the machine.
    fn open(params: &str) -> Result<Arc<Self>, String>;
    /// Sets what receives the events of the device as a whole, once. A device that cannot fail has none.
    fn set_handler(&self, _handler: Arc<dyn DeviceHandler>) {}
    /// Limits and identity.
    fn attr(&self) -> &DeviceAttr;
    /// The address of this interface adapter; the port is 0.
    fn address(&self) -> SocketAddr;
    /// The state of the port at this moment: the name that InfiniBand has for it.
    fn port_state(&self) -> &'static CStr {
        c"ACTIVE"
    }
    /// The value of a counter that the hardware keeps, by its name in the InfiniBand specification or
    /// that of the adapter; 0 if there is none.
    fn hardware_counter(&self, _of: HardwareCounter, _name: &str) -> u64 {
        0
    }
    /// A completion queue was empty: polls, inside the section of that poll, whether something
    /// arrived at the device since.
    fn poll_events(&self, guard: &Guard) -> PollOutcome;
    /// Gives the device the chance to work in the thread of a consumer that polls; returns
    /// at once. Called outside of sections, when [`Device::poll_events`] asks for it or in its
    /// place.
    fn progress(&self);
    /// Memory is about to be deregistered: what has arrived at the device before is placed where it belongs,
    /// as far as there are receives. An adapter has done so by itself; a device that places what arrives in calls
    /// of the consumer does it here. Called outside of sections.
    fn place_arrived(&self) {}
    /// How long a consumer that waits polls before it blocks, if that is worth while; a consumer
    /// that does not poll at all need not call [`Device::progress`] before it blocks.
    fn spin(&self) -> Duration;
    /// A consumer blocks, until `word` is not `value` any more: from now on the device serves
    /// itself. It may do so in this thread, and then returns when that is over. `None` if the
    /// thread is to sleep in another way.
    fn block(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> Option<Wake>;
    /// Wakes the thread that is in [`Device::block`] for this word, which has been changed. False
    /// if there is none, or it was woken before.
    fn unblock(&self, word: &AtomicU32) -> bool;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    fn alloc_pd(self: &Arc<Self>) -> Result<Self::Pd, DeviceError>;
    /// Registers `len` bytes at `addr`, whose addresses are those of the memory.
    ///
    /// # Errors
    /// As [`Device::reg_mr_addressed`].
    fn reg_mr(
        self: &Arc<Self>,
        pd: &Self::Pd,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Self::Mr, DeviceError> {
        self.reg_mr_addressed(pd, addr, len, access, Addressing::Virtual)
    }
    /// Registers `len` bytes of memory at `addr`.
    ///
    /// # Errors
    /// [`DeviceError::BadMemory`] if the range is not mapped or not accessible as asked,
    /// [`DeviceError::Unsupported`] if the device cannot address this memory so,
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    fn reg_mr_addressed(
        self: &Arc<Self>,
        pd: &Self::Pd,
        addr: u64,
        len: u64,
        access: Access,
        addressing: Addressing,
    ) -> Result<Self::Mr, DeviceError>;
    /// Makes a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Arc<Self::Cq>, DeviceError>;
    /// Makes a shared receive queue for `max_wr` buffers of up to `max_sge` segments.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`], [`DeviceError::Unsupported`].
    fn create_srq(
        self: &Arc<Self>,
        pd: &Self::Pd,
        max_wr: u32,
        max_sge: u32,
        handler: Arc<dyn SrqHandler>,
    ) -> Result<Arc<Self::Srq>, DeviceError>;
    /// Makes a memory window, which is closed.
    ///
    /// # Errors
    /// [`DeviceError::Resources`]; [`DeviceError::Unsupported`] without windows of this scope.
    fn alloc_mw(
        self: &Arc<Self>,
        pd: &Self::Pd,
        scope: WindowScope,
    ) -> Result<Arc<Self::Mw>, DeviceError>;
    /// Queues the bind of a memory window and gives the key it will have. The old key dies
    /// and the new one lives when the bind completes; later requests of the queue pair wait
    /// for it. The caller has checked that window, region and queue pair are in one protection
    /// domain and that the range is inside the region.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_bind(qp: &Arc<Self::Qp>, wr: &BindWr<'_, Self>) -> Result<u32, PostError>;
    /// Sends a datagram. The completion does not tell whether it has arrived.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was sent then. [`PostError::Unsupported`] if this is no queue pair
    /// for datagrams, or the address handle is of another device.
    fn post_datagram(qp: &Arc<Self::Qp>, wr: &DatagramWr<'_>) -> Result<(), PostError>;
    /// Makes a queue pair. Work requests of a queue without completion queue are executed like
    /// others, and their completions are discarded; with a shared receive queue the queue pair takes
    /// no receives of its own.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    fn create_qp(
        self: &Arc<Self>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
        handler: Arc<dyn QpHandler>,
    ) -> Result<Arc<Self::Qp>, DeviceError>;
    /// Gives a queue pair that has no connection yet other parts and attributes. Receives that
    /// are posted stay. The context must not change.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`]; nothing has changed then.
    fn modify_qp(
        self: &Arc<Self>,
        qp: &Arc<Self::Qp>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError>;

    /// Listens for connection requests to `qual`, which may use all 64 bits.
    ///
    /// # Errors
    /// [`DeviceError::QualInUse`], [`DeviceError::QualPrivileged`], [`DeviceError::Resources`].
    fn listen(
        self: &Arc<Self>,
        qual: u64,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<Self::Listener, DeviceError>;
    /// Listens on a qualifier that the device chooses, between 1024 and 65535.
    ///
    /// # Errors
    /// [`DeviceError::QualUnavailable`], [`DeviceError::Resources`].
    fn listen_any(
        self: &Arc<Self>,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<(Self::Listener, u64), DeviceError>;
    /// Starts to connect; the outcome is a [`CmEvent`]. The port of `remote` is ignored. A queue pair
    /// for datagrams asks where the peer receives them.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an address this device can never reach,
    /// [`DeviceError::Resources`].
    fn connect(
        self: &Arc<Self>,
        qp: &Arc<Self::Qp>,
        remote: SocketAddr,
        sought: impl Into<Sought>,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<(), DeviceError>;
    /// Accepts a request on a queue pair; [`CmEvent::Established`] follows, or
    /// [`CmEvent::AcceptError`] if the peer gave up meanwhile. On a queue pair for datagrams
    /// [`CmEvent::Resolved`] follows.
    ///
    /// # Errors
    /// [`DeviceError::Resources`], [`DeviceError::Unsupported`] if the request is for a queue pair of
    /// the other kind.
    fn accept(
        self: &Arc<Self>,
        request: Self::ConnRequest,
        qp: &Arc<Self::Qp>,
        private_data: &[u8],
    ) -> Result<(), DeviceError>;
    /// Refuses a request in the name of the consumer: the peer sees
    /// [`CmEvent::PeerRejected`].
    fn reject(self: &Arc<Self>, request: Self::ConnRequest, private_data: &[u8]);
}
