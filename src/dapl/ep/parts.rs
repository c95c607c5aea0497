//! The objects that an endpoint uses: protection zone, EVDs, SRQ.

use std::sync::Arc;

use crate::dapl::ep_attr::EpAttr;
use crate::dapl::evd::{Evd, EvdUse, Stream};
use crate::dapl::ia::Ia;
use crate::dapl::pz::{Pz, PzUse};
use crate::dapl::srq::{Srq, SrqUse};
use crate::dapl::types::Handle;
use crate::device::{Device, QpParts};
use crate::error::Result;

/// The objects that a new endpoint is to use.
pub(in crate::dapl) struct Parts<D: Device> {
    pub pz: Option<Arc<Pz<D>>>,
    /// For completions of receives.
    pub recv_evd: Option<Arc<Evd<D>>>,
    /// For completions of requests.
    pub request_evd: Option<Arc<Evd<D>>>,
    /// For connection events.
    pub connect_evd: Option<Arc<Evd<D>>>,
    /// Where receives come from, if not from the endpoint.
    pub srq: Option<Arc<Srq<D>>>,
}

impl<D: Device> Parts<D> {
    /// For an endpoint that `dat_ep_modify` configures later.
    pub const NONE: Parts<D> = Parts {
        pz: None,
        recv_evd: None,
        request_evd: None,
        connect_evd: None,
        srq: None,
    };

    /// Begins to use all of them.
    pub(super) fn enter(self, ia: &Arc<Ia<D>>, attr: &EpAttr) -> Result<Uses<D>> {
        let recv = Stream::Recv(attr.recv_completion_flags);
        let request = Stream::Send(attr.request_completion_flags);
        let srq = self.srq.map(|srq| srq.enter(ia)).transpose()?;
        if let Some(srq) = srq.as_ref().filter(|_| self.recv_evd.is_none()) {
            srq.prepare_unreported()?;
        }
        let recv_evd = attach(ia, self.recv_evd, recv)?;
        Ok(Uses {
            pz: self.pz.map(|pz| pz.enter(ia)).transpose()?,
            recv_evd,
            request_evd: attach(ia, self.request_evd, request)?,
            connect_evd: attach(ia, self.connect_evd, Stream::Connection)?,
            srq,
        })
    }
}

/// Begins the stream into an EVD, if there is one.
fn attach<D: Device>(
    ia: &Arc<Ia<D>>,
    evd: Option<Arc<Evd<D>>>,
    stream: Stream,
) -> Result<Option<EvdUse<D>>> {
    evd.map(|evd| EvdUse::begin(ia, evd, stream)).transpose()
}

/// The objects that an endpoint uses.
pub(super) struct Uses<D: Device> {
    pub pz: Option<PzUse<D>>,
    pub recv_evd: Option<EvdUse<D>>,
    pub request_evd: Option<EvdUse<D>>,
    pub connect_evd: Option<EvdUse<D>>,
    pub srq: Option<SrqUse<D>>,
}

impl<D: Device> Uses<D> {
    /// The parts of the queue pair; `None` without a protection zone.
    pub fn parts(&self) -> Option<QpParts<'_, D>> {
        fn evd<D: Device>(u: &Option<EvdUse<D>>) -> Option<&Evd<D>> {
            u.as_ref().map(|u| &**u.evd())
        }
        let (recv, request) = (evd(&self.recv_evd), evd(&self.request_evd));
        parts(self.pz.as_ref(), recv, request, self.srq.as_ref())
    }

    /// Removes the events of the endpoint from its EVDs, when its queue pair has none left in their
    /// completion queues. Its SRQ counts the buffers of the removed completions, and the `lost` ones,
    /// as retired.
    pub fn purge(&self, ep: Handle, lost: usize) {
        let completed: usize = self.evds().map(|evd| evd.purge(ep)).sum();
        self.retire(completed + lost);
    }

    /// The EVDs keep what they have of the endpoint, which is about to be reset.
    pub fn keep_events(&self, ep: Handle) {
        self.evds().for_each(|evd| evd.keep(ep));
    }

    /// Its SRQ counts so many of its buffers as retired.
    pub fn retire(&self, buffers: usize) {
        if let Some(srq) = &self.srq {
            srq.outstanding().retire(buffers);
        }
    }

    fn evds(&self) -> impl Iterator<Item = &Arc<Evd<D>>> {
        let evds = [&self.recv_evd, &self.request_evd, &self.connect_evd];
        evds.into_iter().flatten().map(EvdUse::evd)
    }

    /// The EVD of an endpoint that receives from an SRQ begins to count its buffers.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn begin_srq(&self, ep: Handle) -> Result<()> {
        match (&self.srq, &self.recv_evd) {
            (Some(srq), Some(evd)) => evd.evd().begin_srq(ep, srq.outstanding()),
            _ => Ok(()),
        }
    }

    /// The same EVD has no completions of the endpoint any more.
    pub fn end_srq(&self, ep: Handle) {
        if let (Some(_), Some(evd)) = (&self.srq, &self.recv_evd) {
            evd.evd().end_srq(ep);
        }
    }
}

/// The parts of a queue pair; `None` without a protection zone. Without an EVD the device reports
/// no completions, except those of an SRQ, which counts its buffers.
pub(super) fn parts<'a, D: Device>(
    pz: Option<&'a PzUse<D>>,
    recv_evd: Option<&'a Evd<D>>,
    request_evd: Option<&'a Evd<D>>,
    srq: Option<&'a SrqUse<D>>,
) -> Option<QpParts<'a, D>> {
    Some(QpParts {
        pd: &pz?.pd,
        send_cq: request_evd.and_then(Evd::cq),
        recv_cq: match recv_evd {
            Some(evd) => evd.cq(),
            None => srq.and_then(SrqUse::unreported),
        },
        srq: srq.map(SrqUse::device),
    })
}
