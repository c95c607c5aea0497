//! Protection domains and memory regions.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Mutex;

use super::library_use::LibraryUse;
use super::{Verbs, limits, sys};
use crate::cancel::Disabled;
use crate::device::{Access, Addressing, DeviceError, MemoryRegion, PostError, Sge};
use crate::guarded;

/// A protection domain.
pub struct Pd {
    device: Arc<Verbs>,
    pub(super) raw: *mut sys::Pd,
    /// The region that windows are bound to which are to be closed.
    dummy_region: OnceLock<Option<DummyRegion>>,
}

// SAFETY: libibverbs is thread-safe, and the domain is valid until the drop.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

/// A region of which no peer gets a key.
struct DummyRegion {
    raw: *mut sys::Mr,
    memory: Box<[u8; DummyRegion::LEN]>,
}

impl DummyRegion {
    const LEN: usize = 4096;
}

impl Pd {
    pub(super) fn new(device: &Arc<Verbs>) -> Result<Arc<Pd>, DeviceError> {
        let adapter = &device.adapter;
        // SAFETY: the context is open.
        let raw = unsafe { (adapter.lib.ibv_alloc_pd)(adapter.ctx) };
        if raw.is_null() {
            return Err(DeviceError::Resources);
        }
        Ok(Arc::new(Pd {
            device: device.clone(),
            raw,
            dummy_region: OnceLock::new(),
        }))
    }

    /// The device.
    pub(super) fn device(&self) -> &Arc<Verbs> {
        &self.device
    }

    /// The dummy region of this domain, made when it is first needed, with its range.
    pub(super) fn dummy_region(&self) -> Option<(*mut sys::Mr, u64, u64)> {
        let make = || {
            let mut memory = Box::new([0; DummyRegion::LEN]);
            let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_MW_BIND;
            // A bind needs the region.
            let _disabled = Disabled::begin();
            let _use = LibraryUse::begin();
            let start = memory.as_mut_ptr().cast();
            // SAFETY: the memory is ours and is freed after the region.
            let raw = unsafe {
                (self.device.adapter.lib.ibv_reg_mr)(self.raw, start, DummyRegion::LEN, access)
            };
            (!raw.is_null()).then_some(DummyRegion { raw, memory })
        };
        let dummy = self.dummy_region.get_or_init(make).as_ref()?;
        let start = dummy.memory.as_ptr().expose_provenance() as u64;
        Some((dummy.raw, start, DummyRegion::LEN as u64))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // A window that a poll drops may be the last that is of the domain.
        let _disabled = Disabled::begin();
        let lib = self.device.adapter.lib;
        let _use = LibraryUse::begin();
        if let Some(Some(dummy)) = self.dummy_region.get() {
            // SAFETY: ours; windows hold a reference to the domain.
            unsafe { (lib.ibv_dereg_mr)(dummy.raw) };
        }
        // SAFETY: ours; what was made from it holds a reference.
        unsafe { (lib.ibv_dealloc_pd)(self.raw) };
    }
}

/// A memory region.
pub struct Mr {
    device: Arc<Verbs>,
    pub(super) raw: *mut sys::Mr,
    lkey: u32,
    rkey: u32,
    /// Windows can be bound to the region.
    takes_windows: bool,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs is thread-safe, and the region is valid until the drop.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// The memory region of a local key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// What its addresses are.
    addressing: Addressing,
    /// Address of the first byte by which segments name it.
    start: u64,
    /// Bytes.
    len: u64,
    /// What the consumer asked for.
    access: Access,
    /// Address of the protection domain.
    pd: usize,
}

impl Region {
    #[inline]
    fn covers(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.start);
        let room = self.len.checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }
}

/// All regions of an IA by local key.
#[derive(Default)]
pub(super) struct Regions {
    map: Mutex<BTreeMap<u32, Region>>,
    /// Counts regions that were deregistered.
    changes: AtomicU64,
}

/// The region in which a queue last found a segment that the processor may copy. Valid as long as
/// no region was deregistered since.
#[derive(Default)]
pub(super) struct RegionCache {
    lkey: u32,
    /// [`Regions::changes`] at that time.
    changes: u64,
    start: u64,
    len: u64,
}

impl RegionCache {
    #[inline]
    fn covers(&self, sge: &Sge) -> bool {
        let offset = sge.addr.wrapping_sub(self.start);
        offset <= self.len && u64::from(sge.len) <= self.len - offset
    }
}

