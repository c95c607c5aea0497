//! What the objects pass around, in no ABI's layout: events, endpoint attributes, addresses.

use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::null_mut;

use super::rules::Rules;
use crate::abi::common::*;
use crate::device::{Access, Completion, DeviceAttr, WcStatus};
use crate::error::{Error, Kind, Result, Subtype};

/// A handle as C sees it. Handles are numbers to us: they are checked at each use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Handle(pub *mut c_void);

// SAFETY: never followed without a check; see `crate::handle`.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// `DAT_HANDLE_NULL`.
    pub const NULL: Handle = Handle(null_mut());

    /// Whether this is `DAT_HANDLE_NULL`.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A pointer of the consumer's that we only hand on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opaque(pub *mut c_void);

// SAFETY: never followed.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

/// An event on an EVD.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// `DAT_DTO_COMPLETION_EVENT` or `DAT_RMR_BIND_COMPLETION_EVENT`; the context of the
    /// completion is the EP handle.
    Completion(Completion),
    /// `DAT_CONNECTION_REQUEST_EVENT`.
    Request {
        /// The service point.
        sp: Handle,
        /// Address of the IA; belongs to the IA.
        local_address: Opaque,
        /// The qualifier the peer asked for.
        conn_qual: u64,
        /// The new CR.
        cr: Handle,
    },
    /// `DAT_CONNECTION_EVENT_*`.
    Connection {
        /// Which.
        number: DAT_EVENT_NUMBER,
        /// The endpoint.
        ep: Handle,
        /// Private data of the peer; belongs to the endpoint.
        private_data: Opaque,
        /// Its size in bytes.
        private_data_size: u32,
    },
    /// `DAT_ASYNC_ERROR_*`.
    Async {
        /// Which.
        number: DAT_EVENT_NUMBER,
        /// The object concerned.
        handle: Handle,
        /// `DAT_*_ASYNC_ERROR_REASON` of the kind of object.
        reason: u32,
    },
    /// `DAT_SOFTWARE_EVENT` of `dat_evd_post_se`.
    Software(Opaque),
}

/// Attributes of an endpoint (`DAT_EP_ATTR`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpAttr {
    /// Bytes of the longest message.
    pub max_message_size: u64,
    /// Bytes of the longest RDMA operation.
    pub max_rdma_size: u64,
    /// Quality of service.
    pub qos: DAT_QOS,
    /// `DAT_COMPLETION_*` for receives.
    pub recv_completion_flags: DAT_COMPLETION_FLAGS,
    /// `DAT_COMPLETION_*` for requests.
    pub request_completion_flags: DAT_COMPLETION_FLAGS,
    /// Receives that may be outstanding.
    pub max_recv_dtos: i32,
    /// Requests that may be outstanding.
    pub max_request_dtos: i32,
    /// Segments of a receive.
    pub max_recv_iov: i32,
    /// Segments of a request.
    pub max_request_iov: i32,
    /// RDMA reads of the peer answered at a time.
    pub max_rdma_read_in: i32,
    /// RDMA reads outstanding.
    pub max_rdma_read_out: i32,
    /// Soft high watermark of an endpoint with an SRQ.
    pub srq_soft_hw: i32,
    /// Local segments of an RDMA read.
    pub max_rdma_read_iov: i32,
    /// Local segments of an RDMA write.
    pub max_rdma_write_iov: i32,
    /// `service_type` as given: only `DAT_SERVICE_TYPE_RC` is supported.
    pub service_type: DAT_SERVICE_TYPE,
}

/// Bytes of the longest message of InfiniBand (InfiniBand architecture, 9.7.7).
const LONGEST_MESSAGE: u64 = 1 << 31;

/// Completion flags that the attributes may name for requests. SUPPRESS, SOLICITED_WAIT and
/// BARRIER_FENCE are always allowed per request, so naming them changes nothing; programs do.
const REQUEST_ATTR_FLAGS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG
    | DAT_COMPLETION_SOLICITED_WAIT_FLAG
    | DAT_COMPLETION_UNSIGNALLED_FLAG
    | DAT_COMPLETION_BARRIER_FENCE_FLAG
    | DAT_COMPLETION_EVD_THRESHOLD_FLAG;

/// Those for receives.
const RECV_ATTR_FLAGS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_UNSIGNALLED_FLAG
    | DAT_COMPLETION_SOLICITED_WAIT_FLAG
    | DAT_COMPLETION_EVD_THRESHOLD_FLAG;

