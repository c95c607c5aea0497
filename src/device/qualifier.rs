//! Connection qualifiers, for both devices.
//!
//! A qualifier up to 65535 is a port. A wide one, which is any larger number, is spread over a
//! fixed sequence of ports ([`candidates`]): the listener takes the first that is free, and the
//! connecting end tries them one after the other. A header in front of the private data names the
//! wide qualifier ([`wrap`]). Frames for a port have no header, as plain iWARP peers expect it.
//!
//! ```text
//! "libdatQ" 7 | kind 1 | qualifier 8, big-endian
//! ```

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::device::DeviceError;

/// Number of ports that a wide qualifier is spread over.
const CANDIDATES: u64 = 8;
/// The first port that a wide qualifier may be spread over; the last is 65535.
const FIRST_DYNAMIC: u64 = 49152;

/// Length of the header in bytes.
pub(crate) const LEN: usize = 16;
const MAGIC: &[u8; 7] = b"libdatQ";

/// Whether a qualifier is more than a port.
pub(crate) fn is_wide(qual: u64) -> bool {
    u16::try_from(qual).is_err()
}

/// Checks the address and the qualifier that a consumer wants to connect to.
///
/// # Errors
/// [`DeviceError::BadAddress`] if they can name no peer: qualifier 0 means none.
pub(crate) fn check_destination(ip: IpAddr, qual: u64) -> Result<(), DeviceError> {
    match qual == 0 || ip.is_multicast() || ip.is_unspecified() {
        true => Err(DeviceError::BadAddress),
        false => Ok(()),
    }
}

/// The ports of a qualifier, in the order in which they are tried. The sequence is part of the
/// protocol: both ends must compute the same ports.
pub(crate) fn candidates(qual: u64) -> impl Iterator<Item = u16> {
    let narrow = u16::try_from(qual).ok();
    let count = if narrow.is_some() { 1 } else { CANDIDATES };
    (0..count).map(move |i| {
        narrow.unwrap_or_else(|| {
            // The finalizer of splitmix64.
            let mut z = qual.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            (FIRST_DYNAMIC + z % (65536 - FIRST_DYNAMIC)) as u16
        })
    })
}

/// Claims a wide qualifier on an address, or on all if `None`, for this process: two processes of
/// a host must not both have the qualifier, although each could find a free port for it. The claim
/// is a name in the abstract socket namespace, which reaches as far as the port numbers do, and
/// lasts until the socket is closed. Where such names do not exist the qualifier is not protected.
///
/// # Errors
/// [`DeviceError::QualInUse`] if another process has the claim, [`DeviceError::Resources`].
pub(crate) fn claim(qual: u64, address: Option<IpAddr>) -> Result<Option<OwnedFd>, DeviceError> {
    if !is_wide(qual) {
        return Ok(None);
    }
    let address = address.map_or("*".into(), |a| a.to_string());
    let name = format!("libdat/{qual:016x}@{address}");
    let Ok(name) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else {
        return Ok(None);
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|_| DeviceError::Resources)?;
    match rustix::net::bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Err(DeviceError::QualInUse),
        Err(_) => Ok(None),
    }
}

/// Kind of a frame with the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum QualHeader {
    /// A request for the qualifier.
    Request = 0,
    /// A reply, positive or negative, of the process that listens for the qualifier.
    Reply = 1,
    /// A negative reply of a process that does not listen for the qualifier.
    NotMine = 2,
}

/// Puts the header in front of private data, if the qualifier is wide.
pub(crate) fn wrap(kind: QualHeader, qual: u64, private_data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(LEN + private_data.len());
    if is_wide(qual) {
        out.extend_from_slice(MAGIC);
        out.push(kind as u8);
        out.extend_from_slice(&qual.to_be_bytes());
    }
    out.extend_from_slice(private_data);
    out
}

/// The kind, the qualifier and the rest of private data that begins with the header; `None` if it
/// does not.
pub(crate) fn unwrap(private_data: &[u8]) -> Option<(QualHeader, u64, &[u8])> {
    let (magic, rest) = private_data.split_first_chunk::<7>()?;
    let (kind, rest) = rest.split_first()?;
    let (qual, rest) = rest.split_first_chunk::<8>()?;
    let kind = [QualHeader::Request, QualHeader::Reply, QualHeader::NotMine]
        .into_iter()
        .find(|k| *k as u8 == *kind)?;
    let qual = u64::from_be_bytes(*qual);
    (magic == MAGIC && is_wide(qual)).then_some((kind, qual, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_wide_qualifiers_are_read_back() {
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
    fn ports_have_no_header() {
        assert_eq!(wrap(QualHeader::Request, 0xffff, b"data"), b"data");
        // A header with a qualifier that is a port, which this library never writes.
        let mut bytes = wrap(QualHeader::Request, 1 << 32, b"");
        bytes[8..].copy_from_slice(&7u64.to_be_bytes());
        assert_eq!(unwrap(&bytes), None);
    }

    #[test]
    fn destinations_that_can_name_no_peer() {
        let check = |ip: &str, qual| check_destination(ip.parse().unwrap(), qual);
        assert_eq!(check("127.0.0.1", 1), Ok(()));
        assert_eq!(check("127.0.0.1", u64::MAX), Ok(()));
        for (ip, qual) in [
            ("127.0.0.1", 0),
            ("0.0.0.0", 1),
            ("::", 1),
            ("224.0.0.1", 1),
        ] {
            assert_eq!(check(ip, qual), Err(DeviceError::BadAddress), "{ip} {qual}");
        }
    }

    #[test]
    fn the_sequence_of_ports_is_part_of_the_protocol() {
        assert_eq!(candidates(4711).collect::<Vec<_>>(), [4711]);
        let wide: Vec<u16> = candidates(0x1_0000).collect();
        assert_eq!(
            wide,
            [53683, 62588, 49802, 50608, 54928, 58268, 53028, 54056]
        );
    }
}
