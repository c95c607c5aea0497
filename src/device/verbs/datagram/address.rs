//! Address handles: where a peer receives datagrams, and the way to it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::cancel;
use crate::lock::Mutex;

use crate::device::AddressHandle;
use crate::device::verbs::adapter::Adapter;
use crate::device::verbs::library_use::LibraryUse;
use crate::device::verbs::mr::Pd;
use crate::device::verbs::{Verbs, sys};

/// The hop limit of datagrams whose route rdma_cm does not know: that of IP (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// Where a queue pair receives datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::device::verbs) struct Destination {
    /// The way to its port.
    pub route: sys::AhAttr,
    /// Number of the queue pair.
    pub qp_number: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

impl Destination {
    /// What the answer of a peer says.
    pub fn of(answer: &sys::UdParam) -> Destination {
        Destination {
            route: answer.ah_attr,
            qp_number: answer.qp_num,
            qkey: answer.qkey,
        }
    }

    /// What the question of a peer says, whose queue pair has this number; `None` if this end has no GID
    /// or the peer no LID.
    pub fn of_asker(device: &Verbs, asker: IpAddr, end: super::wire::End) -> Option<Destination> {
        let route = match device.infiniband {
            true => by_lid(device.port, end.lid)?,
            false => by_gid(device.port, local_gid_index(device)?, gid(asker)),
        };
        Some(Destination {
            route,
            qp_number: end.qp_number,
            qkey: sys::UDP_QKEY,
        })
    }
}

/// The way to a port of the same InfiniBand subnet.
fn by_lid(port_num: u8, dlid: u16) -> Option<sys::AhAttr> {
    (dlid != 0).then_some(sys::AhAttr {
        dgid: [0; 2],
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
        dlid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num,
    })
}

/// The way to a port over RoCE.
fn by_gid(port_num: u8, sgid_index: u8, dgid: [u64; 2]) -> sys::AhAttr {
    sys::AhAttr {
        dgid,
        flow_label: 0,
        sgid_index,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num,
    }
}

/// The GID that a RoCE port has for an address (InfiniBand architecture, annex A17).
fn gid(address: IpAddr) -> [u64; 2] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let bytes = octets.as_chunks::<8>().0;
    [u64::from_ne_bytes(bytes[0]), u64::from_ne_bytes(bytes[1])]
}

