//! Datagrams: unreliable datagram queue pairs.
//!
//! A queue pair for datagrams is in RTS as soon as it is made ([`start`]) and stays
//! [idle](crate::device::attempt::Phase::Idle): it has no connection. Where a peer receives datagrams is
//! found out by a SIDR exchange of rdma_cm, in the port space RDMA_PS_UDP ([`exchange`]). Any number of
//! them may be under way at a time. What both ends put in front of their private data is in [`wire`];
//! [`address`] has the address handles.
//!
//! A change of the queue pair ([`Device::modify_qp`](crate::device::Device::modify_qp)) gives it another
//! number: peers that have resolved it before do not reach it any more.
//!
//! All queue pairs have the Q_Key of rdma_cm, so that the number of one of the peer's may be used in the
//! place of another one's.

mod address;
pub(super) mod exchange;
mod restart;
pub(super) mod wire;

use std::io;

use super::hw::{Hw, zeroed_attr};
use super::sys;

pub(super) use address::{Destination, Peer, SentTo};
pub(super) use exchange::Exchanges;
pub(super) use restart::go_on;

/// Takes a queue pair that was just made or reset to RTS, where it sends and receives.
pub(super) fn start(hw: &Hw) -> io::Result<()> {
    let mut attr = zeroed_attr(sys::QPS_INIT);
    attr.port_num = hw.device.port;
    attr.qkey = sys::UDP_QKEY;
    let mask = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_QKEY;
    hw.modify(&mut attr, mask)?;
    hw.modify(&mut zeroed_attr(sys::QPS_RTR), sys::QP_STATE)?;
    let mask = sys::QP_STATE | sys::QP_SQ_PSN;
    hw.modify(&mut zeroed_attr(sys::QPS_RTS), mask)
}
