//! Endpoints: creation, state, watermarks, `dat_ep_query`, `dat_ep_free`.
//!
//! The connection (`dat_ep_connect`, `dat_ep_disconnect`, `dat_ep_reset`, the events of the
//! device) is in [`connect`], that of endpoints for datagrams in [`datagrams`], `dat_ep_modify` in
//! [`modify`], what most posts find instead of all that in [`open`], what is counted in [`counted`], what readers of the process see in [`figures`], the posts are in [`post`], [`post_recv`], [`post_rdma_write`] and [`post_extended`], what most of them begin with in [`plain_post`], the objects that an endpoint uses in
//! [`parts`].

mod calls;
mod connect;
mod counted;
mod datagrams;
mod figures;
mod modify;
mod open;
mod parts;
mod plain_post;
mod post;
mod post_extended;
mod post_rdma_write;
mod post_recv;

pub use calls::*;
pub use datagrams::{free_address_handle, free_exchange, post_send_datagram};
pub(super) use parts::Parts;
pub use post::*;
pub use post_extended::*;
pub use post_rdma_write::*;
pub use post_recv::*;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use self::open::OpenQueues;
use self::parts::Uses;
use super::address::{CAddress, no_address};
use super::boundary::device_error;
use super::counters::{self, Counters};
use super::ep_attr::{EpAttr, EpParam};
use super::evd::{Evd, EvdUse};
use super::ia::{Child, Ia};
use super::object::{Base, dat_object, publish, unpublish};
use super::private_data::PrivateData;
use super::resolution::Resolution;
use super::rules::Rules;
use super::work_request::OpFlags;
use crate::abi::common::*;
use crate::delay;
use crate::device::{CmEvent, ConnectionRequest, Device, QpAttr, QpHandler, QpParts, QueuePair};
use crate::error::{Error, Kind, Result, Subtype};
use crate::figures::Json;
use crate::handle::Shared;

/// One end of a connection.
#[repr(align(64))]
pub struct Ep<D: Device> {
    base: Base<D>,
    /// A reference to the endpoint itself, for the upcalls of the device.
    me: Weak<Ep<D>>,
    /// `DAT_EP_STATE`. Written under the lock of `inner`; the posts read it without the lock.
    state: AtomicU32,
    /// Whether the endpoint is for datagrams, and makes no connections.
    datagrams: bool,
    /// The counters, if those of the IA are on.
    counters: Option<Counters>,
    /// What the posts need; nothing once the endpoint is freed.
    config: Shared<Config<D>>,
    /// What most posts need of it.
    open: OpenQueues<D::Qp>,
    inner: Mutex<Inner<D>>,
}

/// What the posts need of an endpoint; replaced as a whole.
pub(super) struct Config<D: Device> {
    attr: EpAttr,
    /// The completion flags that requests may have.
    pub(super) request_flags: OpFlags,
    /// The completion flags that receives may have.
    recv_flags: OpFlags,
    /// Receives come from an SRQ.
    has_srq: bool,
    /// The EVD for requests takes no completions of binds, to the letter of the man pages. Existing
    /// libraries put these there all the same.
    pub(super) refuses_binds: bool,
    /// The queue pair; `None` while the endpoint has no protection zone.
    qp: Option<Arc<D::Qp>>,
}

impl<D: Device> Config<D> {
    fn new(
        attr: EpAttr,
        rules: Rules,
        has_srq: bool,
        request_evd: Option<&Evd<D>>,
        qp: Option<Arc<D::Qp>>,
    ) -> Arc<Self> {
        Arc::new(Config {
            refuses_binds: rules.are_pages() && request_evd.is_some_and(|evd| !evd.takes_binds()),
            request_flags: OpFlags::new(attr.request_completion_flags, rules),
            recv_flags: OpFlags::new(attr.recv_completion_flags, rules),
            attr,
            has_srq,
            qp,
        })
    }

    /// The same with another soft high watermark among the attributes.
    fn with_soft_mark(&self, mark: Option<u32>) -> Arc<Self> {
        let srq_soft_hw = mark.map_or(DAT_WATERMARK_INFINITE, |n| n as DAT_COUNT);
        Arc::new(Config {
            attr: EpAttr {
                srq_soft_hw,
                ..self.attr
            },
            qp: self.qp.clone(),
            ..*self
        })
    }
}

/// Watermarks on the number of buffers of its SRQ that an endpoint may hold.
#[derive(Clone, Copy)]
struct Watermarks {
    soft: Option<u32>,
    hard: Option<u32>,
}

