//! `dat_strerror`: the symbolic names of a return code's type and subtype.
//!
//! As in the original libraries the texts are the names of `dat_error.h`. Those have no texts for
//! some codes of their headers (`DAT_CONN_QUAL_UNAVAILABLE`, most SRQ subtypes); here every code of
//! both versions has one. Class bits are ignored. Source: dat_strerror(3DAT).

use std::ffi::{CStr, c_char};

use crate::error::{Error, Kind, Result, SUBTYPE_MASK, Subtype, TYPE_MASK, Version};

/// Text for a type that the version does not define.
const UNKNOWN_TYPE: &CStr = c"unknown DAT return type";
/// Text for a subtype that the version does not define.
const UNKNOWN_SUBTYPE: &CStr = c"unknown DAT return subtype";
/// `DAT_INVALID_RO_COOKIE`, the one subtype that only illumos has; its number in DAT 1.2.
const RO_COOKIE: u32 = 102;

/// Names of the types 0 (success) to 23, which agree in both versions.
static TYPES: [&CStr; 24] = [
    c"DAT_SUCCESS",
    c"DAT_ABORT",
    c"DAT_CONN_QUAL_IN_USE",
    c"DAT_INSUFFICIENT_RESOURCES",
    c"DAT_INTERNAL_ERROR",
    c"DAT_INVALID_HANDLE",
    c"DAT_INVALID_PARAMETER",
    c"DAT_INVALID_STATE",
    c"DAT_LENGTH_ERROR",
    c"DAT_MODEL_NOT_SUPPORTED",
    c"DAT_PROVIDER_NOT_FOUND",
    c"DAT_PRIVILEGES_VIOLATION",
    c"DAT_PROTECTION_VIOLATION",
    c"DAT_QUEUE_EMPTY",
    c"DAT_QUEUE_FULL",
    c"DAT_TIMEOUT_EXPIRED",
    c"DAT_PROVIDER_ALREADY_REGISTERED",
    c"DAT_PROVIDER_IN_USE",
    c"DAT_INVALID_ADDRESS",
    c"DAT_INTERRUPTED_CALL",
    c"DAT_CONN_QUAL_UNAVAILABLE",
    c"DAT_RESERVED_LMR",
    c"DAT_PORT_IN_USE",
    c"DAT_COMM_NOT_SUPPORTED",
];

/// The last type of [`TYPES`] that DAT 1.2 defines.
const LAST_TYPE_OF_V1: u32 = 20;

