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
mod completion_queue;
mod connection_log;
mod datagram;
mod events;
mod identity;
pub(crate) mod local_address;
mod log_limit;
pub(crate) mod netif;
pub mod params;
pub(crate) mod qualifier;
mod random;
pub mod soft;
pub(crate) mod threads;
mod types;
pub mod verbs;

use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::kernel::Instant;

pub use completion_queue::*;
pub use datagram::*;
pub use identity::DeviceIdentity;
pub use qualifier::Sought;
pub use types::*;

use self::params::Key;
use crate::handle::Guard;
use crate::handle::pin::pin;

/// How many connections the kernel may keep for a listener before the device accepts them; the kernel
/// takes its own limit if that is lower. The device accepts them at once, and their requests wait for
/// the consumer. A short queue in the kernel would only delay peers that connect at the same time.
const KERNEL_BACKLOG: i32 = 65536;

/// Receives what happens to a device as a whole. Implemented by the IA.
pub trait DeviceHandler: Send + Sync {
    /// The device has failed or was removed, and all its connections have ended. Called once.
    fn failed(&self);
}

/// Receives what happens to a queue pair. Implemented by the EP.
pub trait QpHandler: Send + Sync {
    /// The connection changed. Each connection attempt ends in exactly one of the events
    /// that end it.
    ///
    /// No message of the peer is delivered before the handler has returned from
    /// [`CmEvent::Established`], or has called [`QueuePair::start_receiving`].
    fn connection(&self, event: CmEvent);
    /// The queue pair holds more buffers of its shared receive queue than the soft mark of
    /// [`QueuePair::set_recv_watermarks`].
    fn soft_watermark(&self);
}

/// Receives the events of a shared receive queue. Implemented by the SRQ.
pub trait SrqHandler: Send + Sync {
    /// Fewer buffers are left than [`SharedReceiveQueue::arm_limit`] asked for; the arming is
    /// used up.
    fn limit(&self);
    /// The device has lost the queue: no more of its buffers are used.
    fn failed(&self);
}

/// Receives the connection requests of a listener. Implemented by PSP and RSP.
pub trait ListenHandler<D: Device>: Send + Sync {
    /// A connection request arrived. Dropping the request rejects it as
    /// [`CmEvent::NonPeerRejected`].
    fn request(&self, request: D::ConnRequest);
}

/// A connection request that waits for accept or reject. Dropping it refuses the peer.
pub trait ConnectionRequest: Send + Sync {
    /// Private data of the connecting consumer.
    fn private_data(&self) -> &[u8];
    /// Address of the peer.
    fn remote_addr(&self) -> SocketAddr;
    /// Local address at which the request arrived.
    fn local_addr(&self) -> SocketAddr;
    /// The qualifier that the peer connects to.
    fn conn_qual(&self) -> u64;
    /// RDMA reads the peer answers at a time, where the transport carries it.
    fn peer_rd_in(&self) -> Option<u32>;
    /// RDMA reads the peer wants to have outstanding, where the transport carries it.
    fn peer_rd_out(&self) -> Option<u32>;
    /// Whether the peer asks where datagrams are received, rather than for a connection.
    fn is_for_datagrams(&self) -> bool;
}

/// A registered memory region. Dropping it deregisters: when the drop has returned no access,
/// local or remote, reaches the memory.
pub trait MemoryRegion: Send + Sync {
    /// Key for local segments.
    fn lkey(&self) -> u32;
    /// Key for peers; 0 if the region permits no remote access.
    fn rkey(&self) -> u32;
}

/// A memory window: a part of a memory region, open to peers under a key of its own, which
/// changes with every bind. Dropping it closes it.
pub trait MemoryWindow: Send + Sync {
    /// Closes it for good, whatever still refers to it: when this returns no peer reaches
    /// memory through it.
    fn close(&self);

    /// What peers reach through it.
    fn opening(&self) -> WindowOpening {
        WindowOpening::Unknown
    }
}

/// What peers reach through a memory window, as far as its device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowOpening {
    /// The device does not know.
    Unknown,
    /// So many binds are neither executed nor given up.
    Binding(u32),
    /// What it was bound to, under this key; 0 for nothing: it was never bound, was bound to nothing, or a peer has
    /// invalidated its key.
    Open(u32),
}

/// A bind of a memory window.
pub struct BindWr<'a, D: Device> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Returned in the completion, in [`WcOp::Bind`].
    pub context: u64,
    /// The window.
    pub window: &'a Arc<D::Mw>,
    /// The region that holds the range; `None` closes the window.
    pub region: Option<&'a D::Mr>,
    /// Start of the range, in the [`Addressing`] of the region.
    pub addr: u64,
    /// Bytes of the range.
    pub len: u64,
    /// How peers name the bytes of the range.
    pub addressing: Addressing,
    /// What peers may do; only the remote bits count.
    pub access: Access,
    /// Behaviour.
    pub flags: WrFlags,
}