/// Index of the GID that the port has for the address of the IA. A port may have it once for each
/// version of RoCE; version 2 is preferred, as rdma_cm does.
fn local_gid_index(device: &Verbs) -> Option<u8> {
    let own = gid(device.address.ip());
    let (_, port) = device.adapter.query(device.port).ok()?;
    let len = u8::try_from(port.gid_tbl_len).unwrap_or(u8::MAX);
    let mut found = None;
    for index in 0..len {
        match gid_at(&device.adapter, device.port, index) {
            Some((gid, version2)) if gid == own => {
                found = Some(index);
                if version2 {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

/// An entry of the table of GIDs, and whether it is known to be one of version 2 of RoCE.
fn gid_at(adapter: &Adapter, port: u8, index: u8) -> Option<([u64; 2], bool)> {
    let (lib, ctx) = (adapter.lib, adapter.ctx);
    let Some(query) = lib._ibv_query_gid_ex else {
        let mut gid = [0; 2];
        // SAFETY: the context is open, the place for the result valid.
        let error = unsafe { (lib.ibv_query_gid)(ctx, port, index.into(), &mut gid) };
        return (error == 0).then_some((gid, false));
    };
    let mut entry = sys::GidEntry {
        gid: [0; 2],
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let size = size_of::<sys::GidEntry>();
    // SAFETY: as above.
    let error = unsafe { query(ctx, port.into(), index.into(), &mut entry, 0, size) };
    (error == 0).then_some((entry.gid, entry.gid_type == sys::GID_TYPE_ROCE_V2))
}

/// An address handle of the device, which belongs to a protection domain. Dropping it destroys it.
pub(in crate::device::verbs) struct HwAddress {
    pd: Arc<Pd>,
    pub raw: *mut sys::Ah,
}

// SAFETY: libibverbs is thread-safe, and the handle is valid until the drop.
unsafe impl Send for HwAddress {}
// SAFETY: as above.
unsafe impl Sync for HwAddress {}

impl HwAddress {
    fn new(pd: &Arc<Pd>, route: &sys::AhAttr) -> Option<Arc<HwAddress>> {
        // Posts make some.
        let _disabled = cancel::Disabled::begin();
        let mut route = *route;
        let _use = LibraryUse::begin_opening();
        // SAFETY: the domain is valid.
        let raw = unsafe { (pd.device().adapter.lib.ibv_create_ah)(pd.raw, &mut route) };
        (!raw.is_null()).then(|| {
            Arc::new(HwAddress {
                pd: pd.clone(),
                raw,
            })
        })
    }
}

impl Drop for HwAddress {
    fn drop(&mut self) {
        let _disabled = cancel::Disabled::begin();
        let _use = LibraryUse::begin();
        // SAFETY: ours; queue pairs keep a reference until the device has executed what is sent to it.
        unsafe { (self.pd.device().adapter.lib.ibv_destroy_ah)(self.raw) };
    }
}

/// The address handle of the consumer: a peer that was resolved. It has an address handle of the device
/// for each protection domain from which datagrams are sent to it.
pub(in crate::device::verbs) struct Peer {
    to: Destination,
    address: SocketAddr,
    /// Of the queue pair that has resolved the peer.
    first: Arc<HwAddress>,
    /// Of other protection domains.
    others: Mutex<Vec<Arc<HwAddress>>>,
}

impl Peer {
    /// A peer that a queue pair of this protection domain has resolved; `None` if the device makes no
    /// address handle for it.
    pub fn new(pd: &Arc<Pd>, to: Destination, address: SocketAddr) -> Option<Arc<Peer>> {
        Some(Arc::new(Peer {
            to,
            address,
            first: HwAddress::new(pd, &to.route)?,
            others: Mutex::default(),
        }))
    }

    /// The Q_Key of the peer.
    pub fn qkey(&self) -> u32 {
        self.to.qkey
    }

    /// Whether queue pairs of this device may use the handle.
    pub fn is_of(&self, device: &Arc<Verbs>) -> bool {
        Arc::ptr_eq(self.first.pd.device(), device)
    }

    /// The address handle of the device for a protection domain; `None` if it makes none.
    pub fn in_domain(&self, pd: &Arc<Pd>) -> Option<Arc<HwAddress>> {
        let is_of = |address: &&Arc<HwAddress>| Arc::ptr_eq(&address.pd, pd);
        if is_of(&&self.first) {
            return Some(self.first.clone());
        }
        let mut others = self.others.lock();
        if let Some(address) = others.iter().find(is_of) {
            return Some(address.clone());
        }
        let new = HwAddress::new(pd, &self.to.route)?;
        others.push(new.clone());
        Some(new)
    }
}

impl AddressHandle for Peer {
    fn qp_number(&self) -> u32 {
        self.to.qp_number
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The address handles of the datagrams that were sent last, by the slot of the request. The device reads
/// an address handle when it sends, so one that the consumer frees before has to stay.
#[derive(Default)]
pub(in crate::device::verbs) struct SentTo(Vec<Option<Arc<HwAddress>>>);

impl SentTo {
    /// Keeps an address handle until the slot is used again; false if there is no memory. Gives back
    /// the one before, to be dropped without a lock.
    pub fn keep(&mut self, slot: u32, to: Arc<HwAddress>) -> Result<Option<Arc<HwAddress>>, ()> {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.try_reserve(slot + 1 - self.0.len()).map_err(drop)?;
            self.0.resize_with(slot + 1, || None);
        }
        Ok(self.0[slot].replace(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(gid: [u64; 2]) -> Vec<u8> {
        gid.iter().flat_map(|half| half.to_ne_bytes()).collect()
    }

    #[test]
    fn a_gid_has_the_address() {
        let v4 = octets(gid("10.1.2.3".parse().unwrap()));
        assert_eq!(v4, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        let v6 = octets(gid("fe80::1:2".parse().unwrap()));
        assert_eq!(v6, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    }

    #[test]
    fn a_route_is_global_over_roce_and_local_over_infiniband() {
        let roce = by_gid(1, 3, [5, 6]);
        assert_eq!((roce.is_global, roce.sgid_index, roce.dlid), (1, 3, 0));
        assert_eq!((roce.dgid, roce.port_num), ([5, 6], 1));
        let infiniband = by_lid(2, 7).unwrap();
        assert_eq!((infiniband.is_global, infiniband.dlid), (0, 7));
        assert_eq!(infiniband.port_num, 2);
        // A port without a LID is not up.
        assert_eq!(by_lid(2, 0), None);
    }
}
