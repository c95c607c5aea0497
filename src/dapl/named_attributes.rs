//! The named attributes of an IA: those of its transport, and those by which programs find out what the
//! provider has besides DAT.

use std::ffi::CString;

use crate::abi::common::DAT_NAMED_ATTR;
use crate::device::DeviceAttr;

/// The provider attribute that programs of OpenFabrics use as the size of their buffers.
const MTU_NAME: &str = "DAT_IB_TRANSPORT_MTU";

/// The provider attribute by which programs of OpenFabrics decide to use RDMA reads. Without it
/// dtest does none, and a peer whose provider has the attribute waits for them for ever.
const READ_NAME: &str = "DAT_IB_RDMA_READ";
/// Present where the device has the operations: the names of `dat_ib_extensions.h`.
const FETCH_AND_ADD_NAME: &str = "DAT_IB_FETCH_AND_ADD";
const COMPARE_AND_SWAP_NAME: &str = "DAT_IB_CMP_AND_SWAP";
const IMMEDIATE_NAME: &str = "DAT_IB_IMMED_DATA";
const DATAGRAM_NAME: &str = "DAT_IB_UD";
/// Present where there is any of these.
const EXTENSIONS_NAME: &str = "DAT_EXTENSION_INTERFACE";
/// Present where counters are on.
const COUNTERS_NAME: &str = "DAT_COUNTERS";

/// Named attributes with the strings they point to.
pub struct Attributes {
    /// The attributes, as C reads them.
    pub list: Vec<DAT_NAMED_ATTR>,
    _strings: Vec<CString>,
}

// SAFETY: the list points into strings that live as long as the attributes; both are only read.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

impl Attributes {
    /// Copies the names and values. Those with a NUL, which C could not read, are left out.
    pub fn new(pairs: &[(String, String)]) -> Self {
        let mut strings = Vec::new();
        let mut list = Vec::new();
        for (name, value) in pairs {
            let (Ok(name), Ok(value)) = (CString::new(&**name), CString::new(&**value)) else {
                continue;
            };
            list.push(DAT_NAMED_ATTR {
                name: name.as_ptr(),
                value: value.as_ptr(),
            });
            strings.extend([name, value]);
        }
        Attributes {
            list,
            _strings: strings,
        }
    }
}

/// Whether there are extended operations, for an IA with or without counters.
pub fn has_extensions(device: &DeviceAttr, counters: bool) -> bool {
    device.atomics || device.immediate || device.max_datagram > 0 || counters
}

/// The attributes of the provider, by which programs find out what there is besides DAT.
pub fn provider_attributes(device: &DeviceAttr, counters: bool) -> Vec<(String, String)> {
    let has = [
        (READ_NAME, true),
        (FETCH_AND_ADD_NAME, device.atomics),
        (COMPARE_AND_SWAP_NAME, device.atomics),
        (IMMEDIATE_NAME, device.immediate),
        (DATAGRAM_NAME, device.max_datagram > 0),
        (COUNTERS_NAME, counters),
        (EXTENSIONS_NAME, has_extensions(device, counters)),
    ];
    let has = has.into_iter().filter(|(_, has)| *has);
    let mtu = (MTU_NAME.to_owned(), device.mtu.to_string());
    let has = has.map(|(name, _)| (name.to_owned(), "TRUE".to_owned()));
    std::iter::once(mtu).chain(has).collect()
}
