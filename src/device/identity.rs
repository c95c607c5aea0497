//! What an RDMA device is known by, to programs that were written to such devices.

/// Names and numbers of a device and its port, which stay what they are.
#[derive(Clone, Debug)]
pub struct DeviceIdentity {
    /// What makes the connections, in the words of existing libraries: `CMA` is rdma_cm.
    pub connection_manager: &'static str,
    /// Name of the device.
    pub device: String,
    /// The GUID of the node; 0 if there is none.
    pub node_guid: u64,
    /// The first GID of the port, in the order of the network; all zero if there is none.
    pub gid: [u8; 16],
    /// Number of the port, from 1.
    pub port: u8,
}
