//! `dat_ep_modify`: what may change, and in which states.

use std::sync::Arc;

use super::connect::state_error;
use super::parts::{self, Uses};
use super::{Config, Ep, Watermarks, apply_watermarks};
use crate::abi::{common::*, v2};
use crate::dapl::boundary::device_error;
use crate::dapl::ep_attr::{EpAttr, EpChange};
use crate::dapl::evd::{Evd, EvdUse, Exchange, Stream};
use crate::dapl::ia::Ia;
use crate::dapl::object::lookup_opt;
use crate::dapl::pz::{Pz, PzUse};
use crate::device::{Device, QpParts, QueuePair};
use crate::error::{Error, Result, Subtype};

/// Fields that the provider or the IA decides, never the consumer.
const FIXED: u64 = DAT_EP_FIELD_IA_HANDLE
    | DAT_EP_FIELD_EP_STATE
    | v2::DAT_EP_FIELD_COMM
    | v2::DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR
    | v2::DAT_EP_FIELD_LOCAL_PORT_QUAL
    | v2::DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR
    | v2::DAT_EP_FIELD_REMOTE_PORT_QUAL
    | v2::DAT_EP_FIELD_SRQ_HANDLE;
/// Fields of attributes that none of our devices has, so that they cannot be set.
const SPECIFIC: u64 = DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR
    | DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR
    | DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR
    | DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR;

/// New parts of an endpoint, whose use has begun; the outer `None` is for a part that stays.
struct NewParts<D: Device> {
    pz: Option<Option<PzUse<D>>>,
    recv_evd: Option<Option<EvdUse<D>>>,
    request_evd: Option<Option<EvdUse<D>>>,
    connect_evd: Option<Option<EvdUse<D>>>,
}

/// The part after the change.
fn new_or_old<'a, T>(new: &'a Option<Option<T>>, old: &'a Option<T>) -> Option<&'a T> {
    match new {
        Some(new) => new.as_ref(),
        None => old.as_ref(),
    }
}

impl<D: Device> NewParts<D> {
    fn enter(change: &EpChange, ia: &Arc<Ia<D>>, attr: &EpAttr, has_srq: bool) -> Result<Self> {
        let evd = |field, handle, stream: Stream| -> Result<Option<Option<EvdUse<D>>>> {
            if !change.has(field) {
                return Ok(None);
            }
            let evd: Option<Arc<Evd<D>>> = lookup_opt(handle, stream.invalid())?;
            let has_srq = has_srq && matches!(stream, Stream::Recv(_));
            parts::attach_recv(ia, evd, stream, has_srq).map(Some)
        };
        let recv = Stream::Recv(attr.recv_completion_flags);
        let request = Stream::Send(attr.request_completion_flags);
        let pz = if change.has(v2::DAT_EP_FIELD_PZ_HANDLE) {
            let pz: Option<Arc<Pz<D>>> = lookup_opt(change.pz, Subtype::HandlePz)?;
            Some(pz.map(|pz| pz.enter(ia)).transpose()?)
        } else {
            None
        };
        Ok(NewParts {
            pz,
            recv_evd: evd(v2::DAT_EP_FIELD_RECV_EVD_HANDLE, change.recv_evd, recv)?,
            request_evd: evd(
                v2::DAT_EP_FIELD_REQUEST_EVD_HANDLE,
                change.request_evd,
                request,
            )?,
            connect_evd: evd(
                v2::DAT_EP_FIELD_CONNECT_EVD_HANDLE,
                change.connect_evd,
                Stream::Connection,
            )?,
        })
    }

    /// The parts of the queue pair after the change.
    fn parts<'a>(&'a self, old: &'a Uses<D>) -> Option<QpParts<'a, D>> {
        parts::parts(
            new_or_old(&self.pz, &old.pz),
            new_or_old(&self.recv_evd, &old.recv_evd),
            new_or_old(&self.request_evd, &old.request_evd),
            old.srq.as_ref(),
        )
    }

    /// Puts the parts in place of the old ones.
    fn commit(self, uses: &mut Uses<D>) {
        fn replace<T>(new: Option<Option<T>>, old: &mut Option<T>) {
            if let Some(new) = new {
                *old = new;
            }
        }
        replace(self.pz, &mut uses.pz);
        replace(self.recv_evd, &mut uses.recv_evd);
        replace(self.request_evd, &mut uses.request_evd);
        replace(self.connect_evd, &mut uses.connect_evd);
    }
}

