//! Endpoints: creation, state, `dat_ep_query`, `dat_ep_get_status`, `dat_ep_free`.
//!
//! The connection (`dat_ep_connect`, `dat_ep_disconnect`, `dat_ep_reset`, the events of the
//! device) is in [`connect`], the posts are in [`post`].

mod calls;
mod connect;
mod post;

pub use calls::*;
pub use post::*;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::abi::EpParam;
use super::evd::{Evd, Stream};
use super::ia::Ia;
use super::object::{Base, DatObject, HandleType, device_error, publish, tag, unpublish};
use super::pz::{Pz, PzUse};
use super::types::{CAddress, EpAttr, Handle};
use crate::abi::common::*;
use crate::device::{CmEvent, Device, QpAttr, QpHandler, QueuePair};
use crate::error::{Error, Result, Subtype};
use crate::handle::{Object, Shared};

/// One end of a connection.
#[repr(align(64))]
pub struct Ep<D: Device> {
    base: Base<D>,
    /// `DAT_EP_STATE`. Written under the lock of `inner`, read by the posts without.
    state: AtomicU32,
    /// What the posts need; nothing once the endpoint is freed.
    config: Shared<Config<D>>,
    inner: Mutex<Inner<D>>,
}

/// What an endpoint is made of; replaced as a whole.
struct Config<D: Device> {
    attr: EpAttr,
    /// `None` while the endpoint has no protection zone.
    qp: Option<Arc<D::Qp>>,
}

struct Inner<D: Device> {
    /// Objects the endpoint uses; `None` once it is freed.
    uses: Option<Uses<D>>,
    /// Private data of the peer that the last connection event points to.
    private_data: Option<Box<[u8]>>,
    remote_address: Option<CAddress>,
    remote_port: u64,
}

/// The objects an endpoint holds on to.
struct Uses<D: Device> {
    pz: Option<PzUse<D>>,
    recv_evd: Option<EvdUse<D>>,
    request_evd: Option<EvdUse<D>>,
    connect_evd: Option<EvdUse<D>>,
}

/// A stream into an EVD, ended by its drop.
struct EvdUse<D: Device> {
    evd: Arc<Evd<D>>,
    stream: Stream,
}

impl<D: Device> EvdUse<D> {
    fn begin(ia: &Arc<Ia<D>>, evd: Option<Arc<Evd<D>>>, stream: Stream) -> Result<Option<Self>> {
        let Some(evd) = evd else { return Ok(None) };
        // Completions come from a queue of the device instance. Connection events are ours: no
        // man page binds their EVD to the same open of the IA, and programs with several share
        // one.
        if stream != Stream::Connection && !evd.is_of(ia) {
            return Err(Error::handle(stream.invalid()));
        }
        evd.attach(stream)?;
        Ok(Some(EvdUse { evd, stream }))
    }
}

impl<D: Device> Drop for EvdUse<D> {
    fn drop(&mut self) {
        self.evd.detach(self.stream);
    }
}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Ep<D> {
    const TAG: usize = tag(HandleType::Ep, D::INDEX);
}

impl<D: Device> DatObject<D> for Ep<D> {
    const TYPE: HandleType = HandleType::Ep;
    const INVALID: Subtype = Subtype::HandleEp;
    fn base(&self) -> &Base<D> {
        &self.base
    }
}

/// The queue pair's way to its endpoint.
struct Upcall<D: Device>(OnceLock<Weak<Ep<D>>>);

impl<D: Device> QpHandler for Upcall<D> {
    fn connection(&self, event: CmEvent) {
        if let Some(ep) = self.0.get().and_then(Weak::upgrade) {
            ep.on_event(event);
        }
    }
}

/// The EVDs of a new endpoint.
struct Evds<D: Device> {
    recv: Option<Arc<Evd<D>>>,
    request: Option<Arc<Evd<D>>>,
    connect: Option<Arc<Evd<D>>>,
}

impl<D: Device> Ep<D> {
    fn create(
        ia: &Arc<Ia<D>>,
        pz: Option<Arc<Pz<D>>>,
        evds: Evds<D>,
        attr: Option<EpAttr>,
    ) -> Result<Arc<Self>> {
        let limits = ia.device.attr();
        let attr = match attr {
            Some(attr) => {
                attr.check(limits, Subtype::Arg6)?;
                attr
            }
            None => EpAttr::default_for(limits),
        };
        let recv = Stream::Recv(attr.recv_completion_flags);
        let request = Stream::Send(attr.request_completion_flags);
        let uses = Uses {
            pz: pz.map(|pz| pz.enter(ia)).transpose()?,
            recv_evd: EvdUse::begin(ia, evds.recv, recv)?,
            request_evd: EvdUse::begin(ia, evds.request, request)?,
            connect_evd: EvdUse::begin(ia, evds.connect, Stream::Connection)?,
        };
        let upcall = Arc::new(Upcall(OnceLock::new()));
        let ep = Arc::new(Ep {
            base: Base::new(ia.clone()),
            state: AtomicU32::new(DAT_EP_STATE_UNCONNECTED),
            config: Shared::empty(),
            inner: Mutex::new(Inner {
                uses: None,
                private_data: None,
                remote_address: None,
                remote_port: 0,
            }),
        });
        let _ = upcall.0.set(Arc::downgrade(&ep));
        let handle = publish(&ep)?;
        // The queue pair returns the handle in its completions, so the handle comes first.
        let qp = match Self::create_qp(ia, &uses, &attr, handle, upcall) {
            Ok(qp) => qp,
            Err(error) => {
                unpublish(&*ep);
                return Err(error);
            }
        };
        ep.config.set(Some(Arc::new(Config { attr, qp })));
        ep.inner.lock().uses = Some(uses);
        Ok(ep)
    }

