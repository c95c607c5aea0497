//! Connection requests: `dat_cr_query`, `dat_cr_accept`, `dat_cr_reject`, `dat_cr_handoff`.

use std::sync::Arc;

use crate::lock::Mutex;

use super::abi::Abi;
use super::address::CAddress;
use super::boundary::{answer_query, boundary, creation, device_error, private_data};
use super::ep::{Ep, RequestAddrs};
use super::ia::{Child, Ia};
use super::object::{Base, dat_object, lookup, lookup_opt, publish, unpublish};
use super::private_data::PrivateData;
use crate::abi::common::*;
use crate::abi::v2::{DCNT_IA_CM_USER_REJ_TX, DCNT_IA_SP_CR_REJECTED};
use crate::delay;
use crate::device::{ConnectionRequest, Device};
use crate::error::{Error, Result, Subtype};

/// A connection request that the consumer has to answer; accept, reject and handoff end it.
#[repr(align(64))]
pub struct Cr<D: Device> {
    base: Base<D>,
    remote_address: CAddress,
    addrs: RequestAddrs,
    /// Whether the peer asks where datagrams are received.
    datagrams: bool,
    private_data: PrivateData,
    /// The endpoint of the request: that of an RSP, or one that the provider made.
    ep: Option<Arc<Ep<D>>>,
    /// The device's request; `None` once it is answered.
    request: Mutex<Option<D::ConnRequest>>,
}

dat_object!(Cr, Cr, HandleCr);

impl<D: Device> Child for Cr<D> {
    // The peer is refused, unless another thread is about to answer the request.
    fn destroy(&self) {
        unpublish(self);
        let request = self.request.lock().take();
        if let Some(request) = request {
            drop(request);
            self.release_ep();
        }
    }
}

impl<D: Device> Cr<D> {
    /// Makes the object of a request that has arrived, with its endpoint. If that fails the
    /// endpoint is given back.
    ///
    /// # Errors
    /// Those of [`publish`].
    pub(super) fn create(
        ia: &Arc<Ia<D>>,
        request: D::ConnRequest,
        ep: Option<Arc<Ep<D>>>,
    ) -> Result<Arc<Self>> {
        let addrs = RequestAddrs::of(&request);
        let cr = Arc::new(Cr {
            base: Base::new(ia.clone()),
            remote_address: CAddress::new(addrs.remote),
            addrs,
            datagrams: request.is_for_datagrams(),
            private_data: PrivateData::new(request.private_data()),
            ep,
            request: Mutex::new(Some(request)),
        });
        publish(&cr).inspect_err(|_| cr.release_ep())?;
        Ok(cr)
    }

    /// Takes the request, so that only the caller answers it.
    fn claim(&self) -> Result<D::ConnRequest> {
        self.request
            .lock()
            .take()
            .ok_or(Error::handle(Subtype::HandleCr))
    }

    /// Gives the endpoint of an RSP back to the consumer; one that the provider made is
    /// destroyed.
    fn release_ep(&self) {
        let Some(ep) = &self.ep else { return };
        if ep.is_tentative() {
            ep.destroy();
        } else {
            let _ = ep.change_state(
                &self.base.ia,
                DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
                DAT_EP_STATE_UNCONNECTED,
            );
        }
    }

    /// Whether the peer asks where datagrams are received, rather than for a connection.
    pub(super) fn is_for_datagrams(&self) -> bool {
        self.datagrams
    }

    fn accept(&self, ep: &Ep<D>, data: &[u8]) -> Result<()> {
        let ia = &self.base.ia;
        if ep.is_for_datagrams() != self.datagrams {
            return Err(Error::handle(Subtype::HandleEp));
        }
        if self.datagrams {
            let claim = || {
                let request = self.claim()?;
                unpublish(self);
                Ok(request)
            };
            return ep.answer(ia, claim, data);
        }
        let states: &[_] = match self.ep {
            Some(_) => &[
                DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
                DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
            ],
            None => &[DAT_EP_STATE_UNCONNECTED],
        };
        let accepting = ep.begin_accept(ia, states, &self.addrs)?;
        let request = match self.claim() {
            Ok(request) => request,
            Err(error) => {
                accepting.undo();
                return Err(error);
            }
        };
        delay::point("cr.accept");
        let accepted = ia.device.accept(request, &accepting.qp, data);
        delay::point("cr.accepted");
        unpublish(self);
        match accepted {
            Ok(()) => {
                accepting.done();
                ep.count_accept();
                Ok(())
            }
            Err(error) => {
                accepting.undo();
                self.release_ep();
                Err(device_error(error, Subtype::ResourceTep))
            }
        }
    }

