//! The connection of an endpoint: its state machine, driven by the consumer's calls and by the
//! events of the device.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Addresses, Attempt, Ep, Inner, RequestAddrs};
use crate::abi::common::*;
use crate::dapl::address::CAddress;
use crate::dapl::boundary::device_error;
use crate::dapl::ia::Ia;
use crate::dapl::private_data::PrivateData;
use crate::dapl::types::{Event, Opaque};
use crate::delay;
use crate::device::{CmEvent, Device, QueuePair};
use crate::error::{Error, Kind, Result, Subtype};

/// The subtype of `DAT_INVALID_STATE` that names a state.
#[cold]
#[inline(never)]
pub(super) fn state_error(state: DAT_EP_STATE) -> Error {
    Error::state(match state {
        DAT_EP_STATE_UNCONNECTED => Subtype::StateEpUnconnected,
        DAT_EP_STATE_RESERVED => Subtype::StateEpReserved,
        DAT_EP_STATE_PASSIVE_CONNECTION_PENDING => Subtype::StateEpPassconnpending,
        DAT_EP_STATE_ACTIVE_CONNECTION_PENDING => Subtype::StateEpActconnpending,
        DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING => Subtype::StateEpTentconnpending,
        DAT_EP_STATE_CONNECTED => Subtype::StateEpConnected,
        DAT_EP_STATE_DISCONNECT_PENDING => Subtype::StateEpDiscpending,
        DAT_EP_STATE_DISCONNECTED => Subtype::StateEpDisconnected,
        DAT_EP_STATE_COMPLETION_PENDING => Subtype::StateEpComplpending,
        _ => Subtype::None,
    })
}

/// An endpoint that waits for the connection of a request which is being accepted.
pub(crate) struct Accepting<'a, D: Device> {
    ep: &'a Ep<D>,
    /// The queue pair for the connection.
    pub qp: Arc<D::Qp>,
    /// The state of the endpoint before the accept.
    before: DAT_EP_STATE,
    /// Number of the attempt.
    attempt: u64,
}

impl<D: Device> Accepting<'_, D> {
    /// The device has accepted the request.
    pub(crate) fn done(self) {
        self.ep.started(&self.qp, self.attempt);
    }

    /// The accept failed, without an event.
    pub(crate) fn undo(self) {
        let mut inner = self.ep.inner.lock();
        inner.attempt = Attempt::None;
        if self.ep.state() == DAT_EP_STATE_COMPLETION_PENDING {
            self.ep.set_state(&mut inner, self.before);
        }
    }
}

impl<D: Device> Ep<D> {
    /// Changes the state; the lock that orders changes is held. An endpoint that is not connected, nor
    /// about to be, has no peer.
    fn set_state(&self, inner: &mut Inner<D>, state: DAT_EP_STATE) {
        if state == DAT_EP_STATE_UNCONNECTED {
            inner.addresses = Addresses::default();
        }
        self.state.store(state, Ordering::Release);
        self.update_open(inner);
    }

