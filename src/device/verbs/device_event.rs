//! The events that a device reports by itself, of its objects, its ports and its own, and their names for the log.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;

use super::adapter::{Adapter, Target};
use super::sys;
use crate::log_sink::CONNECTIONS;

/// An event of the device, with the object that it is for.
pub(super) struct DeviceEvent {
    pub kind: DeviceEventKind,
    /// The number by which the event names its object.
    pub token: u64,
    pub target: Option<Target>,
}

/// What has happened, and on which port if it is one to which that has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeviceEventKind {
    /// `sys::EVENT_*`.
    pub event: c_int,
    pub port: Option<c_int>,
}

/// The names that libibverbs has for its events, by number.
const EVENTS: [&str; 20] = [
    "IBV_EVENT_CQ_ERR",
    "IBV_EVENT_QP_FATAL",
    "IBV_EVENT_QP_REQ_ERR",
    "IBV_EVENT_QP_ACCESS_ERR",
    "IBV_EVENT_COMM_EST",
    "IBV_EVENT_SQ_DRAINED",
    "IBV_EVENT_PATH_MIG",
    "IBV_EVENT_PATH_MIG_ERR",
    "IBV_EVENT_DEVICE_FATAL",
    "IBV_EVENT_PORT_ACTIVE",
    "IBV_EVENT_PORT_ERR",
    "IBV_EVENT_LID_CHANGE",
    "IBV_EVENT_PKEY_CHANGE",
    "IBV_EVENT_SM_CHANGE",
    "IBV_EVENT_SRQ_ERR",
    "IBV_EVENT_SRQ_LIMIT_REACHED",
    "IBV_EVENT_QP_LAST_WQE_REACHED",
    "IBV_EVENT_CLIENT_REREGISTER",
    "IBV_EVENT_GID_CHANGE",
    "IBV_EVENT_WQ_FATAL",
];

impl fmt::Display for DeviceEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = self.event;
        match usize::try_from(event).ok().and_then(|n| EVENTS.get(n)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "event {event}")?,
        }
        match self.port {
            Some(port) => write!(f, " of port {port}"),
            None => Ok(()),
        }
    }
}

impl DeviceEventKind {
    /// Logs an event that changes nothing here, unless it is of a port of another IA. While a port is down its
    /// connections wait, or end when the device's retries are used up; DAT has no event for that.
    pub fn log(&self, adapter: &Adapter) {
        if self.port.is_none_or(|port| port == adapter.port.into()) {
            log::debug!(target: CONNECTIONS, "RDMA device {}: {self}", adapter.name);
        }
    }
}

/// Reads the next event: its kind and the number by which it names its object, which is 0 if it names none.
pub(super) fn read(adapter: &Adapter) -> Option<(DeviceEventKind, u64)> {
    let mut event = MaybeUninit::<sys::AsyncEvent>::zeroed();
    // SAFETY: the context is open, the place for the event valid; all zero is too.
    unsafe {
        if (adapter.lib.ibv_get_async_event)(adapter.ctx, event.as_mut_ptr()) != 0 {
            return None;
        }
        let event = event.assume_init_mut();
        let read = (kind_of(event), token_of(event));
        (adapter.lib.ibv_ack_async_event)(event);
        Some(read)
    }
}

fn kind_of(event: &sys::AsyncEvent) -> DeviceEventKind {
    let port = match event.event_type {
        sys::EVENT_PORT_ACTIVE..=sys::EVENT_SM_CHANGE
        | sys::EVENT_CLIENT_REREGISTER
        | sys::EVENT_GID_CHANGE => {
            // SAFETY: the element is a port, as the type says.
            Some(unsafe { event.element.port_num })
        }
        _ => None,
    };
    DeviceEventKind {
        event: event.event_type,
        port,
    }
}

/// The number by which an event names its object; 0 if it names none.
///
/// # Safety
/// The event was just read and is not acknowledged.
unsafe fn token_of(event: &sys::AsyncEvent) -> u64 {
    // SAFETY: the element is of the kind that the type says, and valid until the event is
    // acknowledged.
    let context = unsafe {
        match event.event_type {
            sys::EVENT_CQ_ERR => (*event.element.cq).cq_context,
            sys::EVENT_QP_FATAL
            | sys::EVENT_QP_REQ_ERR
            | sys::EVENT_QP_ACCESS_ERR
            | sys::EVENT_COMM_EST
            | sys::EVENT_QP_LAST_WQE_REACHED => (*event.element.qp).qp_context,
            sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED => (*event.element.srq).srq_context,
            _ => return 0,
        }
    };
    context.addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_names() {
        let name = |event, port| DeviceEventKind { event, port }.to_string();
        assert_eq!(name(sys::EVENT_CQ_ERR, None), "IBV_EVENT_CQ_ERR");
        assert_eq!(
            name(sys::EVENT_DEVICE_FATAL, None),
            "IBV_EVENT_DEVICE_FATAL"
        );
        assert_eq!(
            name(sys::EVENT_PORT_ACTIVE, Some(2)),
            "IBV_EVENT_PORT_ACTIVE of port 2"
        );
        assert_eq!(name(sys::EVENT_SM_CHANGE, None), "IBV_EVENT_SM_CHANGE");
        assert_eq!(
            name(sys::EVENT_QP_LAST_WQE_REACHED, None),
            "IBV_EVENT_QP_LAST_WQE_REACHED"
        );
        assert_eq!(name(sys::EVENT_GID_CHANGE, None), "IBV_EVENT_GID_CHANGE");
        assert_eq!(name(20, None), "event 20");
        assert_eq!(name(-1, None), "event -1");
    }

    #[test]
    fn only_events_of_ports_have_a_port() {
        let port = |event_type| {
            let element = sys::EventElement { port_num: 3 };
            kind_of(&sys::AsyncEvent {
                element,
                event_type,
            })
            .port
        };
        let of_ports = [9, 10, 11, 12, 13, 17, 18];
        for event in 0..=99 {
            let wanted = of_ports.contains(&event).then_some(3);
            assert_eq!(port(event), wanted, "{event}");
        }
    }
}
