//! What an end has in front of its private data in an exchange about datagrams, behind the header of the
//! qualifier if there is one:
//!
//! ```text
//! "libdatD" 7 | version 1 | queue pair 4 | LID 2 | length of the private data 2
//! ```
//!
//! All numbers are big-endian. A request does not carry the number of the asking queue pair otherwise, nor
//! the way back to it over InfiniBand; the LID is 0 over RoCE. rdma_cm pads private data with zeros. A
//! reject has the number 0.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic and version.
const MAGIC: [u8; 8] = *b"libdatD\x01";

/// See the [module](self).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    qp_number: U32,
    lid: U16,
    len: U16,
}

/// Where an end receives datagrams, but for its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::device::verbs) struct End {
    /// Number of the queue pair.
    pub qp_number: u32,
    /// The LID of its port.
    pub lid: u16,
}

impl End {
    /// The end that a reject names.
    pub const NONE: End = End {
        qp_number: 0,
        lid: 0,
    };

    /// Puts the end in front of private data.
    pub fn add_to(self, private_data: &[u8]) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            qp_number: self.qp_number.into(),
            lid: self.lid.into(),
            len: (private_data.len() as u16).into(),
        };
        [header.as_bytes(), private_data].concat()
    }

    /// The end in front of private data, and the private data behind it; `None` if there is none.
    pub fn split_from(private_data: &[u8]) -> Option<(End, &[u8])> {
        let (header, rest) = Header::read_from_prefix(private_data).ok()?;
        let end = End {
            qp_number: header.qp_number.get(),
            lid: header.lid.get(),
        };
        let private_data = rest.get(..header.len.get().into())?;
        (header.magic == MAGIC).then_some((end, private_data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_it_was_written() {
        let end = End {
            qp_number: 0x12_3456,
            lid: 0x789a,
        };
        let mut bytes = end.add_to(b"data");
        let exact = bytes.clone();
        assert_eq!(&bytes[..8], b"libdatD\x01");
        assert_eq!(bytes[8..16], [0, 0x12, 0x34, 0x56, 0x78, 0x9a, 0, 4]);
        // As rdma_cm pads it.
        bytes.resize(180, 0);
        assert_eq!(End::split_from(&bytes), Some((end, &b"data"[..])));
        assert_eq!(End::split_from(&exact[..19]), None);
        assert_eq!(End::split_from(&exact[..15]), None);
        let mut other = exact;
        other[7] = 2;
        assert_eq!(End::split_from(&other), None);
        assert_eq!(End::split_from(&[]), None);
    }
}