impl EpAttr {
    /// What an endpoint gets when the consumer gives no attributes.
    pub fn default_for(device: &DeviceAttr) -> EpAttr {
        let count = |n: u32, max: u32| n.min(max) as i32;
        EpAttr {
            max_message_size: u64::from(device.max_message_size),
            max_rdma_size: u64::from(device.max_rdma_size),
            qos: DAT_QOS_BEST_EFFORT,
            recv_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
            request_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
            max_recv_dtos: count(256, device.max_qp_wr),
            max_request_dtos: count(256, device.max_qp_wr),
            max_recv_iov: count(4, device.max_sge),
            max_request_iov: count(4, device.max_sge),
            max_rdma_read_in: count(16, device.max_rd_in),
            max_rdma_read_out: count(16, device.max_rd_out),
            srq_soft_hw: DAT_HW_DEFAULT,
            max_rdma_read_iov: count(4, device.max_read_sge),
            max_rdma_write_iov: count(4, device.max_sge),
            service_type: DAT_SERVICE_TYPE_RC,
        }
    }

    /// The attributes as an endpoint may have them; `arg` names the argument they came in.
    /// `has_srq` says that receives come from an SRQ.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for a value out of range or flags that do not exist for a
    /// direction, `DAT_MODEL_NOT_SUPPORTED` for a service or quality we do not offer.
    pub fn admit(
        mut self,
        device: &DeviceAttr,
        rules: Rules,
        has_srq: bool,
        arg: Subtype,
    ) -> Result<EpAttr> {
        if rules == Rules::Programs {
            self.cut(device);
        }
        let mut checked = self;
        // How many receives it holds is the queue's matter then.
        if has_srq && self.max_recv_dtos == DAT_HW_DEFAULT {
            checked.max_recv_dtos = 0;
        }
        checked.check(device, arg)?;
        Ok(self)
    }

    /// Cuts to what the device has what programs ask for without a look at it: sizes as far as
    /// InfiniBand goes, and what existing libraries leave unread, which programs leave unset.
    fn cut(&mut self, device: &DeviceAttr) {
        let size = |asked: u64, limit: u32| match asked {
            0..=LONGEST_MESSAGE => asked.min(limit.into()),
            more => more,
        };
        let segments = |n: i32, max: u32| u32::try_from(n).unwrap_or(0).min(max) as i32;
        self.max_message_size = size(self.max_message_size, device.max_message_size);
        self.max_rdma_size = size(self.max_rdma_size, device.max_rdma_size);
        self.max_rdma_read_iov = segments(self.max_rdma_read_iov, device.max_read_sge);
        self.max_rdma_write_iov = segments(self.max_rdma_write_iov, device.max_sge);
        self.qos = DAT_QOS_BEST_EFFORT;
        self.srq_soft_hw = self.srq_soft_hw.max(DAT_WATERMARK_INFINITE);
        self.request_completion_flags &= REQUEST_ATTR_FLAGS;
        self.recv_completion_flags &= RECV_ATTR_FLAGS | DAT_COMPLETION_SUPPRESS_FLAG;
    }

    /// Checks the attributes against the device.
    fn check(&self, device: &DeviceAttr, arg: Subtype) -> Result<()> {
        let count = |n: i32, max: u32| u32::try_from(n).is_ok_and(|n| n <= max);
        let in_range = count(self.max_recv_dtos, device.max_qp_wr)
            && count(self.max_request_dtos, device.max_qp_wr)
            && count(self.max_recv_iov, device.max_sge)
            && count(self.max_request_iov, device.max_sge)
            && count(self.max_rdma_read_in, device.max_rd_in)
            && count(self.max_rdma_read_out, device.max_rd_out)
            && count(self.max_rdma_read_iov, device.max_read_sge)
            && count(self.max_rdma_write_iov, device.max_sge)
            && self.max_message_size <= u64::from(device.max_message_size)
            && self.max_rdma_size <= u64::from(device.max_rdma_size)
            && self.srq_soft_hw >= DAT_WATERMARK_INFINITE;
        if !in_range
            || self.request_completion_flags & !REQUEST_ATTR_FLAGS != 0
            || self.recv_completion_flags & !RECV_ATTR_FLAGS != 0
        {
            return Err(Error::arg(arg));
        }
        if self.service_type != DAT_SERVICE_TYPE_RC || self.qos != DAT_QOS_BEST_EFFORT {
            return Err(Kind::ModelNotSupported.into());
        }
        Ok(())
    }
}

/// Privileges that exist in the API (`DAT_MEM_PRIV_*`), with the illumos flag that turns relaxed
/// ordering off, which is how we order anyway.
const MEM_PRIV_RO_DISABLE: DAT_MEM_PRIV_FLAGS = 0x100;

