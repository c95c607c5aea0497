//! What devices and their users pass to each other: work requests, completions, limits.

use std::fmt;

use super::{DeviceIdentity, Resolved};

bitflags::bitflags! {
    /// What a memory region or window allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        /// Source of sends and RDMA writes.
        const LOCAL_READ = 0x01;
        /// Target of RDMA reads of peers.
        const REMOTE_READ = 0x02;
        /// Target of receives and of data that RDMA reads fetch.
        const LOCAL_WRITE = 0x10;
        /// Target of RDMA writes of peers.
        const REMOTE_WRITE = 0x20;
        /// Target of atomic operations of peers.
        const REMOTE_ATOMIC = 0x40;
    }
}

impl Access {
    /// All that peers may be allowed to do.
    pub const REMOTE: Access = Access::REMOTE_READ
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC);
}

/// What the addresses of a memory region or window are, by which local segments and peers name its
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Addressing {
    /// Those of the memory; of a window: those of its region.
    #[default]
    Virtual,
    /// They count from the first byte, which is at 0.
    ZeroBased,
}

bitflags::bitflags! {
    /// How a work request behaves.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WrFlags: u8 {
        /// No completion on success; errors and flushes complete all the same.
        const UNSIGNALED = 0x01;
        /// Send: the matching receive is a solicited completion.
        const SOLICITED = 0x02;
        /// Start after all earlier RDMA reads of the queue pair have completed.
        const FENCE = 0x04;
        /// The successful completion is queued but does not notify.
        const QUIET = 0x08;
        /// Receive: keys of no region are no error of the post. A message that comes to such memory is one.
        const ANY_KEY = 0x10;
    }
}

/// A local segment: `len` bytes at `addr` inside the memory region of `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the [`Addressing`] of the region.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

impl Sge {
    /// No memory.
    pub const NONE: Sge = Sge {
        addr: 0,
        len: 0,
        lkey: 0,
    };

    /// A copy that is made member by member, of a segment that was just written so. A load of several members
    /// at once would wait until their stores have left the store buffer of the processor.
    #[inline(always)]
    pub fn by_members(&self) -> Sge {
        // SAFETY: members of a structure that is borrowed; volatile loads are not merged.
        unsafe {
            Sge {
                addr: (&raw const self.addr).read_volatile(),
                len: (&raw const self.len).read_volatile(),
                lkey: (&raw const self.lkey).read_volatile(),
            }
        }
    }
}

/// A remote range: the target of an RDMA write, the source of an RDMA read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address in the peer's memory, in the [`Addressing`] of the region or window.
    pub addr: u64,
    /// Remote key (STag) the peer gave.
    pub rkey: u32,
}

/// An operation on a word of 8 bytes that nothing comes between. Its result is the word as it was
/// before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds a number, modulo 2^64.
    FetchAdd {
        /// The number.
        add: u64,
    },
    /// Replaces the word if it has a certain value.
    CompareSwap {
        /// The value.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
}

/// Bytes of the word of an [`AtomicOp`]: its address is a multiple of them.
pub const ATOMIC_LEN: u32 = 8;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// A message for the peer's next receive.
    Send,
    /// The same, and the peer's key `rkey` is invalidated before the receive completes.
    SendInvalidate {
        /// The key to invalidate.
        rkey: u32,
    },
    /// Local segments go to remote memory.
    RdmaWrite(Remote),
    /// Remote memory is read to local segments. `len` bytes are read; the local segments, which
    /// hold at least that, are filled in order.
    RdmaRead {
        /// Where to read.
        remote: Remote,
        /// How much to read, in bytes.
        len: u32,
    },
    /// Local segments go to remote memory. Then a receive of the peer completes, in which nothing is
    /// placed; its completion has the number.
    RdmaWriteImm {
        /// Where to write.
        remote: Remote,
        /// The number, as 4 bytes that go to the peer in the order of memory.
        imm: u32,
    },
    /// A word of remote memory is changed. What it was before goes to the first
    /// [`ATOMIC_LEN`] bytes of the local segments.
    Atomic {
        /// Where the word is.
        remote: Remote,
        /// The change.
        op: AtomicOp,
    },
}

impl SendOp {
    /// Whether the operation reaches memory of the peer, which no receive of the peer names.
    #[inline(always)]
    pub fn is_rdma(&self) -> bool {
        match self {
            SendOp::Send | SendOp::SendInvalidate { .. } => false,
            SendOp::RdmaWrite(_)
            | SendOp::RdmaRead { .. }
            | SendOp::RdmaWriteImm { .. }
            | SendOp::Atomic { .. } => true,
        }
    }

    /// Whether not every transport has the operation.
    #[inline(always)]
    pub fn is_extended(&self) -> bool {
        matches!(self, SendOp::RdmaWriteImm { .. } | SendOp::Atomic { .. })
    }

