//! What a queue pair and a shared receive queue can do, and who is told what happens to them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{CmEvent, Device, DeviceError, PostError, RecvWr, Remote, SendWr, Sge};
use crate::handle::Guard;
use crate::handle::pin::pin;

/// Receives what happens to a queue pair. Implemented by the EP.
pub trait QpHandler: Send + Sync {
    /// The connection changed. Each connection attempt ends in exactly one of the events
    /// that end it.
    ///
    /// No message of the peer is delivered before the handler has returned from
    /// [`CmEvent::Established`], or has called [`QueuePair::start_receiving`].
    fn connection(&self, event: CmEvent);
    /// The queue pair holds more buffers of its shared receive queue than the soft mark of
    /// [`QueuePair::set_recv_watermarks`].
    fn soft_watermark(&self);
}

/// A queue pair and its connection.
pub trait QueuePair: Send + Sync {
    /// Queues a request, in a section of the caller.
    ///
    /// After the connection has ended the request is taken and completes as
    /// [`WcStatus::Flushed`](super::WcStatus::Flushed).
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_send_in(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError>;
    /// The same in a section of its own.
    ///
    /// # Errors
    /// As above.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_in(wr, &pin())
    }
    /// Queues a receive buffer, in a section of the caller. That is possible in any state; after the
    /// connection has ended the buffer is flushed at once.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_recv_in(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError>;
    /// The same in a section of its own.
    ///
    /// # Errors
    /// As above.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_in(wr, &pin())
    }
    /// [`QueuePair::post_send_in`] of a message of one segment, without flags, if that takes the shortest way and
    /// `errno` keeps its value.
    ///
    /// # Safety
    /// The thread holds no [biased lock](crate::handle::Biased) as its owner.
    #[inline(always)]
    unsafe fn post_send_plainly(&self, _segment: Sge, _wr_id: u64, _guard: &Guard) -> PlainPost {
        PlainPost::NotHere
    }
    /// The same of an RDMA write.
    ///
    /// # Safety
    /// As [`QueuePair::post_send_plainly`].
    #[inline(always)]
    unsafe fn post_write_plainly(
        &self,
        _segment: Sge,
        _remote: Remote,
        _wr_id: u64,
        _guard: &Guard,
    ) -> PlainPost {
        PlainPost::NotHere
    }
    /// [`QueuePair::post_recv_in`] of a buffer of one segment, without flags, if that needs no call.
    ///
    /// # Safety
    /// As [`QueuePair::post_send_plainly`].
    #[inline(always)]
    unsafe fn post_recv_plainly(&self, _segment: Sge, _wr_id: u64, _guard: &Guard) -> PlainPost {
        PlainPost::NotHere
    }
    /// The consumer has been notified that the connection is established: receives complete, and
    /// peers reach memory, from now on. The handler may call this within [`CmEvent::Established`];
    /// the device does so when the handler has returned. Without effect if there is no connection
    /// or the queue pair receives already.
    fn start_receiving(&self);
    /// Ends the connection or its establishment. Graceful: after the requests that are queued.
    /// Abrupt: outstanding requests are flushed. [`CmEvent::Disconnected`] follows, also when
    /// establishment is given up; no event follows if there was neither.
    fn disconnect(&self, graceful: bool) {
        self.disconnect_attempt(self.attempt(), graceful);
    }
    /// [`QueuePair::disconnect`], of the connection that this attempt has become: without effect if the queue pair was
    /// reset since and another one was begun.
    fn disconnect_attempt(&self, attempt: u64, graceful: bool);
    /// Number of the last attempt to make a connection that was begun, by either end.
    fn attempt(&self) -> u64;
    /// Back to the state after creation; only after the connection has ended. Completions of
    /// the old connection are removed from the completion queues. Gives how many buffers of the
    /// shared receive queue are lost with them.
    fn reset(&self) -> u32;
    /// Ends the connection without an event; receives and requests vanish, and so do their
    /// completions that are still queued. Gives how many buffers of the shared receive queue
    /// are lost with them.
    fn destroy(&self) -> u32;
    /// Requests outstanding: posted, not completed.
    fn send_outstanding(&self) -> u32;
    /// Receives outstanding: posted, or taken from the shared receive queue, not completed.
    fn recv_outstanding(&self) -> u32;
    /// Sets marks on the number of buffers taken from the shared receive queue and not
    /// completed: above `soft` one [`QpHandler::soft_watermark`] follows, at once if that is
    /// so; above `hard` the connection breaks. `None` is no mark.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError>;
    /// How the two ends of the connection, or of the last one, reach each other, as the log names that;
    /// `None` if that is not decided.
    fn path(&self) -> Option<String>;
    /// Local and remote address of the connection or of the attempt.
    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)>;
}

/// What an attempt to post plainly has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlainPost {
    /// All that there is to do.
    Posted,
    /// Nothing, as always with such a queue pair.
    NotHere,
    /// Nothing, as rarely.
    Otherwise,
}

/// What a queue pair is put together from.
pub struct QpParts<'a, D: Device> {
    /// Protection domain.
    pub pd: &'a D::Pd,
    /// For requests; `None` to discard their completions.
    pub send_cq: Option<&'a Arc<D::Cq>>,
    /// For receives; `None` as above, but not with a shared receive queue, whose owner has to learn
    /// what became of each buffer.
    pub recv_cq: Option<&'a Arc<D::Cq>>,
    /// The shared receive queue, if receives are not posted to the queue pair.
    pub srq: Option<&'a Arc<D::Srq>>,
}

/// Receives the events of a shared receive queue. Implemented by the SRQ.
pub trait SrqHandler: Send + Sync {
    /// Fewer buffers are left than [`SharedReceiveQueue::arm_limit`] asked for; the arming is
    /// used up.
    fn limit(&self);
    /// The device has lost the queue: no more of its buffers are used.
    fn failed(&self);
}

/// A shared receive queue: buffers for the messages of any of its queue pairs.
pub trait SharedReceiveQueue: Send + Sync {
    /// Queues a receive buffer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued then.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError>;
    /// Changes how many buffers fit.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if more are queued, or the device cannot hold so many.
    fn resize(&self, max_wr: u32) -> Result<(), DeviceError>;
    /// Arms one [`SrqHandler::limit`], called when fewer than `limit` buffers are queued, at once
    /// if that is so already; 0 disarms.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`].
    fn arm_limit(&self, limit: u32) -> Result<(), DeviceError>;
    /// Buffers that are queued; `None` if the device does not report that.
    fn available(&self) -> Option<u32>;
}
