//! The device that needs no hardware.
//!
//! * within a process one copy in the poster's thread moves the data ([`loopback`](transport::loopback));
//! * to another process of the host it can go through shared memory ([`shm`](transport::shm));
//! * to any other peer it is iWARP over TCP ([`iwarp`] is the wire, [`engine`] serves the
//!   sockets).
//!
//! An address of this device is an IP address, a connection qualifier up to 65535 a TCP port.

pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod engine;
pub(crate) mod qp;
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
use std::time::{Duration, Instant};

pub use self::cm::listener::{ConnRequest, Listener};
pub use self::mem::region::Mr;
pub use self::mem::window::Mw;
pub use self::qp::srq::Srq;
pub use cq::Cq;
pub use qp::Qp;

use self::engine::Engine;
use self::params::Params;
use self::qp::state::Identity;
use self::upcalls::Events;
use super::params::Key;
use super::{
    Access, BindWr, CqHandler, Device, DeviceAttr, DeviceError, ListenHandler, PollOutcome,
    PostError, QpAttr, QpHandler, QpParts, Sge, SrqHandler, Wake,
};
use crate::handle::Guard;

const MAX_QP: u32 = 1 << 16;
const MAX_CQ: u32 = 1 << 16;
const MAX_PD: u32 = 1 << 16;
const MAX_WR: u32 = 1 << 16;
const MAX_SGE: u32 = 64;
const MAX_RD: u32 = 128;
/// How long a waiting consumer looks for events before it blocks, in microseconds.
const SPIN: u64 = 30;
/// The largest that InfiniBand has a name for: our packets are those of TCP.
const MTU: u32 = 4096;

/// Objects that exist.
#[derive(Default)]
struct Counts {
    qp: AtomicU32,
    cq: Arc<AtomicU32>,
    srq: Arc<AtomicU32>,
    mw: Arc<AtomicU32>,
    pd: AtomicU32,
}

fn count(counter: &AtomicU32, max: u32) -> Result<(), DeviceError> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < max).then_some(n + 1)
        })
        .map(|_| ())
        .map_err(|_| DeviceError::Resources)
}

/// The device, open.
pub struct Soft {
    params: Params,
    /// How long consumers that wait look for events themselves.
    spin: Duration,
    attr: DeviceAttr,
    counts: Counts,
    engine: Engine,
    ports: cm::listener::Ports,
}

/// A protection domain.
pub struct Pd {
    /// Not that of any other domain of the process.
    id: u32,
    device: Arc<Soft>,
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.device.counts.pd.fetch_sub(1, Ordering::Relaxed);
    }
}

fn attributes(params: &Params) -> DeviceAttr {
    let named = |name: &str, value: String| (name.to_owned(), value);
    DeviceAttr {
        adapter_name: "soft".into(),
        vendor_name: "libdat".into(),
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
        max_mw: mem::window::MAX_MW,
        max_srq: qp::srq::MAX_SRQ,
        max_srq_wr: qp::srq::MAX_SRQ_WR,
        max_private_data: cm::MAX_PRIVATE as u32,
        mtu: MTU,
        transport_attr: vec![
            named("transport", "iwarp".into()),
            named("address", params.address.ip().to_string()),
            named("crc", if params.crc { "on" } else { "off" }.into()),
        ],
    }
}

/// What a sleep and the wake-up from it cost, if a peer can run while a consumer looks. A
/// process that is tied to one processor may have its peer on another one; if it has not, it
/// looks in vain, and soon hardly ever.
fn default_spin() -> Duration {
    // SAFETY: reads a number of the system.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    Duration::from_micros(if processors > 1 { SPIN } else { 0 })
}

/// What a queue pair is made of.
fn identity(
    parts: &QpParts<'_, Soft>,
    attr: &QpAttr,
    events: Arc<Events>,
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
    const KEYS: &'static [Key] = self::params::KEYS;

    fn discover() -> Vec<(String, String)> {
        vec![(Self::NAME.into(), String::new())]
    }

    fn open(params: &str) -> Result<Arc<Self>, String> {
        let params = Params::parse(params)?;
        let engine = Engine::new().map_err(|e| format!("no event queue: {e}"))?;
        if params.shares_memory()
            && let Err(why) = transport::shm::mapped::enable()
        {
            log::error!("memory=shared is without effect: {why}");
        }
        Ok(Arc::new(Soft {
            attr: attributes(&params),
            spin: params.spin.unwrap_or_else(default_spin),
            params,
            counts: Counts::default(),
            engine,
            ports: cm::listener::Ports::default(),
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
        self.engine.look(guard)
    }

    fn progress(&self) {
        self.engine.progress();
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

    fn reg_mr(
        self: &Arc<Self>,
        pd: &Pd,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, DeviceError> {
        Mr::new(pd.id, addr, len, access, self.params.shares_memory())
    }

    fn covers(&self, sge: &Sge) -> bool {
        mem::key_table::covers(sge)
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

    fn alloc_mw(self: &Arc<Self>, pd: &Pd) -> Result<Arc<Mw>, DeviceError> {
        count(&self.counts.mw, mem::window::MAX_MW)?;
        Ok(Mw::new(pd.id, self.counts.mw.clone()))
    }

    fn post_bind(qp: &Arc<Qp>, wr: &BindWr<'_, Self>) -> Result<u32, PostError> {
        qp.post_bind(wr)
    }

    fn create_qp(
        self: &Arc<Self>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
        handler: Arc<dyn QpHandler>,
    ) -> Result<Arc<Qp>, DeviceError> {
        let id = identity(parts, attr, Events::new(handler))?;
        count(&self.counts.qp, MAX_QP)?;
        Ok(Qp::new(self, id))
    }

    fn modify_qp(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError> {
        qp.modify(identity(parts, attr, qp.events.clone())?)
    }

    fn listen(
        self: &Arc<Self>,
        qual: u64,
        backlog: u32,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<Listener, DeviceError> {
        cm::listener::listen(self, qual, backlog, handler)
    }

    fn listen_any(
        self: &Arc<Self>,
        backlog: u32,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<(Listener, u64), DeviceError> {
        cm::listener::listen_any(self, backlog, handler)
    }

    fn connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        remote: SocketAddr,
        qual: u64,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        cm::connect(self, qp, remote, qual, timeout, private_data)
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
