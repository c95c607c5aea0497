//! The header that carries a wide connection qualifier in front of the private data.
//!
//! Only between ends of ours, and only for qualifiers that are not a port: everything else goes
//! without, as plain iWARP peers expect it.
//!
//! ```text
//! "libdatQ" 7 | answer 1 | qualifier 8, big-endian
//! ```

use crate::device::soft::cm::listener::is_wide;

/// Length of the header.
pub(crate) const LEN: usize = 16;
const MAGIC: &[u8; 7] = b"libdatQ";

/// What a frame with the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum QualHeader {
    /// Request: for this qualifier.
    Request = 0,
    /// Reply: from the owner of the qualifier, whether yes or no.
    Reply = 1,
    /// Reply: the qualifier has no owner here.
    NotMine = 2,
}

/// Puts the header in front of private data, if the qualifier is wide.
pub(crate) fn wrap(word: QualHeader, qual: u64, private_data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(LEN + private_data.len());
    if is_wide(qual) {
        out.extend_from_slice(MAGIC);
        out.push(word as u8);
        out.extend_from_slice(&qual.to_be_bytes());
    }
    out.extend_from_slice(private_data);
    out
}

/// The header of private data, if it has one, and the rest.
pub(crate) fn unwrap(private_data: &[u8]) -> Option<(QualHeader, u64, &[u8])> {
    let (magic, rest) = private_data.split_first_chunk::<7>()?;
    let (word, rest) = rest.split_first()?;
    let (qual, rest) = rest.split_first_chunk::<8>()?;
    let word = [QualHeader::Request, QualHeader::Reply, QualHeader::NotMine]
        .into_iter()
        .find(|w| *w as u8 == *word)?;
    let qual = u64::from_be_bytes(*qual);
    (magic == MAGIC && is_wide(qual)).then_some((word, qual, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_qualifiers_go_there_and_back() {
        let wide = 0x1_0000;
        let bytes = wrap(QualHeader::Reply, wide, b"data");
        assert_eq!(bytes.len(), LEN + 4);
        assert_eq!(
            unwrap(&bytes),
            Some((QualHeader::Reply, wide, &b"data"[..]))
        );
        assert_eq!(unwrap(&bytes[..LEN - 1]), None);
        let mut other = bytes.clone();
        other[7] = 3;
        assert_eq!(unwrap(&other), None);
        other = bytes;
        other[0] ^= 1;
        assert_eq!(unwrap(&other), None);
    }

    #[test]
    fn narrow_ones_go_without() {
        assert_eq!(wrap(QualHeader::Request, 0xffff, b"data"), b"data");
        // A header that nobody of ours would have written.
        let mut bytes = wrap(QualHeader::Request, 1 << 32, b"");
        bytes[8..].copy_from_slice(&7u64.to_be_bytes());
        assert_eq!(unwrap(&bytes), None);
    }
}