/// Names of the subtypes, by their number in DAT 2.0. The text of 61 differs from its
/// enumerator (`..._EVD_RECV`) because the original library's does.
static SUBTYPES: [&CStr; 104] = [
    c"",
    c"DAT_SUB_INTERRUPTED",
    c"DAT_RESOURCE_MEMORY",
    c"DAT_RESOURCE_DEVICE",
    c"DAT_RESOURCE_TEP",
    c"DAT_RESOURCE_TEVD",
    c"DAT_RESOURCE_PROTECTION_DOMAIN",
    c"DAT_RESOURCE_MEMORY_REGION",
    c"DAT_RESOURCE_ERROR_HANDLER",
    c"DAT_RESOURCE_CREDITS",
    c"DAT_RESOURCE_SRQ",
    c"DAT_INVALID_HANDLE_IA",
    c"DAT_INVALID_HANDLE_EP",
    c"DAT_INVALID_HANDLE_LMR",
    c"DAT_INVALID_HANDLE_RMR",
    c"DAT_INVALID_HANDLE_PZ",
    c"DAT_INVALID_HANDLE_PSP",
    c"DAT_INVALID_HANDLE_RSP",
    c"DAT_INVALID_HANDLE_CR",
    c"DAT_INVALID_HANDLE_CNO",
    c"DAT_INVALID_HANDLE_EVD_CR",
    c"DAT_INVALID_HANDLE_EVD_REQUEST",
    c"DAT_INVALID_HANDLE_EVD_RECV",
    c"DAT_INVALID_HANDLE_EVD_CONN",
    c"DAT_INVALID_HANDLE_EVD_ASYNC",
    c"DAT_INVALID_HANDLE_SRQ",
    c"DAT_INVALID_HANDLE_CSP",
    c"DAT_INVALID_HANDLE1",
    c"DAT_INVALID_HANDLE2",
    c"DAT_INVALID_HANDLE3",
    c"DAT_INVALID_HANDLE4",
    c"DAT_INVALID_HANDLE5",
    c"DAT_INVALID_HANDLE6",
    c"DAT_INVALID_HANDLE7",
    c"DAT_INVALID_HANDLE8",
    c"DAT_INVALID_HANDLE9",
    c"DAT_INVALID_HANDLE10",
    c"DAT_INVALID_ARG1",
    c"DAT_INVALID_ARG2",
    c"DAT_INVALID_ARG3",
    c"DAT_INVALID_ARG4",
    c"DAT_INVALID_ARG5",
    c"DAT_INVALID_ARG6",
    c"DAT_INVALID_ARG7",
    c"DAT_INVALID_ARG8",
    c"DAT_INVALID_ARG9",
    c"DAT_INVALID_ARG10",
    c"DAT_INVALID_STATE_EP_UNCONNECTED",
    c"DAT_INVALID_STATE_EP_ACTCONNPENDING",
    c"DAT_INVALID_STATE_EP_PASSCONNPENDING",
    c"DAT_INVALID_STATE_EP_TENTCONNPENDING",
    c"DAT_INVALID_STATE_EP_CONNECTED",
    c"DAT_INVALID_STATE_EP_DISCONNECTED",
    c"DAT_INVALID_STATE_EP_RESERVED",
    c"DAT_INVALID_STATE_EP_COMPLPENDING",
    c"DAT_INVALID_STATE_EP_DISCPENDING",
    c"DAT_INVALID_STATE_EP_PROVIDERCONTROL",
    c"DAT_INVALID_STATE_EP_NOTREADY",
    c"DAT_INVALID_STATE_EP_RECV_WATERMARK",
    c"DAT_INVALID_STATE_EP_PZ",
    c"DAT_INVALID_STATE_EP_EVD_REQUEST",
    c"DAT_INVALID_STATE_EP_EVD_RCV",
    c"DAT_INVALID_STATE_EP_EVD_CONNECT",
    c"DAT_INVALID_STATE_EP_UNCONFIGURED",
    c"DAT_INVALID_STATE_EP_UNCONFRESERVED",
    c"DAT_INVALID_STATE_EP_UNCONFPASSIVE",
    c"DAT_INVALID_STATE_EP_UNCONFTENTATIVE",
    c"DAT_INVALID_STATE_CNO_IN_USE",
    c"DAT_INVALID_STATE_CNO_DEAD",
    c"DAT_INVALID_STATE_EVD_OPEN",
    c"DAT_INVALID_STATE_EVD_ENABLED",
    c"DAT_INVALID_STATE_EVD_DISABLED",
    c"DAT_INVALID_STATE_EVD_WAITABLE",
    c"DAT_INVALID_STATE_EVD_UNWAITABLE",
    c"DAT_INVALID_STATE_EVD_IN_USE",
    c"DAT_INVALID_STATE_EVD_CONFIG_NOTIFY",
    c"DAT_INVALID_STATE_EVD_CONFIG_SOLICITED",
    c"DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD",
    c"DAT_INVALID_STATE_EVD_WAITER",
    c"DAT_INVALID_STATE_EVD_ASYNC",
    c"DAT_INVALID_STATE_IA_IN_USE",
    c"DAT_INVALID_STATE_LMR_IN_USE",
    c"DAT_INVALID_STATE_LMR_FREE",
    c"DAT_INVALID_STATE_PZ_IN_USE",
    c"DAT_INVALID_STATE_PZ_FREE",
    c"DAT_INVALID_STATE_SRQ_OPERATIONAL",
    c"DAT_INVALID_STATE_SRQ_ERROR",
    c"DAT_INVALID_STATE_SRQ_IN_USE",
    c"DAT_INVALID_STATE_SRQ_SHUTDOWN",
    c"DAT_PRIVILEGES_READ",
    c"DAT_PRIVILEGES_WRITE",
    c"DAT_PRIVILEGES_RDMA_READ",
    c"DAT_PRIVILEGES_RDMA_WRITE",
    c"DAT_PROTECTION_READ",
    c"DAT_PROTECTION_WRITE",
    c"DAT_PROTECTION_RDMA_READ",
    c"DAT_PROTECTION_RDMA_WRITE",
    c"DAT_INVALID_ADDRESS_UNSUPPORTED",
    c"DAT_INVALID_ADDRESS_UNREACHABLE",
    c"DAT_INVALID_ADDRESS_MALFORMED",
    c"DAT_NAME_NOT_REGISTERED",
    c"DAT_MAJOR_NOT_FOUND",
    c"DAT_MINOR_NOT_FOUND",
    c"DAT_THREAD_SAFETY_NOT_FOUND",
];