impl<D: Device> Ep<D> {
    /// Changes what `change` names, all of it or nothing.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for a field that cannot be changed or a value that is not
    /// supported, `DAT_INVALID_HANDLE` for a part, `DAT_INVALID_STATE` for a field that cannot
    /// be changed in this state.
    pub(super) fn modify(&self, change: &EpChange) -> Result<()> {
        if change.has(FIXED) {
            return Err(Error::arg(Subtype::Arg2));
        }
        let invalid = Error::handle(Subtype::HandleEp);
        let mut inner = self.inner.lock();
        let config = self.config.get_shared().ok_or(invalid)?;
        self.check_modify_state(change, &config)?;
        if change.has(SPECIFIC) {
            return Err(Error::arg(Subtype::Arg3));
        }
        let ia = &self.base.ia;
        let attr = change
            .apply(&config.attr)
            .admit(ia.device.attr(), ia.rules, config.has_srq, Subtype::Arg3)
            .map_err(|_| Error::arg(Subtype::Arg3))?;
        let watermarks = if change.has(DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW) {
            let soft = Watermarks::of(&attr, ia.rules).soft;
            Watermarks {
                soft,
                ..inner.watermarks
            }
        } else {
            inner.watermarks
        };
        let old = inner.uses.as_mut().ok_or(invalid)?;
        let new = NewParts::enter(change, ia, &attr, config.has_srq)?;
        if let (Some(srq), Some(None)) = (&old.srq, &new.recv_evd) {
            srq.prepare_unreported()?;
        }
        let kept = |new: &Option<_>, evd: &'_ Option<EvdUse<D>>, stream| {
            let evd = if new.is_none() { evd.as_ref() } else { None };
            Exchange::begin(evd, stream)
        };
        let recv = Stream::Recv(attr.recv_completion_flags);
        let recv = kept(&new.recv_evd, &old.recv_evd, recv)?;
        let request = Stream::Send(attr.request_completion_flags);
        let request = kept(&new.request_evd, &old.request_evd, request)?;
        let qp = match (&config.qp, new.parts(old)) {
            (Some(qp), Some(parts)) => {
                ia.device
                    .modify_qp(qp, &parts, &self.qp_attr(&attr))
                    .map_err(|e| device_error(e, Subtype::ResourceTep))?;
                if change.has(DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW) && config.has_srq {
                    apply_watermarks::<D>(qp, watermarks)?;
                }
                Some(qp.clone())
            }
            (None, Some(parts)) => Some(self.make_qp(&parts, &attr, watermarks)?),
            // Without a protection zone there is no queue pair. Receives that were posted are lost
            // with it.
            (_, None) => None,
        };
        if let (Some(old), None) = (&config.qp, &qp) {
            old.destroy();
        }
        if let Some(exchange) = recv {
            exchange.commit(&mut old.recv_evd);
        }
        if let Some(exchange) = request {
            exchange.commit(&mut old.request_evd);
        }
        new.commit(old);
        inner.watermarks = watermarks;
        let has_srq = config.has_srq;
        self.config
            .set(Some(Config::new(attr, ia.rules, has_srq, qp)));
        Ok(())
    }

    fn check_modify_state(&self, change: &EpChange, config: &Config<D>) -> Result<()> {
        let state = self.state();
        let allowed = match state {
            DAT_EP_STATE_UNCONNECTED | DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING => true,
            DAT_EP_STATE_RESERVED | DAT_EP_STATE_PASSIVE_CONNECTION_PENDING => {
                !change.has(v2::DAT_EP_FIELD_PZ_HANDLE)
            }
            _ => false,
        };
        // The notification of receives cannot change once one is posted.
        let posted = config
            .qp
            .as_ref()
            .is_some_and(|qp| qp.recv_outstanding() > 0);
        let flags = change.has(DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS)
            && change.attr.recv_completion_flags != config.attr.recv_completion_flags;
        if change.mask != 0 && (!allowed || (posted && flags)) {
            return Err(state_error(state));
        }
        Ok(())
    }
}