    fn create_qp(
        ia: &Arc<Ia<D>>,
        uses: &Uses<D>,
        attr: &EpAttr,
        handle: Handle,
        upcall: Arc<Upcall<D>>,
    ) -> Result<Option<Arc<D::Qp>>> {
        let Some(pz) = &uses.pz else { return Ok(None) };
        let limits = ia.device.attr();
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        // Programs leave the segment limits of RDMA at 0 and post all the same; the attributes
        // are minimums, so a few segments are always there.
        let segments = |n: i32| count(n).max(4).min(limits.max_sge);
        let request_iov = attr
            .max_request_iov
            .max(attr.max_rdma_read_iov)
            .max(attr.max_rdma_write_iov);
        let solicited = attr.recv_completion_flags & DAT_COMPLETION_SOLICITED_WAIT_FLAG != 0;
        let cq = |evd: &Option<EvdUse<D>>| evd.as_ref().and_then(|u| u.evd.cq().cloned());
        let (send_cq, recv_cq) = (cq(&uses.request_evd), cq(&uses.recv_evd));
        let qp = ia
            .device
            .create_qp(
                &pz.pd,
                send_cq.as_ref(),
                recv_cq.as_ref(),
                &QpAttr {
                    context: handle.0.expose_provenance() as u64,
                    max_send_wr: count(attr.max_request_dtos),
                    max_recv_wr: count(attr.max_recv_dtos),
                    max_send_sge: segments(request_iov),
                    max_recv_sge: segments(attr.max_recv_iov),
                    max_rd_in: count(attr.max_rdma_read_in),
                    max_rd_out: count(attr.max_rdma_read_out),
                    recv_solicited_only: solicited,
                },
                upcall,
            )
            .map_err(|e| device_error(e, Subtype::ResourceTep))?;
        Ok(Some(qp))
    }

    /// `DAT_EP_STATE_*`.
    #[inline]
    fn state(&self) -> DAT_EP_STATE {
        self.state.load(Ordering::Acquire)
    }

    /// The queue pair, if the endpoint has one and is not freed.
    fn qp(&self) -> Option<Arc<D::Qp>> {
        self.config.get_shared()?.qp.clone()
    }

    fn param(&self) -> Result<EpParam> {
        let invalid = Error::handle(Subtype::HandleEp);
        let config = self.config.get_shared().ok_or(invalid)?;
        let inner = self.inner.lock();
        let uses = inner.uses.as_ref().ok_or(invalid)?;
        let evd = |u: &Option<EvdUse<D>>| u.as_ref().map_or(DAT_HANDLE_NULL, |u| u.evd.handle().0);
        let addrs = config.qp.as_ref().and_then(|qp| qp.addrs());
        let ia = &self.base.ia;
        Ok(EpParam {
            ia: ia.handle().0,
            state: self.state(),
            local_address: ia.address(),
            local_port: addrs.map_or(0, |(local, _)| local.port().into()),
            remote_address: inner
                .remote_address
                .as_ref()
                .map_or(std::ptr::null_mut(), CAddress::as_ptr),
            remote_port: inner.remote_port,
            pz: uses.pz.as_ref().map_or(DAT_HANDLE_NULL, |pz| pz.handle().0),
            recv_evd: evd(&uses.recv_evd),
            request_evd: evd(&uses.request_evd),
            connect_evd: evd(&uses.connect_evd),
            srq: DAT_HANDLE_NULL,
            attr: config.attr,
        })
    }

    fn free(&self) -> Result<()> {
        if !unpublish(self) {
            return Err(Error::handle(Subtype::HandleEp));
        }
        self.release();
        Ok(())
    }

    /// Takes the object down when its IA closes.
    pub(super) fn destroy(&self) {
        let _ = self.free();
    }

    /// Ends the connection without an event and lets go of everything.
    fn release(&self) {
        let qp = self.qp();
        self.config.set(None);
        if let Some(qp) = qp {
            qp.destroy();
        }
        let uses = self.inner.lock().uses.take();
        if let Some(uses) = &uses {
            let evds = [&uses.recv_evd, &uses.request_evd, &uses.connect_evd];
            for evd in evds.into_iter().flatten() {
                evd.evd.purge(self.base.handle());
            }
        }
    }
}
