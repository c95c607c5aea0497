//! The events of the connection manager: what they carry, and their names for the log.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use super::adapter::{Adapter, Target};
use super::datagram::Destination;
use super::id::CmId;
use super::sys;
use crate::device::connection_log::{Cause, Step};

/// The data of an event, which is valid when the event was acknowledged.
pub(super) struct CmEventData {
    /// Number by which the event names its identifier.
    pub token: u64,
    /// The object that the event is for; `None` if that was freed.
    pub target: Option<Target>,
    /// Kind and status of the event.
    pub kind: CmEventKind,
    /// Private data of the peer.
    pub private_data: Box<[u8]>,
    /// RDMA reads that the peer answers at a time.
    pub rd_in: u8,
    /// RDMA reads that the peer wants to have outstanding.
    pub rd_out: u8,
    /// The event is about datagrams, not about a connection.
    pub for_datagrams: bool,
    /// Where the peer receives datagrams, which it has answered.
    pub destination: Option<Destination>,
    /// The identifier that the kernel has made for a connection request.
    pub request: Option<CmId>,
}

impl CmEventData {
    /// Copies the data of an event.
    ///
    /// # Safety
    /// The event was just read and is not acknowledged.
    pub unsafe fn read(adapter: &Arc<Adapter>, event: &sys::CmEvent) -> CmEventData {
        // SAFETY: the id is valid until the event is acknowledged.
        let for_datagrams = unsafe { (*event.id).ps } == sys::PS_UDP;
        // SAFETY: the data of an event is as long as the event says; those of both kinds have it at the
        // same place. Events have no data otherwise.
        let private_data = unsafe {
            let conn = &event.param.conn;
            if conn.private_data.is_null() {
                &[]
            } else {
                let len = usize::from(conn.private_data_len);
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len)
            }
        };
        let is_request = event.event == sys::CM_CONNECT_REQUEST;
        // SAFETY: the ids are valid until the event is acknowledged.
        let context = unsafe {
            let id = if is_request {
                event.listen_id
            } else {
                event.id
            };
            (*id).context
        };
        let request = is_request.then(|| {
            let none_yet = Target::Request(Weak::new());
            // SAFETY: a request has an id that belongs to the reader of the event.
            unsafe { CmId::adopt(adapter, event.id, none_yet) }
        });
        let destination = (for_datagrams && event.event == sys::CM_ESTABLISHED)
            // SAFETY: the event is of that kind.
            .then(|| Destination::of(unsafe { &event.param.ud }));
        let (rd_in, rd_out) = match for_datagrams {
            true => (0, 0),
            // SAFETY: the event is of the other kind.
            false => unsafe {
                let conn = &event.param.conn;
                (conn.initiator_depth, conn.responder_resources)
            },
        };
        CmEventData {
            token: context.addr() as u64,
            target: adapter.target(context),
            kind: CmEventKind {
                event: event.event,
                status: event.status,
                iwarp: adapter.iwarp,
            },
            private_data: private_data.into(),
            rd_in,
            rd_out,
            for_datagrams,
            destination,
            request,
        }
    }
}

/// The kind of an event, and its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CmEventKind {
    /// `sys::CM_*`.
    pub event: c_int,
    /// 0, a negative error number, or the reason of a rejection over InfiniBand.
    pub status: c_int,
    /// The device is one for iWARP, where the status of a rejection is an error number as well.
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
    "invalid service ID: no listener",
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

/// Why InfiniBand does not resolve a service ID (InfiniBand architecture, 12.11.2), from status 1 on.
const ANSWERS: [&str; 5] = [
    "no listener",
    "rejected by the listener",
    "no queue pair available",
    "redirected to another port",
    "unsupported class version",
];

impl CmEventKind {
    /// The peer has rejected a request because there is no listener for it.
    pub fn is_no_listener(&self) -> bool {
        self.event == sys::CM_REJECTED && !self.iwarp && self.status == sys::REJ_SERVICE_ID
    }

    /// The status with which a peer has refused to say where it receives datagrams.
    pub fn refusal(&self) -> Option<c_int> {
        // The kernel has the same event for a peer that does not answer, with an error number.
        (self.event == sys::CM_UNREACHABLE && self.status > 0).then_some(self.status)
    }

