//! DAT 2.0: `libdat2.so.2`.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use super::convert::{common_conversions, version_part};
use super::{Abi, fill_name, handle};
use crate::abi::common::*;
use crate::abi::v2;
use crate::dapl::address::CAddress;
use crate::dapl::ep_attr::{EpAttr, EpChange, EpParam};
use crate::dapl::types::{
    Event, Extension, Handle, IaAttr, LmrParam, LmrRange, Opaque, RmrParam, dto_status,
};
use crate::device::{Addressing, Completion, DeviceAttr, Remote, Sge, WcOp, WindowScope};
use crate::error::{Error, Result, Subtype, Version};

/// The DAT 2.0 ABI.
pub struct V2;

impl Abi for V2 {
    const VERSION: Version = Version::V2;
    common_conversions!(v2);

    // The values of the mask are not bits: `DAT_CNO_FIELD_PROXY` is 3 and `DAT_CNO_FIELD_ALL` is 4.
    // Completions of extended operations come with those of other operations, whether an EVD has the
    // flag of extensions or not.
    const EVD_FLAGS: DAT_EVD_FLAGS =
        DAT_EVD_DEFAULT_FLAG | DAT_EVD_SOFTWARE_FLAG | v2::DAT_EVD_EXTENSION_BASE;
    const CNO_FIELDS: u32 = 7;
    const DATAGRAMS: bool = true;

