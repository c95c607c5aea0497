//! The limits of a device, and those that a queue pair is made with.

use super::{DeviceIdentity, SendOp};

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
    /// Whether there are regions and windows with [`Addressing::ZeroBased`](super::Addressing::ZeroBased).
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
