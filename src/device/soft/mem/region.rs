//! Memory regions.

use super::export::exporter;
use super::key_entry::{MappedRange, Origin};
use super::key_table::{Opening, Region};
use super::probe::probe;
use crate::device::soft::params::Memory;
use crate::device::{Access, Addressing, DeviceError, MemoryRegion};
use crate::guarded;

/// Bytes of one region at most: all of user space.
pub(crate) const MAX_MR_SIZE: u64 = match size_of::<usize>() {
    4 => 3 << 30,
    _ => 1 << 47,
};

/// A registered region.
pub struct Mr {
    /// The entry in the key table.
    region: Region,
    /// Whether peers have any access.
    remote: bool,
    /// Address of the first byte in memory.
    addr: u64,
    /// Number of bytes.
    len: u64,
    /// What the addresses are by which segments and peers name the bytes.
    addressing: Addressing,
}

impl Mr {
    /// Registers memory. `memory` is for regions that peers have any access to.
    pub(crate) fn new(
        pd: u32,
        addr: u64,
        len: u64,
        access: Access,
        addressing: Addressing,
        memory: Memory,
    ) -> Result<Mr, DeviceError> {
        if len > MAX_MR_SIZE {
            return Err(DeviceError::Limit);
        }
        if addr.checked_add(len).is_none() {
            return Err(DeviceError::BadMemory);
        }
        probe(addr, len, access)?;
        guarded::install_handlers();
        let remote = access.intersects(Access::REMOTE);
        let mut register = |mapped| {
            Region::register(&Opening {
                pd,
                addr,
                len,
                origin: match addressing {
                    Addressing::Virtual => Origin::Memory,
                    Addressing::ZeroBased => Origin::Range,
                },
                access,
                promotable: remote && memory == Memory::Shared,
                region: None,
                mapped,
            })
        };
        let region = if remote && memory == Memory::Eager {
            exporter().share(addr, len, &mut register)
        } else {
            let region = register(MappedRange::default());
            exporter().wait_for_moves();
            region
        };
        Ok(Mr {
            region: region.ok_or(DeviceError::Resources)?,
            remote,
            addr,
            len,
            addressing,
        })
    }

    /// The entry in the key table, to bind a window to.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// What the addresses of its bytes are.
    pub(super) fn addressing(&self) -> Addressing {
        self.addressing
    }

