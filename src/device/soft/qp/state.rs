//! The state of a queue pair, one end of a connection, and its two work queues.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use super::srq::{Srq, SrqWaiter, Turn};
use super::work_queue::{NEVER, Receive, Request, WorkQueue};
use crate::device::attempt::{Attempt, Phase};
use crate::device::connection_log::{Cause, Identity as Name, LogEntry, Outcome, Path, Step};
use crate::device::events::EventQueue;
use crate::device::soft::cq::Cq;
use crate::device::soft::engine::Timer;
use crate::device::soft::event_order::SetupGuard;
use crate::device::soft::mem::key_table;
use crate::device::soft::mem::scope::Scope;
use crate::device::soft::mem::segments::LastRegion;
use crate::device::soft::mem::window::Bind;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{
    ATOMIC_LEN, Access, CmEvent, DeviceError, PostError, QpAttr, RecvWr, SendOp, SendWr, Sge,
    WcStatus,
};
use crate::guarded;
use crate::handle::Guard;

/// Bytes of one message or RDMA operation.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Why a connection is broken whose messages were not received within `linger`.
pub(crate) const LATE_RECV: &str =
    "after a graceful disconnect, messages were not received in time";

/// What a queue pair is made of; replaced as a whole.
pub(crate) struct Identity {
    pub attr: QpAttr,
    pub pd: u32,
    /// The protection domain of receives.
    pub recv_pd: u32,
    /// The number of the queue pair in keys of windows that are for it alone.
    pub key_scope: u32,
    pub send_cq: Option<Arc<Cq>>,
    pub recv_cq: Option<Arc<Cq>>,
    pub srq: Option<Arc<Srq>>,
    pub events: Arc<EventQueue>,
}

impl Identity {
    /// Which keys are open to the peer.
    #[inline]
    pub fn scope(&self) -> Scope {
        Scope {
            pd: self.pd,
            qp: self.key_scope,
        }
    }

    fn receives(&self) -> (u32, u32) {
        match &self.srq {
            // Messages arrive one after the other, and each takes its buffer when it begins.
            Some(srq) => (1, srq.max_sge),
            None => (self.attr.max_recv_wr, self.attr.max_recv_sge),
        }
    }

    fn receive_ring(&self) -> WorkQueue<Receive> {
        let (limit, stride) = self.receives();
        WorkQueue::new(limit, stride)
    }
}

/// Whether a message has a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Supply {
    /// At the head of the queue.
    Ready,
    /// Not yet.
    Empty,
    /// The queue pair has more buffers of its shared receive queue than it may.
    Excess,
}

/// The state of a queue pair, guarded by the lock of the
/// [`LockDomain`](crate::device::soft::qp::place::LockDomain) that holds it.
pub(crate) struct QpState {
    pub id: Arc<Identity>,
    /// The queue pair whose state this is.
    qp: Weak<dyn SrqWaiter>,
    /// The phase of the connection, and the number of the attempt to make one.
    pub attempt: Attempt,
    /// Whether the consumer has the event that the connection is established. What the peer sends
    /// waits until then.
    pub receiving: bool,
    /// The region that segments were last found in, by the access that they need: read and written.
    regions: [LastRegion; 2],
    pub sq: WorkQueue<Request>,
    pub rq: WorkQueue<Receive>,
    /// What the binds in the send queue are to do that are not executed.
    pub binds: VecDeque<Bind>,
    /// Whether it waits for buffers of the shared receive queue.
    pub turn: Turn,
    /// The most buffers of that queue in `rq` before the consumer is notified, or the connection
    /// ends.
    soft_watermark_at: Option<u32>,
    hard_watermark_at: Option<u32>,
    /// The number of the request before which a graceful end takes effect.
    pub close_at: Option<u64>,
    /// Limits the wait of a graceful end over loopback for receives of the peer.
    pub linger: Option<Timer>,
    /// RDMA reads that may be outstanding, as negotiated.
    pub ord: u32,
    /// Local and remote address.
    pub addrs: Option<(SocketAddr, SocketAddr)>,
    /// The connection qualifier, for the log.
    pub qual: u64,
    /// How the peer is reached, as far as that is decided, for the log.
    pub path: Path<'static>,
}

