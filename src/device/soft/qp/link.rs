//! What a queue pair asks of the link to its peer. The transports implement it; a queue pair knows
//! none of them.

use std::sync::Arc;

use super::state::{QpState, local_access};
use super::work_queue::{Op, Request, Transfer};
use crate::device::connection_log::Path;
use crate::device::soft::engine::{Backlog, Timer};
use crate::device::soft::mem::key_table;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Remote, Sge, WcStatus};
use crate::handle::Guard;

/// How far the execution of a request got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Executed.
    Done,
    /// Not executed, or only in part: the request goes on when the peer has posted a receive or
    /// has made room.
    Wait,
    /// Failed with this status. Completions at the peer have been made where the peer is in the
    /// same process.
    Failed(WcStatus),
}

/// Executes the oldest request of `me`: a bind here, a transfer by `execute`, after the keys of its
/// local segments were checked in this read-side section. `None` if there is no request, or a
/// graceful end takes effect before it. The request stays in the queue.
#[inline]
pub(crate) fn execute_oldest<E>(
    me: &mut QpState,
    guard: &Guard,
    execute: impl FnOnce(&QpState, &Transfer<'_>) -> Result<Outcome, E>,
) -> Result<Option<(Request, Outcome)>, E> {
    if !me.is_up() || me.close_at == Some(me.sq.head()) {
        return Ok(None);
    }
    let Some((request, sges)) = me.sq.front() else {
        return Ok(None);
    };
    let request = *request;
    let outcome = match &request.op {
        Op::Bind { .. } => match me.bind(guard) {
            WcStatus::Success => Outcome::Done,
            status => Outcome::Failed(status),
        },
        Op::Transfer(op) => {
            if key_table::check_all(sges, me.id.pd, local_access(op), guard).is_err() {
                Outcome::Failed(WcStatus::LocalProtection)
            } else {
                execute(me, &request.transfer(*op, sges))?
            }
        }
    };
    Ok(Some((request, outcome)))
}

/// The link of a queue pair to its peer.
///
/// Every function runs under the lock of the queue pair. `me` is the queue pair, `peer` its peer
/// where that is in the same lock domain. A function that finds the connection over ends it
/// itself: `me` has ended when it returns.
pub(crate) trait Transport: Default + Send + 'static {
    /// An attempt to connect. Dropping the link gives the attempt up.
    fn pending(attempt: Pending) -> Self;
    /// The connection to the other queue pair of the lock domain; requests wait until both
    /// receive.
    fn loopback() -> Self;
    /// Whether the peer is in the same lock domain.
    fn is_loopback(&self) -> bool;
    /// How an attempt to connect tries to reach the peer at the moment.
    fn pending_path(&self) -> Option<Path<'static>>;

    /// Whether the peer executes atomic operations and RDMA writes with immediate data.
    fn has_extensions(&self) -> bool;

    /// Executes a transfer that was just posted, while nothing is queued before it. The keys of
    /// its local segments were checked in the same read-side section.
    fn execute(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        transfer: &Transfer<'_>,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Outcome;
    /// The peer, if the thread that posts a message copies it to a receive of that.
    fn direct_peer<'a>(&self, peer: Option<&'a mut QpState>) -> Option<&'a mut QpState>;
    /// Whether the last RDMA write was a mere copy to memory that is mapped here.
    fn copies_writes(&self) -> bool;
    /// Executes an RDMA write of one segment by a mere copy; false where that is not possible, or has failed: the write
    /// is made in another way then, from its beginning. `errno` keeps its value.
    ///
    /// # Safety
    /// The segment is registered memory, which may be read.
    unsafe fn write_plainly(&mut self, to: Remote, from: &Sge) -> bool;
    /// A transfer failed in [`Transport::execute`]: the connection ends.
    fn execution_failed(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        status: WcStatus,
        up: &mut Upcalls,
    );
    /// The transfer that [`Transport::execute`] has begun could not be queued. Where a part of it
    /// has gone to the peer the connection ends.
    fn not_queued(&mut self, me: &mut QpState, up: &mut Upcalls);
    /// A request was queued.
    fn posted_send(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    );
    /// Whether a message of the peer may wait for a receive.
    fn wants_receive(&self, peer: Option<&QpState>) -> bool;
    /// Receives were posted.
    fn posted_recv(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    );
    /// The consumer has the event of the connection: what the peer has sent is delivered, but for
    /// the returned backlog, which the engine delivers in turn.
    fn start_receiving(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Option<Arc<dyn Backlog>>;
    /// The consumer has begun a graceful end: it takes effect when the requests before it are
    /// executed.
    fn closing(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    );
    /// The connection is about to be ended at once: requests that wait to be sent together with later
    /// ones are sent, and what the peer is doing with requests and receives is brought to an end. A peer that shares
    /// memory is notified of the end.
    fn quiesce(&mut self, me: &mut QpState, guard: &Guard, up: &mut Upcalls);
    /// The consumer has ended the connection at once: the peer is notified, if [`Transport::quiesce`] has not done so, and
    /// what is left of the link is released. Called without the lock.
    fn abort(self);
}

/// What drives an attempt to connect.
pub(crate) trait PendingConnect: Send + Sync {
    /// Gives the attempt up; nothing of it takes effect afterwards.
    fn cancel(&self);
    /// How the attempt tries to reach the peer at the moment.
    fn path(&self) -> Path<'static>;
}

/// What an attempt to connect holds. Dropping it gives the attempt up.
pub(crate) struct Pending {
    /// The time limit of the attempt.
    pub _timer: Option<Timer>,
    /// What drives the attempt; nothing where the peer is in the same process, or is the one that
    /// has asked.
    pub connector: Option<Arc<dyn PendingConnect>>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(connector) = self.connector.take() {
            connector.cancel();
        }
    }
}
