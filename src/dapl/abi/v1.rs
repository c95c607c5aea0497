//! DAT 1.2: `libdat.so.1`.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use super::convert::{common_conversions, version_part};
use super::{Abi, fill_name, handle};
use crate::abi::common::*;
use crate::abi::v1;
use crate::dapl::ep_attr::{EpAttr, EpChange, EpParam};
use crate::dapl::types::{
    Event, Extension, Handle, IaAttr, LmrParam, LmrRange, Opaque, RmrParam, dto_status,
};
use crate::device::{Addressing, Completion, DeviceAttr, Remote, Sge, WcOp};
use crate::error::{Error, Result, Subtype, Version};

/// The DAT 1.2 ABI.
pub struct V1;

impl Abi for V1 {
    const VERSION: Version = Version::V1;
    common_conversions!(v1);

    const EVD_FLAGS: DAT_EVD_FLAGS = DAT_EVD_DEFAULT_FLAG | DAT_EVD_SOFTWARE_FLAG;
    const DATAGRAMS: bool = false;
    const CNO_FIELDS: u32 = v1::DAT_CNO_FIELD_ALL;

    #[inline]
    fn sge_in_place(_triplet: &v1::DAT_LMR_TRIPLET) -> Option<&Sge> {
        None
    }

    #[inline]
    fn remote(triplet: &v1::DAT_RMR_TRIPLET) -> (Remote, u64) {
        let remote = Remote {
            addr: triplet.target_address,
            rkey: triplet.rmr_context,
        };
        (remote, triplet.segment_length)
    }

    fn rmr_param(param: &RmrParam) -> v1::DAT_RMR_PARAM {
        v1::DAT_RMR_PARAM {
            ia_handle: param.ia,
            pz_handle: param.pz,
            lmr_triplet: v1::DAT_LMR_TRIPLET {
                virtual_address: param.range.addr,
                segment_length: param.range.len,
                lmr_context: param.range.lmr_context,
                pad: 0,
            },
            mem_priv: param.privileges,
            rmr_context: param.rmr_context,
        }
    }

    fn extend(_out: &mut MaybeUninit<v1::DAT_EVENT>, _extension: &Extension) {}

    fn cno_param(
        ia: DAT_IA_HANDLE,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        _fd: Option<RawFd>,
    ) -> v1::DAT_CNO_PARAM {
        v1::DAT_CNO_PARAM {
            ia_handle: ia,
            agent,
        }
    }
}

/// A mask of endpoint parameters in the numbers of DAT 2.0, which has one more field after the
/// state (`DAT_EP_FIELD_COMM`).
fn ep_mask(mask: u64) -> u64 {
    const AFTER_STATE: u64 = 0x7fc;
    mask & !AFTER_STATE | (mask & AFTER_STATE) << 1
}

/// The service of an endpoint in the numbers of DAT 2.0: none but that of connections.
fn service_type(number: DAT_SERVICE_TYPE) -> DAT_SERVICE_TYPE {
    match number {
        DAT_SERVICE_TYPE_RC => number,
        _ => DAT_SERVICE_TYPE::MAX,
    }
}

/// There are no extensions.
fn set_extensions(_attr: &mut v1::DAT_IA_ATTR, _supported: bool) {}

/// There are no zero-based addresses.
fn set_zero_based(_attr: &mut v1::DAT_IA_ATTR, _supported: bool) {}

/// All addresses are virtual ones.
fn set_va_type(_param: &mut v1::DAT_LMR_PARAM, _addressing: Addressing) {}

/// Writes the event of a data transfer.
///
/// # Safety
/// There is room at `out`.
#[inline(always)]
unsafe fn dto_event(completion: &Completion, out: *mut v1::DAT_EVENT) {
    // SAFETY: the caller's promise.
    unsafe {
        (*out).event_number = DAT_DTO_COMPLETION_EVENT;
        let out = &raw mut (*out).event_data.dto_completion_event_data;
        (*out).ep_handle = handle(completion.context);
        (*out).user_cookie.as_64 = completion.wr_id;
        (*out).status = dto_status(completion.status);
        (*out).transfered_length = completion.byte_len.into();
    }
}

fn arrival(
    sp: Handle,
    local_address: Opaque,
    conn_qual: u64,
    cr: Handle,
) -> v1::DAT_CR_ARRIVAL_EVENT_DATA {
    v1::DAT_CR_ARRIVAL_EVENT_DATA {
        sp_handle: v1::DAT_SP_HANDLE { psp_handle: sp.0 },
        local_ia_address_ptr: local_address.0.cast(),
        conn_qual,
        cr_handle: cr.0,
    }
}
