//! Endpoints for datagrams (`DAT_IB_SERVICE_TYPE_UD`): they find out where peers receive datagrams, and send
//! to any of those. They have no connection, and stay unconnected.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::post::ep_of;
use super::{Ep, Inner};
use crate::abi::common::*;
use crate::abi::v2;
use crate::abi::va_list::VaList;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{boundary, device_error, non_null, section};
use crate::dapl::ia::Ia;
use crate::dapl::object::lookup;
use crate::dapl::resolution::Resolution;
use crate::dapl::types::Event;
use crate::dapl::work_request::{REQUEST_FLAGS, Segments, post_error};
use crate::device::{CmEvent, DatagramWr, Device};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, ANY, Guard};
use crate::reserve;

impl<D: Device> Inner<D> {
    /// Keeps a resolution until the endpoint is freed. False if there is no memory to do so.
    #[must_use]
    fn keep(&mut self, resolution: &Arc<Resolution<D>>) -> bool {
        if self.resolutions.len() == self.resolutions.capacity() {
            self.resolutions.retain(|r| r.strong_count() > 0);
        }
        let has_room = self.resolutions.try_reserve(1).is_ok();
        if has_room {
            self.resolutions.push(Arc::downgrade(resolution));
        }
        has_room
    }
}

impl<D: Device> Ep<D> {
    /// Whether the endpoint is for datagrams, and makes no connections.
    pub(crate) fn is_for_datagrams(&self) -> bool {
        self.datagrams
    }

    /// Bytes of private data that the endpoint may give.
    pub(super) fn max_private_data(&self) -> u32 {
        let limits = self.base.ia.device.attr();
        limits.private_data_of(self.datagrams)
    }

    /// The queue pair, if the endpoint is of this IA and has what an exchange needs.
    fn exchange(&self, ia: &Arc<Ia<D>>) -> Result<Arc<D::Qp>> {
        let invalid = Error::handle(Subtype::HandleEp);
        let inner = self.inner.lock();
        let uses = inner.uses.as_ref().ok_or(invalid)?;
        if !Arc::ptr_eq(&self.base.ia, ia) {
            return Err(invalid);
        }
        if uses.connect_evd.is_none() {
            return Err(Error::handle(Subtype::HandleEvdConn));
        }
        self.qp().ok_or(Error::state(Subtype::StateEpNotready))
    }