/// The name of a return type, in the form of `DAT_GET_TYPE`.
fn type_name(version: Version, kind: u32) -> Option<&'static CStr> {
    match (version, kind) {
        // OpenFabrics' DAT 1.2 value is 0xffff0000, which the mask reduces to 0x3fff0000.
        (Version::V1, 0x0fff_0000 | 0x3fff_0000) | (Version::V2, 0x3fff_0000) => {
            Some(c"DAT_NOT_IMPLEMENTED")
        }
        (Version::V2, 0x1000_0000) => Some(c"DAT_EXTENSION_BASE"),
        _ => {
            let number = kind >> 16;
            if version == Version::V1 && number > LAST_TYPE_OF_V1 {
                return None;
            }
            TYPES.get(number as usize).copied()
        }
    }
}

/// The name of a return subtype in the numbers of `version`; the empty text for no subtype.
fn subtype_name(version: Version, subtype: u32) -> Option<&'static CStr> {
    let number = match version {
        Version::V2 => subtype,
        Version::V1 => match subtype {
            RO_COOKIE => return Some(c"DAT_INVALID_RO_COOKIE"),
            0..=25 => subtype,
            26..=86 => subtype + 1,
            _ => subtype + 2,
        },
    };
    SUBTYPES.get(number as usize).copied()
}

/// The names of the type and the subtype of a return code. Every subtype has a text, since providers
/// may have some of their own; an unknown one is called unknown.
///
/// # Errors
///
/// `DAT_INVALID_PARAMETER` (argument 1) if the version does not define the type.
pub fn names(version: Version, code: u32) -> Result<(&'static CStr, &'static CStr)> {
    let kind = type_name(version, code & TYPE_MASK)
        .ok_or(Error::new(Kind::InvalidParameter, Subtype::Arg1))?;
    let subtype = subtype_name(version, code & SUBTYPE_MASK).unwrap_or(UNKNOWN_SUBTYPE);
    Ok((kind, subtype))
}

