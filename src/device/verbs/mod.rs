//! The device for RDMA hardware, and for the kernel's rdma_rxe and siw: rdma-core.
//!
//! libibverbs and librdmacm are opened at run time ([`library`]). Connections are made with
//! rdma_cm; on the wire there is nothing but the consumer's private data, so peers may be any
//! program on librdmacm. Datagrams are exchanged between ends of this library ([`datagram`]).
//!
//! ```text
//! Verbs ── adapter          the open device, its channels, and the targets of its events
//!    │     attributes       its limits
//!    │     service          the thread that handles events
//!    │     blocking_calls   threads for calls of the kernel that block
//!    │     unanswered       requests whose objects the kernel still uses
//!    ├ Qp ─── hw            the queue pair of the device, one for each connection
//!    │         ring         requests that are outstanding
//!    ├ Cq   Srq   Pd   Mr   Mw
//!    ├ connect  active  listen  teardown    from a request to the end of a connection
//!    └ datagram           queue pairs without a connection
//! ```

mod active;
mod adapter;
mod address;
pub mod arming;
mod attributes;
mod blocking_calls;
mod cm_event;
mod completion_order;
mod connect;
mod cq;
mod datagram;
mod deadlines;
mod device_event;
mod discard;
mod driver;
mod handshake;
mod hw;
mod id;
mod library;
mod library_use;
mod limits;
mod listen;
mod modify;
mod mr;
mod mw;
mod params;
mod post;
mod preposted;
mod qp;
mod ring;
mod service;
mod sources;
mod srq;
pub mod sys;
mod teardown;
pub mod tuning;
mod unanswered;
mod wc;
mod windows;
mod wr_table;

use std::ffi::{CStr, c_int};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::kernel::Instant;

pub use cq::Cq;
pub use listen::{ConnRequest, Listener};
pub use mr::{Mr, Pd};
pub use mw::Mw;
pub use qp::Qp;
pub use srq::Srq;

use self::adapter::Adapter;
use self::attributes::{PRIVATE_IB, PRIVATE_IWARP, attributes};
use self::mr::Regions;
use self::params::Params;
use self::windows::Windows;
use super::params::Key;
use super::{
    Access, Addressing, BindWr, CqHandler, DatagramWr, Device, DeviceAttr, DeviceError,
    DeviceHandler, HardwareCounter, ListenHandler, PollOutcome, PostError, QpAttr, QpHandler,
    QpParts, RecvWr, SendOp, Sge, Sought, SrqHandler, Wake, WindowScope, WrFlags,
};
use crate::handle::Guard;

/// How long a waiting consumer polls before it blocks: about the cost of a sleep and the wake-up from
/// it.
const SPIN: Duration = Duration::from_micros(30);
/// Vendor of the kernel's software RoCE.
const RXE_VENDOR: u32 = 0xff_ffff;
/// Vendor of the kernel's software iWARP.
const SIW_VENDOR: u32 = 0x62_6d74;

/// The device, open.
pub struct Verbs {
    adapter: Arc<Adapter>,
    params: Params,
    attr: DeviceAttr,
    /// Address of the IA; the port is 0.
    address: SocketAddr,
    /// Name of the RDMA device.
    name: String,
    /// Port of the RDMA device.
    port: u8,
    /// The device is one for iWARP.
    iwarp: bool,
    /// The port is a real InfiniBand port, not RoCE.
    infiniband: bool,
    /// Memory that RDMA reads fill must be open for remote writes.
    reads_are_writes: bool,
    /// Posts check their segments, since the device is made of software and reports a wrong segment
    /// without the reason.
    checks_segments: bool,
    /// The device is the kernel's software iWARP: it completes requests in any order, and does not
    /// notify if solicited completions alone are asked for.
    siw: bool,
    /// The memory windows that the device has.
    windows: Windows,
    /// Segments a buffer of a shared receive queue may have.
    max_srq_sge: u32,
    /// Bytes of private data of a request, with the header of the qualifier. An answer has room for the header beside
    /// what the consumer may give.
    max_private: usize,
    /// The memory regions of the IA.
    regions: Regions,
}

impl Drop for Verbs {
    fn drop(&mut self) {
        self.adapter.jobs.stop();
    }
}

