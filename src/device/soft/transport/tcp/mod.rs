//! A connection over TCP: iWARP between the work queues of a queue pair and a socket.
//!
//! [`conn`] is the connection, [`tx`] and [`rx`] its two directions, [`tx_frame`] and [`rx_place`]
//! what they do with one FPDU. Small sends may wait a little
//! to go out together ([`coalesce`], [`batch`]); [`liveness`] notices a host that is gone;
//! [`linger`] sends what is left after the connection has ended.

pub(crate) mod batch;
pub(super) mod close_reason;
pub(super) mod coalesce;
pub(super) mod conn;
pub(crate) mod linger;
pub(crate) mod liveness;
pub(crate) mod rx;
mod rx_place;
pub(crate) mod tx;
pub(super) mod tx_frame;

pub(super) use self::close_reason::CloseReason;
pub(super) use self::conn::{TcpConn, TcpTarget};