    #[inline]
    fn sge_in_place(triplet: &v2::DAT_LMR_TRIPLET) -> Option<&Sge> {
        use std::mem::offset_of;
        use v2::DAT_LMR_TRIPLET as Triplet;
        const {
            assert!(offset_of!(Triplet, virtual_address) == offset_of!(Sge, addr));
            assert!(offset_of!(Triplet, segment_length) == offset_of!(Sge, len));
            assert!(offset_of!(Triplet, lmr_context) == offset_of!(Sge, lkey));
            assert!(size_of::<Triplet>() == size_of::<Sge>());
            assert!(align_of::<Triplet>() >= align_of::<Sge>());
        };
        // SAFETY: members of the same sizes, of which every bit pattern is valid, in the same places.
        Some(unsafe { &*std::ptr::from_ref(triplet).cast::<Sge>() })
    }

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
            rmr_scope: match param.scope {
                WindowScope::Domain => v2::DAT_RMR_SCOPE_PZ,
                WindowScope::QueuePair => v2::DAT_RMR_SCOPE_EP,
            },
            va_type: va_type(param.addressing),
        }
    }

    fn extend(out: &mut MaybeUninit<v2::DAT_EVENT>, extension: &Extension) {
        let out = out.as_mut_ptr();
        // SAFETY: the event was written as a whole; all zero is valid for the data of an extension, which
        // is laid over words that have its size.
        unsafe {
            (*out).event_number = extension.number;
            let words = &raw mut (*out).event_extension_data;
            words.write([0; 8]);
            let data = words.cast::<v2::DAT_IB_EXTENSION_EVENT_DATA>();
            (*data).r#type = extension.kind;
            (*data).context.as_ptr = extension.context.0;
            if let Some(peer) = &extension.peer {
                (*data).peer.remote_ah = v2::DAT_IB_ADDR_HANDLE {
                    ah: peer.handle.0,
                    qpn: peer.qp_number,
                    ia_addr: CAddress::new(peer.address)
                        .as_ptr()
                        .cast::<DAT_SOCK_ADDR6>()
                        .read(),
                };
            }
        }
    }

    fn cno_param(
        ia: DAT_IA_HANDLE,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        fd: Option<RawFd>,
    ) -> v2::DAT_CNO_PARAM {
        // A null agent is null in every member of the union.
        let mut proxy = v2::DAT_CNO_PROXY { agent };
        let proxy_type = match (agent.proxy_agent_func, fd) {
            (Some(_), _) => v2::DAT_PROXY_TYPE_AGENT,
            (None, Some(fd)) => {
                proxy.fd = fd;
                v2::DAT_PROXY_TYPE_FD
            }
            (None, None) => v2::DAT_PROXY_TYPE_NONE,
        };
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

/// The service of an endpoint in the numbers of DAT 2.0.
fn service_type(number: DAT_SERVICE_TYPE) -> DAT_SERVICE_TYPE {
    number
}

/// Whether there are InfiniBand extensions (`dat_ib_extensions.h`). As with OpenFabrics' providers, an IA
/// whose device has none of their operations says so: dtest then does without.
fn set_extensions(attr: &mut v2::DAT_IA_ATTR, supported: bool) {
    attr.extension_supported = match supported {
        true => v2::DAT_EXTENSION_IB,
        false => v2::DAT_EXTENSION_NONE,
    };
    attr.extension_version = v2::DAT_IB_EXTENSION_VERSION;
}

/// Whether there are zero-based addresses.
fn set_zero_based(attr: &mut v2::DAT_IA_ATTR, supported: bool) {
    attr.zb_supported = DAT_BOOLEAN::from(supported);
}

/// What the addresses of a region are.
fn set_va_type(param: &mut v2::DAT_LMR_PARAM, addressing: Addressing) {
    param.va_type = va_type(addressing);
}

fn va_type(addressing: Addressing) -> v2::DAT_VA_TYPE {
    match addressing {
        Addressing::Virtual => v2::DAT_VA_TYPE_VA,
        Addressing::ZeroBased => v2::DAT_VA_TYPE_ZB,
    }
}

/// Writes the event of a data transfer.
///
/// # Safety
/// There is room at `out`.
#[inline(always)]
unsafe fn dto_event(completion: &Completion, out: *mut v2::DAT_EVENT) {
    // SAFETY: the caller's promise.
    unsafe {
        (*out).event_number = DAT_DTO_COMPLETION_EVENT;
        let dto = &raw mut (*out).event_data.dto_completion_event_data;
        (*dto).ep_handle = handle(completion.context);
        (*dto).user_cookie.as_64 = completion.wr_id;
        (*dto).status = dto_status(completion.status);
        (*dto).transfered_length = completion.byte_len;
        (*dto).rmr_context = 0;
        (*dto).operation = match completion.op {
            WcOp::Send => v2::DAT_DTO_SEND,
            WcOp::RdmaWrite => v2::DAT_DTO_RDMA_WRITE,
            WcOp::RdmaRead => v2::DAT_DTO_RDMA_READ,
            WcOp::Bind { .. } => v2::DAT_DTO_BIND_MW,
            WcOp::Recv => v2::DAT_DTO_RECEIVE,
            _ => add_details(completion, out),
        };
    }
}

/// Adds what only few operations have: the key that is invalid, or what makes the event one of an
/// extended operation. Returns the operation. Out of line, so that the compiler makes no jump table of all operations for
/// these.
///
/// # Safety
/// The event is one of a data transfer.
#[cold]
#[inline(never)]
unsafe fn add_details(completion: &Completion, out: *mut v2::DAT_EVENT) -> v2::DAT_DTOS {
    let (operation, kind, immediate) = match completion.op {
        WcOp::RdmaWriteImm => (
            v2::DAT_IB_DTO_RDMA_WRITE_IMMED,
            v2::DAT_IB_RDMA_WRITE_IMMED,
            0,
        ),
        WcOp::FetchAdd => (v2::DAT_IB_DTO_FETCH_ADD, v2::DAT_IB_FETCH_AND_ADD, 0),
        WcOp::CompareSwap => (v2::DAT_IB_DTO_CMP_SWAP, v2::DAT_IB_CMP_AND_SWAP, 0),
        WcOp::RecvRdmaImm { imm } => (
            v2::DAT_IB_DTO_RECV_IMMED,
            v2::DAT_IB_RDMA_WRITE_IMMED_DATA,
            imm,
        ),
        WcOp::RecvImm { imm } => (
            v2::DAT_IB_DTO_RECV_MSG_IMMED,
            v2::DAT_IB_RECV_IMMED_DATA,
            imm,
        ),
        WcOp::SendDatagram => (v2::DAT_IB_DTO_SEND_UD, v2::DAT_IB_UD_SEND, 0),
        WcOp::RecvDatagram => (v2::DAT_IB_DTO_RECV_UD, v2::DAT_IB_UD_RECV, 0),
        WcOp::RecvInvalidate { rkey } => {
            // SAFETY: the caller's promise.
            unsafe { (*out).event_data.dto_completion_event_data.rmr_context = rkey };
            return v2::DAT_DTO_RECEIVE_WITH_INVALIDATE;
        }
        WcOp::Send | WcOp::RdmaWrite | WcOp::RdmaRead | WcOp::Bind { .. } | WcOp::Recv => {
            unreachable!("they have no details")
        }
    };
    // SAFETY: the caller's promise; the data of the extension is laid over words that have its size.
    unsafe {
        (*out).event_number = v2::DAT_IB_DTO_EVENT;
        let words = &raw mut (*out).event_extension_data;
        words.write([0; 8]);
        let data = words.cast::<v2::DAT_IB_EXTENSION_EVENT_DATA>();
        (*data).r#type = kind;
        // As OpenFabrics' providers do, which have the numbers of `DAT_DTO_COMPLETION_STATUS` here.
        (*data).status = dto_status(completion.status);
        (*data).val.immed = v2::DAT_IB_IMMED_DATA { data: immediate };
    }
    operation
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
