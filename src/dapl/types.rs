//! What the objects pass to each other and to the conversions of [`super::abi`], in no ABI's
//! layout: handles and their kinds, events, parameters of queries.

use std::ffi::{CStr, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;

use crate::abi::common::*;
use crate::abi::v2::{
    DAT_HANDLE_TYPE_CSP, DAT_IB_EXT_TYPE, DAT_IB_HANDLE_TYPE_EXT, DAT_IB_UD_CONNECT_REQUEST,
    DAT_IB_UD_CONNECTION_REQUEST_EVENT,
};
use crate::device::{Access, Addressing, Completion, DeviceAttr, WcStatus, WindowScope};
use crate::error::{Error, Result, Subtype, Version};

/// A handle as C sees it. It is only a number, which is checked at each use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Handle(pub *mut c_void);

// SAFETY: never dereferenced without a check; see `crate::handle`.
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

/// Kinds of objects, with the numbers of `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // the names are those of dat_handle_type
pub enum HandleType {
    Cr = DAT_HANDLE_TYPE_CR,
    Ep = DAT_HANDLE_TYPE_EP,
    Evd = DAT_HANDLE_TYPE_EVD,
    Ia = DAT_HANDLE_TYPE_IA,
    Lmr = DAT_HANDLE_TYPE_LMR,
    Psp = DAT_HANDLE_TYPE_PSP,
    Pz = DAT_HANDLE_TYPE_PZ,
    Rmr = DAT_HANDLE_TYPE_RMR,
    Rsp = DAT_HANDLE_TYPE_RSP,
    Cno = DAT_HANDLE_TYPE_CNO,
    Srq = DAT_HANDLE_TYPE_SRQ,
    Csp = DAT_HANDLE_TYPE_CSP,
    /// [`Resolution`](super::resolution::Resolution).
    Resolution = DAT_IB_HANDLE_TYPE_EXT,
}

/// The handle tag of a kind of object of a device: 13 kinds, up to 4 devices.
pub const fn tag(kind: HandleType, device: usize) -> usize {
    1 + kind as usize + 13 * device
}

/// A pointer of the consumer's that is only passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opaque(pub *mut c_void);

// SAFETY: never dereferenced.
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
        /// Address of the IA, owned by the IA.
        local_address: Opaque,
        /// The qualifier the peer asked for.
        conn_qual: u64,
        /// The new CR.
        cr: Handle,
        /// Whether the peer asks where datagrams are received:
        /// `DAT_IB_UD_CONNECTION_REQUEST_EVENT`.
        datagrams: bool,
    },
    /// `DAT_CONNECTION_EVENT_*`.
    Connection {
        /// Number of the event.
        number: DAT_EVENT_NUMBER,
        /// The endpoint.
        ep: Handle,
        /// Private data of the peer, owned by the endpoint.
        private_data: Opaque,
        /// Its size in bytes.
        private_data_size: u32,
    },
    /// `DAT_IB_UD_CONNECTION_*`.
    Resolution {
        /// Number of the event.
        number: DAT_EVENT_NUMBER,
        /// The endpoint.
        ep: Handle,
        /// The [`Resolution`](super::resolution::Resolution).
        resolution: Handle,
    },
    /// `DAT_ASYNC_ERROR_*`.
    Async {
        /// Number of the event.
        number: DAT_EVENT_NUMBER,
        /// The object concerned.
        handle: Handle,
        /// `DAT_*_ASYNC_ERROR_REASON` of the kind of object.
        reason: u32,
    },
    /// `DAT_SOFTWARE_EVENT` of `dat_evd_post_se`.
    Software(Opaque),
}

/// What makes an event one of an extension (`DAT_IB_EXTENSION_EVENT_DATA`).
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    /// Number of the event.
    pub number: DAT_EVENT_NUMBER,
    /// What has happened.
    pub kind: DAT_IB_EXT_TYPE,
    /// Where the peer receives datagrams.
    pub peer: Option<Peer>,
    /// For `dat_ib_ud_cm_free`.
    pub context: Handle,
}

impl Extension {
    /// Of a request for where datagrams are received.
    pub const REQUEST: Extension = Extension {
        number: DAT_IB_UD_CONNECTION_REQUEST_EVENT,
        kind: DAT_IB_UD_CONNECT_REQUEST,
        peer: None,
        context: Handle::NULL,
    };
}