impl Watermarks {
    /// Those of a new endpoint. Programs leave the attribute at 0 without wanting a watermark
    /// there: the first message would be an error event.
    fn of(attr: &EpAttr, rules: Rules) -> Watermarks {
        let mark = u32::try_from(attr.srq_soft_hw).ok();
        Watermarks {
            soft: mark.filter(|n| *n > 0 || rules.are_pages()),
            hard: None,
        }
    }
}

struct Inner<D: Device> {
    /// Whether a connection is being handed to the device.
    attempt: Attempt,
    /// Number of attempts to make a connection that the endpoint has begun.
    begun: u64,
    /// The objects that the endpoint uses; `None` once it is freed.
    uses: Option<Uses<D>>,
    watermarks: Watermarks,
    /// Private data of the peer that the last connection event points to.
    private_data: Option<PrivateData>,
    addresses: Addresses,
    /// What an endpoint for datagrams has learned about peers.
    resolutions: Vec<Weak<Resolution<D>>>,
}

/// What the free of an endpoint ends the use of.
struct Used<D: Device> {
    qp: Option<Arc<D::Qp>>,
    uses: Option<Uses<D>>,
    resolutions: Vec<Weak<Resolution<D>>>,
}

impl<D: Device> Inner<D> {
    /// A connection is about to be handed to the device. Gives the number of the attempt.
    fn begin_attempt(&mut self) -> u64 {
        self.attempt = Attempt::Starting;
        self.begun += 1;
        self.begun
    }
}

/// Where the two ends of a connection are, or of the attempt to make one.
#[derive(Default)]
struct Addresses {
    /// The address of the peer; `None` while there is no attempt. The consumer has a pointer to it.
    remote: Option<CAddress>,
    /// The qualifier that the endpoint connects to, or the port of the peer that has connected.
    remote_port: u64,
    /// The qualifier that the peer has connected to; `None` at the end that connects, whose port the
    /// device has.
    local_port: Option<u64>,
    /// The address of the last `dat_ep_connect`, for `dat_ep_dup_connect`.
    target: Option<SocketAddr>,
}

/// Where a connection request is from, and where it has arrived.
#[derive(Clone, Copy)]
pub(super) struct RequestAddrs {
    /// The address of the peer, with its port.
    pub remote: SocketAddr,
    /// The qualifier that the peer has connected to.
    conn_qual: u64,
}

impl RequestAddrs {
    /// Those of a request of a device.
    pub fn of(request: &impl ConnectionRequest) -> RequestAddrs {
        RequestAddrs {
            remote: request.remote_addr(),
            conn_qual: request.conn_qual(),
        }
    }
}

impl Addresses {
    /// Of the endpoint of a request. What the consumer has a pointer to stays.
    fn set_requested(&mut self, addrs: &RequestAddrs) {
        self.remote
            .get_or_insert_with(|| CAddress::new(addrs.remote));
        self.remote_port = addrs.remote.port().into();
        self.local_port = Some(addrs.conn_qual);
    }
}

/// A connection that is pending for the consumer, and that the device may not have yet.
#[derive(PartialEq, Eq)]
enum Attempt {
    /// There is none, or the device has it.
    None,
    /// A thread is about to hand it to the device.
    Starting,
    /// Another thread has called `dat_ep_disconnect` meanwhile.
    Aborted,
}

dat_object!(Ep, Ep, HandleEp);

impl<D: Device> Child for Ep<D> {
    fn destroy(&self) {
        if unpublish(self) {
            let used = self.take_used(&mut self.inner.lock());
            self.release(used);
        }
    }

    fn figures(&self, json: &mut Json) {
        self.write_figures(json);
    }
}

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

fn apply_watermarks<D: Device>(qp: &D::Qp, watermarks: Watermarks) -> Result<()> {
    qp.set_recv_watermarks(watermarks.soft, watermarks.hard)
        .map_err(|e| device_error(e, Subtype::ResourceTep))
}

