//! Attributes and parameters of endpoints, in no ABI's layout.

use super::rules::Rules;
use crate::abi::common::*;
use crate::abi::v2::DAT_IB_SERVICE_TYPE_UD;
use crate::device::DeviceAttr;
use crate::error::{Error, Kind, Result, Subtype};

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
    /// `DAT_SERVICE_TYPE_RC`, or `DAT_IB_SERVICE_TYPE_UD` where there are datagrams.
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

/// Completion flags that the attributes may name for receives.
const RECV_ATTR_FLAGS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_UNSIGNALLED_FLAG
    | DAT_COMPLETION_SOLICITED_WAIT_FLAG
    | DAT_COMPLETION_EVD_THRESHOLD_FLAG;

impl EpAttr {
    /// The attributes of an endpoint for which the consumer gives none.
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

    /// Whether the endpoint is for datagrams.
    pub fn is_for_datagrams(&self) -> bool {
        self.service_type == DAT_IB_SERVICE_TYPE_UD
    }

    /// Bytes that a message of the endpoint may have.
    fn longest_message(&self, device: &DeviceAttr) -> u32 {
        match self.is_for_datagrams() {
            true => device.max_datagram,
            false => device.max_message_size,
        }
    }

    /// Checks the attributes, and gives those that the endpoint has. `arg` is the argument of the
    /// attributes; with `has_srq` receives come from an SRQ.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for a value out of range or flags that do not exist for a
    /// direction, `DAT_MODEL_NOT_SUPPORTED` for a service or quality that is not supported.
    pub fn admit(
        mut self,
        device: &DeviceAttr,
        rules: Rules,
        has_srq: bool,
        arg: Subtype,
    ) -> Result<EpAttr> {
        if rules == Rules::Programs {
            self.limit(device);
        }
        let mut checked = self;
        if has_srq {
            // The segments of receives are then those of the SRQ, as their number may be.
            checked.max_recv_iov = 0;
            if self.max_recv_dtos == DAT_HW_DEFAULT {
                checked.max_recv_dtos = 0;
            }
        }
        checked.check(device, arg)?;
        Ok(self)
    }

    /// Limits to those of the device the values that programs set without a query: sizes up to the
    /// limit of InfiniBand, and the attributes that existing libraries ignore, which programs leave
    /// unset.
    fn limit(&mut self, device: &DeviceAttr) {
        let size = |asked: u64, limit: u32| match asked {
            0..=LONGEST_MESSAGE => asked.min(limit.into()),
            more => more,
        };
        let segments = |n: i32, max: u32| u32::try_from(n).unwrap_or(0).min(max) as i32;
        self.max_message_size = size(self.max_message_size, self.longest_message(device));
        self.max_rdma_size = size(self.max_rdma_size, device.max_rdma_size);
        self.max_rdma_read_iov = segments(self.max_rdma_read_iov, device.max_read_sge);
        self.max_rdma_write_iov = segments(self.max_rdma_write_iov, device.max_sge);
        self.qos = DAT_QOS_BEST_EFFORT;
        if !self.is_for_datagrams() {
            self.service_type = DAT_SERVICE_TYPE_RC;
        }
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
            && self.max_message_size <= u64::from(self.longest_message(device))
            && self.max_rdma_size <= u64::from(device.max_rdma_size)
            && self.srq_soft_hw >= DAT_WATERMARK_INFINITE;
        if !in_range
            || self.request_completion_flags & !REQUEST_ATTR_FLAGS != 0
            || self.recv_completion_flags & !RECV_ATTR_FLAGS != 0
        {
            return Err(Error::arg(arg));
        }
        let served = match self.service_type {
            DAT_SERVICE_TYPE_RC => true,
            DAT_IB_SERVICE_TYPE_UD => device.max_datagram > 0,
            _ => false,
        };
        if !served || self.qos != DAT_QOS_BEST_EFFORT {
            return Err(Kind::ModelNotSupported.into());
        }
        Ok(())
    }
}

/// Parameters of an endpoint (`DAT_EP_PARAM`), but for the address of the IA.
pub struct EpParam {
    pub(super) ia: DAT_IA_HANDLE,
    pub(super) state: DAT_EP_STATE,
    pub(super) local_address: DAT_IA_ADDRESS_PTR,
    pub(super) local_port: u64,
    pub(super) remote_address: DAT_IA_ADDRESS_PTR,
    pub(super) remote_port: u64,
    pub(super) pz: DAT_PZ_HANDLE,
    pub(super) recv_evd: DAT_EVD_HANDLE,
    pub(super) request_evd: DAT_EVD_HANDLE,
    pub(super) connect_evd: DAT_EVD_HANDLE,
    pub(super) srq: DAT_SRQ_HANDLE,
    pub(super) attr: EpAttr,
}

/// A change of endpoint parameters. Only the values in the mask count.
pub struct EpChange {
    /// `DAT_EP_FIELD_*`, in the numbers of DAT 2.0.
    pub mask: u64,
    /// Protection zone.
    pub pz: DAT_PZ_HANDLE,
    /// EVD for receive completions.
    pub recv_evd: DAT_EVD_HANDLE,
    /// EVD for request completions.
    pub request_evd: DAT_EVD_HANDLE,
    /// EVD for connection events.
    pub connect_evd: DAT_EVD_HANDLE,
    /// Attributes.
    pub attr: EpAttr,
}

impl EpChange {
    /// Whether the change sets one of these fields.
    pub fn has(&self, field: u64) -> bool {
        self.mask & field != 0
    }

    /// The attributes of an endpoint after the change.
    pub fn apply(&self, old: &EpAttr) -> EpAttr {
        let mut attr = *old;
        let new = &self.attr;
        macro_rules! take {
            ($($field:ident: $mask:ident,)*) => {
                $(if self.has($mask) { attr.$field = new.$field; })*
            };
        }
        take! {
            service_type: DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE,
            max_message_size: DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE,
            max_rdma_size: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE,
            qos: DAT_EP_FIELD_EP_ATTR_QOS,
            recv_completion_flags: DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS,
            request_completion_flags: DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS,
            max_recv_dtos: DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS,
            max_request_dtos: DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS,
            max_recv_iov: DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV,
            max_request_iov: DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV,
            max_rdma_read_in: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN,
            max_rdma_read_out: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT,
            srq_soft_hw: DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW,
            max_rdma_read_iov: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV,
            max_rdma_write_iov: DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV,
        }
        attr
    }
}
