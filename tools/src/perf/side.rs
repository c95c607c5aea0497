//! One end of a measurement: registered memory, event dispatchers and endpoints.

use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use dat_core::abi::common::*;
use dat_core::abi::v2;

use super::api::Api;
use super::failure::{Result, error};
use super::ia::{EVENTS, Ia};
use super::link::Link;
use super::map::Map;
use super::order::{Hello, NOTE_LEN};
use super::registrations::Registrations;

/// RDMA reads in flight on an endpoint, if the IA can do so many.
const READS: DAT_COUNT = 16;

/// Which completions are meant.
#[derive(Clone, Copy)]
pub enum Queue {
    /// Of receives.
    Recv,
    /// Of what was asked for here.
    Request,
}

/// A completed operation.
#[derive(Clone, Copy)]
pub struct Completion {
    /// As given with the post.
    pub cookie: u64,
    /// Bytes that were received.
    pub length: u32,
}

/// Where the peer's memory is.
#[derive(Clone, Copy, Default)]
pub struct Peer {
    /// Address of its registered memory.
    pub base: u64,
    /// Key to it.
    pub key: DAT_RMR_CONTEXT,
}

/// An LMR, its local and its remote key.
type Registration = (DAT_LMR_HANDLE, DAT_LMR_CONTEXT, DAT_RMR_CONTEXT);

/// One end of a measurement.
pub struct Side {
    /// The IA on which all of it is.
    pub ia: Rc<Ia>,
    /// The library.
    pub api: &'static Api,
    /// The parts of the registered memory.
    pub map: Map,
    /// Where the peer's memory is.
    pub peer: Peer,
    /// Whether completions are waited for and not polled.
    pub wait: bool,
    /// For connection events.
    pub connect_evd: DAT_EVD_HANDLE,
    pub(super) memory: NonNull<u8>,
    pz: DAT_PZ_HANDLE,
    /// The registration of all the memory, unless that of each operation is registered for itself.
    lmr: DAT_LMR_HANDLE,
    /// Those of single operations, if each has one.
    pub(super) registrations: Option<Registrations>,
    pub(super) local_key: DAT_LMR_CONTEXT,
    remote_key: DAT_RMR_CONTEXT,
    pub(super) recv_evd: DAT_EVD_HANDLE,
    pub(super) request_evd: DAT_EVD_HANDLE,
    pub(super) eps: Vec<DAT_EP_HANDLE>,
}

/// A count as DAT has it.
fn count(value: usize) -> DAT_COUNT {
    DAT_COUNT::try_from(value).unwrap_or(DAT_COUNT::MAX)
}

