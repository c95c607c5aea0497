//! A connection over TCP: iWARP between the work queues of a queue pair and a socket.
//!
//! [`conn`] is the connection, [`tx`] and [`rx`] its two directions. [`tx_next`] is the order of the
//! requests, [`tx_short`] the short way of a post, [`tx_frame`] how an FPDU is made. [`rx_segment`] is
//! what the segment of an FPDU does, [`rx_place`] where its payload goes, [`rx_direct`] how a long one gets
//! there as it arrives, [`rx_extended`] what arrives of the operations of RFC 7306. Small sends may wait a
//! little to go out together ([`coalesce`](super::coalesce), [`batch`]), and long ones go in calls that
//! become longer ([`call_length`]). Between two ends of ours requests complete when the peer has
//! acknowledged them ([`acknowledge`]). [`liveness`] notices a host that is gone;
//! [`linger`] sends what is left after the connection has ended.

mod acknowledge;
pub(crate) mod batch;
mod call_length;
pub(super) mod close_reason;
pub(crate) mod conn;
mod ending;
pub(crate) mod linger;
pub(crate) mod liveness;
pub(crate) mod rx;
mod rx_direct;
mod rx_extended;
mod rx_place;
mod rx_segment;
mod rx_stream;
mod stash;
pub(crate) mod tx;
pub(super) mod tx_frame;
mod tx_next;
mod tx_short;

pub(super) use self::close_reason::CloseReason;
pub(super) use self::conn::{TcpConn, TcpTarget};
