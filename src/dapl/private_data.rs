//! Private data of a peer, as the consumer gets it in events and by `dat_cr_query`.

use crate::abi::common::DAT_PVOID;

/// Bytes that may be read from where private data begins, however few the peer has given. The buffers of OpenFabrics'
/// library have this length, and programs read their own structure from there without asking for the size.
const READABLE: usize = 256;

/// See the [module](self). What the peer has not given is zero.
pub(super) struct PrivateData {
    bytes: Box<[u8]>,
    /// Number of bytes that the peer has given.
    len: usize,
}

impl PrivateData {
    /// What the peer has given.
    pub fn new(given: &[u8]) -> PrivateData {
        let mut bytes = Vec::with_capacity(given.len().max(READABLE));
        bytes.extend_from_slice(given);
        bytes.resize(given.len().max(READABLE), 0);
        let len = given.len();
        PrivateData {
            bytes: bytes.into(),
            len,
        }
    }

    /// Where those begin that were given up before the consumer has looked: as many bytes may be read, which are zero.
    pub fn gone() -> DAT_PVOID {
        static GONE: [u8; READABLE] = [0; READABLE];
        GONE.as_ptr().cast_mut().cast()
    }

    /// Number of bytes that the peer has given.
    pub fn len(&self) -> u32 {
        self.len as u32
    }

    /// Where they begin, for the consumer. Never NULL.
    pub fn address(&self) -> DAT_PVOID {
        self.bytes.as_ptr().cast_mut().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_has_not_given_is_zero() {
        for len in [0, 1, READABLE - 1, READABLE, 4 * READABLE] {
            let data = PrivateData::new(&vec![7; len]);
            assert_eq!(data.len() as usize, len);
            assert!(data.bytes.len() >= READABLE);
            assert!(data.bytes[..len].iter().all(|byte| *byte == 7));
            assert!(data.bytes[len..].iter().all(|byte| *byte == 0));
        }
    }
}
