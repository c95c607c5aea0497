//! The request that a post gives to the driver.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use crate::device::verbs::hw::Hw;
use crate::device::verbs::sys;
use crate::device::{Remote, Sge};

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
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).wr_id = wr_id;
            (*wr).next = null_mut();
            (*wr).sg_list = sges.as_ptr();
            (*wr).num_sge = sges.len() as c_int;
            (*wr).opcode = opcode;
            (*wr).send_flags = send_flags;
            (*wr).invalidate_rkey = 0;
        }
    }

    /// The remote range of an RDMA operation.
    #[inline]
    pub fn remote(&mut self, remote: Remote) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).remote_addr = remote.addr;
            (*wr).rkey = remote.rkey;
        }
    }

    /// The key that a send invalidates.
    #[inline]
    pub fn invalidate(&mut self, rkey: u32) {
        // SAFETY: a member of a structure that is ours.
        unsafe { (*self.0.as_mut_ptr()).invalidate_rkey = rkey };
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
    let mut bad = null_mut();
    // SAFETY: the caller's promise.
    unsafe { (hw.ops.post_send)(hw.raw(), wr.0.as_mut_ptr(), &mut bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_all_drivers_read_are_set() {
        // SAFETY: integers and raw pointers.
        let dirty: sys::SendWr = unsafe { std::mem::transmute([!0u8; size_of::<sys::SendWr>()]) };
        let mut request = Request(MaybeUninit::new(dirty));
        request.fill(7, sys::WR_BIND_MW, sys::SEND_SIGNALED, &[]);
        // SAFETY: all members were initialized before.
        let request = unsafe { request.0.assume_init() };
        assert_eq!((request.wr_id, request.opcode), (7, sys::WR_BIND_MW));
        assert_eq!((request.num_sge, request.invalidate_rkey), (0, 0));
        assert!(request.next.is_null());
    }
}
