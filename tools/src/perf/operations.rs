//! The calls that are timed: posts, and completions that are polled or waited for.
//!
//! What nearly every call does is in line, and what a C program would do: fill a triplet, call, test the code;
//! test an event's number and status, and take its members. All else is out of line. Each call has a form for
//! plain orders ([`Side::is_plain`]), which tests nothing that is known of those.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use dat_core::abi::common::*;
use dat_core::abi::v2;

use super::api::{Api, kind};
use super::failure::{Result, check_interrupted, error};
use super::ia::event_name;
use super::idle::Idle;
use super::order::{Data, Order};
use super::registrations::Registrations;
use super::side::{Completion, Queue, Side};

/// Timeout of one call of `dat_evd_wait`, in microseconds.
const STEP_US: DAT_TIMEOUT = 100_000;

/// Begins with a cache line: where the stack happens to lie makes a nanosecond of a short operation.
#[repr(align(64))]
struct Line<T>(T);

impl Side {
    /// Whether an order asks for nothing but operations that are polled for: messages are left as they are, all
    /// at one place, and the memory is registered once.
    pub fn is_plain(&self, order: &Order) -> bool {
        order.data == Data::Left && !self.wait && self.registrations.is_none()
    }

    #[inline(always)]
    fn local<const PLAIN: bool>(
        &self,
        queue: Queue,
        offset: usize,
        length: u32,
    ) -> Result<v2::DAT_LMR_TRIPLET> {
        let lmr_context = match &self.registrations {
            Some(each) if !PLAIN => self.register_for(each, queue, offset, length)?,
            _ => self.local_key,
        };
        Ok(v2::DAT_LMR_TRIPLET {
            virtual_address: self.memory.as_ptr() as u64 + offset as u64,
            segment_length: length,
            lmr_context,
        })
    }

    /// The key to memory that is registered for one operation.
    #[cold]
    #[inline(never)]
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

    #[inline(always)]
    fn remote(&self, offset: usize, length: u32) -> v2::DAT_RMR_TRIPLET {
        v2::DAT_RMR_TRIPLET {
            virtual_address: self.peer.base + offset as u64,
            segment_length: length,
            rmr_context: self.peer.key,
        }
    }

    /// Posts a receive of `length` bytes at `offset`.
    pub fn recv(&self, ep: usize, offset: usize, length: u32, cookie: u64) -> Result<()> {
        self.recv_as::<false>(ep, offset, length, cookie)
    }

    /// [`Side::recv`], in the form for plain orders or not.
    #[inline(always)]
    pub fn recv_as<const PLAIN: bool>(
        &self,
        ep: usize,
        offset: usize,
        length: u32,
        cookie: u64,
    ) -> Result<()> {
        let mut segment = Line(self.local::<PLAIN>(Queue::Recv, offset, length)?);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.api;
        // SAFETY: an endpoint of ours, and a segment that is a local.
        let code = unsafe { (api.ep_post_recv)(ep, 1, &mut segment.0, cookie, 0) };
        api.check("dat_ep_post_recv", code)
    }

    /// Posts a send of `length` bytes from `offset`.
    pub fn send(&self, ep: usize, offset: usize, length: u32, cookie: u64) -> Result<()> {
        self.send_as::<false>(ep, offset, length, cookie)
    }

