//! The requests that are posted.

use std::ffi::{c_int, c_uint};

use super::{Ah, Mw, MwBindInfo};
use crate::device::Sge;

/// Where an RDMA write or read is, in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// Where an atomic operation is, and its numbers, in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Where a datagram goes, in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrUd {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// What an operation has besides its segments, in `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrOperands {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
    pub ud: WrUd,
}

/// `struct ibv_send_wr`, with the members of its unions that this library uses.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// The immediate data, or the key to invalidate.
    pub imm_or_key: u32,
    pub wr: WrOperands,
    pub _xrc: u32,
    pub mw: *mut Mw,
    pub mw_rkey: u32,
    pub bind_info: MwBindInfo,
}

pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub const WR_SEND: c_int = 2;
pub const WR_RDMA_READ: c_int = 4;
pub const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub const WR_BIND_MW: c_int = 8;
pub const WR_SEND_WITH_INV: c_int = 9;

pub const SEND_FENCE: c_uint = 1;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_SOLICITED: c_uint = 1 << 2;
pub const SEND_INLINE: c_uint = 1 << 3;

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
}