impl Regions {
    /// Checks the segments of a post as a device of hardware does; with `any_key` one whose key is of no
    /// region is left to the device, which looks at it when a message comes to it.
    ///
    /// # Errors
    /// What is wrong with the first that is wrong.
    pub fn check(
        &self,
        pd: &Pd,
        sges: &[Sge],
        need: Access,
        any_key: bool,
    ) -> Result<(), PostError> {
        let map = self.map.lock();
        sges.iter().filter(|sge| sge.len > 0).try_for_each(|sge| {
            let region = match map.get(&sge.lkey) {
                Some(region) => region,
                None if any_key => return Ok(()),
                None => return Err(PostError::Key),
            };
            if region.pd != pd.raw.addr() {
                Err(PostError::Protection)
            } else if !region.covers(sge.addr, sge.len.into()) {
                Err(PostError::Bounds)
            } else if !region.access.contains(need) {
                Err(PostError::Access)
            } else {
                Ok(())
            }
        })
    }

    /// Whether the processor may copy the segment in place of the device. A segment of no bytes is no memory.
    #[inline(always)]
    pub fn may_read<'a>(
        &self,
        cache: &mut RegionCache,
        pd: impl FnOnce() -> &'a Pd,
        sge: &Sge,
    ) -> bool {
        let now = self.changes.load(Ordering::Acquire);
        // One test for both.
        let other = u64::from(cache.lkey ^ sge.lkey) | (cache.changes ^ now);
        if other == 0 && cache.covers(sge) {
            return true;
        }
        self.find(cache, now, pd(), sge)
    }

    #[cold]
    #[inline(never)]
    fn find(&self, cache: &mut RegionCache, now: u64, pd: &Pd, sge: &Sge) -> bool {
        if sge.len == 0 {
            return true;
        }
        let region = self.map.lock().get(&sge.lkey).copied();
        let readable = |region: &Region| {
            region.access.contains(Access::LOCAL_READ)
                && region.pd == pd.raw.addr()
                // To the processor other addresses mean nothing.
                && region.addressing == Addressing::Virtual
        };
        let Some(region) = region.filter(readable) else {
            return false;
        };
        *cache = RegionCache {
            lkey: sge.lkey,
            changes: now,
            start: region.start,
            len: region.len,
        };
        cache.covers(sge)
    }
}

/// The access rights to ask the device for.
fn flags(device: &Verbs, access: Access) -> c_int {
    let remote = device.remote_rights(access);
    let mut flags = remote;
    let mut set = |on: bool, flag| flags |= if on { flag } else { 0 };
    // Nothing can be written remotely that cannot be written locally.
    let written = sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_ATOMIC;
    set(
        access.contains(Access::LOCAL_WRITE) || remote & written != 0,
        sys::ACCESS_LOCAL_WRITE,
    );
    // Adapters for iWARP receive the data of an RDMA read like that of a write.
    set(
        device.reads_are_writes && access.contains(Access::LOCAL_WRITE),
        sys::ACCESS_REMOTE_WRITE,
    );
    set(device.attr.max_mw > 0, sys::ACCESS_MW_BIND);
    flags
}

/// The access rights to ask for if those were refused since the memory cannot be written. The kernel
/// takes the right to bind windows, which every region is to have, for one to write; without it, memory
/// that is only to be read can be registered. `None` if the memory is to be written anyway.
fn without_windows(flags: c_int) -> Option<c_int> {
    let written = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_ATOMIC;
    let only_bound = flags & sys::ACCESS_MW_BIND != 0 && flags & written == 0;
    only_bound.then_some(flags & !sys::ACCESS_MW_BIND)
}

/// The access rights for what peers may do with a region, a window or a queue pair. A device without
/// atomic operations, which may refuse their right, is not asked for it.
pub(super) fn remote_rights(access: Access, atomics: bool) -> c_int {
    let rights = [
        (Access::REMOTE_READ, sys::ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, sys::ACCESS_REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, sys::ACCESS_REMOTE_ATOMIC),
    ];
    let has = |needed| needed != Access::REMOTE_ATOMIC || atomics;
    let wanted = rights
        .into_iter()
        .filter(|(needed, _)| access.contains(*needed) && has(*needed));
    wanted.fold(0, |flags, (_, flag)| flags | flag)
}

