//! Completions of the device in our terms.

use std::ffi::c_int;

use super::hw::Hw;
use super::ring::Posted;
use super::sys;
use super::table::RECEIVE;
use crate::device::{Completion, WcOp, WcStatus};

/// A completion in our terms, and whether it notifies.
#[inline]
pub(super) fn completion(
    hw: &Hw,
    posted: &Posted,
    wc: &sys::Wc,
    from_srq: bool,
) -> (Completion, bool) {
    let received = wc.wr_id & RECEIVE != 0;
    let status = if wc.status == sys::WC_SUCCESS {
        WcStatus::Success
    } else {
        let status = failure(wc.status);
        if status != WcStatus::Flushed {
            hw.fail();
        }
        status
    };
    let success = status == WcStatus::Success;
    let op = if received && success && wc.wc_flags & sys::WC_WITH_INV != 0 {
        WcOp::RecvInvalidate {
            rkey: wc.invalidated_rkey,
        }
    } else {
        posted.kind.op()
    };
    let completion = Completion {
        context: hw.context,
        wr_id: posted.wr_id,
        op,
        from_srq,
        status,
        byte_len: if received { wc.byte_len } else { posted.len },
    };
    (completion, !posted.quiet || !success)
}

#[cold]
fn failure(status: c_int) -> WcStatus {
    match status {
        sys::WC_LOC_LEN_ERR => WcStatus::LocalLength,
        sys::WC_LOC_PROT_ERR | sys::WC_LOC_ACCESS_ERR => WcStatus::LocalProtection,
        sys::WC_WR_FLUSH_ERR => WcStatus::Flushed,
        sys::WC_MW_BIND_ERR => WcStatus::BindFailed,
        sys::WC_BAD_RESP_ERR => WcStatus::BadResponse,
        sys::WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        sys::WC_REM_INV_REQ_ERR | sys::WC_REM_OP_ERR | sys::WC_REM_ABORT_ERR => {
            WcStatus::RemoteOperation
        }
        sys::WC_RETRY_EXC_ERR | sys::WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        sys::WC_RNR_RETRY_EXC_ERR => WcStatus::ReceiverNotReady,
        _ => WcStatus::LocalQpOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_a_status() {
        assert_eq!(failure(sys::WC_WR_FLUSH_ERR), WcStatus::Flushed);
        assert_eq!(failure(sys::WC_REM_ACCESS_ERR), WcStatus::RemoteAccess);
        assert_eq!(
            failure(sys::WC_RNR_RETRY_EXC_ERR),
            WcStatus::ReceiverNotReady
        );
        assert_eq!(failure(sys::WC_MW_BIND_ERR), WcStatus::BindFailed);
        // Those that reliable connections do not have.
        assert_eq!(failure(99), WcStatus::LocalQpOperation);
    }
}