    /// The address in memory of the byte at an address of the region; `None` if it is above all addresses.
    pub(super) fn in_memory(&self, addr: u64) -> Option<u64> {
        match self.addressing {
            Addressing::Virtual => Some(addr),
            Addressing::ZeroBased => self.addr.checked_add(addr),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.region.deregister();
        exporter().unshare(self.addr, self.len);
    }
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> u32 {
        self.region.key
    }

    fn rkey(&self) -> u32 {
        if self.remote { self.region.key } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::mem::key_table::{Fault, check, invalidate, resolve};
    use crate::device::soft::mem::scope::Scope;
    use crate::handle::pin;
    use crate::test_pages::{MapFlags, ProtFlags, TestPages};

    const ALL: Access = Access::all();
    const VIRTUAL: Addressing = Addressing::Virtual;

    fn region(buf: &mut [u8], pd: u32, access: Access) -> Result<Mr, DeviceError> {
        let addr = buf.as_mut_ptr() as u64;
        Mr::new(pd, addr, buf.len() as u64, access, VIRTUAL, Memory::Private)
    }

    #[test]
    fn a_key_opens_what_it_was_made_for() {
        let mut buf = vec![0u8; 100];
        let addr = buf.as_ptr() as u64;
        let mr = region(&mut buf, 7, Access::LOCAL_READ | Access::REMOTE_READ).unwrap();
        let key = mr.lkey();
        assert_ne!(key, 0);
        assert_eq!(mr.rkey(), key);
        let g = pin::pin();
        let read = Access::REMOTE_READ;
        assert_eq!(check(key, Scope::of_pd(7), addr, 100, read, &g), Ok(()));
        assert_eq!(check(key, Scope::of_pd(7), addr + 99, 1, read, &g), Ok(()));
        assert_eq!(
            check(key, Scope::of_pd(8), addr, 1, read, &g),
            Err(Fault::Domain)
        );
        for (a, n) in [(addr - 1, 1), (addr, 101), (addr + 100, 1), (u64::MAX, 2)] {
            assert_eq!(
                check(key, Scope::of_pd(7), a, n, read, &g),
                Err(Fault::Bounds)
            );
        }
        let write = Access::REMOTE_WRITE;
        assert_eq!(
            check(key, Scope::of_pd(7), addr, 1, write, &g),
            Err(Fault::Access)
        );
        for other in [0, key ^ 1, key ^ 0x100, key ^ 0x8000_0000] {
            assert_eq!(
                check(other, Scope::of_pd(7), addr, 1, read, &g),
                Err(Fault::Key)
            );
            assert_eq!(check(other, Scope::of_pd(7), addr, 0, read, &g), Ok(()));
        }
        drop(g);
        drop(mr);
        let g = pin::pin();
        assert_eq!(
            check(key, Scope::of_pd(7), addr, 1, read, &g),
            Err(Fault::Key)
        );
    }

    /// What a key opens of 100 bytes whose addresses begin with 0. Requests that wait name them by their
    /// addresses in memory.
    #[test]
    fn zero_based_addresses() {
        let mut buf = [0u8; 100];
        let start = buf.as_mut_ptr() as u64;
        let (read, zero) = (Access::REMOTE_READ, Addressing::ZeroBased);
        let mr = Mr::new(7, start, 100, read, zero, Memory::Private).unwrap();
        let (key, scope, g) = (mr.lkey(), Scope::of_pd(7), pin::pin());
        for (addr, len) in [(0, 100), (0, 1), (50, 50), (99, 1)] {
            let found = resolve(key, scope, addr, len, read, &g);
            assert_eq!(found, Ok(start + addr), "{addr}");
            assert_eq!(check(key, scope, start + addr, len, read, &g), Ok(()));
        }
        let wraps = start.wrapping_neg();
        for (addr, len) in [
            (0, 101),
            (100, 1),
            (start, 1),
            (start + 50, 1),
            (wraps, 1),
            (u64::MAX, 2),
        ] {
            let found = resolve(key, scope, addr, len, read, &g);
            assert_eq!(found, Err(Fault::Bounds), "{addr}");
        }
        let write = Access::REMOTE_WRITE;
        assert_eq!(resolve(key, scope, 0, 1, write, &g), Err(Fault::Access));
        let other = Scope::of_pd(8);
        assert_eq!(resolve(key, other, 0, 1, read, &g), Err(Fault::Domain));
        drop(g);
        drop(mr);
        let g = pin::pin();
        assert_eq!(resolve(key, scope, 0, 1, read, &g), Err(Fault::Key));
    }

    #[test]
    fn no_peer_invalidates_a_region() {
        let mut buf = vec![0u8; 100];
        let addr = buf.as_ptr() as u64;
        let mr = region(&mut buf, 7, ALL).unwrap();
        let key = mr.lkey();
        let g = pin::pin();
        assert_eq!(invalidate(key, Scope::of_pd(8), &g), Err(Fault::Domain));
        assert_eq!(invalidate(key, Scope::of_pd(7), &g), Err(Fault::Access));
        assert_eq!(invalidate(key ^ 1, Scope::of_pd(7), &g), Err(Fault::Key));
        for need in [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::LOCAL_WRITE,
        ] {
            assert_eq!(check(key, Scope::of_pd(7), addr, 1, need, &g), Ok(()));
        }
        drop(g);
        drop(mr);
        let mr = region(&mut buf, 7, Access::LOCAL_READ).unwrap();
        assert_eq!(mr.rkey(), 0);
    }

    #[test]
    fn memory_must_be_there() {
        let page = TestPages::page();
        let pages = TestPages::with(3, ProtFlags::READ, MapFlags::PRIVATE);
        pages.unmap(2..3);
        let at = pages.addr(0);
        let make = |off: usize, len: usize, access| {
            let (at, len) = (at + off as u64, len as u64);
            Mr::new(1, at, len, access, VIRTUAL, Memory::Private).map(|_| ())
        };
        assert_eq!(make(0, 2 * page, Access::LOCAL_READ), Ok(()));
        let bad = Err(DeviceError::BadMemory);
        assert_eq!(make(0, 2 * page + 1, Access::LOCAL_READ), bad);
        assert_eq!(make(2 * page, 1, Access::LOCAL_READ), bad);
        if Mr::new(1, 8, 8, Access::LOCAL_READ, VIRTUAL, Memory::Private).is_ok() {
            panic!("page zero was taken");
        }
        // Only kernels that know MADV_POPULATE detect it; those of the test machines do.
        assert_eq!(make(0, 8, Access::REMOTE_WRITE), bad);
        assert_eq!(make(0, usize::MAX >> 17, Access::LOCAL_READ), bad);
        let limit = Err(DeviceError::Limit);
        assert_eq!(make(0, usize::MAX, Access::LOCAL_READ), limit);
    }

    #[test]
    fn keys_do_not_come_back_soon() {
        let mut buf = vec![0u8; 8];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..200 {
            assert!(seen.insert(region(&mut buf, 1, ALL).unwrap().lkey()));
        }
    }
}
