//! Communication identifiers of librdmacm.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use super::adapter::{Adapter, Target, check};
use super::address::{self, Storage};
use super::library_use::LibraryUse;
use super::sys;
use crate::device::DeviceError;

/// A communication identifier. Dropping it destroys it and takes its number back.
pub(super) struct CmId {
    adapter: Arc<Adapter>,
    /// The identifier of librdmacm.
    pub raw: *mut sys::CmId,
    /// Number by which events name the identifier.
    pub token: u64,
}

// SAFETY: librdmacm is thread-safe, and the id is valid until the drop.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl CmId {
    /// A new identifier in a port space (`sys::PS_*`), whose events are for `target`.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn new(
        adapter: &Arc<Adapter>,
        port_space: c_int,
        target: Target,
    ) -> Result<CmId, DeviceError> {
        let token = adapter.register(target);
        let mut raw = null_mut();
        let _use = LibraryUse::begin_opening();
        // SAFETY: the channel is open as long as the adapter.
        let error = unsafe {
            (adapter.lib.rdma_create_id)(adapter.cm_channel, &mut raw, token.as_ptr(), port_space)
        };
        if error != 0 {
            return Err(DeviceError::Resources);
        }
        Ok(CmId {
            adapter: adapter.clone(),
            raw,
            token: token.keep(),
        })
    }

    /// The identifier that the kernel has made for a request.
    ///
    /// # Safety
    /// `raw` is a live id without an owner, and no event of it is being read.
    pub unsafe fn adopt(adapter: &Arc<Adapter>, raw: *mut sys::CmId, target: Target) -> CmId {
        let token = adapter.register(target);
        // SAFETY: the caller's promise.
        unsafe { (*raw).context = token.as_ptr() };
        CmId {
            adapter: adapter.clone(),
            raw,
            token: token.keep(),
        }
    }

    /// Whether the kernel waits for the peer's reply to a request. Until it arrives, calls that
    /// destroy the identifier or the queue pair of an iWARP device block.
    pub fn is_waiting(&self) -> bool {
        self.adapter.unanswered.has(self.token)
    }

    /// A request is about to be sent.
    pub fn wait_for_answer(&self) {
        self.adapter.unanswered.sent(self.token);
    }

    /// The request was not sent after all. The caller holds no lock.
    pub fn not_sent(&self) {
        self.adapter.unanswered.answered(self.token);
        // The thread that serves the IA may wait for that alone.
        self.adapter.jobs.wake();
    }

    /// Makes a call that would block while the kernel waits for a reply: when that has arrived.
    pub fn after_answer(&self, call: impl FnOnce() + Send + 'static) {
        self.adapter.unanswered.after(self.token, call);
    }

    /// Sends a request.
    ///
    /// # Safety
    /// The private data that `param` names is valid.
    pub unsafe fn connect(&self, param: &mut sys::ConnParam) -> io::Result<()> {
        // SAFETY: the id is valid; the rest is the caller's promise.
        check(unsafe { (self.adapter.lib.rdma_connect)(self.raw, param) })
    }

    /// The local address and that of the peer, where they are known.
    pub fn addrs(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        // SAFETY: the id is valid.
        let (src, dst) = unsafe { (&(*self.raw).route.src_addr, &(*self.raw).route.dst_addr) };
        (address::read(src), address::read(dst))
    }

    /// Binds the identifier to a local address.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut storage: Storage = address::storage(address);
        let _use = LibraryUse::begin_opening();
        // SAFETY: the id and the address are valid.
        check(unsafe { (self.adapter.lib.rdma_bind_addr)(self.raw, storage.as_mut_ptr()) })
    }

    /// Listens for requests, of which so many wait in the kernel.
    pub fn listen(&self, backlog: c_int) -> io::Result<()> {
        let _use = LibraryUse::begin();
        // SAFETY: the id is valid.
        check(unsafe { (self.adapter.lib.rdma_listen)(self.raw, backlog) })
    }

    /// The port of this end.
    pub fn port(&self) -> u16 {
        // SAFETY: the id is valid.
        u16::from_be(unsafe { (self.adapter.lib.rdma_get_src_port)(self.raw) })
    }

    /// Starts to resolve the address of a peer, from that of this end.
    pub fn resolve_addr(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let (mut from, mut to) = (address::storage(from), address::storage(to));
        let (from, to) = (from.as_mut_ptr(), to.as_mut_ptr());
        let resolve = self.adapter.lib.rdma_resolve_addr;
        let _use = LibraryUse::begin_opening();
        // SAFETY: the id and the addresses are valid.
        check(unsafe { resolve(self.raw, from, to, millis(timeout)) })
    }

    /// Starts to resolve the route to the peer.
    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        let _use = LibraryUse::begin_opening();
        // SAFETY: the id is valid.
        check(unsafe { (self.adapter.lib.rdma_resolve_route)(self.raw, millis(timeout)) })
    }

    /// Accepts a request.
    ///
    /// # Safety
    /// The private data that `param` names is valid.
    pub unsafe fn accept(&self, param: &mut sys::ConnParam) -> io::Result<()> {
        // SAFETY: the id is valid; the rest is the caller's promise.
        check(unsafe { (self.adapter.lib.rdma_accept)(self.raw, param) })
    }

    /// Rejects a request: as the consumer of this end if `by_consumer` is set. rdma-core before
    /// version 31 can reject as the consumer only.
    pub fn reject(&self, private_data: &[u8], by_consumer: bool) {
        let lib = self.adapter.lib;
        let len = private_data.len().min(255) as u8;
        // SAFETY: the id and the data are valid; an error means that the peer has given up.
        unsafe {
            let reject = match lib.rdma_reject_ece {
                Some(by_library) if !by_consumer => by_library,
                _ => lib.rdma_reject,
            };
            reject(self.raw, private_data.as_ptr().cast(), len);
        }
    }
}

fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis())
        .unwrap_or(c_int::MAX)
        .max(1)
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.adapter.unregister(self.token);
        let unused = UnusedId(self.raw, self.adapter.clone());
        self.after_answer(move || unused.destroy());
    }
}

/// An identifier that is to be destroyed, with the adapter it was made from.
struct UnusedId(*mut sys::CmId, Arc<Adapter>);

// SAFETY: librdmacm is thread-safe, and there is one owner.
unsafe impl Send for UnusedId {}

impl UnusedId {
    fn destroy(self) {
        let _use = LibraryUse::begin();
        // SAFETY: ours; the service thread acknowledges events of it as soon as it has read them.
        unsafe { (self.1.lib.rdma_destroy_id)(self.0) };
    }
}
