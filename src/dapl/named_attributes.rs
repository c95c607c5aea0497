//! The named attributes of an IA: those of its transport, and those by which programs find out what the
//! device is and what the provider has besides DAT.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::common::DAT_NAMED_ATTR;
use crate::device::{DeviceAttr, DeviceIdentity};

/// The provider attribute that changes while an IA is open: see [`Attributes::set`].
pub(super) const PORT_STATUS_NAME: &str = "DAT_IB_PORT_STATUS";
/// Present where the device has datagrams: the name of `dat_ib_extensions.h`.
const DATAGRAM_NAME: &str = "DAT_IB_UD";
/// Present where counters are on.
const COUNTERS_NAME: &str = "DAT_COUNTERS";

/// Named attributes with the strings they point to.
pub struct Attributes {
    /// The attributes, as C reads them.
    list: Box<[UnsafeCell<DAT_NAMED_ATTR>]>,
    _strings: Vec<CString>,
}

// SAFETY: the list points into strings that live as long as the attributes or are static. Only values
// are written, atomically.
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
            list.push(UnsafeCell::new(DAT_NAMED_ATTR {
                name: name.as_ptr(),
                value: value.as_ptr(),
            }));
            strings.extend([name, value]);
        }
        Attributes {
            list: list.into(),
            _strings: strings,
        }
    }

    /// The attributes for C; valid as long as `self`.
    pub fn list(&self) -> *const [DAT_NAMED_ATTR] {
        &raw const *self.list as *const [DAT_NAMED_ATTR]
    }

    /// Gives the attribute of a name another value. Programs that have a pointer to the attributes may read them
    /// meanwhile.
    pub fn set(&self, name: &str, value: &'static CStr) {
        for attr in &self.list {
            // SAFETY: names are strings that live as long as `self`, and are never written.
            let is_sought =
                unsafe { CStr::from_ptr((*attr.get()).name) }.to_bytes() == name.as_bytes();
            if is_sought {
                // SAFETY: aligned, and valid as long as `self`; this library does not access the value otherwise.
                let place = unsafe { AtomicPtr::from_ptr((&raw mut (*attr.get()).value).cast()) };
                place.store(value.as_ptr().cast_mut(), Ordering::Release);
            }
        }
    }
}

/// Whether there are extended operations, for an IA with or without counters.
pub fn has_extensions(device: &DeviceAttr, counters: bool) -> bool {
    device.atomics || device.immediate || device.max_datagram > 0 || counters
}

/// The attributes of the provider. Those of existing libraries are there always and in their order, since programs may
/// count on both; what the provider does not have is `FALSE`. What few of those libraries have is behind them, where it
/// is there.
pub fn provider_attributes(device: &DeviceAttr, counters: bool) -> Vec<(String, String)> {
    let DeviceIdentity {
        connection_manager,
        device: device_name,
        node_guid,
        gid,
        port,
    } = &device.identity;
    let has = |has| if has { "TRUE" } else { "FALSE" }.to_owned();
    let mut all = vec![
        ("DAT_IB_PROVIDER_NAME", (*connection_manager).to_owned()),
        ("DAT_IB_DEVICE_NAME", device_name.clone()),
        // Not by way of another processor.
        ("DAT_IB_CONNECTIVITY_MODE", "DIRECT".to_owned()),
        // Without it dtest does no RDMA reads, and a peer whose provider has it waits for them for ever.
        ("DAT_IB_RDMA_READ", has(true)),
        ("DAT_IB_NODE_GUID", in_groups(&node_guid.to_be_bytes())),
        ("DAT_IB_GID", in_groups(gid)),
        // Programs of OpenFabrics take it as the size of their buffers.
        ("DAT_IB_TRANSPORT_MTU", device.mtu.to_string()),
        // Until the first query.
        (PORT_STATUS_NAME, "UNKNOWN".to_owned()),
        ("DAT_IB_PORT_NUMBER", port.to_string()),
        (
            "DAT_EXTENSION_INTERFACE",
            has(has_extensions(device, counters)),
        ),
        // The names of `dat_ib_extensions.h`.
        ("DAT_IB_FETCH_AND_ADD", has(device.atomics)),
        ("DAT_IB_CMP_AND_SWAP", has(device.atomics)),
        ("DAT_IB_IMMED_DATA", has(device.immediate)),
    ];
    if device.max_datagram > 0 {
        all.push((DATAGRAM_NAME, has(true)));
    }
    if counters {
        all.push((COUNTERS_NAME, has(true)));
    }
    let pairs = all.into_iter();
    pairs
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Octets as groups of four hexadecimal digits: `fe80:0000:...`.
fn in_groups(octets: &[u8]) -> String {
    let groups = octets.chunks(2);
    let groups = groups.map(|pair| pair.iter().map(|octet| format!("{octet:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that C reads.
    fn value(attributes: &Attributes, index: usize) -> String {
        let list = attributes.list().cast::<DAT_NAMED_ATTR>();
        // SAFETY: the tests ask for attributes that there are.
        let value = unsafe { CStr::from_ptr((*list.add(index)).value) };
        value.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_value_can_change() {
        let pairs = [("a", "1"), ("b", "2"), ("c\0", "3")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let attributes = Attributes::new(&pairs);
        assert_eq!(attributes.list().len(), 2);
        attributes.set("b", c"4");
        attributes.set("c", c"5");
        assert_eq!([0, 1].map(|i| value(&attributes, i)), ["1", "4"]);
    }

    #[test]
    fn octets_are_in_groups() {
        assert_eq!(in_groups(&[0xfe, 0x80, 0, 1]), "fe80:0001");
    }
}
