//! The C functions of endpoints, but for the posts.

use std::sync::Arc;

use super::{Ep, Parts, Watermarks};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::address::{read_address, read_socket_address};
use crate::dapl::boundary::{
    answer_query, boundary, check_mask, creation, non_null, private_data, timeout, write_opt,
};
use crate::dapl::ia::lookup_ia;
use crate::dapl::object::{lookup, lookup_opt};
use crate::dapl::pz::Pz;
use crate::dapl::srq::Srq;
use crate::device::{Device, QueuePair};
use crate::error::{Error, Kind, Subtype};

/// `dat_ep_create`.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ep_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: DAT_PZ_HANDLE,
    recv_evd_handle: DAT_EVD_HANDLE,
    request_evd_handle: DAT_EVD_HANDLE,
    connect_evd_handle: DAT_EVD_HANDLE,
    ep_attributes: *const A::EpAttr,
    ep_handle: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let parts = Parts {
            pz: lookup_opt(pz_handle, Subtype::HandlePz)?,
            recv_evd: lookup_opt(recv_evd_handle, Subtype::HandleEvdRecv)?,
            request_evd: lookup_opt(request_evd_handle, Subtype::HandleEvdRequest)?,
            connect_evd: lookup_opt(connect_evd_handle, Subtype::HandleEvdConn)?,
            srq: None,
        };
        non_null(ep_handle, Subtype::Arg7)?;
        // SAFETY: NULL or valid, says the caller.
        let attr = unsafe { ep_attributes.as_ref() }.map(A::ep_attr);
        let ep = Ep::<D>::create(&ia, parts, attr, DAT_EP_STATE_UNCONNECTED)?;
        // SAFETY: not NULL.
        unsafe { ep_handle.write(ep.handle().0) };
        Ok(())
    })
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ep_create_with_srq<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: DAT_PZ_HANDLE,
    recv_evd_handle: DAT_EVD_HANDLE,
    request_evd_handle: DAT_EVD_HANDLE,
    connect_evd_handle: DAT_EVD_HANDLE,
    srq_handle: DAT_SRQ_HANDLE,
    ep_attributes: *const A::EpAttr,
    ep_handle: *mut DAT_EP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let pz: Option<Arc<Pz<D>>> = lookup_opt(pz_handle, Subtype::HandlePz)?;
        let srq: Arc<Srq<D>> = lookup(srq_handle)?;
        srq.check_zone(pz.as_deref(), Subtype::Arg2)?;
        let parts = Parts {
            pz,
            recv_evd: lookup_opt(recv_evd_handle, Subtype::HandleEvdRecv)?,
            request_evd: lookup_opt(request_evd_handle, Subtype::HandleEvdRequest)?,
            connect_evd: lookup_opt(connect_evd_handle, Subtype::HandleEvdConn)?,
            srq: Some(srq),
        };
        non_null(ep_attributes, Subtype::Arg7)?;
        non_null(ep_handle, Subtype::Arg8)?;
        // SAFETY: not NULL.
        let attr = A::ep_attr(unsafe { &*ep_attributes });
        let ep = Ep::<D>::create(&ia, parts, Some(attr), DAT_EP_STATE_UNCONNECTED)?;
        // SAFETY: not NULL.
        unsafe { ep_handle.write(ep.handle().0) };
        Ok(())
    })
}

/// `dat_ep_modify`.
///
/// # Safety
/// `ep_param` is NULL or points to parameters.
pub unsafe extern "C" fn ep_modify<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    ep_param: *const A::EpParam,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        check_mask(mask, A::EP_FIELDS, Subtype::Arg2)?;
        non_null(ep_param, Subtype::Arg3)?;
        // SAFETY: not NULL.
        ep.modify(&A::ep_change(mask, unsafe { &*ep_param }))
    })
}

/// `dat_ep_recv_query`; each OUT argument may be NULL. Our receives complete in the order of
/// their messages, so the span is the count.
///
/// # Safety
/// The pointers are NULL or point to memory for a count.
pub unsafe extern "C" fn ep_recv_query<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    nbufs_allocated: *mut DAT_COUNT,
    bufs_alloc_span: *mut DAT_COUNT,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        let count = ep.qp().map_or(0, |qp| qp.recv_outstanding()) as DAT_COUNT;
        // SAFETY: the caller's promise.
        unsafe {
            write_opt(nbufs_allocated, count);
            write_opt(bufs_alloc_span, count);
        }
        Ok(())
    })
}

/// `dat_ep_set_watermark`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn ep_set_watermark<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    soft_high_watermark: DAT_COUNT,
    hard_high_watermark: DAT_COUNT,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        let mark = |n: DAT_COUNT, arg| match n {
            DAT_WATERMARK_INFINITE => Ok(None),
            n => u32::try_from(n).map(Some).map_err(|_| Error::arg(arg)),
        };
        let soft = mark(soft_high_watermark, Subtype::Arg2)?;
        let hard = mark(hard_high_watermark, Subtype::Arg3)?;
        ep.set_watermarks(Watermarks { soft, hard })
    })
}

