//! The request that a post gives to the driver.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use crate::device::verbs::hw::Hw;
use crate::device::verbs::ring::Kind;
use crate::device::verbs::sys;
use crate::device::{AtomicOp, Remote, SendOp, Sge};

/// What an operation is in the ring, and its number for the driver.
#[inline(always)]
pub(super) fn names(op: &SendOp) -> (Kind, c_int) {
    match op {
        SendOp::Send => (Kind::Send, sys::WR_SEND),
        SendOp::SendInvalidate { .. } => (Kind::Send, sys::WR_SEND_WITH_INV),
        SendOp::RdmaWrite(_) => (Kind::Write, sys::WR_RDMA_WRITE),
        SendOp::RdmaRead { .. } => (Kind::Read, sys::WR_RDMA_READ),
        SendOp::RdmaWriteImm { .. } => (Kind::WriteImm, sys::WR_RDMA_WRITE_WITH_IMM),
        SendOp::Atomic { op, .. } => match op {
            AtomicOp::FetchAdd { .. } => (Kind::FetchAdd, sys::WR_ATOMIC_FETCH_AND_ADD),
            AtomicOp::CompareSwap { .. } => (Kind::CompareSwap, sys::WR_ATOMIC_CMP_AND_SWP),
        },
    }
}

/// Where the segments of a request are that has none. Drivers read the first one all the same, unless the pointer is
/// NULL (those of irdma and cxgb4, for RDMA operations), or even then (that of erdma, for RDMA reads).
const NO_SEGMENTS: &[Sge] = &[Sge::NONE];

/// A request for the driver. The structure is long, and an operation uses few of its members: the
/// others are not initialized, as in programs in C. The exception is the word with the immediate data
/// or the key to invalidate, which drivers read for every operation: rxe refuses a bind where it is
/// not zero.
pub(in crate::device::verbs) struct Request(MaybeUninit<sys::SendWr>);

impl Request {
    /// A request without any member.
    #[inline(always)]
    pub fn new() -> Request {
        Request(MaybeUninit::uninit())
    }

    /// The members that all operations have.
    #[inline(always)]
    pub fn fill(&mut self, wr_id: u64, opcode: c_int, send_flags: u32, sges: &[Sge]) {
        let wr = self.0.as_mut_ptr();
        let list = if sges.is_empty() { NO_SEGMENTS } else { sges };
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).wr_id = wr_id;
            (*wr).next = null_mut();
            (*wr).sg_list = list.as_ptr();
            (*wr).num_sge = sges.len() as c_int;
            (*wr).opcode = opcode;
            (*wr).send_flags = send_flags;
            (*wr).imm_or_key = 0;
        }
    }

    /// The members that only this operation has.
    #[inline(always)]
    pub fn operands(&mut self, op: &SendOp) {
        match *op {
            SendOp::Send => {}
            SendOp::SendInvalidate { rkey } => self.word(rkey),
            SendOp::RdmaWrite(remote) | SendOp::RdmaRead { remote, .. } => self.remote(remote),
            SendOp::RdmaWriteImm { remote, imm } => {
                self.remote(remote);
                self.word(imm);
            }
            SendOp::Atomic { remote, op } => self.atomic(remote, op),
        }
    }

    /// The key that a send invalidates, or the immediate data.
    #[inline]
    fn word(&mut self, word: u32) {
        // SAFETY: a member of a structure that is ours.
        unsafe { (*self.0.as_mut_ptr()).imm_or_key = word };
    }

    /// The remote range of an RDMA operation.
    #[inline]
    fn remote(&mut self, remote: Remote) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).wr.rdma.remote_addr = remote.addr;
            (*wr).wr.rdma.rkey = remote.rkey;
        }
    }

    /// The word that an atomic operation changes, and the change.
    #[inline]
    fn atomic(&mut self, word: Remote, op: AtomicOp) {
        let (compare_add, swap) = match op {
            AtomicOp::FetchAdd { add } => (add, 0),
            AtomicOp::CompareSwap { compare, swap } => (compare, swap),
        };
        let atomic = sys::WrAtomic {
            remote_addr: word.addr,
            compare_add,
            swap,
            rkey: word.rkey,
        };
        // SAFETY: a member of a structure that is ours.
        unsafe { (*self.0.as_mut_ptr()).wr.atomic = atomic };
    }

    /// Where a datagram goes.
    pub fn datagram(&mut self, to: sys::WrUd) {
        // SAFETY: a member of a structure that is ours.
        unsafe { (*self.0.as_mut_ptr()).wr.ud = to };
    }

    /// The memory window of a bind, its new key, and what it is bound to.
    pub fn bind(&mut self, mw: *mut sys::Mw, key: u32, info: sys::MwBindInfo) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).mw = mw;
            (*wr).mw_rkey = key;
            (*wr).bind_info = info;
        }
    }
}