impl<D: Device> Ep<D> {
    /// Makes an endpoint in state `state`.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for attributes the device cannot offer, `DAT_INVALID_HANDLE` for
    /// a part that is not of this IA or that its EVD cannot take.
    pub(super) fn create(
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
    pub(super) fn create_tentative(ia: &Arc<Ia<D>>, addrs: &RequestAddrs) -> Result<Arc<Self>> {
        let state = DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING;
        let ep = Ep::create(ia, Parts::NONE, None, state)?;
        ep.inner.lock().addresses.set_requested(addrs);
        Ok(ep)
    }

    /// The counters, if those of the IA are on.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    fn make_qp(
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
            apply_watermarks::<D>(&qp, watermarks)?;
        }
        Ok(qp)
    }

    fn qp_attr(&self, attr: &EpAttr) -> QpAttr {
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

    /// `DAT_EP_STATE_*`.
    #[inline]
    fn state(&self) -> DAT_EP_STATE {
        self.state.load(Ordering::Acquire)
    }

    /// The queue pair, if the endpoint has one and is not freed.
    fn qp(&self) -> Option<Arc<D::Qp>> {
        self.config.get_shared()?.qp.clone()
    }

    /// The handle of its protection zone.
    pub(super) fn pz(&self) -> Option<DAT_PZ_HANDLE> {
        let inner = self.inner.lock();
        let pz = inner.uses.as_ref()?.pz.as_ref()?;
        Some(pz.handle().0)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state() == DAT_EP_STATE_CONNECTED
    }

    /// Whether the provider has made the endpoint for a request that is not answered.
    pub(super) fn is_tentative(&self) -> bool {
        self.state() == DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING
    }

    /// `dat_ep_set_watermark`: only buffers of an SRQ are shared with others, so only those
    /// have watermarks. The hard one ends a connection, which an endpoint for datagrams has not.
    fn set_watermarks(&self, watermarks: Watermarks) -> Result<()> {
        let invalid = Error::handle(Subtype::HandleEp);
        let config = self.config.get_shared().ok_or(invalid)?;
        if !config.has_srq || self.is_for_datagrams() && watermarks.hard.is_some() {
            return Err(Kind::ModelNotSupported.into());
        }
        // Without the lock: a mark that is exceeded already is reported at once.
        if let Some(qp) = &config.qp {
            apply_watermarks::<D>(qp, watermarks)?;
        }
        let mut inner = self.inner.lock();
        let config = self.config.get_shared().ok_or(invalid)?;
        inner.watermarks = watermarks;
        self.set_config(&mut inner, Some(config.with_soft_mark(watermarks.soft)));
        Ok(())
    }

    fn param(&self) -> Result<EpParam> {
        let invalid = Error::handle(Subtype::HandleEp);
        let config = self.config.get_shared().ok_or(invalid)?;
        let inner = self.inner.lock();
        let uses = inner.uses.as_ref().ok_or(invalid)?;
        let evd =
            |u: &Option<EvdUse<D>>| u.as_ref().map_or(DAT_HANDLE_NULL, |u| u.evd().handle().0);
        let addresses = &inner.addresses;
        let device_port = || {
            let (local, _) = config.qp.as_ref()?.addrs()?;
            Some(local.port().into())
        };
        let ia = &self.base.ia;
        Ok(EpParam {
            ia: ia.handle().0,
            state: self.state(),
            local_address: ia.address(),
            local_port: addresses.local_port.or_else(device_port).unwrap_or(0),
            remote_address: addresses
                .remote
                .as_ref()
                .map_or_else(no_address, CAddress::as_ptr),
            remote_port: addresses.remote_port,
            pz: uses.pz.as_ref().map_or(DAT_HANDLE_NULL, |pz| pz.handle().0),
            recv_evd: evd(&uses.recv_evd),
            request_evd: evd(&uses.request_evd),
            connect_evd: evd(&uses.connect_evd),
            srq: uses
                .srq
                .as_ref()
                .map_or(DAT_HANDLE_NULL, |srq| srq.handle().0),
            attr: config.attr,
        })
    }

    fn free(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if let state @ (DAT_EP_STATE_RESERVED
        | DAT_EP_STATE_PASSIVE_CONNECTION_PENDING
        | DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING) = self.state()
        {
            return Err(connect::state_error(state));
        }
        if inner.uses.is_none() {
            return Err(Error::handle(Subtype::HandleEp));
        }
        // Under the lock: from here on no service point reserves the endpoint.
        let used = self.take_used(&mut inner);
        drop(inner);
        unpublish(self);
        self.release(used);
        Ok(())
    }

    /// Takes what a free ends the use of.
    fn take_used(&self, inner: &mut Inner<D>) -> Used<D> {
        let used = Used {
            // First: a thread that finds the other objects there finds the queue pair too.
            qp: self.qp(),
            uses: inner.uses.take(),
            resolutions: std::mem::take(&mut inner.resolutions),
        };
        self.set_config(inner, None);
        used
    }

    /// Ends the connection without an event and ends the use of all other objects.
    fn release(&self, used: Used<D>) {
        delay::point("ep.free");
        let lost = used.qp.map_or(0, |qp| qp.destroy() as usize);
        delay::point("ep.purge");
        if let Some(uses) = &used.uses {
            uses.purge(self.handle(), lost);
            uses.end_srq(self.handle());
        }
        datagrams::release(used.resolutions);
    }
}
