//! From the completions of libibverbs to those of [`crate::device`].

use std::ffi::c_int;

use super::hw::Hw;
use super::post::is_marker_refused;
use super::ring::PostedWr;
use super::sys;
use super::wr_table::RECEIVE;
use crate::device::{Completion, WcOp, WcStatus};

/// The completion of a [plain](PostedWr::plain_op) request that has succeeded, as nearly all do. `None` for
/// all others; [`completion`] makes those as well.
#[inline(always)]
pub(super) fn plain_request(hw: &Hw, posted: &PostedWr, wc: &sys::Wc) -> Option<Completion> {
    if wc.status != sys::WC_SUCCESS {
        return None;
    }
    Some(success(hw, posted, posted.plain_op()?, posted.len()))
}

/// The same of a receive whose message has no details.
#[inline(always)]
pub(super) fn plain_receive(hw: &Hw, posted: &PostedWr, wc: &sys::Wc) -> Option<Completion> {
    if wc.status != sys::WC_SUCCESS || has_details(hw, wc) {
        return None;
    }
    Some(success(hw, posted, WcOp::Recv, wc.byte_len))
}

/// The completion of a success.
#[inline(always)]
fn success(hw: &Hw, posted: &PostedWr, op: WcOp, byte_len: u32) -> Completion {
    Completion {
        context: hw.context,
        wr_id: posted.wr_id,
        op,
        from_srq: false,
        status: WcStatus::Success,
        byte_len,
    }
}

/// The completion for the consumer; `true` if it notifies.
pub(super) fn completion(
    hw: &Hw,
    posted: &PostedWr,
    wc: &sys::Wc,
    from_srq: bool,
) -> (Completion, bool) {
    let received = wc.wr_id & RECEIVE != 0;
    let success = wc.status == sys::WC_SUCCESS;
    let mut out = Completion {
        context: hw.context,
        wr_id: posted.wr_id,
        op: posted.kind().op(),
        from_srq,
        status: WcStatus::Success,
        byte_len: if received { wc.byte_len } else { posted.len() },
    };
    if !success {
        out.status = failure(wc.status);
        // So siw reports a request that it cannot write to the TCP connection, which has ended; what may be wrong
        // with the request itself was checked before the post.
        if hw.device.siw && !received && out.status == WcStatus::LocalQpOperation {
            out.status = WcStatus::Flushed;
        }
        if out.status != WcStatus::Flushed && !is_marker_refused(posted, wc) {
            hw.fail(out.status);
        }
    } else if received && has_details(hw, wc) {
        out.op = received_with(wc, hw.recv.datagram_mark());
        if let WcOp::RecvInvalidate { rkey } = out.op {
            hw.key_invalidated(rkey);
        }
    }
    (out, !posted.quiet() || !success)
}

/// Whether a message that was received is a datagram, has invalidated a key, or has come with
/// immediate data.
#[inline(always)]
fn has_details(hw: &Hw, wc: &sys::Wc) -> bool {
    wc.wc_flags & (sys::WC_WITH_INV | sys::WC_WITH_IMM) | hw.recv.datagram_mark() != 0
}

/// The operation of a receive whose message is a datagram, has invalidated a key, or has come with
/// immediate data.
#[cold]
#[inline(never)]
fn received_with(wc: &sys::Wc, datagram_mark: u32) -> WcOp {
    let word = wc.imm_or_key;
    if datagram_mark != 0 {
        WcOp::RecvDatagram
    } else if wc.wc_flags & sys::WC_WITH_INV != 0 {
        WcOp::RecvInvalidate { rkey: word }
    } else if wc.opcode == sys::WC_RECV_RDMA_WITH_IMM {
        WcOp::RecvRdmaImm { imm: word }
    } else {
        WcOp::RecvImm { imm: word }
    }
}

#[cold]
#[inline(never)]
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
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn what_a_message_comes_with() {
        const RECV: c_int = 128;
        let received = |opcode, wc_flags| {
            // SAFETY: all zero is valid.
            let mut wc: sys::Wc = unsafe { MaybeUninit::zeroed().assume_init() };
            (wc.opcode, wc.wc_flags, wc.imm_or_key) = (opcode, wc_flags, 7);
            received_with(&wc, 0)
        };
        let invalidate = received(RECV, sys::WC_WITH_INV);
        assert_eq!(invalidate, WcOp::RecvInvalidate { rkey: 7 });
        let message = received(RECV, sys::WC_WITH_IMM);
        assert_eq!(message, WcOp::RecvImm { imm: 7 });
        let write = received(sys::WC_RECV_RDMA_WITH_IMM, sys::WC_WITH_IMM);
        assert_eq!(write, WcOp::RecvRdmaImm { imm: 7 });
        // SAFETY: all zero is valid.
        let datagram: sys::Wc = unsafe { MaybeUninit::zeroed().assume_init() };
        assert_eq!(received_with(&datagram, 1), WcOp::RecvDatagram);
    }

    #[test]
    fn failures_have_a_status() {
        let statuses = [
            (sys::WC_LOC_LEN_ERR, WcStatus::LocalLength),
            (sys::WC_LOC_PROT_ERR, WcStatus::LocalProtection),
            (sys::WC_LOC_ACCESS_ERR, WcStatus::LocalProtection),
            (sys::WC_WR_FLUSH_ERR, WcStatus::Flushed),
            (sys::WC_MW_BIND_ERR, WcStatus::BindFailed),
            (sys::WC_BAD_RESP_ERR, WcStatus::BadResponse),
            (sys::WC_REM_ACCESS_ERR, WcStatus::RemoteAccess),
            (sys::WC_REM_INV_REQ_ERR, WcStatus::RemoteOperation),
            (sys::WC_REM_OP_ERR, WcStatus::RemoteOperation),
            (sys::WC_REM_ABORT_ERR, WcStatus::RemoteOperation),
            (sys::WC_RETRY_EXC_ERR, WcStatus::RetryExceeded),
            (sys::WC_RESP_TIMEOUT_ERR, WcStatus::RetryExceeded),
            (sys::WC_RNR_RETRY_EXC_ERR, WcStatus::ReceiverNotReady),
        ];
        for (status, want) in statuses {
            assert_eq!(failure(status), want, "{status}");
        }
        // A status that reliable connections do not have.
        assert_eq!(failure(99), WcStatus::LocalQpOperation);
    }
}