    /// [`Side::send`], in the form for plain orders or not.
    #[inline(always)]
    pub fn send_as<const PLAIN: bool>(
        &self,
        ep: usize,
        offset: usize,
        length: u32,
        cookie: u64,
    ) -> Result<()> {
        let mut segment = Line(self.local::<PLAIN>(Queue::Request, offset, length)?);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_send)(ep, 1, &mut segment.0, cookie, 0) };
        api.check("dat_ep_post_send", code)
    }

    /// Posts an RDMA write from `offset` to the peer's offset `to`.
    pub fn write(&self, ep: usize, offset: usize, to: usize, len: u32, cookie: u64) -> Result<()> {
        self.write_as::<false>(ep, offset, to, len, cookie)
    }

    /// [`Side::write`], in the form for plain orders or not.
    #[inline(always)]
    pub fn write_as<const PLAIN: bool>(
        &self,
        ep: usize,
        offset: usize,
        to: usize,
        len: u32,
        cookie: u64,
    ) -> Result<()> {
        let mut segment = Line(self.local::<PLAIN>(Queue::Request, offset, len)?);
        let remote = self.remote(to, len);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_rdma_write)(ep, 1, &mut segment.0, cookie, &remote, 0) };
        api.check("dat_ep_post_rdma_write", code)
    }

    /// Posts an RDMA read to `offset` from the peer's offset `from`.
    pub fn read(&self, ep: usize, offset: usize, from: usize, len: u32, cookie: u64) -> Result<()> {
        self.read_as::<false>(ep, offset, from, len, cookie)
    }

    /// [`Side::read`], in the form for plain orders or not.
    #[inline(always)]
    pub fn read_as<const PLAIN: bool>(
        &self,
        ep: usize,
        offset: usize,
        from: usize,
        len: u32,
        cookie: u64,
    ) -> Result<()> {
        let mut segment = Line(self.local::<PLAIN>(Queue::Request, offset, len)?);
        let remote = self.remote(from, len);
        let cookie = DAT_CONTEXT { as_64: cookie };
        let ep = self.eps[ep];
        let api = self.api;
        // SAFETY: as above.
        let code = unsafe { (api.ep_post_rdma_read)(ep, 1, &mut segment.0, cookie, &remote, 0) };
        api.check("dat_ep_post_rdma_read", code)
    }

    /// Posts of one kind on the first endpoint, in a plain order.
    pub fn post(&self, function: Post, offset: usize, length: u32) -> PlainPost {
        PlainPost {
            api: self.api,
            function,
            ep: self.eps[0],
            address: self.memory.as_ptr() as u64 + offset as u64,
            length,
            key: self.local_key,
        }
    }

    /// RDMA writes from `offset` to the peer's offset `to` on the first endpoint, in a plain order.
    pub fn writes(&self, offset: usize, to: usize, length: u32) -> PlainWrite {
        PlainWrite {
            api: self.api,
            ep: self.eps[0],
            address: self.memory.as_ptr() as u64 + offset as u64,
            remote: self.peer.base + to as u64,
            length,
            keys: (self.local_key, self.peer.key),
        }
    }

    /// Completions, in a plain order.
    pub fn completions(&self, queue: Queue) -> PlainCompletions {
        PlainCompletions {
            queue,
            dequeue: self.api.evd_dequeue,
            evd: self.evd(queue),
        }
    }

    #[inline(always)]
    fn evd(&self, queue: Queue) -> DAT_EVD_HANDLE {
        match queue {
            Queue::Recv => self.recv_evd,
            Queue::Request => self.request_evd,
        }
    }

    /// The next completion, if there is one.
    pub fn poll(&self, queue: Queue) -> Result<Option<Completion>> {
        self.poll_as::<false>(queue)
    }

    /// [`Side::poll`], in the form for plain orders or not.
    #[inline(always)]
    pub fn poll_as<const PLAIN: bool>(&self, queue: Queue) -> Result<Option<Completion>> {
        let api = self.api;
        let mut event = Line(MaybeUninit::<v2::DAT_EVENT>::uninit());
        // SAFETY: an EVD of ours, and a local to fill.
        let code = unsafe { (api.evd_dequeue)(self.evd(queue), event.0.as_mut_ptr()) };
        if code == DAT_SUCCESS {
            // SAFETY: filled by the call.
            return match self.completion::<PLAIN>(queue, unsafe { event.0.assume_init_ref() }) {
                Ok(completion) => Ok(Some(completion)),
                Err(failure) => Err(failure),
            };
        }
        if kind(code) == DAT_QUEUE_EMPTY {
            return Ok(None);
        }
        Err(api.failure("dat_evd_dequeue", code))
    }

    /// The next completion, polled or waited for.
    pub fn take(&self, queue: Queue) -> Result<Completion> {
        self.take_as::<false>(queue)
    }

    /// [`Side::take`], in the form for plain orders or not.
    #[inline(always)]
    pub fn take_as<const PLAIN: bool>(&self, queue: Queue) -> Result<Completion> {
        if (PLAIN || !self.wait)
            && let Some(completion) = self.poll_as::<PLAIN>(queue)?
        {
            return Ok(completion);
        }
        self.take_later(queue)
    }

    /// [`Side::take`] of what has not been there at once. Cold, although a peer elsewhere mostly takes longer: what
    /// counts then is the time until that.
    #[cold]
    #[inline(never)]
    fn take_later(&self, queue: Queue) -> Result<Completion> {
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
        let api = self.api;
        let mut event = MaybeUninit::<v2::DAT_EVENT>::uninit();
        let (mut more, mut idle) = (0, Idle::default());
        loop {
            let evd = self.evd(queue);
            // SAFETY: an EVD of ours, and locals to fill.
            let code = unsafe { (api.evd_wait)(evd, STEP_US, 1, event.as_mut_ptr(), &mut more) };
            match kind(code) {
                DAT_SUCCESS => {
                    // SAFETY: filled by the call.
                    let event = unsafe { event.assume_init_ref() };
                    return self.completion::<false>(queue, event);
                }
                DAT_TIMEOUT_EXPIRED | DAT_INTERRUPTED_CALL => idle.check(self)?,
                _ => api.check("dat_evd_wait", code)?,
            }
        }
    }

    #[inline(always)]
    fn completion<const PLAIN: bool>(
        &self,
        queue: Queue,
        event: &v2::DAT_EVENT,
    ) -> Result<Completion> {
        if event.event_number != DAT_DTO_COMPLETION_EVENT {
            return unexpected(event.event_number);
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
        if !PLAIN && let Some(each) = &self.registrations {
            self.unregister(each, queue)?;
        }
        Ok(Completion { cookie, length })
    }

    #[cold]
    #[inline(never)]
    fn unregister(&self, each: &Registrations, queue: Queue) -> Result<()> {
        each.end(queue, self.api)
    }

    #[cold]
    #[inline(never)]
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
}

