//! The soft device, which needs no hardware. How data moves depends on where the peer is:
//!
//! * in the same process, by one copy in the thread that posts
//!   ([`loopback`](transport::loopback));
//! * in another process of the host, through shared memory if both ends can
//!   ([`shm`](transport::shm));
//! * elsewhere, as iWARP over TCP ([`iwarp`] is the wire format, [`engine`] serves the sockets).
//!
//! Datagrams go over UDP, or by one copy within the process ([`datagram`](transport::datagram)).
//!
//! An address of this device is an IP address, a connection qualifier up to 65535 a TCP port.

// The objects are public for integration tests and benches; what they are made of is not.
#![allow(private_bounds, private_interfaces)]

mod bad_keys;
pub(crate) mod cm;
pub(crate) mod cq;
mod device;
pub mod engine;
pub(crate) mod event_order;
pub(crate) mod qp;
pub(crate) mod socket;
mod turns;
pub(crate) mod upcalls;

pub mod iwarp;
pub mod mem;
pub mod params;
pub mod transport;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::kernel::Instant;

pub use self::cm::listener::{ConnRequest, Listener};
pub use self::device::Soft;
pub use self::mem::region::Mr;
pub use self::mem::window::Mw;
pub use self::qp::srq::Srq;
pub use cq::Cq;
pub use transport::Qp;

use self::device::{Counts, count};
use self::engine::Engine;
use self::mem::segments::MAX_SGE;
use self::params::Params;
use self::qp::state::Identity;
use self::turns::Turns;
use super::params::Key;
use super::{
    Access, Addressing, BindWr, CqHandler, DatagramWr, Device, DeviceAttr, DeviceError,
    DeviceIdentity, ListenHandler, PollOutcome, PostError, QpAttr, QpHandler, QpParts, Sought,
    SrqHandler, Wake, WindowScope,
};
use crate::device::events::EventQueue;
use crate::handle::Guard;

/// Number of queue pairs of a device at most.
const MAX_QP: u32 = 1 << 16;
/// Number of completion queues of a device at most.
const MAX_CQ: u32 = 1 << 16;
/// Number of protection domains of a device at most.
const MAX_PD: u32 = 1 << 16;
/// Number of work requests of a queue at most.
const MAX_WR: u32 = 1 << 16;
/// Number of RDMA reads of a queue pair that are under way at most, in each direction.
const MAX_RD: u32 = 128;
/// How long a waiting consumer polls before it blocks, in microseconds, if the entry does not say.
const SPIN: u64 = 30;
/// The MTU that is reported: the largest that InfiniBand has a name for, as packets are those of
/// TCP.
const MTU: u32 = 4096;

/// A protection domain.
pub struct Pd {
    /// The number of the domain, which no other domain of the process has.
    id: u32,
    /// The device.
    device: Arc<Soft>,
}