    /// `dat_ep_connect`: asks the consumer that listens for `conn_qual` where it receives datagrams.
    pub(super) fn ask(
        &self,
        remote: SocketAddr,
        conn_qual: u64,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<()> {
        let ia = &self.base.ia;
        let qp = self.exchange(ia)?;
        ia.device
            .connect(
                &qp,
                remote,
                ia.rules.sought(conn_qual),
                timeout,
                private_data,
            )
            .map_err(|e| device_error(e, Subtype::ResourceTep))?;
        self.count_connect();
        Ok(())
    }

    /// `dat_cr_accept`: answers the peer of a request.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` for an endpoint of another IA, or without what an answer needs; `claim` was not
    /// called then. The error of `claim`, and those of the device.
    pub(in crate::dapl) fn answer(
        &self,
        ia: &Arc<Ia<D>>,
        claim: impl FnOnce() -> Result<D::ConnRequest>,
        private_data: &[u8],
    ) -> Result<()> {
        let qp = self
            .exchange(ia)
            .map_err(|_| Error::handle(Subtype::HandleEp))?;
        let request = claim()?;
        ia.device
            .accept(request, &qp, private_data)
            .map_err(|e| device_error(e, Subtype::ResourceTep))?;
        self.count_accept();
        Ok(())
    }

    /// Handles the outcome of an exchange.
    pub(super) fn on_exchange(&self, event: CmEvent) {
        self.count_event(&event, self.state());
        let (number, kind, to, private_data) = match event {
            CmEvent::Resolved(resolved) => {
                let kind = match resolved.accepted {
                    true => v2::DAT_IB_UD_PASSIVE_REMOTE_AH,
                    false => v2::DAT_IB_UD_REMOTE_AH,
                };
                let number = v2::DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED;
                (number, kind, Some(resolved.to), resolved.private_data)
            }
            CmEvent::PeerRejected { private_data } => (
                v2::DAT_IB_UD_CONNECTION_REJECT_EVENT,
                v2::DAT_IB_UD_CONNECT_REJECT,
                None,
                private_data,
            ),
            _ => (
                v2::DAT_IB_UD_CONNECTION_ERROR_EVENT,
                v2::DAT_IB_UD_CONNECT_ERROR,
                None,
                Box::default(),
            ),
        };
        // Without memory the event is lost, as it is in a full queue.
        if !reserve::fill() {
            return;
        }
        let Ok(resolution) = Resolution::create(&self.base.ia, kind, to, &private_data) else {
            return;
        };
        let mut inner = self.inner.lock();
        let evd = inner
            .uses
            .as_ref()
            .and_then(|uses| uses.connect_evd.as_ref());
        let evd = evd.map(|u| u.evd().clone());
        let Some(evd) = evd.filter(|_| inner.keep(&resolution)) else {
            drop(inner);
            resolution.release();
            return;
        };
        // Under the lock: who frees the endpoint removes the event as well.
        let queued = evd.queue(Event::Resolution {
            number,
            ep: self.base.handle(),
            resolution: resolution.handle(),
        });
        drop(inner);
        evd.report(queued);
    }

    fn send_datagram<A: Abi>(&self, datagram: Datagram<A>, guard: &Guard) -> Result<()> {
        non_null(datagram.to, Subtype::Arg4)?;
        // SAFETY: not NULL, so an address handle, says the caller of the macro.
        let v2::DAT_IB_ADDR_HANDLE { ah, qpn, .. } = unsafe { datagram.to.read_unaligned() };
        let mut segments = Segments::new();
        // SAFETY: the promise of the caller of the macro.
        let (sges, _) = unsafe { segments.read::<A>(datagram.count, datagram.local_iov) }?;
        let to = Resolution::<D>::address_handle(ah).ok_or(Error::arg(Subtype::Arg4))?;
        let (config, qp) = self.config(guard)?;
        if !self.datagrams {
            return Err(Kind::ModelNotSupported.into());
        }
        let allowed = REQUEST_FLAGS | DAT_COMPLETION_SOLICITED_WAIT_FLAG;
        let flags =
            config
                .request_flags
                .check(datagram.completion_flags, allowed, Subtype::Arg6)?;
        let wr = DatagramWr {
            wr_id: datagram.cookie,
            to: &to,
            qp_number: qpn,
            sges,
            flags,
        };
        D::post_datagram(qp, &wr).map_err(|e| post_error(e, true))
    }
}

/// The arguments of `dat_ib_post_send_ud` after the endpoint.
struct Datagram<A: Abi> {
    count: DAT_COUNT,
    local_iov: *const A::LmrTriplet,
    to: *const v2::DAT_IB_ADDR_HANDLE,
    cookie: u64,
    completion_flags: DAT_COMPLETION_FLAGS,
}

/// Resolutions of the endpoint, when it is freed.
pub(super) fn release<D: Device>(resolutions: Vec<Weak<Resolution<D>>>) {
    for resolution in resolutions.iter().filter_map(Weak::upgrade) {
        resolution.release();
    }
}

/// `dat_ib_post_send_ud`.
///
/// # Safety
/// The list has the arguments of the macro, after the endpoint. The local triplets are NULL or as many as
/// their number says; the address handle is NULL or points to one.
pub unsafe fn post_send_datagram<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let datagram = unsafe {
        Datagram::<A> {
            count: arguments.int() as DAT_COUNT,
            local_iov: arguments.pointer::<A::LmrTriplet>(),
            to: arguments.pointer::<v2::DAT_IB_ADDR_HANDLE>(),
            cookie: arguments.word(),
            completion_flags: arguments.int(),
        }
    };
    section::<A>(|guard| {
        // SAFETY: nothing is promised of the handle.
        let ep = unsafe { ep_of::<D, ANY>(ep_handle, guard) }?;
        ep.send_datagram(datagram, guard)
    })
}

/// `dat_ib_ud_cm_free`: the private data of an event is not used any more.
///
/// # Safety
/// The list has the argument of the macro, after the endpoint.
pub unsafe fn free_exchange<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let handle = unsafe { arguments.pointer::<std::ffi::c_void>() };
    boundary::<A>(|| {
        let _: Arc<Ep<D>> = lookup(ep_handle)?;
        let resolution = handle::get_shared::<Resolution<D>>(handle);
        match resolution.is_some_and(|resolution| resolution.free_private_data()) {
            true => Ok(()),
            false => Err(Error::arg(Subtype::Arg2)),
        }
    })
}

/// `dat_ib_ud_ah_free`: no more datagrams are sent to the address handle.
///
/// # Safety
/// The list has the argument of the macro, after the endpoint: NULL, or a pointer to an address handle.
pub unsafe fn free_address_handle<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let to = unsafe { arguments.pointer::<v2::DAT_IB_ADDR_HANDLE>() };
    boundary::<A>(|| {
        let _: Arc<Ep<D>> = lookup(ep_handle)?;
        non_null(to, Subtype::Arg2)?;
        // SAFETY: not NULL.
        let handle = unsafe { to.read_unaligned() }.ah;
        let resolution = handle::get_shared::<Resolution<D>>(handle);
        match resolution.is_some_and(|resolution| resolution.free_address_handle()) {
            true => Ok(()),
            false => Err(Error::arg(Subtype::Arg2)),
        }
    })
}
