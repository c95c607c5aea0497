//! Connection qualifiers of 64 bits, over transports that have ports of 16 bits.
//!
//! A qualifier up to 65535 is a port of the transport. A larger one belongs to a fixed sequence of
//! ports ([`candidates`]): the listener takes the first that is free, the connector tries one after
//! the other. Both ends then put a header in front of the private data that names the qualifier.
//! Ends of this library alone use the header; connections to a port go without, as peers of other
//! implementations expect.
//!
//! Qualifiers are no privilege in DAT, but ports below 1024 are. A listener that may not open such a port
//! has a larger qualifier in place of the consumer's ([`substitute`]), which connectors ask for too.
//!
//! ```text
//! "libdatQ" 7 | kind of header 1 | qualifier 8, big-endian
//! ```

use std::net::SocketAddr;

use crate::kernel;
use crate::kernel::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::io::Errno;

use super::DeviceError;
use super::netif;
use crate::descriptor::{self, OwnedFd};

/// Length of the header, in bytes.
pub(crate) const HEADER_LEN: usize = 16;
const MAGIC: &[u8; 7] = b"libdatQ";

/// Ports that a qualifier which is no port may belong to.
const CANDIDATES: u64 = 8;
/// The first of the ports that no service has by convention (RFC 6335).
const FIRST_DYNAMIC: u64 = 49152;

/// The first port that needs no privilege, unless the administrator has set another.
const FIRST_UNPRIVILEGED: u64 = 1024;
/// What is above the consumer's qualifier in a [`substitute`].
const SUBSTITUTES: u64 = u64::from_be_bytes(*b"libdat\0\0");

/// Which qualifier a connector asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sought {
    /// The qualifier that the consumer has named.
    pub qual: u64,
    /// The one that is asked for once it is known that nobody listens for `qual`.
    pub otherwise: Option<u64>,
}

impl From<u64> for Sought {
    /// That qualifier and no other.
    fn from(qual: u64) -> Sought {
        Sought {
            qual,
            otherwise: None,
        }
    }
}

/// The kind of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum QualHeader {
    /// A request for this qualifier.
    Request = 0,
    /// A reply of the listener of the qualifier, which accepts or rejects.
    Reply = 1,
    /// A reply of a port that has no listener for the qualifier.
    NotMine = 2,
}

/// Refuses qualifier 0, which names nothing.
///
/// # Errors
/// [`DeviceError::BadAddress`].
pub(crate) fn check(qual: u64) -> Result<(), DeviceError> {
    match qual {
        0 => Err(DeviceError::BadAddress),
        _ => Ok(()),
    }
}

/// Whether a qualifier is no port, so that requests and replies name it in a header.
pub(crate) fn needs_header(qual: u64) -> bool {
    u16::try_from(qual).is_err()
}

/// Puts the header in front of private data, if the qualifier needs one.
pub(crate) fn add_header(kind: QualHeader, qual: u64, private_data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + private_data.len());
    if needs_header(qual) {
        out.extend_from_slice(MAGIC);
        out.push(kind as u8);
        out.extend_from_slice(&qual.to_be_bytes());
    }
    out.extend_from_slice(private_data);
    out
}

/// The header of private data and the private data behind it; `None` if there is no header.
pub(crate) fn split_header(private_data: &[u8]) -> Option<(QualHeader, u64, &[u8])> {
    let (magic, rest) = private_data.split_first_chunk::<7>()?;
    let (kind, rest) = rest.split_first()?;
    let (qual, rest) = rest.split_first_chunk::<8>()?;
    let kind = [QualHeader::Request, QualHeader::Reply, QualHeader::NotMine]
        .into_iter()
        .find(|k| *k as u8 == *kind)?;
    let qual = u64::from_be_bytes(*qual);
    (magic == MAGIC && needs_header(qual)).then_some((kind, qual, rest))
}

/// The ports of a qualifier, in the order in which they are tried. Part of the protocol: both
/// ends must arrive at the same result.
pub(crate) fn candidates(qual: u64) -> impl DoubleEndedIterator<Item = u16> {
    let port = u16::try_from(qual).ok();
    let count = if port.is_some() { 1 } else { CANDIDATES };
    (0..count).map(move |i| {
        port.unwrap_or_else(|| {
            // The finalizer of splitmix64.
            let mut z = qual.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            (FIRST_DYNAMIC + z % (65536 - FIRST_DYNAMIC)) as u16
        })
    })
}

/// The qualifier of a listener that may not open the port of this one; `None` for a qualifier whose port
/// needs no privilege. Part of the protocol, as [`candidates`] are.
pub(crate) fn substitute(qual: u64) -> Option<u64> {
    (1..FIRST_UNPRIVILEGED)
        .contains(&qual)
        .then_some(SUBSTITUTES | qual)
}

/// The qualifier that the consumer has named, where a listener may have a [`substitute`].
pub(crate) fn named(qual: u64) -> u64 {
    let named = qual ^ SUBSTITUTES;
    if substitute(named) == Some(qual) {
        named
    } else {
        qual
    }
}

