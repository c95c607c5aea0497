//! The creation of an endpoint and of its queue pair.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use super::config::Config;
use super::open::OpenQueues;
use super::watermarks::Watermarks;
use super::{Addresses, Attempt, Ep, Inner, Parts, RequestAddrs};
use crate::abi::common::*;
use crate::dapl::boundary::device_error;
use crate::dapl::counters;
use crate::dapl::ep_attr::EpAttr;
use crate::dapl::ia::Ia;
use crate::dapl::object::{Base, publish, unpublish};
use crate::dapl::rules::Rules;
use crate::device::{CmEvent, Device, QpAttr, QpHandler, QpParts};
use crate::error::{Result, Subtype};
use crate::handle::Shared;
use crate::lock::Mutex;

/// The handler of the queue pair: passes upcalls to its endpoint.
struct Upcall<D: Device>(Weak<Ep<D>>);

impl<D: Device> QpHandler for Upcall<D> {
    fn connection(&self, event: CmEvent) {
        if let Some(ep) = self.0.upgrade() {
            ep.on_event(event);
        }
    }

    fn soft_watermark(&self) {
        if let Some(ep) = self.0.upgrade() {
            // There is no event number for this; the reason tells it from other errors.
            ep.base.ia.async_event(
                DAT_ASYNC_ERROR_EP_BROKEN,
                ep.handle(),
                DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT,
            );
        }
    }
}

impl<D: Device> Ep<D> {
    /// Makes an endpoint in state `state`.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for attributes the device cannot offer, `DAT_INVALID_HANDLE` for
    /// a part that is not of this IA or that its EVD cannot take.
    pub(in crate::dapl) fn create(
        ia: &Arc<Ia<D>>,
        parts: Parts<D>,
        attr: Option<EpAttr>,
        state: DAT_EP_STATE,
    ) -> Result<Arc<Self>> {
        let limits = ia.device.attr();
        let attr = match attr {
            Some(attr) => {
                let (has_srq, arg) = match parts.srq {
                    Some(_) => (true, Subtype::Arg7),
                    None => (false, Subtype::Arg6),
                };
                attr.admit(limits, ia.rules, has_srq, arg)?
            }
            None => EpAttr::default_for(limits),
        };
        let watermarks = Watermarks::of(&attr, ia.rules);
        let uses = parts.enter(ia, &attr)?;
        let ep = Arc::new_cyclic(|me| Ep {
            base: Base::new(ia.clone()),
            me: me.clone(),
            state: AtomicU32::new(state),
            datagrams: attr.is_for_datagrams(),
            counters: ia.new_counters(counters::EP_COUNTERS),
            config: Shared::empty(),
            open: OpenQueues::none(),
            inner: Mutex::new(Inner {
                attempt: Attempt::None,
                begun: 0,
                uses: None,
                watermarks,
                private_data: None,
                addresses: Addresses::default(),
                resolutions: Vec::new(),
            }),
        });
        // Before the queue pair, which returns the handle in its completions.
        publish(&ep)?;
        let make_qp = || {
            uses.begin_srq(ep.handle())?;
            let qp = uses
                .parts()
                .map(|parts| ep.make_qp(&parts, &attr, watermarks));
            qp.transpose()
        };
        match make_qp() {
            Ok(qp) => {
                let has_srq = uses.srq.is_some();
                let request_evd = uses.request_evd.as_ref().map(|u| &**u.evd());
                let config = Config::new(attr, ia.rules, has_srq, request_evd, qp);
                let mut inner = ep.inner.lock();
                ep.set_config(&mut inner, Some(config));
                inner.uses = Some(uses);
                drop(inner);
                Ok(ep)
            }
            Err(error) => {
                uses.end_srq(ep.handle());
                unpublish(&*ep);
                Err(error)
            }
        }
    }

    /// Makes an endpoint for a request that has arrived, which the consumer is to configure.
    ///
    /// # Errors
    /// Those of [`Ep::create`].
    pub(in crate::dapl) fn create_tentative(
        ia: &Arc<Ia<D>>,
        addrs: &RequestAddrs,
    ) -> Result<Arc<Self>> {
        let state = DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING;
        let ep = Ep::create(ia, Parts::NONE, None, state)?;
        ep.inner.lock().addresses.set_requested(addrs);
        Ok(ep)
    }

    pub(super) fn make_qp(
        &self,
        parts: &QpParts<'_, D>,
        attr: &EpAttr,
        watermarks: Watermarks,
    ) -> Result<Arc<D::Qp>> {
        let upcall = Arc::new(Upcall(self.me.clone()));
        let device = &self.base.ia.device;
        let qp = device
            .create_qp(parts, &self.qp_attr(attr), upcall)
            .map_err(|e| device_error(e, Subtype::ResourceTep))?;
        if parts.srq.is_some() {
            watermarks.apply::<D>(&qp)?;
        }
        Ok(qp)
    }

    pub(super) fn qp_attr(&self, attr: &EpAttr) -> QpAttr {
        let limits = self.base.ia.device.attr();
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        // Programs leave the segment limits of RDMA at 0 and post nevertheless. The attributes are
        // minimums, so a few segments are always possible.
        let segments = |n: i32| count(n).max(4).min(limits.max_sge);
        let request_iov = attr
            .max_request_iov
            .max(attr.max_rdma_read_iov)
            .max(attr.max_rdma_write_iov);
        // Existing libraries enforce the sizes of the IA alone.
        let size = |own: u64, of_ia: u32| match self.base.ia.rules {
            Rules::Pages => u32::try_from(own).unwrap_or(of_ia),
            Rules::Programs => of_ia,
        };
        let solicited = attr.recv_completion_flags & DAT_COMPLETION_SOLICITED_WAIT_FLAG;
        QpAttr {
            context: self.handle().0.expose_provenance() as u64,
            max_send_wr: count(attr.max_request_dtos),
            max_recv_wr: count(attr.max_recv_dtos),
            max_send_sge: segments(request_iov),
            max_recv_sge: segments(attr.max_recv_iov),
            max_message_size: size(attr.max_message_size, limits.max_message_size),
            max_rdma_size: size(attr.max_rdma_size, limits.max_rdma_size),
            max_rd_in: count(attr.max_rdma_read_in),
            max_rd_out: count(attr.max_rdma_read_out),
            recv_solicited_only: solicited != 0,
            datagrams: attr.is_for_datagrams(),
        }
    }
}