    /// Whether the operation fetches memory of the peer. Such operations count for the limits of RDMA
    /// reads, and write to their local segments.
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        matches!(self, SendOp::RdmaRead { .. } | SendOp::Atomic { .. })
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local segments, in order. The array may be reused when the post returns.
    pub sges: &'a [Sge],
    /// Behaviour.
    pub flags: WrFlags,
}

/// A buffer for the receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Local segments, filled in order. The array may be reused when the post returns.
    pub sges: &'a [Sge],
    /// Only [`WrFlags::QUIET`] has a meaning here.
    pub flags: WrFlags,
}

/// Which operation a completion is of. The order is that of `DAT_DTOS`, and those that few programs use
/// are the last: so the conversion of the others is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcOp {
    /// [`SendOp::Send`] and [`SendOp::SendInvalidate`].
    Send,
    /// [`SendOp::RdmaWrite`].
    RdmaWrite,
    /// [`SendOp::RdmaRead`].
    RdmaRead,
    /// A receive.
    Recv,
    /// A memory window was bound.
    Bind {
        /// As given with the bind.
        context: u64,
    },
    /// [`SendOp::RdmaWriteImm`].
    RdmaWriteImm,
    /// [`SendOp::Atomic`] with [`AtomicOp::FetchAdd`].
    FetchAdd,
    /// [`SendOp::Atomic`] with [`AtomicOp::CompareSwap`].
    CompareSwap,
    /// A receive whose message invalidated a key of this end.
    RecvInvalidate {
        /// The key that is now invalid.
        rkey: u32,
    },
    /// A receive whose message came with a number, or with 4 bytes in the order of memory.
    RecvImm {
        /// The number.
        imm: u32,
    },
    /// A receive that [`SendOp::RdmaWriteImm`] of the peer has completed. The length is that of what
    /// the peer has written; nothing is in the buffer.
    RecvRdmaImm {
        /// The number.
        imm: u32,
    },
    /// [`DatagramWr`](super::DatagramWr).
    SendDatagram,
    /// A receive of a datagram. Its length counts the
    /// [header](super::DATAGRAM_HEADER_LEN) too.
    RecvDatagram,
}

/// How a work request ended (the verbs' names). The numbers are those of `DAT_DTO_COMPLETION_STATUS`, so
/// that the conversion is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcStatus {
    /// Done.
    Success,
    /// The queue pair left the connected state before execution.
    Flushed,
    /// The message was longer than the receive buffer.
    LocalLength,
    /// The queue pair itself is inconsistent.
    LocalQpOperation,
    /// A local segment is not, or no longer, in a region with the access needed.
    LocalProtection,
    /// The response of the peer is invalid.
    BadResponse,
    /// Remote key, range or access wrong.
    RemoteAccess,
    /// The peer could not execute the request.
    RemoteOperation,
    /// The transport gave up.
    RetryExceeded,
    /// The peer had no receive buffer.
    ReceiverNotReady,
    /// The bind of a memory window failed.
    BindFailed = 11,
}

/// For the log.
impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "done",
            WcStatus::Flushed => "flushed",
            WcStatus::LocalLength => "the message is longer than the receive",
            WcStatus::LocalQpOperation => "the endpoint cannot execute it",
            WcStatus::LocalProtection => "its local memory is not registered for it",
            WcStatus::BadResponse => "the response of the peer is invalid",
            WcStatus::RemoteAccess => "the memory of the peer is not open to it",
            WcStatus::RemoteOperation => "the peer could not execute it",
            WcStatus::RetryExceeded => "the peer does not acknowledge it",
            WcStatus::ReceiverNotReady => "the peer has posted no receive",
            WcStatus::BindFailed => "the bind of a memory window failed",
        })
    }
}