    fn reject(&self, data: &[u8]) -> Result<()> {
        let request = self.claim()?;
        unpublish(self);
        delay::point("cr.reject");
        self.base.ia.device.reject(request, data);
        self.release_ep();
        self.base.ia.count(DCNT_IA_SP_CR_REJECTED);
        self.base.ia.count(DCNT_IA_CM_USER_REJ_TX);
        Ok(())
    }

    fn handoff(&self, conn_qual: u64) -> Result<()> {
        let request = self.claim()?;
        let taken = match self.base.ia.service_point(conn_qual) {
            Some(point) => point.take(request),
            None => Err(request),
        };
        if let Err(request) = taken {
            self.put_back(request);
            return Err(Error::arg(Subtype::Arg2));
        }
        unpublish(self);
        self.release_ep();
        Ok(())
    }

    /// The request is not answered after all. If the object was destroyed meanwhile, the peer is
    /// refused.
    fn put_back(&self, request: D::ConnRequest) {
        *self.request.lock() = Some(request);
        if lookup::<D, Cr<D>>(self.handle().0).is_err() {
            self.destroy();
        }
    }

    /// The event of the request was not queued: the peer is refused. `reserved` if the request has
    /// not taken the endpoint of its RSP.
    pub(super) fn withdraw(&self, reserved: bool) {
        // Without the lock: the end of the request may call the agent of the peer's CNO, if that is in this process.
        let request = self.request.lock().take();
        drop(request);
        unpublish(self);
        if !reserved || self.ep.as_ref().is_some_and(|ep| ep.is_tentative()) {
            self.release_ep();
        }
    }
}

/// `dat_cr_query`.
///
/// # Safety
/// `cr_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn cr_query<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    mask: DAT_CR_PARAM_MASK,
    cr_param: *mut DAT_CR_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        let read = || {
            Ok(DAT_CR_PARAM {
                remote_ia_address_ptr: cr.remote_address.as_ptr(),
                remote_port_qual: cr.addrs.remote.port().into(),
                private_data_size: cr.private_data.len() as DAT_COUNT,
                private_data: cr.private_data.address(),
                local_ep_handle: cr.ep.as_ref().map_or(DAT_HANDLE_NULL, |ep| ep.handle().0),
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_CR_FIELD_ALL.into(), cr_param, read) }
    })
}

/// `dat_cr_accept`. The private data may be that of the request itself.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe extern "C" fn cr_accept<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    ep_handle: DAT_EP_HANDLE,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    creation::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        let max = cr.base.ia.device.attr().private_data_of(cr.datagrams);
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg3, Subtype::Arg4) }?;
        let ep: Option<Arc<Ep<D>>> = lookup_opt(ep_handle, Subtype::HandleEp)?;
        // Exactly one of the two names the endpoint.
        match (&ep, &cr.ep) {
            (Some(ep), None) | (None, Some(ep)) => cr.accept(ep, data),
            _ => Err(Error::handle(Subtype::HandleEp)),
        }
    })
}

/// `dat_cr_reject` of DAT 2.0, with private data for the peer.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe extern "C" fn cr_reject<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        let max = cr.base.ia.device.attr().max_private_data;
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg2, Subtype::Arg3) }?;
        cr.reject(data)
    })
}

/// `dat_cr_handoff`: to another service point of the same IA.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn cr_handoff<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    handoff: DAT_CONN_QUAL,
) -> DAT_RETURN {
    creation::<A>(|| lookup::<D, Cr<D>>(cr_handle)?.handoff(handoff))
}

/// `dat_cr_reject` of DAT 1.2.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn cr_reject_plain<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Cr<D>>(cr_handle)?.reject(&[]))
}
