//! Endpoints: state, `dat_ep_query`, `dat_ep_free`.
//!
//! | file | what |
//! |---|---|
//! | [`create`], [`parts`] | the creation, the objects that an endpoint uses |
//! | [`config`], [`open`] | what the posts need, and what most of them find in place of it |
//! | [`modify`], [`watermarks`] | `dat_ep_modify`, `dat_ep_set_watermark` |
//! | [`connect`], [`datagrams`] | the connection and the events of the device; endpoints for datagrams |
//! | [`plain_post`], [`post`], [`post_recv`], [`post_rdma_write`], [`post_extended`] | the posts; what most of them begin with |
//! | [`counted`], [`figures`] | what is counted, what readers of the process see |
//! | [`calls`] | the functions of the API |

mod calls;
mod config;
mod connect;
mod counted;
mod create;
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
mod watermarks;

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

use self::config::Config;
use self::open::OpenQueues;
use self::parts::Uses;
use self::watermarks::Watermarks;
use super::address::{CAddress, no_address};
use super::counters::Counters;
use super::ep_attr::EpParam;
use super::evd::EvdUse;
use super::ia::Child;
use super::object::{Base, dat_object, unpublish};
use super::private_data::PrivateData;
use super::resolution::Resolution;
use crate::abi::common::*;
use crate::delay;
use crate::device::{ConnectionRequest, Device, QueuePair};
use crate::error::{Error, Result, Subtype};
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

impl<D: Device> Ep<D> {
    /// The counters, if those of the IA are on.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    /// `DAT_EP_STATE_*`.
    #[inline]
    pub(super) fn state(&self) -> DAT_EP_STATE {
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
