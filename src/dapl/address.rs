//! Socket addresses as C has them.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::abi::common::DAT_IA_ADDRESS_PTR;
use crate::error::{Error, Kind, Result, Subtype};

/// A socket address in C's layout, at an address that is constant for the life of the value.
pub struct CAddress(Box<libc::sockaddr_storage>);

impl CAddress {
    /// The address in the layout of C, port included.
    pub fn new(address: SocketAddr) -> CAddress {
        // SAFETY: all zero is a valid `sockaddr_storage`.
        let mut storage: Box<libc::sockaddr_storage> = Box::new(unsafe { std::mem::zeroed() });
        match address {
            SocketAddr::V4(v4) => {
                let sin = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
                unsafe {
                    std::ptr::from_mut(&mut *storage)
                        .cast::<libc::sockaddr_in>()
                        .write(sin)
                };
            }
            SocketAddr::V6(v6) => {
                let sin6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe {
                    std::ptr::from_mut(&mut *storage)
                        .cast::<libc::sockaddr_in6>()
                        .write(sin6);
                }
            }
        }
        CAddress(storage)
    }

    /// Pointer for the consumer; valid as long as `self`.
    pub fn as_ptr(&self) -> DAT_IA_ADDRESS_PTR {
        std::ptr::from_ref(&*self.0).cast_mut().cast()
    }
}

/// The address of a peer that there is not: of no family, all zero. Existing libraries give no NULL in its place, and
/// programs read the address without asking for the state.
pub fn no_address() -> DAT_IA_ADDRESS_PTR {
    struct Zero(MaybeUninit<libc::sockaddr_storage>);
    // SAFETY: memory that is never written.
    unsafe impl Sync for Zero {}
    static NONE: Zero = Zero(MaybeUninit::zeroed());
    NONE.0.as_ptr().cast_mut().cast()
}

/// Reads the address of a remote IA. The port is ignored, because consumers leave it unset.
///
/// # Errors
/// As [`read_socket_address`].
///
/// # Safety
/// As [`read_socket_address`].
pub unsafe fn read_address(address: DAT_IA_ADDRESS_PTR) -> Result<SocketAddr> {
    // SAFETY: the caller's promise.
    let mut address = unsafe { read_socket_address(address) }?;
    address.set_port(0);
    Ok(address)
}

/// Reads an address, with its port.
///
/// # Errors
/// `DAT_INVALID_ADDRESS` for another family than IPv4 and IPv6.
///
/// # Safety
/// `address` points to a socket address of the size that its family has.
pub unsafe fn read_socket_address(address: DAT_IA_ADDRESS_PTR) -> Result<SocketAddr> {
    // SAFETY: the caller's promise; only the family is read yet. C does not promise alignment.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type.
            let sin = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(sin.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this type.
            let sin6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let port = u16::from_be(sin6.sin6_port);
            Ok(std::net::SocketAddrV6::new(ip, port, 0, sin6.sin6_scope_id).into())
        }
        _ => Err(Error::new(
            Kind::InvalidAddress,
            Subtype::AddressUnsupported,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_there_and_back() {
        for text in ["10.1.2.3:0", "[fe80::1%3]:0", "[::1]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::new(address);
            // SAFETY: made by `CAddress`.
            assert_eq!(unsafe { read_address(c.as_ptr()) }, Ok(address));
        }
        // A nonzero port is ignored.
        let c = CAddress::new("10.1.2.3:99".parse().unwrap());
        // SAFETY: made by `CAddress`.
        let read = unsafe { read_address(c.as_ptr()) }.unwrap();
        assert_eq!(read, "10.1.2.3:0".parse().unwrap());
        for text in ["10.1.2.3:99", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::new(address);
            // SAFETY: made by `CAddress`.
            assert_eq!(unsafe { read_socket_address(c.as_ptr()) }, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        let mut c = CAddress::new("10.1.2.3:0".parse().unwrap());
        c.0.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: made by `CAddress`.
        let error = unsafe { read_address(c.as_ptr()) }.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidAddress);
    }
}