/// The ports at which a connector may find the listener of a qualifier, in the order in which they are
/// tried, each with the qualifier that is asked for there.
pub(crate) fn places(qual: u64) -> impl DoubleEndedIterator<Item = (u16, u64)> {
    let ports = |qual| candidates(qual).map(move |port| (port, qual));
    ports(qual).chain(substitute(qual).into_iter().flat_map(ports))
}

/// Takes a qualifier that is no port, or may be none, at an address or at all of them, as long as the result
/// exists. Two processes of a host must not both listen for it, although each could find a port: a
/// name in the abstract socket namespace, which is of the network namespace as ports are, goes to
/// one of them. Where such names do not exist the qualifier is not protected.
///
/// # Errors
/// [`DeviceError::QualInUse`], [`DeviceError::Resources`].
pub(crate) fn claim(
    qual: u64,
    address: Option<SocketAddr>,
) -> Result<Option<OwnedFd>, DeviceError> {
    let qual = substitute(qual).unwrap_or(qual);
    if !needs_header(qual) {
        return Ok(None);
    }
    let address = address.map_or("*".into(), netif::address_text);
    let name = format!("libdat/{qual:016x}@{address}");
    let Ok(name) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else {
        return Ok(None);
    };
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket =
        descriptor::open(|| kernel::net::socket_with(family, kind, SocketFlags::CLOEXEC, None))
            .map_err(|_| DeviceError::Resources)?;
    match kernel::net::bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Err(DeviceError::QualInUse),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::Forks;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let qual = 0x1_0000;
        let bytes = add_header(QualHeader::Reply, qual, b"data");
        assert_eq!(bytes.len(), HEADER_LEN + 4);
        let found = split_header(&bytes);
        assert_eq!(found, Some((QualHeader::Reply, qual, &b"data"[..])));
        assert_eq!(split_header(&bytes[..HEADER_LEN - 1]), None);
        let mut other = bytes.clone();
        other[7] = 3;
        assert_eq!(split_header(&other), None);
        other = bytes;
        other[0] ^= 1;
        assert_eq!(split_header(&other), None);
    }

    #[test]
    fn ports_go_without_a_header() {
        assert_eq!(add_header(QualHeader::Request, 0xffff, b"data"), b"data");
        // No end of this library writes the header for a port.
        let mut bytes = add_header(QualHeader::Request, 1 << 32, b"");
        bytes[8..].copy_from_slice(&7u64.to_be_bytes());
        assert_eq!(split_header(&bytes), None);
    }

    #[test]
    fn qualifier_0_names_nothing() {
        assert_eq!(check(0), Err(DeviceError::BadAddress));
        assert_eq!(check(1), Ok(()));
        assert_eq!(check(u64::MAX), Ok(()));
    }

    /// Peers of other versions try the same ports.
    #[test]
    fn the_ports_of_a_qualifier_never_change() {
        let ports = |qual| candidates(qual).collect::<Vec<_>>();
        assert_eq!(ports(4711), [4711]);
        assert_eq!(ports(0xffff), [0xffff]);
        assert_eq!(
            ports(0x1_0000),
            [53683, 62588, 49802, 50608, 54928, 58268, 53028, 54056]
        );
    }

    /// Peers of other versions ask for the same.
    #[test]
    fn what_needs_a_privilege_has_a_substitute() {
        assert_eq!(substitute(1), Some(0x6c69_6264_6174_0001));
        assert_eq!(substitute(1023), Some(0x6c69_6264_6174_03ff));
        for qual in [1, 80, 1023] {
            let other = substitute(qual).unwrap();
            assert_eq!((named(other), named(qual)), (qual, qual));
            let mut places = places(qual);
            assert_eq!(places.next(), Some((qual as u16, qual)));
            assert!(places.eq(candidates(other).map(|port| (port, other))));
        }
        for qual in [
            0,
            1024,
            0xffff,
            0x1_0000,
            1 << 35 | 80,
            SUBSTITUTES,
            u64::MAX,
        ] {
            assert_eq!((substitute(qual), named(qual)), (None, qual), "{qual:#x}");
            assert!(places(qual).eq(candidates(qual).map(|port| (port, qual))));
        }
        assert_eq!(named(SUBSTITUTES | 1024), SUBSTITUTES | 1024);
    }

    #[test]
    fn one_listener_has_a_claim() {
        // A child of another test has a copy of the claim for a moment.
        let _forks = Forks::of_this_test();
        let qual = u64::from(std::process::id()) << 32 | 0x9a7e_0001;
        let address = Some("127.0.0.1:0".parse().unwrap());
        let first = claim(qual, address).unwrap();
        assert!(first.is_some());
        assert_eq!(claim(qual, address).err(), Some(DeviceError::QualInUse));
        assert!(claim(qual, None).is_ok());
        drop(first);
        assert!(claim(qual, address).is_ok());
        assert!(matches!(claim(4711, address), Ok(None)));
    }
}