/// `dat_strerror`. Each text is written to its pointer unless that is NULL; texts are static. If the
/// type is unknown both are written nevertheless, because many callers print them without a check
/// of the result.
///
/// # Errors
///
/// Those of [`names`].
///
/// # Safety
///
/// `major` and `minor` are NULL or valid for a write.
pub unsafe fn strerror(
    version: Version,
    code: u32,
    major: *mut *const c_char,
    minor: *mut *const c_char,
) -> Result<()> {
    let names = names(version, code);
    let (kind, subtype) = names.unwrap_or((UNKNOWN_TYPE, UNKNOWN_SUBTYPE));
    if !major.is_null() {
        // SAFETY: not NULL, so valid for a write, as the caller promises.
        unsafe { major.write(kind.as_ptr()) };
    }
    if !minor.is_null() {
        // SAFETY: as above.
        unsafe { minor.write(subtype.as_ptr()) };
    }
    names.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    fn text(version: Version, code: u32) -> (String, String) {
        let (kind, subtype) = names(version, code).unwrap();
        (
            kind.to_str().unwrap().to_owned(),
            subtype.to_str().unwrap().to_owned(),
        )
    }

    #[test]
    fn every_code_of_both_versions() {
        use Kind::*;
        let kinds = [
            (Abort, "DAT_ABORT"),
            (ConnQualInUse, "DAT_CONN_QUAL_IN_USE"),
            (InsufficientResources, "DAT_INSUFFICIENT_RESOURCES"),
            (InternalError, "DAT_INTERNAL_ERROR"),
            (InvalidHandle, "DAT_INVALID_HANDLE"),
            (InvalidParameter, "DAT_INVALID_PARAMETER"),
            (InvalidState, "DAT_INVALID_STATE"),
            (LengthError, "DAT_LENGTH_ERROR"),
            (ModelNotSupported, "DAT_MODEL_NOT_SUPPORTED"),
            (ProviderNotFound, "DAT_PROVIDER_NOT_FOUND"),
            (PrivilegesViolation, "DAT_PRIVILEGES_VIOLATION"),
            (ProtectionViolation, "DAT_PROTECTION_VIOLATION"),
            (QueueEmpty, "DAT_QUEUE_EMPTY"),
            (QueueFull, "DAT_QUEUE_FULL"),
            (TimeoutExpired, "DAT_TIMEOUT_EXPIRED"),
            (ProviderAlreadyRegistered, "DAT_PROVIDER_ALREADY_REGISTERED"),
            (ProviderInUse, "DAT_PROVIDER_IN_USE"),
            (InvalidAddress, "DAT_INVALID_ADDRESS"),
            (InterruptedCall, "DAT_INTERRUPTED_CALL"),
            (ConnQualUnavailable, "DAT_CONN_QUAL_UNAVAILABLE"),
            (NotImplemented, "DAT_NOT_IMPLEMENTED"),
        ];
        for version in [Version::V1, Version::V2] {
            for (kind, name) in kinds {
                assert_eq!(text(version, Error::from(kind).code(version)).0, name);
            }
        }
        for (kind, name) in [
            (ReservedLmr, "DAT_RESERVED_LMR"),
            (PortInUse, "DAT_PORT_IN_USE"),
            (CommNotSupported, "DAT_COMM_NOT_SUPPORTED"),
        ] {
            assert_eq!(text(Version::V2, kind as u32).0, name);
            assert!(names(Version::V1, kind as u32).is_err());
        }
        assert_eq!(text(Version::V2, 0x9000_0001).0, "DAT_EXTENSION_BASE");
    }

    #[test]
    fn subtypes_follow_the_numbering_of_the_version() {
        for (subtype, name) in [
            (Subtype::ResourceSrq, "DAT_RESOURCE_SRQ"),
            (Subtype::HandleSrq, "DAT_INVALID_HANDLE_SRQ"),
            (Subtype::Handle1, "DAT_INVALID_HANDLE1"),
            (Subtype::Arg1, "DAT_INVALID_ARG1"),
            (Subtype::Arg10, "DAT_INVALID_ARG10"),
            (Subtype::StateEpEvdRecv, "DAT_INVALID_STATE_EP_EVD_RCV"),
            (Subtype::StateSrqInUse, "DAT_INVALID_STATE_SRQ_IN_USE"),
            (Subtype::PrivilegesRead, "DAT_PRIVILEGES_READ"),
            (Subtype::ThreadSafetyNotFound, "DAT_THREAD_SAFETY_NOT_FOUND"),
        ] {
            for version in [Version::V1, Version::V2] {
                let code = Error::arg(subtype).code(version);
                assert_eq!(
                    text(version, code),
                    ("DAT_INVALID_PARAMETER".into(), name.into())
                );
            }
        }
        assert_eq!(text(Version::V1, 0x8006_0066).1, "DAT_INVALID_RO_COOKIE");
        assert_eq!(
            text(Version::V2, 0x8007_0058).1,
            "DAT_INVALID_STATE_SRQ_SHUTDOWN"
        );
        // Every number of the version has a name, and the next one has none.
        for (version, last) in [(Version::V1, 102), (Version::V2, 103)] {
            assert!((0..=last).all(|n| subtype_name(version, n).is_some()));
            assert_eq!(subtype_name(version, last + 1), None);
        }
    }

    #[test]
    fn success_class_bits_and_unknown_codes() {
        for version in [Version::V1, Version::V2] {
            assert_eq!(text(version, 0), ("DAT_SUCCESS".into(), String::new()));
            assert_eq!(text(version, 0x0006_0000), text(version, 0x8006_0000));
            assert_eq!(text(version, 0x4006_0000), text(version, 0x8006_0000));
            assert_eq!(text(version, 0xffff_0000).0, "DAT_NOT_IMPLEMENTED");
            assert_eq!(text(version, 0x8006_ffff).1, "unknown DAT return subtype");
            let error = names(version, 0x8123_0000).unwrap_err();
            assert_eq!(error, Error::arg(Subtype::Arg1));
        }
    }

    #[test]
    fn out_pointers() {
        let (mut major, mut minor) = (ptr::null(), ptr::null());
        // SAFETY: both are locals; NULL is allowed.
        unsafe {
            assert!(strerror(Version::V2, 0, ptr::null_mut(), ptr::null_mut()).is_ok());
            assert!(strerror(Version::V2, 0x8123_0000, &mut major, &mut minor).is_err());
            assert_eq!(CStr::from_ptr(major), UNKNOWN_TYPE);
            assert_eq!(CStr::from_ptr(minor), UNKNOWN_SUBTYPE);
            assert!(strerror(Version::V2, 0x8005_000b, &mut major, ptr::null_mut()).is_ok());
            assert_eq!(CStr::from_ptr(major), c"DAT_INVALID_HANDLE");
        }
    }
}
