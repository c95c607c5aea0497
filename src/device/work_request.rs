//! What is posted to the queues of a device, requests and receives, and what becomes of it: completions.

use std::fmt;

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
    /// Address of the first byte, in the [`Addressing`](super::Addressing) of the region.
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
    /// Address in the peer's memory, in the [`Addressing`](super::Addressing) of the region or window.
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

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// [`QpAttr::context`](super::QpAttr::context) of the queue pair.
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