impl Side {
    /// Makes what `hello` says. The endpoints are not connected.
    ///
    /// # Errors
    ///
    /// What the library says, or that the IA cannot hold so much.
    pub fn new(ia: &Rc<Ia>, hello: &Hello, wait: bool) -> Result<Side> {
        let map = Map {
            area: hello.area as usize,
        };
        let endpoints = usize::from(hello.endpoints);
        let window = usize::from(hello.window);
        let (recvs, requests) = (2 * window + 2, window + 8);
        let longest = endpoints * recvs.max(requests);
        if count(longest) > ia.limits.max_evd_qlen || count(endpoints) > ia.limits.max_eps {
            return error(format!(
                "{endpoints} endpoints with a window of {window} are too much for this IA \
                 ({} endpoints, {} events in an EVD)",
                ia.limits.max_eps, ia.limits.max_evd_qlen
            ));
        }
        let Ok(layout) = Layout::from_size_align(map.len(), 4096) else {
            return error("so much memory cannot be had");
        };
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc::alloc(layout) };
        let Some(memory) = NonNull::new(memory) else {
            return error(format!("no memory: {} bytes", map.len()));
        };
        // The pages are to be there before anything is timed.
        // SAFETY: allocated with this length.
        unsafe { memory.write_bytes(1, map.len()) };
        let null = ptr::null_mut();
        let mut side = Side {
            ia: Rc::clone(ia),
            api: ia.api,
            map,
            peer: Peer::default(),
            wait,
            connect_evd: null,
            memory,
            pz: null,
            lmr: null,
            registrations: hello.registers.then(Registrations::default),
            local_key: 0,
            remote_key: 0,
            recv_evd: null,
            request_evd: null,
            eps: Vec::with_capacity(endpoints),
        };
        side.make_pz()?;
        if side.registrations.is_none() {
            (side.lmr, side.local_key, side.remote_key) = side.register(0, map.len())?;
        }
        side.connect_evd = ia.evd(EVENTS.max(count(2 * endpoints)), DAT_EVD_CONNECTION_FLAG)?;
        side.recv_evd = ia.evd(count(endpoints * recvs), DAT_EVD_DTO_FLAG)?;
        side.request_evd = ia.evd(count(endpoints * requests), DAT_EVD_DTO_FLAG)?;
        for _ in 0..endpoints {
            side.add_ep(recvs, requests)?;
        }
        Ok(side)
    }

    fn make_pz(&mut self) -> Result<()> {
        let (api, ia) = (self.api, self.ia.handle);
        // SAFETY: an open IA and a local to fill.
        let code = unsafe { (api.pz_create)(ia, &mut self.pz) };
        api.check("dat_pz_create", code)
    }

    /// Registers a part of the memory: the LMR, its local and its remote key.
    pub(super) fn register(&self, offset: usize, bytes: usize) -> Result<Registration> {
        assert!(offset + bytes <= self.map.len(), "inside the memory");
        let (api, ia) = (self.api, self.ia.handle);
        let region = DAT_REGION_DESCRIPTION {
            for_va: self.memory.as_ptr().wrapping_add(offset).cast(),
        };
        let (mut length, mut address) = (0, 0);
        let (mut lmr, mut local_key, mut remote_key) = (ptr::null_mut(), 0, 0);
        // SAFETY: memory of this length, which is freed after the LMR; locals to fill.
        let code = unsafe {
            (api.lmr_create)(
                ia,
                DAT_MEM_TYPE_VIRTUAL,
                region,
                bytes as DAT_VLEN,
                self.pz,
                DAT_MEM_PRIV_ALL_FLAG,
                v2::DAT_VA_TYPE_VA,
                &mut lmr,
                &mut local_key,
                &mut remote_key,
                &mut length,
                &mut address,
            )
        };
        api.check("dat_lmr_create", code)?;
        Ok((lmr, local_key, remote_key))
    }

    fn add_ep(&mut self, recvs: usize, requests: usize) -> Result<()> {
        let (api, limits) = (self.api, &self.ia.limits);
        // SAFETY: zeros are a value of the type.
        let mut attr: v2::DAT_EP_ATTR = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.service_type = DAT_SERVICE_TYPE_RC;
        attr.max_message_size = self.map.area.max(NOTE_LEN) as v2::DAT_SEG_LENGTH;
        attr.max_rdma_size = attr.max_message_size;
        attr.max_recv_dtos = count(recvs);
        attr.max_request_dtos = count(requests);
        attr.max_recv_iov = 1;
        attr.max_request_iov = 1;
        attr.max_rdma_read_iov = 1;
        attr.max_rdma_write_iov = 1;
        attr.max_rdma_read_in = limits.max_rdma_read_per_ep_in.min(READS);
        attr.max_rdma_read_out = limits.max_rdma_read_per_ep_out.min(READS);
        let mut ep = ptr::null_mut();
        // SAFETY: handles of this IA, and locals.
        let code = unsafe {
            (api.ep_create)(
                self.ia.handle,
                self.pz,
                self.recv_evd,
                self.request_evd,
                self.connect_evd,
                &attr,
                &mut ep,
            )
        };
        api.check("dat_ep_create", code)?;
        self.eps.push(ep);
        Ok(())
    }

    /// The handle of an endpoint.
    pub fn ep(&self, ep: usize) -> DAT_EP_HANDLE {
        self.eps[ep]
    }

    /// What connects the endpoints to those of the peer.
    pub fn link(&self) -> Link {
        Link::of(&self.eps)
    }

    /// Number of endpoints.
    pub fn endpoints(&self) -> usize {
        self.eps.len()
    }

    /// Address and key of our memory, for the peer.
    pub fn introduce(&self, hello: &Hello) -> Hello {
        Hello {
            base: self.memory.as_ptr() as u64,
            key: self.remote_key,
            ..*hello
        }
    }

    /// A part of the registered memory.
    pub fn bytes(&mut self, offset: usize, length: usize) -> &mut [u8] {
        assert!(offset + length <= self.map.len(), "inside the memory");
        // SAFETY: inside the allocation. The peer leaves it alone meanwhile, or what is read is
        // wrong and is said to be.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(offset), length) }
    }

    /// A word that the peer may write at any time.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len());
        // SAFETY: inside the allocation, and aligned as that is.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Ends the connections, the peer being told.
    pub fn disconnect(&self) {
        for &ep in &self.eps {
            // SAFETY: an endpoint of ours. That it is not connected any more is no matter.
            unsafe { (self.api.ep_disconnect)(ep, DAT_CLOSE_GRACEFUL_FLAG) };
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let api = self.api;
        // SAFETY: ours, made before what they depend on is freed, and not used any more. A
        // failure would leave them to the end of the IA.
        unsafe {
            for &ep in &self.eps {
                (api.ep_disconnect)(ep, DAT_CLOSE_ABRUPT_FLAG);
                (api.ep_free)(ep);
            }
            for evd in [self.recv_evd, self.request_evd, self.connect_evd] {
                if !evd.is_null() {
                    (api.evd_free)(evd);
                }
            }
            let mut freed = self.lmr.is_null() || (api.lmr_free)(self.lmr) == DAT_SUCCESS;
            if let Some(each) = &self.registrations {
                freed &= each.free(api);
            }
            if !self.pz.is_null() {
                (api.pz_free)(self.pz);
            }
            // Memory that is still registered stays.
            if freed && let Ok(layout) = Layout::from_size_align(self.map.len(), 4096) {
                alloc::dealloc(self.memory.as_ptr(), layout);
            }
        }
    }
}

/// Makes what was written before visible, and what the peer has written.
pub fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