/// `dat_ep_query`.
///
/// # Safety
/// `ep_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn ep_query<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    mask: DAT_EP_PARAM_MASK,
    ep_param: *mut A::EpParam,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        let read = || Ok(A::ep_param(&ep.param()?));
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask, A::EP_FIELDS, ep_param, read) }
    })
}

/// `dat_ep_get_status`; each OUT argument may be NULL.
///
/// # Safety
/// The pointers are NULL or point to memory for their values.
pub unsafe extern "C" fn ep_get_status<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    ep_state: *mut DAT_EP_STATE,
    recv_idle: *mut DAT_BOOLEAN,
    request_idle: *mut DAT_BOOLEAN,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        let (recv, request) = ep
            .qp()
            .map_or((0, 0), |qp| (qp.recv_outstanding(), qp.send_outstanding()));
        // SAFETY: the caller's promise.
        unsafe {
            write_opt(ep_state, ep.state());
            write_opt(recv_idle, DAT_BOOLEAN::from(recv == 0));
            write_opt(request_idle, DAT_BOOLEAN::from(request == 0));
        }
        Ok(())
    })
}

/// `dat_ep_connect`.
///
/// # Safety
/// `remote_ia_address` is NULL or points to a socket address, `data` points to `size` bytes if
/// `size` is positive.
pub unsafe extern "C" fn ep_connect<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    remote_ia_address: DAT_IA_ADDRESS_PTR,
    remote_conn_qual: DAT_CONN_QUAL,
    wait: DAT_TIMEOUT,
    size: DAT_COUNT,
    data: DAT_PVOID,
    quality_of_service: DAT_QOS,
    connect_flags: DAT_CONNECT_FLAGS,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        non_null(remote_ia_address, Subtype::Arg2)?;
        if remote_conn_qual == 0 {
            return Err(Error::arg(Subtype::Arg3));
        }
        if wait == 0 {
            return Err(Error::arg(Subtype::Arg4));
        }
        let max = ep.max_private_data();
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg5, Subtype::Arg6) }?;
        if quality_of_service != DAT_QOS_BEST_EFFORT || connect_flags != DAT_CONNECT_DEFAULT_FLAG {
            return Err(Kind::ModelNotSupported.into());
        }
        // SAFETY: not NULL.
        let remote = unsafe { read_address(remote_ia_address) }?;
        ep.connect(remote, remote_conn_qual, timeout(wait), data)
    })
}

/// `dat_ep_common_connect` of DAT 2.0: to the common service point at this address, whose port counts.
///
/// # Safety
/// As [`ep_connect`].
pub unsafe extern "C" fn ep_common_connect<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    remote_ia_address: DAT_IA_ADDRESS_PTR,
    wait: DAT_TIMEOUT,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        non_null(remote_ia_address, Subtype::Arg2)?;
        if wait == 0 {
            return Err(Error::arg(Subtype::Arg3));
        }
        let max = ep.max_private_data();
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg4, Subtype::Arg5) }?;
        // SAFETY: not NULL.
        let remote = unsafe { read_socket_address(remote_ia_address) }?;
        if remote.port() == 0 {
            return Err(Kind::InvalidAddress.into());
        }
        ep.connect(remote, remote.port().into(), timeout(wait), data)
    })
}

/// `dat_ep_dup_connect`.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe extern "C" fn ep_dup_connect<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    ep_dup_handle: DAT_EP_HANDLE,
    wait: DAT_TIMEOUT,
    size: DAT_COUNT,
    data: DAT_PVOID,
    quality_of_service: DAT_QOS,
) -> DAT_RETURN {
    creation::<A>(|| {
        let dup: Arc<Ep<D>> = lookup(ep_dup_handle)?;
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        if wait == 0 {
            return Err(Error::arg(Subtype::Arg3));
        }
        let max = ep.max_private_data();
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg4, Subtype::Arg5) }?;
        if quality_of_service != DAT_QOS_BEST_EFFORT {
            return Err(Kind::ModelNotSupported.into());
        }
        let (remote, conn_qual) = dup.dup_target()?;
        ep.connect(remote, conn_qual, timeout(wait), data)
    })
}

/// `dat_ep_disconnect`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn ep_disconnect<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    close_flags: DAT_CLOSE_FLAGS,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        match close_flags {
            DAT_CLOSE_ABRUPT_FLAG => ep.disconnect(false),
            DAT_CLOSE_GRACEFUL_FLAG => ep.disconnect(true),
            _ => Err(Error::arg(Subtype::Arg2)),
        }
    })
}

/// `dat_ep_reset`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn ep_reset<A: Abi, D: Device>(ep_handle: DAT_EP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Ep<D>>(ep_handle)?.reset())
}

/// `dat_ep_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn ep_free<A: Abi, D: Device>(ep_handle: DAT_EP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Ep<D>>(ep_handle)?.free())
}