/// What a request needs of its local segments.
#[inline]
pub(crate) fn local_access(op: &SendOp) -> Access {
    match op {
        op if op.fetches() => Access::LOCAL_WRITE,
        _ => Access::LOCAL_READ,
    }
}

/// Out of line, so that the check of the length is one comparison.
#[cold]
#[inline(never)]
fn too_long() -> PostError {
    PostError::TooLong
}

/// Bytes of all segments.
#[inline(always)]
pub(crate) fn total(sges: &[Sge]) -> u64 {
    match sges {
        [only] => only.len.into(),
        sges => sges.iter().map(|s| u64::from(s.len)).sum(),
    }
}

impl QpState {
    pub fn new(id: Arc<Identity>, qp: Weak<dyn SrqWaiter>) -> QpState {
        let attr = &id.attr;
        QpState {
            attempt: Attempt::new(),
            receiving: false,
            regions: Default::default(),
            sq: WorkQueue::new(attr.max_send_wr, attr.max_send_sge),
            rq: id.receive_ring(),
            binds: VecDeque::new(),
            turn: Turn::Out,
            soft_watermark_at: None,
            hard_watermark_at: None,
            close_at: None,
            linger: None,
            ord: 0,
            addrs: None,
            qual: 0,
            path: Path::Undecided,
            qp,
            id,
        }
    }

    /// Whether data flows.
    pub fn is_up(&self) -> bool {
        matches!(self.attempt.phase, Phase::Connected | Phase::Closing)
    }