/// Gives a request to the driver.
///
/// # Safety
/// The queue pair is open, the request has what its operation needs, and what it points to is
/// valid during the call.
#[inline]
pub(in crate::device::verbs) unsafe fn send(hw: &Hw, wr: &mut Request) -> c_int {
    // Drivers write it when they refuse a request.
    let mut bad = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    unsafe { (hw.ops.post_send)(hw.raw(), wr.0.as_mut_ptr(), bad.as_mut_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of this operation, whose other members have all bits set.
    fn request(opcode: c_int, op: Option<SendOp>) -> sys::SendWr {
        // SAFETY: integers and raw pointers.
        let dirty: sys::SendWr = unsafe { std::mem::transmute([!0u8; size_of::<sys::SendWr>()]) };
        let mut request = Request(MaybeUninit::new(dirty));
        request.fill(7, opcode, sys::SEND_SIGNALED, &[]);
        if let Some(op) = op {
            request.operands(&op);
        }
        // SAFETY: all members were initialized before.
        unsafe { request.0.assume_init() }
    }

    #[test]
    fn members_that_all_drivers_read_are_set() {
        let request = request(sys::WR_BIND_MW, None);
        assert_eq!((request.wr_id, request.opcode), (7, sys::WR_BIND_MW));
        assert_eq!((request.num_sge, request.imm_or_key), (0, 0));
        // SAFETY: a segment that is always there.
        assert_eq!(unsafe { (*request.sg_list).len }, 0);
        assert!(request.next.is_null());
    }

    #[test]
    fn operations_have_their_members() {
        let remote = Remote {
            addr: 0x1234_5678_9abc,
            rkey: 9,
        };
        let made = |op: SendOp, kind| {
            let (named, opcode) = names(&op);
            assert_eq!(named, kind);
            request(opcode, Some(op))
        };
        let imm = 0x0102_0304;
        let write = made(SendOp::RdmaWriteImm { remote, imm }, Kind::WriteImm);
        assert_eq!(write.opcode, sys::WR_RDMA_WRITE_WITH_IMM);
        assert_eq!(write.imm_or_key, imm);
        // SAFETY: integers.
        let range = unsafe { write.wr.rdma };
        assert_eq!((range.remote_addr, range.rkey), (remote.addr, 9));

        let changes = [
            (
                AtomicOp::FetchAdd { add: 1 << 40 },
                Kind::FetchAdd,
                sys::WR_ATOMIC_FETCH_AND_ADD,
                (1 << 40, 0),
            ),
            (
                AtomicOp::CompareSwap {
                    compare: 1 << 50,
                    swap: 1 << 60,
                },
                Kind::CompareSwap,
                sys::WR_ATOMIC_CMP_AND_SWP,
                (1 << 50, 1 << 60),
            ),
        ];
        for (op, kind, opcode, numbers) in changes {
            let request = made(SendOp::Atomic { remote, op }, kind);
            assert_eq!((request.opcode, request.imm_or_key), (opcode, 0));
            // SAFETY: integers.
            let word = unsafe { request.wr.atomic };
            assert_eq!((word.remote_addr, word.rkey), (remote.addr, 9));
            assert_eq!((word.compare_add, word.swap), numbers);
        }
    }
}