/// A shared receive queue: buffers for the messages of any of its queue pairs.
pub trait SharedReceiveQueue: Send + Sync {
    /// Queues a receive buffer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError>;
    /// Changes how many buffers fit.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if more are queued, or the device cannot hold so many.
    fn resize(&self, max_wr: u32) -> Result<(), DeviceError>;
    /// Arms one [`SrqHandler::limit`], called when fewer than `limit` buffers are queued, at once
    /// if that is so already; 0 disarms.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn arm_limit(&self, limit: u32) -> Result<(), DeviceError>;
    /// Buffers that are queued; `None` if the device does not report that.
    fn available(&self) -> Option<u32>;
}

/// What an attempt to post plainly has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlainPost {
    /// All that there is to do.
    Posted,
    /// Nothing, as always with such a queue pair.
    NotHere,
    /// Nothing, as rarely.
    Otherwise,
}

/// A queue pair and its connection.
pub trait QueuePair: Send + Sync {
    /// Queues a request, in a section of the caller.
    ///
    /// After the connection has ended the request is taken and completes as
    /// [`WcStatus::Flushed`].
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_send_in(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError>;
    /// The same in a section of its own.
    ///
    /// # Errors
    /// As above.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_in(wr, &pin())
    }
    /// Queues a receive buffer, in a section of the caller. That is possible in any state; after the
    /// connection has ended the buffer is flushed at once.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_recv_in(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError>;
    /// The same in a section of its own.
    ///
    /// # Errors
    /// As above.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_in(wr, &pin())
    }
    /// [`QueuePair::post_send_in`] of a message of one segment, without flags, if that takes the shortest way and
    /// `errno` keeps its value.
    ///
    /// # Safety
    /// The thread holds no [biased lock](crate::handle::Biased) as its owner.
    #[inline(always)]
    unsafe fn post_send_plainly(&self, _segment: Sge, _wr_id: u64, _guard: &Guard) -> PlainPost {
        PlainPost::NotHere
    }
    /// The same of an RDMA write.
    ///
    /// # Safety
    /// As [`QueuePair::post_send_plainly`].
    #[inline(always)]
    unsafe fn post_write_plainly(
        &self,
        _segment: Sge,
        _remote: Remote,
        _wr_id: u64,
        _guard: &Guard,
    ) -> PlainPost {
        PlainPost::NotHere
    }
    /// [`QueuePair::post_recv_in`] of a buffer of one segment, without flags, if that needs no call.
    ///
    /// # Safety
    /// As [`QueuePair::post_send_plainly`].
    #[inline(always)]
    unsafe fn post_recv_plainly(&self, _segment: Sge, _wr_id: u64, _guard: &Guard) -> PlainPost {
        PlainPost::NotHere
    }
    /// The consumer has been notified that the connection is established: receives complete, and
    /// peers reach memory, from now on. The handler may call this within [`CmEvent::Established`];
    /// the device does so when the handler has returned. Without effect if there is no connection
    /// or the queue pair receives already.
    fn start_receiving(&self);
    /// Ends the connection or its establishment. Graceful: after the requests that are queued.
    /// Abrupt: outstanding requests are flushed. [`CmEvent::Disconnected`] follows, also when
    /// establishment is given up; no event follows if there was neither.
    fn disconnect(&self, graceful: bool) {
        self.disconnect_attempt(self.attempt(), graceful);
    }
    /// [`QueuePair::disconnect`], of the connection that this attempt has become: without effect if the queue pair was
    /// reset since and another one was begun.
    fn disconnect_attempt(&self, attempt: u64, graceful: bool);
    /// Number of the last attempt to make a connection that was begun, by either end.
    fn attempt(&self) -> u64;
    /// Back to the state after creation; only after the connection has ended. Completions of
    /// the old connection are removed from the completion queues. Gives how many buffers of the
    /// shared receive queue are lost with them.
    fn reset(&self) -> u32;
    /// Ends the connection without an event; receives and requests vanish, and so do their
    /// completions that are still queued. Gives how many buffers of the shared receive queue
    /// are lost with them.
    fn destroy(&self) -> u32;
    /// Requests outstanding: posted, not completed.
    fn send_outstanding(&self) -> u32;
    /// Receives outstanding: posted, or taken from the shared receive queue, not completed.
    fn recv_outstanding(&self) -> u32;
    /// Sets marks on the number of buffers taken from the shared receive queue and not
    /// completed: above `soft` one [`QpHandler::soft_watermark`] follows, at once if that is
    /// so; above `hard` the connection breaks. `None` is no mark.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError>;
    /// How the two ends of the connection, or of the last one, reach each other, as the log names that;
    /// `None` if that is not decided.
    fn path(&self) -> Option<String>;
    /// Local and remote address of the connection or of the attempt.
    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)>;
}

/// What a queue pair is put together from.
pub struct QpParts<'a, D: Device> {
    /// Protection domain.
    pub pd: &'a D::Pd,
    /// For requests; `None` to discard their completions.
    pub send_cq: Option<&'a Arc<D::Cq>>,
    /// For receives; `None` as above, but not with a shared receive queue, whose owner has to learn
    /// what became of each buffer.
    pub recv_cq: Option<&'a Arc<D::Cq>>,
    /// The shared receive queue, if receives are not posted to the queue pair.
    pub srq: Option<&'a Arc<D::Srq>>,
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