impl Drop for Soft {
    /// A program that closes its interface adapters has no memory of theirs left. What other threads
    /// hold goes with them.
    fn drop(&mut self) {
        transport::tcp::tx::free_memory_of_thread();
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.device.counts.pd.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The attributes that consumers can query.
fn attributes(params: &Params) -> DeviceAttr {
    let named = |name: &str, value: String| (name.to_owned(), value);
    DeviceAttr {
        vendor_name: "libdat".into(),
        identity: DeviceIdentity {
            connection_manager: "SOFT",
            device: Soft::NAME.into(),
            node_guid: 0,
            gid: [0; 16],
            port: 1,
        },
        max_qp: MAX_QP,
        max_qp_wr: MAX_WR,
        max_rd_in: MAX_RD,
        max_rd_out: MAX_RD,
        max_cq: MAX_CQ,
        max_cqe: cq::MAX_CQE,
        max_sge: MAX_SGE,
        max_read_sge: MAX_SGE,
        max_mr: mem::key_table::MAX_MR,
        max_mr_size: mem::region::MAX_MR_SIZE,
        max_pd: MAX_PD,
        max_message_size: qp::state::MAX_MESSAGE,
        max_rdma_size: qp::state::MAX_MESSAGE,
        atomics: true,
        immediate: true,
        zero_based: true,
        max_datagram: transport::datagram::wire::MAX_DATAGRAM as u32,
        max_mw: mem::window::MAX_MW,
        max_srq: qp::srq::MAX_SRQ,
        max_srq_wr: qp::srq::MAX_SRQ_WR,
        max_private_data: cm::MAX_PRIVATE as u32,
        max_datagram_private_data: cm::MAX_DATAGRAM_PRIVATE as u32,
        mtu: MTU,
        transport_attr: vec![
            named("transport", "iwarp".into()),
            named("address", params.address.ip().to_string()),
            named("crc", if params.crc { "on" } else { "off" }.into()),
        ],
    }
}

/// The default of the parameter `spin`: about what a sleep and the wake-up from it cost, if a peer
/// can run while a consumer polls. The processors of the system count, not those that the process
/// is tied to: the peer may run on another one, and if it does not, polls are in vain and soon
/// become rare.
fn default_spin() -> Duration {
    // SAFETY: reads a number of the system.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    Duration::from_micros(if processors > 1 { SPIN } else { 0 })
}

/// What a queue pair of these parts has for its life.
///
/// # Errors
/// [`DeviceError::Limit`] if an attribute is above what the device supports.
fn identity(
    parts: &QpParts<'_, Soft>,
    attr: &QpAttr,
    key_scope: u32,
    events: Arc<EventQueue>,
) -> Result<Identity, DeviceError> {
    let wr = attr.max_send_wr.max(attr.max_recv_wr);
    let sge = attr.max_send_sge.max(attr.max_recv_sge);
    let rd = attr.max_rd_in.max(attr.max_rd_out);
    if wr > MAX_WR || sge > MAX_SGE || rd > MAX_RD {
        return Err(DeviceError::Limit);
    }
    Ok(Identity {
        attr: *attr,
        pd: parts.pd.id,
        recv_pd: parts.srq.map_or(parts.pd.id, |srq| srq.pd),
        key_scope,
        send_cq: parts.send_cq.cloned(),
        recv_cq: parts.recv_cq.cloned(),
        srq: parts.srq.cloned(),
        events,
    })
}

impl Device for Soft {
    type Pd = Pd;
    type Mr = Mr;
    type Mw = Mw;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Listener = Listener;
    type ConnRequest = ConnRequest;

    const NAME: &'static str = "soft";
    const INDEX: usize = 0;
    // What was checked is what is copied.
    const SEGMENTS_IN_PLACE: bool = false;
    const PLAIN_CALLS: bool = true;
    const KEYS: &'static [Key] = self::params::KEYS;

    fn discover() -> Vec<(String, String)> {
        vec![(Self::NAME.into(), String::new())]
    }

    fn open(params: &str) -> Result<Arc<Self>, String> {
        let params = Params::parse(params)?;
        mem::export::set_exporter(&transport::shm::ShmExporter);
        let presence = (params.path != params::Path::Tcp).then_some(transport::shm::PRESENCE);
        let engine = Engine::new(transport::shm::take_bitmap, presence)
            .map_err(|e| format!("the system gives no event queue: {e}"))?;
        if params.shares_memory()
            && let Err(why) = transport::shm::mapped::enable()
        {
            log::error!("memory={} is without effect: {why}", params.memory.name());
        }
        Ok(Arc::new(Soft {
            attr: attributes(&params),
            spin: params.spin.unwrap_or_else(default_spin),
            params,
            counts: Counts::default(),
            bad_keys: Arc::default(),
            turns: Turns::default(),
            engine,
        }))
    }

    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn address(&self) -> SocketAddr {
        self.params.address
    }

    #[inline]
    fn poll_events(&self, guard: &Guard) -> PollOutcome {
        self.engine.poll(guard)
    }

    fn progress(&self) {
        self.engine.progress();
    }

    fn place_arrived(&self) {
        self.engine.place_arrived();
    }

    fn spin(&self) -> Duration {
        self.spin
    }

    fn block(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> Option<Wake> {
        self.engine.block(word, value, deadline)
    }

    fn unblock(&self, word: &AtomicU32) -> bool {
        self.engine.unblock(word)
    }

    fn alloc_pd(self: &Arc<Self>) -> Result<Pd, DeviceError> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        count(&self.counts.pd, MAX_PD)?;
        Ok(Pd {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device: self.clone(),
        })
    }

    fn reg_mr_addressed(
        self: &Arc<Self>,
        pd: &Pd,
        addr: u64,
        len: u64,
        access: Access,
        addressing: Addressing,
    ) -> Result<Mr, DeviceError> {
        Mr::new(pd.id, addr, len, access, addressing, self.params.memory)
    }

    fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Arc<Cq>, DeviceError> {
        count(&self.counts.cq, MAX_CQ)?;
        Cq::new(entries, handler, self.counts.cq.clone())
    }

    fn create_srq(
        self: &Arc<Self>,
        pd: &Pd,
        max_wr: u32,
        max_sge: u32,
        handler: Arc<dyn SrqHandler>,
    ) -> Result<Arc<Srq>, DeviceError> {
        if max_wr > qp::srq::MAX_SRQ_WR || max_sge > MAX_SGE {
            return Err(DeviceError::Limit);
        }
        count(&self.counts.srq, qp::srq::MAX_SRQ)?;
        let counter = self.counts.srq.clone();
        Ok(Srq::new(pd.id, max_wr, max_sge, handler, counter))
    }

    fn alloc_mw(self: &Arc<Self>, pd: &Pd, scope: WindowScope) -> Result<Arc<Mw>, DeviceError> {
        count(&self.counts.mw, mem::window::MAX_MW)?;
        Ok(Mw::new(pd.id, scope, self.counts.mw.clone()))
    }

    fn post_bind(qp: &Arc<Qp>, wr: &BindWr<'_, Self>) -> Result<u32, PostError> {
        qp.post_bind(wr)
    }

    fn post_datagram(qp: &Arc<Qp>, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        transport::post_datagram(qp, wr)
    }

    fn create_qp(
        self: &Arc<Self>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
        handler: Arc<dyn QpHandler>,
    ) -> Result<Arc<Qp>, DeviceError> {
        let key_scope = mem::scope::next_qp();
        let id = identity(parts, attr, key_scope, Arc::new(EventQueue::new(handler)))?;
        count(&self.counts.qp, MAX_QP)?;
        let qp = Qp::new(self, id);
        if attr.datagrams {
            transport::open_datagrams(&qp)?;
        }
        Ok(qp)
    }

    fn modify_qp(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError> {
        let key_scope = qp.with(|locked| locked.me.id.key_scope);
        qp.modify(identity(parts, attr, key_scope, qp.events.clone())?)
    }

    fn listen(
        self: &Arc<Self>,
        qual: u64,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<Listener, DeviceError> {
        cm::listener::listen(self, qual, handler)
    }

    fn listen_any(
        self: &Arc<Self>,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<(Listener, u64), DeviceError> {
        cm::listener::listen_any(self, handler)
    }

    fn connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        remote: SocketAddr,
        sought: impl Into<Sought>,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        cm::connect(self, qp, remote, sought.into(), timeout, private_data)
    }

    fn accept(
        self: &Arc<Self>,
        request: ConnRequest,
        qp: &Arc<Qp>,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        cm::accept(request, qp, private_data)
    }

    fn reject(self: &Arc<Self>, request: ConnRequest, private_data: &[u8]) {
        cm::reject(request, private_data);
    }
}
