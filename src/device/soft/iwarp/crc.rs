//! The running CRC32C of an FPDU (RFC 5044 section 4.4).

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C over the slices of one FPDU in order: header, payload, padding.
///
/// Four bytes, free to copy: the state can be kept in a receive context between reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crc(u32);

impl Crc {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Adds `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        // "ISCSI" is the catalogue's name of the Castagnoli polynomial. A digest carries its
        // tables along (300 bytes), so only the state is kept here, and the first slice, often
        // the only one, goes without a digest.
        self.0 = if self.0 == u32::MAX {
            !crc_fast::crc32_iscsi(bytes)
        } else {
            let state = u64::from(self.0);
            let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
            digest.update(bytes);
            digest.get_state() as u32
        };
    }

    /// The CRC field as it goes on the wire.
    ///
    /// RFC 5044 takes over the bit order of iSCSI, which makes the bytes of the field those
    /// of the usual CRC32C value from the least significant one on; siw does the same.
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(slices: &[&[u8]]) -> u32 {
        let mut crc = Crc::new();
        slices.iter().for_each(|slice| crc.update(slice));
        u32::from_le_bytes(crc.finish())
    }

    #[test]
    fn check_value() {
        assert_eq!(crc(&[b"123456789"]), 0xe306_9283);
    }

    /// RFC 3720 appendix B.4, the bytes in the order in which they are sent.
    #[test]
    fn iscsi_examples() {
        let ascending: [u8; 32] = std::array::from_fn(|i| i as u8);
        for (input, sent) in [
            ([0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            ([0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (ascending, [0x4e, 0x79, 0xdd, 0x46]),
        ] {
            let mut crc = Crc::new();
            crc.update(&input);
            assert_eq!(crc.finish(), sent);
        }
    }

    #[test]
    fn slices_make_no_difference() {
        let data: Vec<u8> = (0..1500u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let whole = crc(&[&data]);
        for cut in [0, 1, 3, 15, 16, 17, 127, 128, 129, 1024, 1499, 1500] {
            let (a, b) = data.split_at(cut);
            assert_eq!(crc(&[a, b]), whole, "cut at {cut}");
            assert_eq!(crc(&[a, &[], b]), whole, "cut at {cut}");
        }
    }
}
