//! What two ends of this library send each other for datagrams.
//!
//! A queue pair is resolved by a request and a reply over TCP, in MPA frames as those of a connection
//! (RFC 5044 section 7.1). In front of their private data they have an [`End`]:
//!
//! ```text
//! "libdatU" 7 | 0 1 | queue pair 4 | UDP port 2 | flags 2 | key 8
//! ```
//!
//! A reply over a local socket has the flag 1 if the memory that was shared for the exchange is to carry
//! datagrams. The other flags are 0 and not read.
//!
//! A datagram has a header, and the whole is the payload of UDP:
//!
//! ```text
//! "dUDP" 4 | flags 1 | 0 3 | receiving queue pair 4 | sending queue pair 4 | key 8 | CRC32C 4
//! ```
//!
//! In a ring in shared memory there is a shorter header, since nothing there is lost or changed on the way,
//! and no stranger writes to it; the flag is one of the cell:
//!
//! ```text
//! receiving queue pair 4 | sending queue pair 4
//! ```
//!
//! All numbers are big-endian. The key is a random number of the port of the receiver, which only those
//! know that have resolved one of its queue pairs. The checksum is over the rest of the header and the
//! payload.

use std::net::{IpAddr, Ipv6Addr};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::DATAGRAM_HEADER_LEN;
use crate::device::soft::iwarp::crc::Crc;

/// Bytes of payload of one datagram: the largest packet that InfiniBand has, so that programs fit which
/// were written for it.
pub const MAX_DATAGRAM: usize = 4096;
/// Bytes of the header of a datagram.
pub const HEADER_LEN: usize = size_of::<Header>();
/// Bytes of the header of a datagram in a ring.
pub const RING_HEADER_LEN: usize = size_of::<RingHeader>();
/// Bytes of an [`End`] in private data.
pub const END_LEN: usize = size_of::<EndHeader>();
/// Bytes of the header that a receive has in front of a datagram.
pub const ROUTE_LEN: usize = DATAGRAM_HEADER_LEN as usize;

const END_MAGIC: [u8; 8] = *b"libdatU\0";
const MAGIC: [u8; 4] = *b"dUDP";
/// The flag of a datagram whose receive is a solicited completion.
const SOLICITED: u8 = 1;
/// The flag of a reply whose shared memory is to carry datagrams.
const SHARES: u16 = 1;
/// Bytes of the checksum.
const CRC_LEN: usize = 4;

/// See the [module](self).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EndHeader {
    magic: [u8; 8],
    qp_number: U32,
    port: U16,
    flags: U16,
    key: U64,
}

/// See the [module](self).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    flags: u8,
    reserved: [u8; 3],
    receiver: U32,
    sender: U32,
    key: U64,
    crc: [u8; CRC_LEN],
}

/// See the [module](self).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RingHeader {
    receiver: U32,
    sender: U32,
}

/// Where a queue pair receives datagrams, but for the address of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Number of the queue pair.
    pub qp_number: u32,
    /// The UDP port.
    pub port: u16,
    /// The key of the port.
    pub key: u64,
    /// Whether the memory that was shared for the exchange is to carry datagrams.
    pub shares: bool,
}

impl End {
    /// Puts the end in front of private data.
    pub fn add_to(self, private_data: &[u8]) -> Vec<u8> {
        let header = EndHeader {
            magic: END_MAGIC,
            qp_number: self.qp_number.into(),
            port: self.port.into(),
            flags: if self.shares { SHARES } else { 0 }.into(),
            key: self.key.into(),
        };
        [header.as_bytes(), private_data].concat()
    }

    /// The end in front of private data, and the private data behind it; `None` if there is none.
    pub fn split_from(private_data: &[u8]) -> Option<(End, &[u8])> {
        let (header, rest) = EndHeader::read_from_prefix(private_data).ok()?;
        let end = End {
            qp_number: header.qp_number.get(),
            port: header.port.get(),
            key: header.key.get(),
            shares: header.flags.get() & SHARES != 0,
        };
        (header.magic == END_MAGIC && end.port != 0).then_some((end, rest))
    }
}

/// The header of a datagram, but for what is the same in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Number of the queue pair that is to receive it.
    pub receiver: u32,
    /// Number of the queue pair that has sent it.
    pub sender: u32,
    /// The key of the port that it is sent to.
    pub key: u64,
    /// Whether the receive is a solicited completion.
    pub solicited: bool,
}

impl Route {
    /// The header of a datagram with this payload.
    pub fn header(&self, payload: &[u8]) -> [u8; HEADER_LEN] {
        let mut header = Header {
            magic: MAGIC,
            flags: if self.solicited { SOLICITED } else { 0 },
            reserved: [0; 3],
            receiver: self.receiver.into(),
            sender: self.sender.into(),
            key: self.key.into(),
            crc: [0; CRC_LEN],
        };
        header.crc = checksum(&header, payload);
        zerocopy::transmute!(header)
    }

    /// The header of a datagram in a ring.
    pub fn ring_header(&self) -> [u8; RING_HEADER_LEN] {
        let header = RingHeader {
            receiver: self.receiver.into(),
            sender: self.sender.into(),
        };
        zerocopy::transmute!(header)
    }