    /// `dat_ep_connect`, arguments checked.
    pub(super) fn connect(
        &self,
        remote: SocketAddr,
        conn_qual: u64,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        if self.is_for_datagrams() {
            return self.ask(remote, conn_qual, timeout, private_data);
        }
        let mut inner = self.inner.lock();
        let Some(uses) = &inner.uses else {
            return Err(Error::handle(Subtype::HandleEp));
        };
        if uses.connect_evd.is_none() {
            return Err(Error::handle(Subtype::HandleEvdConn));
        }
        let Some(qp) = self.qp() else {
            return Err(Error::state(Subtype::StateEpNotready));
        };
        let state = self.state();
        if state != DAT_EP_STATE_UNCONNECTED {
            return Err(state_error(state));
        }
        // As of requests: with its port, if the qualifier is one.
        let mut peer = remote;
        peer.set_port(u16::try_from(conn_qual).unwrap_or(0));
        inner.addresses = Addresses {
            remote: Some(CAddress::new(peer)),
            remote_port: conn_qual,
            local_port: None,
            target: Some(remote),
        };
        let attempt = inner.begin_attempt();
        self.set_state(&mut inner, DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
        drop(inner);
        delay::point("ep.connect");
        let Ia { device, rules, .. } = &*self.base.ia;
        let sought = rules.sought(conn_qual);
        let Err(error) = device.connect(&qp, remote, sought, timeout, private_data) else {
            delay::point("ep.started");
            self.started(&qp, attempt);
            self.count_connect();
            return Ok(());
        };
        let mut inner = self.inner.lock();
        inner.attempt = Attempt::None;
        if inner.uses.is_none() {
            // Freed by another thread, and the queue pair with it.
            return Err(Error::handle(Subtype::HandleEp));
        }
        self.set_state(&mut inner, DAT_EP_STATE_UNCONNECTED);
        Err(device_error(error, Subtype::ResourceTep))
    }

    /// The device has the connection: a disconnect that was called before now takes effect, unless the connection has
    /// ended meanwhile and another one was begun.
    fn started(&self, qp: &D::Qp, attempt: u64) {
        let mut inner = self.inner.lock();
        if inner.begun != attempt {
            return;
        }
        let was = std::mem::replace(&mut inner.attempt, Attempt::None);
        if was == Attempt::Aborted {
            let attempt = qp.attempt();
            drop(inner);
            qp.disconnect_attempt(attempt, false);
        }
    }

    /// The address and the qualifier that this connected endpoint has connected to, for
    /// `dat_ep_dup_connect`.
    pub(super) fn dup_target(&self) -> Result<(SocketAddr, u64)> {
        let inner = self.inner.lock();
        let state = self.state();
        let Addresses {
            target,
            remote_port,
            ..
        } = inner.addresses;
        match target {
            Some(target) if state == DAT_EP_STATE_CONNECTED => Ok((target, remote_port)),
            // The passive side of a connection has connected to no address.
            None if state == DAT_EP_STATE_CONNECTED => Err(Kind::InvalidParameter.into()),
            _ => Err(state_error(state)),
        }
    }

    /// The endpoint begins to wait for the connection of a request that is being accepted.
    /// `states` are those it may be in: unconnected when `dat_cr_accept` names it, pending when it
    /// is the endpoint of the request. `addrs` are those of the request.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` for another state, `DAT_INVALID_HANDLE` if it is of another IA or
    /// lacks what a connection needs; nothing has changed then.
    pub(in crate::dapl) fn begin_accept(
        &self,
        ia: &Arc<Ia<D>>,
        states: &[DAT_EP_STATE],
        addrs: &RequestAddrs,
    ) -> Result<Accepting<'_, D>> {
        let invalid = Error::handle(Subtype::HandleEp);
        let mut inner = self.inner.lock();
        let uses = inner.uses.as_ref().ok_or(invalid)?;
        if !Arc::ptr_eq(&self.base.ia, ia) || uses.connect_evd.is_none() {
            return Err(invalid);
        }
        let qp = self.qp().ok_or(invalid)?;
        let before = self.state();
        if !states.contains(&before) {
            return Err(state_error(before));
        }
        let attempt = inner.begin_attempt();
        inner.addresses.set_requested(addrs);
        self.set_state(&mut inner, DAT_EP_STATE_COMPLETION_PENDING);
        Ok(Accepting {
            ep: self,
            qp,
            before,
            attempt,
        })
    }

    /// A service point reserves the endpoint, or the endpoint is given back.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` if it is not in state `from`, `DAT_INVALID_HANDLE` if it is freed or
    /// of another IA.
    pub(crate) fn change_state(
        &self,
        ia: &Arc<Ia<D>>,
        from: DAT_EP_STATE,
        to: DAT_EP_STATE,
    ) -> Result<()> {
        self.change(ia, from, |inner| self.set_state(inner, to))
    }

    /// A request takes the endpoint that a service point has reserved.
    ///
    /// # Errors
    /// As [`Ep::change_state`].
    pub(in crate::dapl) fn take_request(
        &self,
        ia: &Arc<Ia<D>>,
        addrs: &RequestAddrs,
    ) -> Result<()> {
        self.change(ia, DAT_EP_STATE_RESERVED, |inner| {
            inner.addresses.set_requested(addrs);
            self.set_state(inner, DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
        })
    }

    fn change(
        &self,
        ia: &Arc<Ia<D>>,
        from: DAT_EP_STATE,
        change: impl FnOnce(&mut Inner<D>),
    ) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.uses.is_none() || !Arc::ptr_eq(&self.base.ia, ia) {
            return Err(Error::handle(Subtype::HandleEp));
        }
        let state = self.state();
        if state != from {
            return Err(state_error(state));
        }
        change(&mut inner);
        Ok(())
    }

