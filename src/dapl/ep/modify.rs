//! `dat_ep_modify`: what may change, and in which states.

use std::sync::Arc;

use super::Ep;
use super::config::Config;
use super::connect::state_error;
use super::parts::{self, Uses};
use super::watermarks::Watermarks;
use crate::abi::{common::*, v2};
use crate::dapl::boundary::device_error;
use crate::dapl::ep_attr::{EpAttr, EpChange};
use crate::dapl::evd::{Evd, EvdUse, Feed, Stream, StreamChange};
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

/// What an endpoint uses after a change.
struct NewParts<D: Device> {
    /// The protection zone, whose use has begun; the outer `None` is for one that stays.
    pz: Option<Option<PzUse<D>>>,
    recv: Feed<D>,
    request: Feed<D>,
    connect: Feed<D>,
}

impl<D: Device> NewParts<D> {
    /// Finds the parts; no stream has changed yet.
    fn find(change: &EpChange, ia: &Arc<Ia<D>>, attr: &EpAttr, old: &Uses<D>) -> Result<Self> {
        let feed = |field, handle, old: &Option<EvdUse<D>>, stream: Stream| -> Result<Feed<D>> {
            let evd: Option<Arc<Evd<D>>> = if change.has(field) {
                lookup_opt(handle, stream.invalid())?
            } else {
                old.as_ref().map(|u| u.evd().clone())
            };
            Ok(evd.map(|evd| (evd, stream)))
        };
        let pz = if change.has(v2::DAT_EP_FIELD_PZ_HANDLE) {
            let pz: Option<Arc<Pz<D>>> = lookup_opt(change.pz, Subtype::HandlePz)?;
            if let Some(srq) = &old.srq {
                srq.check_zone(pz.as_deref(), Subtype::Arg3)?;
            }
            Some(pz.map(|pz| pz.enter(ia)).transpose()?)
        } else {
            None
        };
        Ok(NewParts {
            pz,
            recv: feed(
                v2::DAT_EP_FIELD_RECV_EVD_HANDLE,
                change.recv_evd,
                &old.recv_evd,
                Stream::Recv(attr.recv_completion_flags),
            )?,
            request: feed(
                v2::DAT_EP_FIELD_REQUEST_EVD_HANDLE,
                change.request_evd,
                &old.request_evd,
                Stream::Send(attr.request_completion_flags),
            )?,
            connect: feed(
                v2::DAT_EP_FIELD_CONNECT_EVD_HANDLE,
                change.connect_evd,
                &old.connect_evd,
                Stream::Connection,
            )?,
        })
    }
}

/// The watermarks of an endpoint.
#[derive(Clone, Copy)]
struct Marks {
    before: Watermarks,
    after: Watermarks,
    /// Whether the consumer has set one.
    change: bool,
}

/// The EVD that a stream feeds.
fn evd_of<D: Device>(feed: &Feed<D>) -> Option<Arc<Evd<D>>> {
    feed.as_ref().map(|(evd, _)| evd.clone())
}

impl<D: Device> Ep<D> {
    /// Changes what `change` names, all of it or nothing. The endpoint after the whole change is what
    /// the rules hold for.
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
        if change.mask == 0 {
            return Ok(());
        }
        self.check_modify_state(change, &config)?;
        if change.has(SPECIFIC) {
            return Err(Error::arg(Subtype::Arg3));
        }
        let ia = &self.base.ia;
        let attr = change
            .apply(&config.attr)
            .admit(ia.device.attr(), ia.rules, config.has_srq, Subtype::Arg3)
            .map_err(|_| Error::arg(Subtype::Arg3))?;
        if attr.service_type != config.attr.service_type {
            return Err(Error::arg(Subtype::Arg3));
        }
        let mut marks = Marks {
            before: inner.watermarks,
            after: inner.watermarks,
            change: change.has(DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW),
        };
        if marks.change {
            marks.after.soft = Watermarks::of(&attr, ia.rules).soft;
        }
        let old = inner.uses.as_mut().ok_or(invalid)?;
        let new = NewParts::find(change, ia, &attr, old)?;
        if let (Some(srq), None) = (&old.srq, &new.recv) {
            srq.prepare_unreported()?;
        }
        let (recv_evd, request_evd) = (evd_of(&new.recv), evd_of(&new.request));
        let old_recv_evd = old.recv_evd.as_ref().map(|u| u.evd().clone());
        let streams = StreamChange::begin(
            ia,
            vec![
                (&mut old.recv_evd, new.recv),
                (&mut old.request_evd, new.request),
                (&mut old.connect_evd, new.connect),
            ],
        )?;
        let pz = match &new.pz {
            Some(new) => new.as_ref(),
            None => old.pz.as_ref(),
        };
        let srq = old.srq.as_ref();
        if let (Some(evd), Some(srq)) = (&recv_evd, srq) {
            evd.begin_srq(self.handle(), srq.outstanding())?;
        }
        let parts = parts::parts(pz, recv_evd.as_deref(), request_evd.as_deref(), srq);
        let qp = self.changed_qp(&config, parts, &attr, marks);
        let qp = qp.inspect_err(|_| self.end_srq(&recv_evd, &old_recv_evd))?;
        if let (Some(old), None) = (&config.qp, &qp) {
            // Receives that were posted are lost with the queue pair.
            let lost = old.destroy() as usize;
            if let Some(srq) = srq {
                srq.outstanding().retire(lost);
            }
        }
        streams.commit();
        // An endpoint for datagrams may have completions there still.
        if !self.is_for_datagrams() {
            self.end_srq(&old_recv_evd, &recv_evd);
        }
        if let Some(pz) = new.pz {
            old.pz = pz;
        }
        inner.watermarks = marks.after;
        let (has_srq, request_evd) = (config.has_srq, request_evd.as_deref());
        let config = Config::new(attr, ia.rules, has_srq, request_evd, qp);
        self.set_config(&mut inner, Some(config));
        Ok(())
    }

    /// The queue pair after the change; `None` without the parts for one.
    ///
    /// # Errors
    /// Those of the device; the queue pair is as it was then.
    fn changed_qp(
        &self,
        config: &Config<D>,
        parts: Option<QpParts<'_, D>>,
        attr: &EpAttr,
        marks: Marks,
    ) -> Result<Option<Arc<D::Qp>>> {
        let Some(parts) = parts else { return Ok(None) };
        let Some(qp) = &config.qp else {
            return self.make_qp(&parts, attr, marks.after).map(Some);
        };
        let change = marks.change && config.has_srq;
        if change {
            marks.after.apply::<D>(qp)?;
        }
        let device = &self.base.ia.device;
        if let Err(error) = device.modify_qp(qp, &parts, &self.qp_attr(attr)) {
            if change {
                // The device had these before.
                let _ = marks.before.apply::<D>(qp);
            }
            return Err(device_error(error, Subtype::ResourceTep));
        }
        Ok(Some(qp.clone()))
    }

    /// An EVD that the endpoint does not receive into does not count the buffers of its SRQ.
    fn end_srq(&self, evd: &Option<Arc<Evd<D>>>, receives_into: &Option<Arc<Evd<D>>>) {
        let receives_into = receives_into.as_ref().map(Arc::as_ptr);
        if let Some(evd) = evd
            && receives_into != Some(Arc::as_ptr(evd))
        {
            evd.end_srq(self.handle());
        }
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
        if !allowed || (posted && flags) {
            return Err(state_error(state));
        }
        Ok(())
    }
}
