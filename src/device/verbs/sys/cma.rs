//! The part of librdmacm (`rdma/rdma_cma.h`).

use std::ffi::{c_int, c_void};

use super::{AhAttr, Context, Qp};

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_ib_addr`, whose size follows the alignment of `u64`, which is 4 on 32-bit x86.
#[repr(C)]
pub struct IbAddr {
    /// The 16 bytes of each GID.
    pub sgid: [u64; 2],
    pub dgid: [u64; 2],
    pub pkey: u16,
}

/// `struct rdma_route`.
#[repr(C)]
pub struct Route {
    pub src_addr: libc::sockaddr_storage,
    pub dst_addr: libc::sockaddr_storage,
    pub ibaddr: IbAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: c_int,
    pub port_num: u8,
}

pub const PS_TCP: c_int = 0x0106;
pub const PS_UDP: c_int = 0x0111;

/// The Q_Key of the queue pairs of RDMA_PS_UDP.
pub const UDP_QKEY: u32 = 0x0123_4567;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`. The private data is where that of [`ConnParam`] is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// What an event has, by the kind of its identifier.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CmParam {
    pub conn: ConnParam,
    pub ud: UdParam,
}

#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_int,
    pub status: c_int,
    pub param: CmParam,
}

pub const CM_ADDR_RESOLVED: c_int = 0;
pub const CM_ADDR_ERROR: c_int = 1;
pub const CM_ROUTE_RESOLVED: c_int = 2;
pub const CM_ROUTE_ERROR: c_int = 3;
pub const CM_CONNECT_REQUEST: c_int = 4;
pub const CM_CONNECT_RESPONSE: c_int = 5;
pub const CM_CONNECT_ERROR: c_int = 6;
pub const CM_UNREACHABLE: c_int = 7;
pub const CM_REJECTED: c_int = 8;
pub const CM_ESTABLISHED: c_int = 9;
pub const CM_DISCONNECTED: c_int = 10;
pub const CM_DEVICE_REMOVAL: c_int = 11;

/// Reason of a rejection because there is no listener (InfiniBand architecture, 12.6.7.2).
pub const REJ_SERVICE_ID: c_int = 8;
/// Reason of a rejection by the consumer (InfiniBand architecture, 12.6.7.2).
pub const REJ_CONSUMER: c_int = 28;

/// Status of the answer of a port that has no listener (InfiniBand architecture, 12.11.2).
pub const SIDR_UNSUPPORTED: c_int = 1;
/// Status of the answer of a listener that rejects (InfiniBand architecture, 12.11.2).
pub const SIDR_REJECT: c_int = 2;
