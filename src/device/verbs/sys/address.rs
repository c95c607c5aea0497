//! What address handles are made of, and the addresses of ports.

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AhAttr {
    /// The 16 bytes of the GID.
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// An entry of the table of GIDs that a port has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GidEntry {
    /// The 16 bytes of the GID.
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

pub const GID_TYPE_ROCE_V2: u32 = 2;