/// `dat_ep_post_send` or `dat_ep_post_recv`.
type Post = unsafe extern "C" fn(
    DAT_EP_HANDLE,
    DAT_COUNT,
    *mut v2::DAT_LMR_TRIPLET,
    DAT_DTO_COOKIE,
    DAT_COMPLETION_FLAGS,
) -> DAT_RETURN;

/// See [`Side::post`].
#[derive(Clone, Copy)]
pub struct PlainPost {
    api: &'static Api,
    function: Post,
    ep: DAT_EP_HANDLE,
    address: u64,
    length: u32,
    key: DAT_LMR_CONTEXT,
}

impl PlainPost {
    /// Posts once more.
    #[inline(always)]
    pub fn post(&self, call: &str) -> Result<()> {
        let mut segment = Line(v2::DAT_LMR_TRIPLET {
            virtual_address: self.address,
            segment_length: self.length,
            lmr_context: self.key,
        });
        let cookie = DAT_CONTEXT { as_64: 0 };
        // SAFETY: an endpoint of a side that is there, and a segment that is a local.
        let code = unsafe { (self.function)(self.ep, 1, &mut segment.0, cookie, 0) };
        self.api.check(call, code)
    }
}

/// See [`Side::writes`].
#[derive(Clone, Copy)]
pub struct PlainWrite {
    api: &'static Api,
    ep: DAT_EP_HANDLE,
    address: u64,
    remote: u64,
    length: u32,
    keys: (DAT_LMR_CONTEXT, DAT_RMR_CONTEXT),
}

impl PlainWrite {
    /// Posts once more.
    #[inline(always)]
    pub fn post(&self) -> Result<()> {
        let mut segment = Line(v2::DAT_LMR_TRIPLET {
            virtual_address: self.address,
            segment_length: self.length,
            lmr_context: self.keys.0,
        });
        let remote = v2::DAT_RMR_TRIPLET {
            virtual_address: self.remote,
            segment_length: self.length,
            rmr_context: self.keys.1,
        };
        let (api, cookie) = (self.api, DAT_CONTEXT { as_64: 0 });
        // SAFETY: an endpoint of a side that is there, and segments that are locals.
        let code =
            unsafe { (api.ep_post_rdma_write)(self.ep, 1, &mut segment.0, cookie, &remote, 0) };
        api.check("dat_ep_post_rdma_write", code)
    }
}

/// See [`Side::completions`].
#[derive(Clone, Copy)]
pub struct PlainCompletions {
    queue: Queue,
    dequeue: unsafe extern "C" fn(DAT_EVD_HANDLE, *mut v2::DAT_EVENT) -> DAT_RETURN,
    evd: DAT_EVD_HANDLE,
}

impl PlainCompletions {
    /// Takes the next completion of `side`; gives its length.
    #[inline(always)]
    pub fn take(&self, side: &Side) -> Result<u32> {
        let mut event = Line(MaybeUninit::<v2::DAT_EVENT>::uninit());
        // SAFETY: an EVD of a side that is there, and a local to fill.
        let code = unsafe { (self.dequeue)(self.evd, event.0.as_mut_ptr()) };
        if code != DAT_SUCCESS {
            return Ok(side.take_later(self.queue)?.length);
        }
        // SAFETY: filled by the call.
        let event = unsafe { event.0.assume_init_ref() };
        Ok(side.completion::<true>(self.queue, event)?.length)
    }
}

/// An event that is not a completion.
#[cold]
#[inline(never)]
fn unexpected<T>(number: DAT_EVENT_NUMBER) -> Result<T> {
    error(format!("event {number:#x} on a DTO EVD"))
}
