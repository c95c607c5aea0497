//! The events of the connection manager in words.

use std::ffi::c_int;
use std::fmt;
use std::io;

use super::sys;
use crate::device::connection_log::Cause;

/// An event and its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    pub kind: c_int,
    pub status: c_int,
    /// Statuses of iWARP are error numbers in any case.
    pub iwarp: bool,
}

/// The names that rdma_cm has for its events, by number.
const EVENTS: [&str; 12] = [
    "RDMA_CM_EVENT_ADDR_RESOLVED",
    "RDMA_CM_EVENT_ADDR_ERROR",
    "RDMA_CM_EVENT_ROUTE_RESOLVED",
    "RDMA_CM_EVENT_ROUTE_ERROR",
    "RDMA_CM_EVENT_CONNECT_REQUEST",
    "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR",
    "RDMA_CM_EVENT_UNREACHABLE",
    "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_ESTABLISHED",
    "RDMA_CM_EVENT_DISCONNECTED",
    "RDMA_CM_EVENT_DEVICE_REMOVAL",
];

/// Why InfiniBand rejects (InfiniBand architecture, 12.6.7.2), from reason 1 on.
const REASONS: [&str; 33] = [
    "no queue pair available",
    "no end-to-end context available",
    "no resources available",
    "timeout",
    "unsupported request",
    "invalid communication ID",
    "invalid communication instance",
    "invalid service ID: nobody listens",
    "invalid transport service type",
    "stale connection",
    "no such reliable datagram channel",
    "primary port GID rejected",
    "primary port LID rejected",
    "invalid primary service level",
    "invalid primary traffic class",
    "invalid primary hop limit",
    "invalid primary packet rate",
    "alternate port GID rejected",
    "alternate port LID rejected",
    "invalid alternate service level",
    "invalid alternate traffic class",
    "invalid alternate hop limit",
    "invalid alternate packet rate",
    "redirected to another port and connection manager",
    "redirected to another port",
    "invalid path MTU",
    "too few responder resources",
    "rejected by the consumer",
    "receiver-not-ready retry count rejected",
    "communication ID in use",
    "invalid class version",
    "invalid flow label",
    "invalid alternate flow label",
];

impl Said {
    /// The peer has no listener for what it was asked for.
    pub fn nobody_listens(&self) -> bool {
        self.kind == sys::CM_REJECTED && !self.iwarp && self.status == sys::REJ_SERVICE_ID
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { kind, status, .. } = *self;
        match usize::try_from(kind).ok().and_then(|kind| EVENTS.get(kind)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "event {kind} of the connection manager")?,
        }
        if status == 0 {
            return Ok(());
        }
        if kind == sys::CM_REJECTED && !self.iwarp {
            let reason = usize::try_from(status).ok().and_then(|s| s.checked_sub(1));
            return match reason.and_then(|reason| REASONS.get(reason)) {
                Some(text) => write!(f, ", status {status}: {text}"),
                None => write!(f, ", status {status}"),
            };
        }
        let error = io::Error::from_raw_os_error(status.wrapping_abs());
        write!(f, ", status {status}: {error}")
    }
}

impl Cause for Said {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_statuses_have_their_names() {
        for (kind, status, iwarp, text) in [
            (
                sys::CM_ADDR_RESOLVED,
                0,
                false,
                "RDMA_CM_EVENT_ADDR_RESOLVED",
            ),
            (
                sys::CM_DEVICE_REMOVAL,
                0,
                true,
                "RDMA_CM_EVENT_DEVICE_REMOVAL",
            ),
            (
                sys::CM_REJECTED,
                sys::REJ_SERVICE_ID,
                false,
                "RDMA_CM_EVENT_REJECTED, status 8: invalid service ID: nobody listens",
            ),
            (
                sys::CM_REJECTED,
                sys::REJ_CONSUMER,
                false,
                "RDMA_CM_EVENT_REJECTED, status 28: rejected by the consumer",
            ),
            (
                sys::CM_REJECTED,
                33,
                false,
                "RDMA_CM_EVENT_REJECTED, status 33: invalid alternate flow label",
            ),
            (
                sys::CM_REJECTED,
                34,
                false,
                "RDMA_CM_EVENT_REJECTED, status 34",
            ),
            (
                sys::CM_REJECTED,
                -libc::ECONNREFUSED,
                true,
                "RDMA_CM_EVENT_REJECTED, status -111: Connection refused (os error 111)",
            ),
            (
                sys::CM_UNREACHABLE,
                -libc::ETIMEDOUT,
                false,
                "RDMA_CM_EVENT_UNREACHABLE, status -110: Connection timed out (os error 110)",
            ),
            (99, 0, false, "event 99 of the connection manager"),
        ] {
            let said = Said {
                kind,
                status,
                iwarp,
            };
            assert_eq!(said.to_string(), text);
        }
    }

    #[test]
    fn only_infiniband_has_service_ids() {
        let said = |iwarp| Said {
            kind: sys::CM_REJECTED,
            status: sys::REJ_SERVICE_ID,
            iwarp,
        };
        assert!(said(false).nobody_listens());
        assert!(!said(true).nobody_listens());
    }
}
