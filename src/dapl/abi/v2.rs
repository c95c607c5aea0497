//! DAT 2.0: `libdat2.so.2`.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::convert::{common_conversions, version_part};
use super::{Abi, fill_name, handle};
use crate::abi::common::*;
use crate::abi::v2;
use crate::dapl::ep_attr::{EpAttr, EpChange, EpParam};
use crate::dapl::types::{Event, Handle, IaAttr, LmrParam, LmrRange, Opaque, RmrParam, dto_status};
use crate::device::{Completion, DeviceAttr, Remote, Sge, WcOp};
use crate::error::{Error, Result, Subtype, Version};

/// The DAT 2.0 ABI.
pub struct V2;

impl Abi for V2 {
    const VERSION: Version = Version::V2;
    common_conversions!(v2);

    // The values of the mask are not bits: `DAT_CNO_FIELD_PROXY` is 3 and `DAT_CNO_FIELD_ALL` is 4.
    const CNO_FIELDS: u32 = 7;

    #[inline]
    fn remote(triplet: &v2::DAT_RMR_TRIPLET) -> (Remote, u64) {
        let remote = Remote {
            addr: triplet.virtual_address,
            rkey: triplet.rmr_context,
        };
        (remote, triplet.segment_length.into())
    }

    fn rmr_param(param: &RmrParam) -> v2::DAT_RMR_PARAM {
        v2::DAT_RMR_PARAM {
            ia_handle: param.ia,
            pz_handle: param.pz,
            lmr_triplet: v2::DAT_LMR_TRIPLET {
                virtual_address: param.range.addr,
                segment_length: param.range.len as u32,
                lmr_context: param.range.lmr_context,
            },
            mem_priv: param.privileges,
            rmr_context: param.rmr_context,
            rmr_scope: v2::DAT_RMR_SCOPE_PZ,
            va_type: v2::DAT_VA_TYPE_VA,
        }
    }

    fn cno_param(ia: DAT_IA_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT) -> v2::DAT_CNO_PARAM {
        let proxy_type = match agent.proxy_agent_func {
            Some(_) => v2::DAT_PROXY_TYPE_AGENT,
            None => v2::DAT_PROXY_TYPE_NONE,
        };
        // A null agent is null in every member of the union.
        let proxy = v2::DAT_CNO_PROXY { agent };
        v2::DAT_CNO_PARAM {
            ia_handle: ia,
            proxy_type,
            proxy,
        }
    }
}

/// A mask of endpoint parameters in the numbers of DAT 2.0.
fn ep_mask(mask: u64) -> u64 {
    mask
}

/// # Safety
/// There is room at `out`.
#[inline(always)]
unsafe fn dto_completion(completion: &Completion, out: *mut v2::DAT_DTO_COMPLETION_EVENT_DATA) {
    // SAFETY: the caller's promise.
    unsafe {
        (*out).ep_handle = handle(completion.context);
        (*out).user_cookie.as_64 = completion.wr_id;
        (*out).status = dto_status(completion.status);
        (*out).transfered_length = completion.byte_len;
        (*out).operation = operation(completion.op);
        (*out).rmr_context = 0;
        if let WcOp::RecvInvalidate { rkey } = completion.op {
            invalidated(out, rkey);
        }
    }
}

/// Out of line, so that the compiler makes no jump table of all operations for this rare one.
///
/// # Safety
/// There is room at `out`.
#[cold]
#[inline(never)]
unsafe fn invalidated(out: *mut v2::DAT_DTO_COMPLETION_EVENT_DATA, rkey: DAT_RMR_CONTEXT) {
    // SAFETY: the caller's promise.
    unsafe { (*out).rmr_context = rkey };
}

#[inline(always)]
fn operation(op: WcOp) -> v2::DAT_DTOS {
    match op {
        WcOp::Send => v2::DAT_DTO_SEND,
        WcOp::RdmaWrite => v2::DAT_DTO_RDMA_WRITE,
        WcOp::RdmaRead => v2::DAT_DTO_RDMA_READ,
        WcOp::Bind { .. } => v2::DAT_DTO_BIND_MW,
        WcOp::Recv => v2::DAT_DTO_RECEIVE,
        WcOp::RecvInvalidate { .. } => v2::DAT_DTO_RECEIVE_WITH_INVALIDATE,
    }
}

fn arrival(
    sp: Handle,
    local_address: Opaque,
    conn_qual: u64,
    cr: Handle,
) -> v2::DAT_CR_ARRIVAL_EVENT_DATA {
    v2::DAT_CR_ARRIVAL_EVENT_DATA {
        sp_handle: v2::DAT_SP_HANDLE { psp_handle: sp.0 },
        local_ia_address_ptr: local_address.0.cast(),
        conn_qual,
        cr_handle: cr.0,
        truncate_flag: DAT_FALSE,
    }
}