impl Mr {
    pub(super) fn new(
        device: &Arc<Verbs>,
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        access: Access,
        addressing: Addressing,
    ) -> Result<Mr, DeviceError> {
        if len > device.attr.max_mr_size {
            return Err(DeviceError::Limit);
        }
        let first = match addressing {
            Addressing::Virtual => addr,
            // The kernel translates whole pages.
            Addressing::ZeroBased
                if !device.attr.zero_based
                    || !addr.is_multiple_of(rustix::param::page_size() as u64) =>
            {
                return Err(DeviceError::Unsupported);
            }
            Addressing::ZeroBased => 0,
        };
        let (Ok(start), Ok(size)) = (usize::try_from(addr), usize::try_from(len)) else {
            return Err(DeviceError::BadMemory);
        };
        let start = with_exposed_provenance_mut(start);
        let register = |flags| {
            let lib = device.adapter.lib;
            let _use = LibraryUse::begin();
            // SAFETY: the domain is valid; the kernel checks the range.
            let raw = unsafe {
                match addressing {
                    Addressing::Virtual => (lib.ibv_reg_mr)(pd.raw, start, size, flags),
                    Addressing::ZeroBased => {
                        (lib.ibv_reg_mr_iova)(pd.raw, start, size, first, flags)
                    }
                }
            };
            match raw.is_null() {
                true => Err(io::Error::last_os_error()),
                false => Ok(raw),
            }
        };
        let mut flags = flags(device, access);
        let mut made = register(flags);
        if let Err(error) = &made
            && error.raw_os_error() == Some(libc::EFAULT)
            && let Some(fewer) = without_windows(flags)
        {
            flags = fewer;
            made = register(flags);
        }
        let raw = made.map_err(|error| {
            limits::report("the registration of memory", &error);
            match error.raw_os_error() {
                Some(libc::EFAULT | libc::EINVAL | libc::EACCES | libc::EPERM) => {
                    DeviceError::BadMemory
                }
                _ => DeviceError::Resources,
            }
        })?;
        // Before a post can read the memory.
        guarded::install_handlers();
        // SAFETY: it was just made.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        let region = Region {
            addressing,
            start: first,
            len,
            access,
            pd: pd.raw.addr(),
        };
        device.regions.map.lock().insert(lkey, region);
        let remote = access.intersects(Access::REMOTE);
        Ok(Mr {
            device: device.clone(),
            raw,
            lkey,
            rkey: if remote { rkey } else { 0 },
            takes_windows: flags & sys::ACCESS_MW_BIND != 0,
            _pd: pd.clone(),
        })
    }

    /// Whether windows can be bound to the region.
    pub(super) fn takes_windows(&self) -> bool {
        self.takes_windows
    }
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let regions = &self.device.regions;
        regions.map.lock().remove(&self.lkey);
        regions.changes.fetch_add(1, Ordering::AcqRel);
        let _use = LibraryUse::begin();
        // SAFETY: ours.
        let error = unsafe { (self.device.adapter.lib.ibv_dereg_mr)(self.raw) };
        if error != 0 {
            log::warn!("a memory region cannot be deregistered: error {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_peers() {
        let read_write = sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_WRITE;
        let all = read_write | sys::ACCESS_REMOTE_ATOMIC;
        assert_eq!(remote_rights(Access::all(), true), all);
        assert_eq!(remote_rights(Access::all(), false), read_write);
        let atomic = Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
        assert_eq!(remote_rights(atomic, true), sys::ACCESS_REMOTE_ATOMIC);
        assert_eq!(remote_rights(atomic, false), 0);
        let write = Access::REMOTE_WRITE | Access::LOCAL_READ;
        assert_eq!(remote_rights(write, true), sys::ACCESS_REMOTE_WRITE);
    }

    #[test]
    fn memory_that_is_only_read_needs_no_windows() {
        let read = sys::ACCESS_REMOTE_READ;
        assert_eq!(without_windows(read | sys::ACCESS_MW_BIND), Some(read));
        assert_eq!(without_windows(sys::ACCESS_MW_BIND), Some(0));
        assert_eq!(without_windows(read), None);
        for written in [
            sys::ACCESS_LOCAL_WRITE,
            sys::ACCESS_REMOTE_WRITE,
            sys::ACCESS_REMOTE_ATOMIC,
        ] {
            assert_eq!(without_windows(written | sys::ACCESS_MW_BIND), None);
        }
    }

    #[test]
    fn a_region_covers_what_lies_inside() {
        let region = Region {
            addressing: Addressing::Virtual,
            start: 0x1000,
            len: 0x100,
            access: Access::LOCAL_READ,
            pd: 1,
        };
        assert!(region.covers(0x1000, 0x100));
        assert!(region.covers(0x1100, 0));
        assert!(!region.covers(0x1001, 0x100));
        assert!(!region.covers(0xfff, 1));
        assert!(!region.covers(u64::MAX, 1));
        assert!(!region.covers(0x1000, 1 << 32));
    }
}