    /// Whether the send queue takes a request.
    #[inline]
    pub fn admit_request(&self) -> Result<(), PostError> {
        if matches!(
            self.attempt.phase,
            Phase::Idle | Phase::Connecting | Phase::Destroyed
        ) {
            return Err(PostError::NotConnected);
        }
        if self.sq.is_full() {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Whether a request that is posted now is executed at once: nothing is queued before it, in a queue that
    /// takes requests.
    #[inline(always)]
    pub fn executes_at_once(&self) -> bool {
        self.attempt.phase == Phase::Connected && self.sq.is_empty() && self.sq.limit() > 0
    }

    /// Whether the send queue takes requests with so many segments.
    #[inline(always)]
    pub fn admit_segments(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if wr.sges.len() > self.id.attr.max_send_sge as usize {
            return Err(PostError::TooManySegments);
        }
        Ok(())
    }

    /// The bytes of `wr`, if it may be executed or queued with so many.
    #[inline(always)]
    pub fn send_len(&self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        let bytes = total(wr.sges);
        let len = match wr.op {
            SendOp::RdmaRead { len, .. } if u64::from(len) > bytes => {
                return Err(PostError::Length);
            }
            SendOp::RdmaRead { len, .. } => u64::from(len),
            SendOp::Atomic { .. } if bytes < u64::from(ATOMIC_LEN) => {
                return Err(PostError::Length);
            }
            SendOp::Atomic { .. } => u64::from(ATOMIC_LEN),
            _ => bytes,
        };
        if len > u64::from(self.id.attr.max_size(&wr.op)) {
            return Err(too_long());
        }
        Ok(len as u32)
    }

    /// Whether the send queue takes a message of one segment with so many bytes.
    #[inline(always)]
    pub fn admits_send_plainly(&self, len: u32) -> bool {
        self.id.attr.max_send_sge > 0 && len <= self.id.attr.max_message_size
    }

    /// The same of an RDMA write.
    #[inline(always)]
    pub fn admits_write_plainly(&self, len: u32) -> bool {
        self.id.attr.max_send_sge > 0 && len <= self.id.attr.max_rdma_size
    }

    /// Whether the receive queue takes a receive with so many segments.
    #[inline(always)]
    pub fn admit_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.id.srq.is_some() {
            return Err(PostError::QueueFull);
        }
        self.rq.make_room()?;
        if wr.sges.len() > self.id.attr.max_recv_sge as usize {
            return Err(PostError::TooManySegments);
        }
        Ok(())
    }

    /// Whether [`QpState::admit_recv`] admits a receive of one segment without having to make room.
    #[inline(always)]
    pub fn admits_recv_plainly(&self) -> bool {
        self.rq.has_room() && self.id.srq.is_none() && self.id.attr.max_recv_sge > 0
    }

    /// Takes a receive for the next message, if there is none and one can be had.
    #[inline]
    pub fn supply(&mut self, up: &mut Upcalls) -> Supply {
        if !self.rq.is_empty() {
            Supply::Ready
        } else if self.id.srq.is_none() {
            Supply::Empty
        } else {
            self.supply_shared(up)
        }
    }

    fn supply_shared(&mut self, up: &mut Upcalls) -> Supply {
        let Some(srq) = &self.id.srq else {
            return Supply::Empty;
        };
        match srq.take(&self.qp, &mut self.turn, &mut self.rq, up) {
            Ok(true) if self.check_watermarks(up) => Supply::Ready,
            Ok(false) => Supply::Empty,
            // No memory for the buffer is as bad as no buffer.
            Ok(true) | Err(_) => Supply::Excess,
        }
    }

    /// Sets the marks; false if the hard one is exceeded.
    pub fn set_watermarks(
        &mut self,
        soft: Option<u32>,
        hard: Option<u32>,
        up: &mut Upcalls,
    ) -> bool {
        self.soft_watermark_at = soft;
        self.hard_watermark_at = hard;
        self.check_watermarks(up)
    }

    fn check_watermarks(&mut self, up: &mut Upcalls) -> bool {
        let held = self.rq.len();
        let exceeded = |mark: Option<u32>| mark.is_some_and(|mark| held > mark as usize);
        if exceeded(self.soft_watermark_at) {
            self.soft_watermark_at = None;
            up.soft_watermark(&self.id.events);
        }
        !exceeded(self.hard_watermark_at)
    }

    /// Whether the segments of a request that is posted are open for what it does with them, and named by
    /// addresses of memory.
    #[inline(always)]
    pub fn are_in_memory(&mut self, sges: &[Sge], need: Access, guard: &Guard) -> bool {
        let region = &mut self.regions[usize::from(need == Access::LOCAL_WRITE)];
        region.has_all(sges, self.id.pd, need, guard)
    }

    /// The number of [`revocations`](key_table::revocations) at which a segment of a receive is open to be written
    /// and named by its address in memory, if it is in the region where the last one was found.
    #[inline(always)]
    pub fn writable_at(&self, segment: &Sge, guard: &Guard) -> Option<u64> {
        self.regions[1].still_has(segment, guard)
    }

    /// The same for a segment of a request, which is open to be read.
    #[inline(always)]
    pub fn readable_at(&self, segment: &Sge, guard: &Guard) -> Option<u64> {
        self.regions[0].still_has(segment, guard)
    }

    /// Checks that the segments of a receive may be written still, as far as its first `len` bytes are in
    /// them. What no byte comes to is not looked at, as adapters do it.
    #[inline]
    pub fn check_receive(
        &self,
        receive: &Receive,
        sges: &[Sge],
        len: u64,
        guard: &Guard,
    ) -> Result<(), key_table::Fault> {
        // Nearly always no key at all has become invalid since the check at the post.
        if receive.checked_at == key_table::revocations(guard) {
            return Ok(());
        }
        let mut before = 0;
        let used = sges.iter().take_while(|segment| {
            let is_used = before < len;
            before += u64::from(segment.len);
            is_used
        });
        let sges = &sges[..used.count()];
        key_table::check_all(sges, self.id.recv_pd, Access::LOCAL_WRITE, guard)
    }

    /// Executes the bind that is next in the send queue.
    pub fn bind(&mut self, guard: &Guard) -> WcStatus {
        if self
            .binds
            .pop_front()
            .is_some_and(|bind| bind.execute(guard))
        {
            WcStatus::Success
        } else {
            WcStatus::BindFailed
        }
    }

    /// Other parts, before there is a connection.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if the receives that are posted do not fit,
    /// [`DeviceError::Unsupported`] if there is a connection.
    pub fn modify(&mut self, id: Arc<Identity>) -> Result<(), DeviceError> {
        if self.attempt.phase != Phase::Idle {
            return Err(DeviceError::Unsupported);
        }
        let (limit, stride) = id.receives();
        self.rq.reshape(limit, stride)?;
        for number in self.rq.head()..self.rq.tail() {
            // It was checked for another protection domain.
            if let Some(receive) = self.rq.get_mut(number) {
                receive.checked_at = NEVER;
            }
        }
        self.sq = WorkQueue::new(id.attr.max_send_wr, id.attr.max_send_sge);
        self.id = id;
        self.regions = Default::default();
        Ok(())
    }

    /// Completes everything outstanding as flushed, in the order of posting.
    fn flush(&mut self, up: &mut Upcalls) {
        self.stop_waiting();
        self.binds.clear();
        while let Some(request) = self.sq.pop() {
            self.complete(&request, WcStatus::Flushed, up);
        }
        while self.rq.front().is_some() {
            self.fail_recv(WcStatus::Flushed, up);
        }
    }

    /// What the log calls the connection.
    pub fn name(&self) -> Name<'static> {
        Name {
            endpoint: Some(self.id.attr.context),
            addrs: self.addrs,
            qual: self.qual,
            path: self.path,
        }
    }