    /// Handles an event of the connection, reported by the device.
    pub(crate) fn on_event(&self, event: CmEvent) {
        if self.is_for_datagrams() {
            return self.on_exchange(event);
        }
        self.count_event(&event, self.state());
        let (number, state, data) = match event {
            CmEvent::Established { private_data } => (
                DAT_CONNECTION_EVENT_ESTABLISHED,
                DAT_EP_STATE_CONNECTED,
                Some(private_data),
            ),
            CmEvent::PeerRejected { private_data } => (
                DAT_CONNECTION_EVENT_PEER_REJECTED,
                DAT_EP_STATE_DISCONNECTED,
                Some(private_data),
            ),
            ended => {
                let number = match ended {
                    CmEvent::NonPeerRejected => DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
                    CmEvent::Unreachable => DAT_CONNECTION_EVENT_UNREACHABLE,
                    CmEvent::TimedOut => DAT_CONNECTION_EVENT_TIMED_OUT,
                    CmEvent::AcceptError => DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR,
                    CmEvent::Broken => DAT_CONNECTION_EVENT_BROKEN,
                    _ => DAT_CONNECTION_EVENT_DISCONNECTED,
                };
                (number, DAT_EP_STATE_DISCONNECTED, None)
            }
        };
        delay::point("ep.event");
        let qp = self.qp();
        let mut inner = self.inner.lock();
        let before = self.state();
        let pending = matches!(
            before,
            DAT_EP_STATE_ACTIVE_CONNECTION_PENDING | DAT_EP_STATE_COMPLETION_PENDING
        );
        let connected = matches!(
            before,
            DAT_EP_STATE_CONNECTED | DAT_EP_STATE_DISCONNECT_PENDING
        );
        // An endpoint that has no connection, and waits for none, has no events.
        if !(pending || connected) {
            return;
        }
        let Some(uses) = &inner.uses else { return };
        let evd = uses.connect_evd.as_ref().map(|u| u.evd().clone());
        let drained = connected && uses.srq.is_some();
        // The answer of a peer has private data, be it none; what the passive side gets has not.
        let is_answer = before == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING;
        let data = data.filter(|data| is_answer || !data.is_empty());
        let data = data.map(|data| &*inner.private_data.insert(PrivateData::new(&data)));
        let size = data.map_or(0, PrivateData::len);
        let pointer = data.map_or(std::ptr::null_mut(), PrivateData::address);
        self.set_state(&mut inner, state);
        delay::point("ep.state");
        let event = Event::Connection {
            number,
            ep: self.base.handle(),
            private_data: Opaque(pointer),
            private_data_size: size,
        };
        // Under the lock: who finds the new state, and resets or frees the endpoint, removes the
        // event as well.
        let queue = || evd.map(|evd| (evd.queue(event), evd));
        let queued = if drained {
            // The endpoint takes no more buffers of its SRQ. Programs wait for both events before
            // they free the endpoint, and of several endpoints expect them in the same order.
            self.base.ia.queue_async_event(
                queue,
                DAT_ASYNC_ERROR_EP_BROKEN,
                self.handle(),
                DAT_EP_TRANSFER_TO_ERROR,
            )
        } else {
            queue()
        };
        drop(inner);
        // The event and the state come before the first completion of the connection. Receiving
        // starts before the waiter is woken: the consumer may run in this thread, from its CNO's
        // agent, and wait there for a completion.
        if let (DAT_EP_STATE_CONNECTED, Some(qp)) = (state, qp) {
            qp.start_receiving();
        }
        if let Some((queued, evd)) = queued {
            evd.report(queued);
        }
        if drained {
            self.base.ia.report_async_events();
        }
    }

    /// `dat_ep_disconnect`.
    pub(super) fn disconnect(&self, graceful: bool) -> Result<()> {
        let mut inner = self.inner.lock();
        let state = self.state();
        match state {
            DAT_EP_STATE_DISCONNECTED => return Ok(()),
            // A graceful disconnect has no effect here; an abrupt one ends at once.
            DAT_EP_STATE_DISCONNECT_PENDING if graceful => return Ok(()),
            DAT_EP_STATE_CONNECTED => {
                self.set_state(&mut inner, DAT_EP_STATE_DISCONNECT_PENDING);
            }
            DAT_EP_STATE_ACTIVE_CONNECTION_PENDING | DAT_EP_STATE_COMPLETION_PENDING
                if inner.attempt != Attempt::None =>
            {
                inner.attempt = Attempt::Aborted;
                return Ok(());
            }
            DAT_EP_STATE_DISCONNECT_PENDING
            | DAT_EP_STATE_ACTIVE_CONNECTION_PENDING
            | DAT_EP_STATE_COMPLETION_PENDING => {}
            state => return Err(state_error(state)),
        }
        // During establishment both flags mean abort.
        let graceful = graceful && state == DAT_EP_STATE_CONNECTED;
        let qp = self.qp().ok_or(Error::handle(Subtype::HandleEp))?;
        // The connection may end, and the endpoint be reset and connected again, before this thread goes on.
        let attempt = qp.attempt();
        drop(inner);
        delay::point("ep.disconnect");
        self.count_disconnect();
        qp.disconnect_attempt(attempt, graceful);
        Ok(())
    }

    /// `dat_ep_reset`: nothing of the old connection surfaces afterwards, but what is queued by the rules of
    /// programs.
    pub(super) fn reset(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        match self.state() {
            DAT_EP_STATE_UNCONNECTED => return Ok(()),
            DAT_EP_STATE_DISCONNECTED => {}
            state => return Err(state_error(state)),
        }
        let qp = self.qp().ok_or(Error::handle(Subtype::HandleEp))?;
        let keeps = self.base.ia.rules.keep_events_of_reset();
        if let Some(uses) = inner.uses.as_ref().filter(|_| keeps) {
            uses.keep_events(self.handle());
        }
        delay::point("ep.reset");
        let lost = qp.reset() as usize;
        match &inner.uses {
            Some(uses) if keeps => uses.retire(lost),
            Some(uses) => uses.purge(self.handle(), lost),
            None => {}
        }
        inner.private_data = None;
        self.set_state(&mut inner, DAT_EP_STATE_UNCONNECTED);
        Ok(())
    }
}
