//! One end of a measurement: registered memory, event dispatchers and endpoints.

use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dat_core::abi::common::*;
use dat_core::abi::v2;

use super::api::kind;
use super::failure::{Result, check_interrupted, error};
use super::ia::{EVENTS, Ia, event_name};
use super::idle::Idle;
use super::link::Link;
use super::map::Map;
use super::order::{Hello, NOTE_LEN};
use super::registrations::Registrations;

/// Timeout of one call of `dat_evd_wait`, in microseconds.
const STEP_US: DAT_TIMEOUT = 100_000;
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
    /// The parts of the registered memory.
    pub map: Map,
    /// Where the peer's memory is.
    pub peer: Peer,
    /// Whether completions are waited for and not polled.
    pub wait: bool,
    /// For connection events.
    pub connect_evd: DAT_EVD_HANDLE,
    memory: NonNull<u8>,
    pz: DAT_PZ_HANDLE,
    /// The registration of all the memory, unless that of each operation is registered for itself.
    lmr: DAT_LMR_HANDLE,
    /// Those of single operations, if each has one.
    registrations: Option<Registrations>,
    local_key: DAT_LMR_CONTEXT,
    remote_key: DAT_RMR_CONTEXT,
    recv_evd: DAT_EVD_HANDLE,
    request_evd: DAT_EVD_HANDLE,
    eps: Vec<DAT_EP_HANDLE>,
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
        let (api, ia) = (self.ia.api, self.ia.handle);
        // SAFETY: an open IA and a local to fill.
        let code = unsafe { (api.pz_create)(ia, &mut self.pz) };
        api.check("dat_pz_create", code)
    }

    /// Registers a part of the memory: the LMR, its local and its remote key.
    fn register(&self, offset: usize, bytes: usize) -> Result<Registration> {
        assert!(offset + bytes <= self.map.len(), "inside the memory");
        let (api, ia) = (self.ia.api, self.ia.handle);
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
        let (api, limits) = (self.ia.api, &self.ia.limits);
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

    // --- operations ------------------------------------------------------------------------

    #[inline]
    fn local(&self, queue: Queue, offset: usize, length: u32) -> Result<v2::DAT_LMR_TRIPLET> {
        let lmr_context = match &self.registrations {
            None => self.local_key,
            Some(each) => self.register_for(each, queue, offset, length)?,
        };
        Ok(v2::DAT_LMR_TRIPLET {
            virtual_address: self.memory.as_ptr() as u64 + offset as u64,
            segment_length: length,
            lmr_context,
        })
    }

    /// The key to memory that is registered for one operation.
    #[cold]
    fn register_for(
        &self,
        each: &Registrations,
        queue: Queue,
        offset: usize,
        length: u32,
    ) -> Result<DAT_LMR_CONTEXT> {
        let (lmr, key, _) = self.register(offset, length as usize)?;
        Ok(each.begin(queue, (lmr, key)))
    }

    #[inline]
    fn remote(&self, offset: usize, length: u32) -> v2::DAT_RMR_TRIPLET {
        v2::DAT_RMR_TRIPLET {
            virtual_address: self.peer.base + offset as u64,
            segment_length: length,
            rmr_context: self.peer.key,
        }
    }

    /// Posts a receive of `length` bytes at `offset`.
    #[inline]
    pub fn recv(&self, ep: usize, offset: usize, length: u32, cookie: u64) -> Result<()> {
        let mut segment = self.local(Queue::Recv, offset, length)?;
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.ia.api;
        // SAFETY: an endpoint of ours, and a segment that is a local.
        let code = unsafe { (api.ep_post_recv)(ep, 1, &mut segment, cookie, 0) };
        api.check("dat_ep_post_recv", code)
    }

    /// Posts a send of `length` bytes from `offset`.
    #[inline]
    pub fn send(&self, ep: usize, offset: usize, length: u32, cookie: u64) -> Result<()> {
        let mut segment = self.local(Queue::Request, offset, length)?;
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.ia.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_send)(ep, 1, &mut segment, cookie, 0) };
        api.check("dat_ep_post_send", code)
    }

    /// Posts an RDMA write from `offset` to the peer's offset `to`.
    #[inline]
    pub fn write(&self, ep: usize, offset: usize, to: usize, len: u32, cookie: u64) -> Result<()> {
        let mut segment = self.local(Queue::Request, offset, len)?;
        let remote = self.remote(to, len);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.ia.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_rdma_write)(ep, 1, &mut segment, cookie, &remote, 0) };
        api.check("dat_ep_post_rdma_write", code)
    }

    /// Posts an RDMA read to `offset` from the peer's offset `from`.
    #[inline]
    pub fn read(&self, ep: usize, offset: usize, from: usize, len: u32, cookie: u64) -> Result<()> {
        let mut segment = self.local(Queue::Request, offset, len)?;
        let remote = self.remote(from, len);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.ia.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_rdma_read)(ep, 1, &mut segment, cookie, &remote, 0) };
        api.check("dat_ep_post_rdma_read", code)
    }

    // --- completions -----------------------------------------------------------------------

    #[inline]
    fn evd(&self, queue: Queue) -> DAT_EVD_HANDLE {
        match queue {
            Queue::Recv => self.recv_evd,
            Queue::Request => self.request_evd,
        }
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn poll(&self, queue: Queue) -> Result<Option<Completion>> {
        let api = self.ia.api;
        let mut event = MaybeUninit::<v2::DAT_EVENT>::uninit();
        // SAFETY: an EVD of ours, and a local to fill.
        let code = unsafe { (api.evd_dequeue)(self.evd(queue), event.as_mut_ptr()) };
        if code == DAT_SUCCESS {
            // SAFETY: filled by the call.
            let event = unsafe { event.assume_init_ref() };
            return self.completion(queue, event).map(Some);
        }
        if kind(code) == DAT_QUEUE_EMPTY {
            return Ok(None);
        }
        api.check("dat_evd_dequeue", code).map(|()| None)
    }

    /// The next completion, polled or waited for.
    #[inline]
    pub fn take(&self, queue: Queue) -> Result<Completion> {
        if self.wait {
            return self.wait_for(queue);
        }
        let mut idle = Idle::default();
        loop {
            if let Some(completion) = self.poll(queue)? {
                return Ok(completion);
            }
            idle.look_around(self)?;
        }
    }

    fn wait_for(&self, queue: Queue) -> Result<Completion> {
        let api = self.ia.api;
        let mut event = MaybeUninit::<v2::DAT_EVENT>::uninit();
        let (mut more, mut idle) = (0, Idle::default());
        loop {
            let evd = self.evd(queue);
            // SAFETY: an EVD of ours, and locals to fill.
            let code = unsafe { (api.evd_wait)(evd, STEP_US, 1, event.as_mut_ptr(), &mut more) };
            match kind(code) {
                // SAFETY: filled by the call.
                DAT_SUCCESS => return self.completion(queue, unsafe { event.assume_init_ref() }),
                DAT_TIMEOUT_EXPIRED | DAT_INTERRUPTED_CALL => idle.check(self)?,
                _ => api.check("dat_evd_wait", code)?,
            }
        }
    }

    #[inline]
    fn completion(&self, queue: Queue, event: &v2::DAT_EVENT) -> Result<Completion> {
        if event.event_number != DAT_DTO_COMPLETION_EVENT {
            return error(format!("event {:#x} on a DTO EVD", event.event_number));
        }
        // Member by member, as C programs do: a copy of the whole waits for what the library has
        // just written.
        // SAFETY: the event says that this is its payload; each member of a cookie is a number.
        let (status, cookie, length) = unsafe {
            let dto = &raw const event.event_data.dto_completion_event_data;
            (
                (&raw const (*dto).status).read_volatile(),
                (&raw const (*dto).user_cookie.as_64).read_volatile(),
                (&raw const (*dto).transfered_length).read_volatile(),
            )
        };
        if status != DAT_DTO_SUCCESS {
            return self.failed(status);
        }
        if let Some(each) = &self.registrations {
            each.end(queue, self.ia.api)?;
        }
        Ok(Completion { cookie, length })
    }

    #[cold]
    fn failed<T>(&self, status: DAT_DTO_COMPLETION_STATUS) -> Result<T> {
        if status == DAT_DTO_ERR_FLUSHED {
            check_interrupted()?;
            // Why it was flushed is told on the other EVD, not always at once.
            let soon = Instant::now() + Duration::from_millis(200);
            return match self.ia.wait(self.connect_evd, Some(soon))? {
                Some(event) => error(format!(
                    "connection lost: {}",
                    event_name(event.event_number)
                )),
                None => error("connection lost"),
            };
        }
        let names = [
            "success",
            "flushed",
            "local length error",
            "local endpoint error",
            "local protection error",
            "bad response",
            "remote access error",
            "remote responder error",
            "transport error",
            "receiver not ready",
            "partial packet",
        ];
        match names.get(status as usize) {
            Some(name) => error(format!("an operation ended with: {name}")),
            None => error(format!("an operation ended with status {status}")),
        }
    }

    /// Ends the connections, the peer being told.
    pub fn disconnect(&self) {
        for &ep in &self.eps {
            // SAFETY: an endpoint of ours. That it is not connected any more is no matter.
            unsafe { (self.ia.api.ep_disconnect)(ep, DAT_CLOSE_GRACEFUL_FLAG) };
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let api = self.ia.api;
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