    /// The log entry of an end, if that is an error.
    pub fn report(&self, event: &CmEvent, cause: &dyn Cause) -> Option<LogEntry> {
        let connecting = self.attempt.phase == Phase::Connecting;
        let outcome = Outcome::of(event, connecting)?;
        LogEntry::new(|| self.name(), outcome, cause)
    }

    /// Logs a step of making or ending the connection.
    #[cold]
    pub fn log_step(&self, step: Step, up: &mut Upcalls) {
        up.log(&self.id.events, LogEntry::step(|| self.name(), step));
    }

    /// Ends the connection or the attempt, unless there is none.
    #[cold]
    #[inline(never)]
    pub fn end(&mut self, event: CmEvent, cause: &dyn Cause, up: &mut Upcalls) {
        if matches!(
            self.attempt.phase,
            Phase::Idle | Phase::Ended | Phase::Destroyed
        ) {
            return;
        }
        up.log(&self.id.events, self.report(&event, cause));
        if self.is_up() && matches!(event, CmEvent::Disconnected) {
            self.log_step(Step::Disconnected, up);
        }
        self.attempt.phase = Phase::Ended;
        self.close_at = None;
        self.linger = None;
        self.flush(up);
        up.event(&self.id.events, event);
    }

    /// Forgets connection and work without a trace.
    pub fn clear(&mut self) {
        let attr = &self.id.attr;
        self.sq = WorkQueue::new(attr.max_send_wr, attr.max_send_sge);
        self.rq = self.id.receive_ring();
        self.stop_waiting();
        self.binds.clear();
        self.close_at = None;
        self.linger = None;
        self.addrs = None;
    }

    fn stop_waiting(&mut self) {
        if let Some(srq) = self.id.srq.as_ref().filter(|_| self.turn == Turn::Waits) {
            srq.forget(&self.qp);
            self.turn = Turn::Out;
        }
    }

    /// Data flows from now on.
    pub fn establish(
        &mut self,
        private_data: Box<[u8]>,
        handshake: Option<SetupGuard>,
        up: &mut Upcalls,
    ) {
        guarded::install_handlers();
        self.attempt.phase = Phase::Connected;
        self.receiving = false;
        self.log_step(Step::Connected, up);
        up.established(&self.id.events, self.qp.clone(), private_data, handshake);
    }
}
