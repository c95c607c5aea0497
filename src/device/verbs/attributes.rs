//! The limits of a device, from what rdma-core says of the adapter and of its port.

use std::ffi::c_int;
use std::net::SocketAddr;

use super::adapter::DevicePort;
use super::windows::Windows;
use super::{post, sys, wr_table};
use crate::device::{DeviceAttr, DeviceIdentity, qualifier};

/// Bytes that an InfiniBand connection request has for the consumer (InfiniBand architecture,
/// 12.6.5 and annex A11). Replies (12.6.8) and rejects (12.6.7) have more than twice as many.
pub(super) const PRIVATE_IB: usize = 56;
/// Bytes that every iWARP driver of Linux passes on: their lengths are bytes, and four go to the
/// read depths (RFC 6581).
pub(super) const PRIVATE_IWARP: usize = 251;
/// Bytes of the longest message (InfiniBand architecture, 9.7.7).
const MAX_MESSAGE: u32 = 1 << 31;
/// Whether a device has atomic operations. Devices for iWARP have none of RFC 7306.
fn has_atomics(atomic_cap: c_int, iwarp: bool) -> bool {
    atomic_cap != sys::ATOMIC_NONE && !iwarp
}

/// The attributes of a port of a device, whose first GID is `gid`. `address` is that of the IA.
pub(super) fn attributes(
    (device_port, gid): (&DevicePort, [u8; 16]),
    device: &sys::DeviceAttr,
    port: &sys::PortAttr,
    address: SocketAddr,
    windows: Windows,
) -> DeviceAttr {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    // A read depth is a byte in rdma_cm, and its highest value has another meaning.
    let depth = |n: i32| count(n).min(254);
    let iwarp = device_port.transport == sys::TRANSPORT_IWARP;
    let named = |name: &str, value: String| (name.to_owned(), value);
    let max_sge = count(device.max_sge).min(post::MAX_SEGMENTS as u32);
    let message = match port.max_msg_sz {
        0 => MAX_MESSAGE,
        n => n.min(MAX_MESSAGE),
    };
    // 1 is 256 bytes, and each step doubles that.
    let mtu = 128 << port.active_mtu.clamp(1, 5);
    DeviceAttr {
        vendor_name: format!("{:#06x}:{}", device.vendor_id, device.vendor_part_id),
        identity: DeviceIdentity {
            connection_manager: "CMA",
            device: device_port.device.clone(),
            node_guid: u64::from_be(device.node_guid),
            gid,
            port: device_port.port,
        },
        max_qp: count(device.max_qp),
        max_qp_wr: count(device.max_qp_wr).min(wr_table::MAX_SLOTS / 2),
        max_rd_in: depth(device.max_qp_rd_atom),
        max_rd_out: depth(device.max_qp_init_rd_atom),
        max_cq: count(device.max_cq),
        max_cqe: count(device.max_cqe),
        max_sge,
        max_read_sge: if iwarp {
            count(device.max_sge_rd).clamp(1, max_sge.max(1))
        } else {
            max_sge
        },
        max_mr: count(device.max_mr),
        max_mr_size: device.max_mr_size,
        max_pd: count(device.max_pd),
        max_message_size: message,
        max_rdma_size: message,
        atomics: has_atomics(device.atomic_cap, iwarp),
        immediate: !iwarp,
        // Those for iWARP cannot be told apart: siw takes the address of a registration and uses that
        // of the memory all the same.
        zero_based: !iwarp,
        max_datagram: if iwarp { 0 } else { mtu },
        max_datagram_private_data: if iwarp { 0 } else { PRIVATE_IB as u32 },
        max_mw: match windows {
            Windows::None => 0,
            _ => count(device.max_mw).max(1),
        },
        max_srq: count(device.max_srq),
        max_srq_wr: count(device.max_srq_wr).min(wr_table::MAX_SLOTS / 2),
        max_private_data: if iwarp {
            // A qualifier that is no port has a header.
            (PRIVATE_IWARP - qualifier::HEADER_LEN) as u32
        } else {
            PRIVATE_IB as u32
        },
        mtu,
        transport_attr: vec![
            named(
                "transport",
                if iwarp { "iwarp" } else { "infiniband" }.into(),
            ),
            named("address", address.ip().to_string()),
            named("device", device_port.device.clone()),
            named("port", device_port.port.to_string()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_devices_have_atomic_operations() {
        let within_the_device = 1;
        assert!(has_atomics(within_the_device, false));
        assert!(!has_atomics(within_the_device, true));
        assert!(!has_atomics(sys::ATOMIC_NONE, false));
    }
}