/// Where a peer receives datagrams (`DAT_IB_ADDR_HANDLE`).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The address handle.
    pub handle: Handle,
    /// Number of the queue pair.
    pub qp_number: u32,
    /// Address of the interface adapter.
    pub address: SocketAddr,
}

/// Attributes of an IA (`DAT_IA_ATTR`).
pub struct IaAttr<'a> {
    /// The name that the IA is opened by.
    pub name: &'a CStr,
    /// Limits of the device.
    pub device: &'a DeviceAttr,
    /// The IA's address.
    pub address: DAT_IA_ADDRESS_PTR,
    /// Whether there are extended operations.
    pub extensions: bool,
    /// Named values, owned by the IA.
    pub transport: *const [DAT_NAMED_ATTR],
}

/// Parameters of an LMR (`DAT_LMR_PARAM`).
pub struct LmrParam {
    pub(super) ia: DAT_IA_HANDLE,
    pub(super) mem_type: DAT_MEM_TYPE,
    pub(super) region: DAT_REGION_DESCRIPTION,
    pub(super) length: u64,
    pub(super) pz: DAT_PZ_HANDLE,
    pub(super) privileges: DAT_MEM_PRIV_FLAGS,
    pub(super) lmr_context: u32,
    pub(super) rmr_context: u32,
    /// The address by which segments name the first byte.
    pub(super) registered_address: u64,
    pub(super) addressing: Addressing,
}

/// A range of an LMR, which may be longer than any segment of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LmrRange {
    /// Virtual address.
    pub addr: u64,
    /// Length, in bytes.
    pub len: u64,
    /// The context of the LMR.
    pub lmr_context: u32,
}

impl LmrRange {
    /// No memory.
    pub const NONE: LmrRange = LmrRange {
        addr: 0,
        len: 0,
        lmr_context: 0,
    };
}

/// Parameters of an RMR (`DAT_RMR_PARAM`).
pub struct RmrParam {
    pub(super) ia: DAT_IA_HANDLE,
    pub(super) pz: DAT_PZ_HANDLE,
    pub(super) range: LmrRange,
    pub(super) scope: WindowScope,
    pub(super) addressing: Addressing,
    pub(super) privileges: DAT_MEM_PRIV_FLAGS,
    pub(super) rmr_context: u32,
}

/// The privilege of illumos that disables relaxed ordering. It is accepted and changes nothing,
/// because our devices never relax the order.
const MEM_PRIV_RO_DISABLE: DAT_MEM_PRIV_FLAGS = 0x100;

/// The access of a device for memory privileges (`DAT_MEM_PRIV_*`); `arg` is their argument.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for bits that do not exist in this version.
pub fn access(privileges: DAT_MEM_PRIV_FLAGS, version: Version, arg: Subtype) -> Result<Access> {
    let access = Access::from_bits(privileges & !MEM_PRIV_RO_DISABLE);
    let exists = |access: &Access| match version {
        // Only the extensions of DAT 2.0 have atomic operations.
        Version::V1 => !access.contains(Access::REMOTE_ATOMIC),
        Version::V2 => true,
    };
    access.filter(exists).ok_or(Error::arg(arg))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges() {
        let access = |bits, version| access(bits, version, Subtype::Arg6);
        let all = access(DAT_MEM_PRIV_ALL_FLAG, Version::V1).unwrap();
        assert_eq!(all, Access::all() - Access::REMOTE_ATOMIC);
        let atomic = crate::abi::v2::DAT_IB_MEM_PRIV_REMOTE_ATOMIC;
        assert_eq!(access(atomic, Version::V2).unwrap(), Access::REMOTE_ATOMIC);
        assert!(access(atomic, Version::V1).is_err());
        assert!(access(0x4, Version::V2).is_err());
        assert!(access(DAT_MEM_PRIV_ALL_FLAG | 0x100, Version::V1).is_ok());
    }

    #[test]
    fn statuses_of_completions() {
        let numbers = [
            (WcStatus::Success, 0),
            (WcStatus::Flushed, 1),
            (WcStatus::LocalLength, 2),
            (WcStatus::LocalQpOperation, 3),
            (WcStatus::LocalProtection, 4),
            (WcStatus::BadResponse, 5),
            (WcStatus::RemoteAccess, 6),
            (WcStatus::RemoteOperation, 7),
            (WcStatus::RetryExceeded, 8),
            (WcStatus::ReceiverNotReady, 9),
            (WcStatus::BindFailed, 11),
        ];
        for (status, number) in numbers {
            assert_eq!(dto_status(status), number, "{status:?}");
        }
    }
}
