//! Socket addresses as the libraries take them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::from_mut;

/// A socket address of any family.
pub(super) struct Storage(libc::sockaddr_storage);

impl Storage {
    /// The pointer that the libraries take.
    pub fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        from_mut(&mut self.0).cast()
    }
}

/// The address in the layout of C.
pub(super) fn storage(address: SocketAddr) -> Storage {
    // SAFETY: all zero is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = from_mut(&mut storage);
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: all zero is valid.
            let mut sin: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            sin.sin_family = libc::AF_INET as libc::sa_family_t;
            sin.sin_port = v4.port().to_be();
            sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: the storage is large and aligned enough for every address.
            unsafe { place.cast::<libc::sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all zero is valid.
            let mut sin6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            sin6.sin6_port = v6.port().to_be();
            sin6.sin6_flowinfo = v6.flowinfo();
            sin6.sin6_addr.s6_addr = v6.ip().octets();
            sin6.sin6_scope_id = v6.scope_id();
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(sin6) };
        }
    }
    Storage(storage)
}

/// The address, if it is IPv4 or IPv6.
pub(super) fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and the storage is large and aligned enough.
            let sin = unsafe { &*place.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin6 = unsafe { &*place.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let port = u16::from_be(sin6.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["10.1.2.3:4000", "[fe80::1%3]:5", "[::1]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(read(&storage(address).0), Some(address));
        }
        // SAFETY: all zero is valid.
        assert_eq!(read(&unsafe { std::mem::zeroed() }), None);
    }
}