impl Verbs {
    /// Starts the service thread, if it does not run; `false` if that is not possible.
    fn start_service(&self) -> bool {
        service::start(&self.adapter)
    }

    /// Whether the device has an operation.
    #[inline(always)]
    fn has(&self, op: &SendOp) -> bool {
        match op {
            SendOp::Atomic { .. } => self.attr.atomics,
            SendOp::RdmaWriteImm { .. } => self.attr.immediate,
            _ => true,
        }
    }

    /// The access rights to ask the device for, of what peers may do.
    fn remote_rights(&self, access: Access) -> c_int {
        mr::remote_rights(access, self.attr.atomics)
    }

    /// Checks the segments of a request, where the device does not report what is wrong with one.
    #[inline(always)]
    fn check_segments(
        &self,
        pd: impl FnOnce() -> Arc<Pd>,
        sges: &[Sge],
        need: Access,
    ) -> Result<(), PostError> {
        if !self.checks_segments {
            return Ok(());
        }
        self.regions.check(&pd(), sges, need, false)
    }

    /// The same of a receive.
    #[inline(always)]
    fn check_receive(
        &self,
        pd: impl FnOnce() -> Arc<Pd>,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        if !self.checks_segments {
            return Ok(());
        }
        let any_key = wr.flags.contains(WrFlags::ANY_KEY);
        self.regions
            .check(&pd(), wr.sges, Access::LOCAL_WRITE, any_key)
    }
}

/// The name of a state of a port (InfiniBand architecture, 14.2.5.6).
fn port_state_name(state: c_int) -> &'static CStr {
    match state {
        sys::PORT_NOP => c"NOP",
        sys::PORT_DOWN => c"DOWN",
        sys::PORT_INIT => c"INIT",
        sys::PORT_ARMED => c"ARMED",
        sys::PORT_ACTIVE => c"ACTIVE",
        sys::PORT_ACTIVE_DEFER => c"DEFER",
        _ => c"UNKNOWN",
    }
}

impl Device for Verbs {
    type Pd = Arc<Pd>;
    type Mr = Mr;
    type Mw = Mw;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Listener = Listener;
    type ConnRequest = ConnRequest;

    const NAME: &'static str = "verbs";
    const INDEX: usize = 1;
    // The driver reads them, as those of any program that uses verbs.
    const SEGMENTS_IN_PLACE: bool = true;
    const KEYS: &'static [Key] = self::tuning::KEYS;

    fn discover() -> Vec<(String, String)> {
        match adapter::probe() {
            Ok(probe) => params::discover(&probe),
            Err(why) => {
                log::info!(target: crate::log_sink::STATIC_REGISTRY, "builtin:verbs: {why}");
                Vec::new()
            }
        }
    }

    fn open(params: &str) -> Result<Arc<Self>, String> {
        let params = Params::parse(params)?;
        tuning::name_ignored_variables();
        let probe = adapter::probe()?;
        let (address, device_port) = params.find_port(&probe)?;
        let adapter = Adapter::open(probe, &device_port)?;
        let (device, port) = adapter.query(device_port.port)?;
        let gid = adapter.first_gid(device_port.port).unwrap_or_default();
        let is_made = |kind| Windows::are_made(&adapter, kind);
        let windows = Windows::of(device.device_cap_flags, is_made);
        let iwarp = device_port.transport == sys::TRANSPORT_IWARP;
        let siw = iwarp && device.vendor_id == SIW_VENDOR;
        if !iwarp && device_port.transport != sys::TRANSPORT_IB {
            return Err(format!(
                "{} has no reliable connections",
                device_port.device
            ));
        }
        let is_software = siw || device.vendor_id == RXE_VENDOR;
        adapter
            .reports_last_buffer
            .store(!is_software, Ordering::Relaxed);
        Ok(Arc::new(Verbs {
            attr: attributes((&device_port, gid), &device, &port, address, windows),
            adapter: Arc::new(adapter),
            params,
            address,
            port: device_port.port,
            name: device_port.device,
            iwarp,
            infiniband: port.link_layer == sys::LINK_LAYER_INFINIBAND,
            checks_segments: is_software,
            siw,
            reads_are_writes: iwarp && !siw,
            windows,
            max_srq_sge: u32::try_from(device.max_srq_sge).unwrap_or(0),
            max_private: if iwarp { PRIVATE_IWARP } else { PRIVATE_IB },
            regions: Regions::default(),
        }))
    }