    /// The header of a message from a ring, to the port with this key; `None` if the message is too short
    /// for one.
    pub fn from_ring(message: &[u8], key: u64, solicited: bool) -> Option<Route> {
        let (header, _) = RingHeader::read_from_prefix(message).ok()?;
        Some(Route {
            receiver: header.receiver.get(),
            sender: header.sender.get(),
            key,
            solicited,
        })
    }

    /// The header of what a port has received, and the number of bytes of its payload. `None` if that is
    /// no datagram, or has changed on the way.
    pub fn parse(bytes: &[u8]) -> Option<(Route, usize)> {
        let (header, payload) = Header::read_from_prefix(bytes).ok()?;
        if header.magic != MAGIC
            || payload.len() > MAX_DATAGRAM
            || header.crc != checksum(&header, payload)
        {
            return None;
        }
        let route = Route {
            receiver: header.receiver.get(),
            sender: header.sender.get(),
            key: header.key.get(),
            solicited: header.flags & SOLICITED != 0,
        };
        Some((route, payload.len()))
    }
}

/// The checksum of a datagram: of its header up to the checksum, and its payload.
fn checksum(header: &Header, payload: &[u8]) -> [u8; CRC_LEN] {
    let mut crc = Crc::new();
    let bytes = header.as_bytes();
    crc.update(&bytes[..HEADER_LEN - CRC_LEN]);
    crc.update(payload);
    crc.finish()
}

/// The header that a receive has in front of a datagram of `len` bytes: the global route header of
/// InfiniBand (InfiniBand architecture, 8.3), with the addresses as RoCE has them.
pub fn route_header(len: usize, from: IpAddr, to: IpAddr) -> [u8; ROUTE_LEN] {
    /// Version 6, as in IPv6.
    const VERSION: u8 = 6 << 4;
    /// The transport header of InfiniBand follows.
    const NEXT_HEADER: u8 = 0x1b;
    const HOP_LIMIT: u8 = 64;
    let gid = |ip: IpAddr| -> Ipv6Addr {
        match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        }
    };
    let mut header = [0; ROUTE_LEN];
    header[0] = VERSION;
    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    header[6] = NEXT_HEADER;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&gid(from).octets());
    header[24..40].copy_from_slice(&gid(to).octets());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route {
        receiver: 0x12_3456,
        sender: 7,
        key: 0x0123_4567_89ab_cdef,
        solicited: true,
    };

    #[test]
    fn an_end_is_read_as_it_was_written() {
        let end = End {
            qp_number: 5,
            port: 4711,
            key: u64::MAX - 1,
            shares: false,
        };
        let shares = End {
            shares: true,
            ..end
        };
        let bytes = shares.add_to(b"");
        assert_eq!(End::split_from(&bytes), Some((shares, &b""[..])));
        let bytes = end.add_to(b"data");
        assert_eq!(bytes.len(), END_LEN + 4);
        assert_eq!(End::split_from(&bytes), Some((end, &b"data"[..])));
        assert_eq!(End::split_from(&bytes[..END_LEN - 1]), None);
        assert_eq!(End::split_from(b"private data of a connection"), None);
        let mut without_port = bytes;
        without_port[12..14].fill(0);
        assert_eq!(End::split_from(&without_port), None);
    }

    #[test]
    fn a_datagram_that_has_changed_is_none() {
        for len in [0, 1, 40, MAX_DATAGRAM] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let bytes = [&ROUTE.header(&payload)[..], &payload].concat();
            assert_eq!(Route::parse(&bytes), Some((ROUTE, len)));
            assert_eq!(Route::parse(&bytes[..bytes.len() - 1]), None);
            for at in [0, 5, 9, 17, HEADER_LEN - 1, bytes.len() - 1] {
                let mut other = bytes.clone();
                other[at] ^= 0x10;
                assert_eq!(Route::parse(&other), None, "{len} {at}");
            }
        }
        let long = [0; MAX_DATAGRAM + 1];
        assert_eq!(
            Route::parse(&[&ROUTE.header(&long)[..], &long].concat()),
            None
        );
    }

    #[test]
    fn a_message_of_a_ring_has_a_whole_header() {
        let bytes = ROUTE.ring_header();
        let parsed = Route::from_ring(&bytes, ROUTE.key, true);
        assert_eq!(parsed, Some(ROUTE));
        let len = RING_HEADER_LEN - 1;
        assert_eq!(Route::from_ring(&bytes[..len], ROUTE.key, true), None);
    }

    #[test]
    fn the_header_in_a_receive_names_the_sender() {
        let from = "10.1.2.3".parse().unwrap();
        let to = "fe80::1".parse().unwrap();
        let header = route_header(0x1234, from, to);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0x12, 0x34, 0x1b, 64]);
        assert_eq!(header[8..18], [0; 10]);
        assert_eq!(header[18..24], [0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(header[24..26], [0xfe, 0x80]);
        assert_eq!(header[39], 1);
    }
}