    /// The step that the log has for this event; `None` if another step follows that
    /// means the same.
    pub fn step(&self) -> Option<Step> {
        match self.event {
            _ if self.refusal().is_some() => Some(Step::RejectArrived),
            sys::CM_ADDR_RESOLVED => Some(Step::AddressResolved),
            sys::CM_ROUTE_RESOLVED => Some(Step::RouteResolved),
            sys::CM_CONNECT_RESPONSE => Some(Step::ReplyArrived),
            sys::CM_REJECTED => Some(Step::RejectArrived),
            sys::CM_ESTABLISHED => None,
            sys::CM_DISCONNECTED => Some(Step::DisconnectArrived),
            _ => Some(Step::OtherEvent),
        }
    }
}

impl fmt::Display for CmEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CmEventKind { event, status, .. } = *self;
        match usize::try_from(event).ok().and_then(|n| EVENTS.get(n)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "event {event} of the connection manager")?,
        }
        if status == 0 {
            return Ok(());
        }
        if event == sys::CM_REJECTED && !self.iwarp {
            let reason = usize::try_from(status).ok().and_then(|s| s.checked_sub(1));
            return match reason.and_then(|reason| REASONS.get(reason)) {
                Some(text) => write!(f, ", status {status}: {text}"),
                None => write!(f, ", status {status}"),
            };
        }
        if let Some(status) = self.refusal() {
            return match ANSWERS.get(status as usize - 1) {
                Some(text) => write!(f, ", status {status}: {text}"),
                None => write!(f, ", status {status}"),
            };
        }
        let error = io::Error::from_raw_os_error(status.wrapping_abs());
        write!(f, ", status {status}: {error}")
    }
}

impl Cause for CmEventKind {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_statuses_have_their_names() {
        for (event, status, iwarp, text) in [
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
                "RDMA_CM_EVENT_REJECTED, status 8: invalid service ID: no listener",
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
            (
                sys::CM_UNREACHABLE,
                sys::SIDR_UNSUPPORTED,
                false,
                "RDMA_CM_EVENT_UNREACHABLE, status 1: no listener",
            ),
            (
                sys::CM_UNREACHABLE,
                6,
                false,
                "RDMA_CM_EVENT_UNREACHABLE, status 6",
            ),
            (99, 0, false, "event 99 of the connection manager"),
        ] {
            let kind = CmEventKind {
                event,
                status,
                iwarp,
            };
            assert_eq!(kind.to_string(), text);
        }
    }

    #[test]
    fn only_infiniband_has_service_ids() {
        let rejected = |iwarp| CmEventKind {
            event: sys::CM_REJECTED,
            status: sys::REJ_SERVICE_ID,
            iwarp,
        };
        assert!(rejected(false).is_no_listener());
        assert!(!rejected(true).is_no_listener());
    }

    #[test]
    fn a_refusal_is_told_from_silence() {
        let unreachable = |status| CmEventKind {
            event: sys::CM_UNREACHABLE,
            status,
            iwarp: false,
        };
        let refused = unreachable(sys::SIDR_REJECT);
        assert_eq!(refused.refusal(), Some(sys::SIDR_REJECT));
        assert_eq!(refused.step(), Some(Step::RejectArrived));
        let silent = unreachable(-libc::ETIMEDOUT);
        assert_eq!(silent.refusal(), None);
        assert_eq!(silent.step(), Some(Step::OtherEvent));
    }

    #[test]
    fn every_event_is_a_step_of_a_connection() {
        let step = |event| {
            let kind = CmEventKind {
                event,
                status: 0,
                iwarp: false,
            };
            kind.step()
        };
        assert_eq!(step(sys::CM_ADDR_RESOLVED), Some(Step::AddressResolved));
        assert_eq!(step(sys::CM_REJECTED), Some(Step::RejectArrived));
        assert_eq!(step(sys::CM_DISCONNECTED), Some(Step::DisconnectArrived));
        // The log has "connected" for this one.
        assert_eq!(step(sys::CM_ESTABLISHED), None);
        for other in [sys::CM_UNREACHABLE, sys::CM_DEVICE_REMOVAL, 99] {
            assert_eq!(step(other), Some(Step::OtherEvent));
        }
    }
}