    fn set_handler(&self, handler: Arc<dyn DeviceHandler>) {
        let _ = self.adapter.handler.set(handler);
        // Also an IA that connects nothing is to hear that the device has failed. Without the thread it works
        // until it needs one, and then tries again.
        self.start_service();
    }

    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn port_state(&self) -> &'static CStr {
        let port = self.adapter.query_port(self.port);
        port.map_or(c"UNKNOWN", |port| port_state_name(port.state))
    }

    fn hardware_counter(&self, of: HardwareCounter, name: &str) -> u64 {
        let port = format!("ports/{}/", self.port);
        // Drivers have counters of the adapter in one of these.
        let places = match of {
            HardwareCounter::Port => vec![format!("{port}counters")],
            HardwareCounter::Adapter => vec![
                "diag_counters".to_owned(),
                "hw_counters".to_owned(),
                format!("{port}hw_counters"),
            ],
        };
        let read = |place: String| {
            let file = format!("/sys/class/infiniband/{}/{place}/{name}", self.name);
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        places.into_iter().find_map(read).unwrap_or(0)
    }

    #[inline]
    fn poll_events(&self, _guard: &Guard) -> PollOutcome {
        PollOutcome::Nothing
    }

    fn progress(&self) {}

    fn spin(&self) -> Duration {
        SPIN
    }

    fn block(&self, _word: &AtomicU32, _value: u32, _deadline: Option<Instant>) -> Option<Wake> {
        None
    }

    fn unblock(&self, _word: &AtomicU32) -> bool {
        false
    }

    fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, DeviceError> {
        Pd::new(self)
    }

    fn reg_mr_addressed(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        access: Access,
        addressing: Addressing,
    ) -> Result<Mr, DeviceError> {
        Mr::new(self, pd, addr, len, access, addressing)
    }

    fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        handler: Arc<dyn CqHandler>,
    ) -> Result<Arc<Cq>, DeviceError> {
        Cq::new(self, entries, handler)
    }

    fn create_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        max_wr: u32,
        max_sge: u32,
        handler: Arc<dyn SrqHandler>,
    ) -> Result<Arc<Srq>, DeviceError> {
        Srq::new(self, pd, max_wr, max_sge, handler)
    }

    fn alloc_mw(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        scope: WindowScope,
    ) -> Result<Arc<Mw>, DeviceError> {
        // Windows of type 2 are for the queue pair on which they are bound.
        match (scope, self.windows) {
            (WindowScope::QueuePair, Windows::Type1) => Err(DeviceError::Unsupported),
            _ => Mw::new(self, pd),
        }
    }

    fn post_bind(qp: &Arc<Qp>, wr: &BindWr<'_, Self>) -> Result<u32, PostError> {
        mw::post(qp, wr)
    }

    fn post_datagram(qp: &Arc<Qp>, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        post::post_datagram(qp, wr)
    }

    fn create_qp(
        self: &Arc<Self>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
        handler: Arc<dyn QpHandler>,
    ) -> Result<Arc<Qp>, DeviceError> {
        Qp::new(self, parts, attr, handler)
    }

    fn modify_qp(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parts: &QpParts<'_, Self>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError> {
        qp.modify(parts, attr)
    }

    fn listen(
        self: &Arc<Self>,
        qual: u64,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<Listener, DeviceError> {
        listen::listen(self, qual, handler)
    }

    fn listen_any(
        self: &Arc<Self>,
        handler: Arc<dyn ListenHandler<Self>>,
    ) -> Result<(Listener, u64), DeviceError> {
        listen::listen_any(self, handler)
    }

    fn connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        remote: SocketAddr,
        sought: impl Into<Sought>,
        timeout: Option<Duration>,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        connect::connect(self, qp, remote, sought.into(), timeout, private_data)
    }

    fn accept(
        self: &Arc<Self>,
        request: ConnRequest,
        qp: &Arc<Qp>,
        private_data: &[u8],
    ) -> Result<(), DeviceError> {
        connect::accept(request, qp, private_data)
    }

    fn reject(self: &Arc<Self>, request: ConnRequest, private_data: &[u8]) {
        listen::reject(self, request, private_data);
    }
}