/// What a memory privilege means to a device; `arg` names the argument it came in.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for bits that do not exist.
pub fn access(privileges: DAT_MEM_PRIV_FLAGS, arg: Subtype) -> Result<Access> {
    Access::from_bits(privileges & !MEM_PRIV_RO_DISABLE).ok_or(Error::arg(arg))
}

/// The `DAT_DTO_COMPLETION_STATUS` of a completion.
#[inline]
pub fn dto_status(status: WcStatus) -> DAT_DTO_COMPLETION_STATUS {
    match status {
        WcStatus::Success => DAT_DTO_SUCCESS,
        WcStatus::Flushed => DAT_DTO_ERR_FLUSHED,
        WcStatus::LocalLength => DAT_DTO_ERR_LOCAL_LENGTH,
        WcStatus::LocalQpOperation => DAT_DTO_ERR_LOCAL_EP,
        WcStatus::LocalProtection => DAT_DTO_ERR_LOCAL_PROTECTION,
        WcStatus::BadResponse => DAT_DTO_ERR_BAD_RESPONSE,
        WcStatus::RemoteAccess => DAT_DTO_ERR_REMOTE_ACCESS,
        WcStatus::RemoteOperation => DAT_DTO_ERR_REMOTE_RESPONDER,
        WcStatus::RetryExceeded => DAT_DTO_ERR_TRANSPORT,
        WcStatus::ReceiverNotReady => DAT_DTO_ERR_RECEIVER_NOT_READY,
        WcStatus::BindFailed => DAT_RMR_OPERATION_FAILED,
    }
}

/// A socket address as C sees it, in memory that stays put for the life of its owner.
pub struct CAddress(Box<libc::sockaddr_storage>);

impl CAddress {
    /// The address in the layout of C, port included.
    pub fn new(address: SocketAddr) -> CAddress {
        // SAFETY: all zero is a valid `sockaddr_storage`.
        let mut storage: Box<libc::sockaddr_storage> = Box::new(unsafe { std::mem::zeroed() });
        match address {
            SocketAddr::V4(v4) => {
                let sin = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
                unsafe {
                    std::ptr::from_mut(&mut *storage)
                        .cast::<libc::sockaddr_in>()
                        .write(sin)
                };
            }
            SocketAddr::V6(v6) => {
                let sin6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe {
                    std::ptr::from_mut(&mut *storage)
                        .cast::<libc::sockaddr_in6>()
                        .write(sin6);
                }
            }
        }
        CAddress(storage)
    }

    /// Pointer for the consumer; valid as long as `self`.
    pub fn as_ptr(&self) -> DAT_IA_ADDRESS_PTR {
        std::ptr::from_ref(&*self.0).cast_mut().cast()
    }
}

/// Reads the address of a remote IA. Its port is ignored: consumers leave anything there.
///
/// # Errors
/// `DAT_INVALID_ADDRESS` for another family than IPv4 and IPv6.
///
/// # Safety
/// `address` points to a socket address as long as its family says.
pub unsafe fn read_address(address: DAT_IA_ADDRESS_PTR) -> Result<SocketAddr> {
    // SAFETY: the caller's promise; only the family is read yet. C does not promise alignment.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let sin = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(IpAddr::V4(ip), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is one.
            let sin6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            Ok(std::net::SocketAddrV6::new(ip, 0, 0, sin6.sin6_scope_id).into())
        }
        _ => Err(Error::new(
            Kind::InvalidAddress,
            Subtype::AddressUnsupported,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_there_and_back() {
        for text in ["10.1.2.3:0", "[fe80::1%3]:0", "[::1]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::new(address);
            // SAFETY: made by `CAddress`.
            assert_eq!(unsafe { read_address(c.as_ptr()) }, Ok(address));
        }
        // A nonzero port is ignored.
        let c = CAddress::new("10.1.2.3:99".parse().unwrap());
        // SAFETY: made by `CAddress`.
        let read = unsafe { read_address(c.as_ptr()) }.unwrap();
        assert_eq!(read, "10.1.2.3:0".parse().unwrap());
    }

    #[test]
    fn other_families_are_refused() {
        let mut c = CAddress::new("10.1.2.3:0".parse().unwrap());
        c.0.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: made by `CAddress`.
        let error = unsafe { read_address(c.as_ptr()) }.unwrap_err();
        assert_eq!(error.kind, Kind::InvalidAddress);
    }

    #[test]
    fn privileges() {
        let all = access(DAT_MEM_PRIV_ALL_FLAG, Subtype::Arg6).unwrap();
        assert_eq!(all, Access::all());
        assert!(access(0x4, Subtype::Arg6).is_err());
        assert!(access(DAT_MEM_PRIV_ALL_FLAG | 0x100, Subtype::Arg6).is_ok());
    }
}