impl WcOp {
    /// The operation, if it is one without details, as nearly all are.
    #[inline(always)]
    pub fn plain(&self) -> Option<WcOp> {
        match self {
            WcOp::Send => Some(WcOp::Send),
            WcOp::RdmaWrite => Some(WcOp::RdmaWrite),
            WcOp::RdmaRead => Some(WcOp::RdmaRead),
            WcOp::Recv => Some(WcOp::Recv),
            _ => None,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// [`QpAttr::context`] of the queue pair.
    pub context: u64,
    /// As posted.
    pub wr_id: u64,
    /// The operation.
    pub op: WcOp,
    /// The buffer is one of a shared receive queue.
    pub from_srq: bool,
    /// How it ended.
    pub status: WcStatus,
    /// Send and write: bytes posted; receive and read: bytes placed. Undefined on error.
    pub byte_len: u32,
}

/// Why a post was refused; nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The queue holds all the work it can.
    QueueFull,
    /// More segments than the queue pair was made for.
    TooManySegments,
    /// The segments hold fewer bytes than an RDMA read fetches.
    Length,
    /// The message, or the RDMA operation, has more bytes than the queue pair was made for.
    TooLong,
    /// A segment's key is that of no memory region.
    Key,
    /// The range of a segment is not inside the region of its key.
    Bounds,
    /// The region of a segment does not allow what the request needs.
    Access,
    /// The region of a segment belongs to another protection domain.
    Protection,
    /// The queue pair has no connection yet (requests only).
    NotConnected,
    /// The device, or the connection, has no such operation.
    Unsupported,
    /// The word of an atomic operation is not aligned. Not every device notices that: with others the
    /// request fails.
    Misaligned,
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

/// Limits and identity of a device.
#[derive(Clone, Debug)]
pub struct DeviceAttr {
    /// For `DAT_IA_ATTR.vendor_name`.
    pub vendor_name: String,
    /// What the device is known by.
    pub identity: DeviceIdentity,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// RDMA reads of peers that one queue pair answers at a time.
    pub max_rd_in: u32,
    /// RDMA reads one queue pair may have outstanding.
    pub max_rd_out: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Segments of a send, receive or RDMA write.
    pub max_sge: u32,
    /// Local segments of an RDMA read.
    pub max_read_sge: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Bytes of one message.
    pub max_message_size: u32,
    /// Bytes of one RDMA operation.
    pub max_rdma_size: u32,
    /// Whether there are atomic operations ([`SendOp::Atomic`]).
    pub atomics: bool,
    /// Whether there are RDMA writes with immediate data ([`SendOp::RdmaWriteImm`]).
    pub immediate: bool,
    /// Whether there are regions and windows with [`Addressing::ZeroBased`].
    pub zero_based: bool,
    /// Bytes of one datagram; 0 if the device has none.
    pub max_datagram: u32,
    /// Memory windows; 0 if the device has none.
    pub max_mw: u32,
    /// Shared receive queues; 0 if the device has none.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Bytes of private data, each way.
    pub max_private_data: u32,
    /// The same where queue pairs for datagrams ask and answer; not above
    /// [`DeviceAttr::max_private_data`].
    pub max_datagram_private_data: u32,
    /// Bytes of payload that go in one packet: what programs that size buffers by it take.
    pub mtu: u32,
    /// Named values for `transport_attr`, such as the path that is in force.
    pub transport_attr: Vec<(String, String)>,
}

impl DeviceAttr {
    /// Bytes of private data that queue pairs may give, those for datagrams or the others.
    pub fn private_data_of(&self, datagrams: bool) -> u32 {
        match datagrams {
            true => self.max_datagram_private_data,
            false => self.max_private_data,
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// Returned in every completion.
    pub context: u64,
    /// Requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receives that may be outstanding.
    pub max_recv_wr: u32,
    /// Segments of a request.
    pub max_send_sge: u32,
    /// Segments of a receive.
    pub max_recv_sge: u32,
    /// Bytes of the longest message that is sent, at most that of the device.
    pub max_message_size: u32,
    /// Bytes of the longest RDMA operation, at most that of the device.
    pub max_rdma_size: u32,
    /// RDMA reads of the peer answered at a time (IRD).
    pub max_rd_in: u32,
    /// RDMA reads outstanding (ORD).
    pub max_rd_out: u32,
    /// Successful receives notify only when their message was solicited.
    pub recv_solicited_only: bool,
    /// Whether the queue pair sends and receives datagrams, and makes no connections.
    pub datagrams: bool,
}

impl QpAttr {
    /// Bytes that an operation may have.
    #[inline(always)]
    pub fn max_size(&self, op: &SendOp) -> u32 {
        match op.is_rdma() {
            true => self.max_rdma_size,
            false => self.max_message_size,
        }
    }
}

/// What happened to the connection of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// Data can flow. Active end: with the private data of the accept; passive end: empty.
    Established {
        /// Private data of the peer.
        private_data: Box<[u8]>,
    },
    /// The remote consumer rejected the request.
    PeerRejected {
        /// Private data of the reject.
        private_data: Box<[u8]>,
    },
    /// There is no listener, or something other than the consumer refused.
    NonPeerRejected,
    /// The remote host cannot be reached.
    Unreachable,
    /// The time given to [`Device::connect`](super::Device::connect) passed.
    TimedOut,
    /// Accepted, but the connection could not be completed (passive end).
    AcceptError,
    /// Orderly end, by either end. Everything outstanding has been flushed.
    Disconnected,
    /// The transport failed or a request failed. Everything outstanding has been flushed.
    Broken,
    /// Only of queue pairs for datagrams: where the peer receives them.
    Resolved(Resolved),
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

/// The result of [`Device::poll_events`](super::Device::poll_events).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollOutcome {
    /// Nothing arrived.
    Nothing,
    /// Something arrived: there may be completions.
    Arrived,
    /// Only [`Device::progress`](super::Device::progress) can find out.
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

/// Who may use a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowScope {
    /// The peers of all queue pairs of its protection domain.
    Domain,
    /// The peer of the queue pair on which the window is bound.
    QueuePair,
}
