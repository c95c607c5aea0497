//! Whether memory may be registered: it is mapped with the access that is asked for. Its pages are made
//! present, as an adapter that pins them has them.
//!
//! To make pages present (`MADV_POPULATE_WRITE`) takes the kernel 10 us for each megabyte, although they
//! are present nearly always, and programs that keep no registrations have that in each transfer. So the
//! kernel is first asked about the mapping (`PROCMAP_QUERY`, since Linux 6.11) and its pages
//! (`mincore(2)`), which takes a tenth of that time.

use std::mem::MaybeUninit;
use std::ops::Range;

use rustix::ioctl::{Opcode, Updater, opcode};

use crate::descriptor::{self, OwnedFd};
use crate::device::{Access, DeviceError};
use crate::kernel;
use crate::process::PerProcess;

/// Bytes of a range that is not asked about: its pages are made present in less time.
const SMALL: u64 = 64 << 10;
/// Number of pages that are asked about at a time.
const PAGES: usize = 4096;

/// Checks that the range is mapped with the access that is asked for, and makes its pages present.
///
/// # Errors
/// [`DeviceError::BadMemory`] if it is not.
pub fn probe(addr: u64, len: u64, access: Access) -> Result<(), DeviceError> {
    if len == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size() as u64;
    let end = (addr + len)
        .checked_next_multiple_of(page)
        .filter(|end| usize::try_from(*end - 1).is_ok())
        .ok_or(DeviceError::BadMemory)?;
    let pages = addr & !(page - 1)..end;
    if len > SMALL && is_present(&pages, page) || populate(&pages, access) {
        Ok(())
    } else {
        Err(DeviceError::BadMemory)
    }
}

fn pointer(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// Makes the pages present for the access. False if it is not permitted.
fn populate(pages: &Range<u64>, access: Access) -> bool {
    let (start, len) = (pointer(pages.start), (pages.end - pages.start) as usize);
    // The advice is there since Linux 5.14. A call for no memory shows whether the kernel knows it.
    static POPULATE: PerProcess<bool> = PerProcess::new(|| {
        // SAFETY: no memory is involved.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
    });
    if !*POPULATE {
        // The call writes back what the kernel would write back anyway, but fails if a page is not
        // mapped.
        // SAFETY: no contents change.
        return unsafe { libc::msync(start, len, libc::MS_ASYNC) == 0 };
    }
    let advice =
        if access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            libc::MADV_POPULATE_WRITE
        } else {
            libc::MADV_POPULATE_READ
        };
    loop {
        // SAFETY: populating changes no contents, whatever is there.
        let rc = unsafe { libc::madvise(start, len, advice) };
        let again = matches!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EINTR | libc::EAGAIN)
        );
        if rc == 0 || !again {
            return rc == 0;
        }
    }
}

/// Whether the kernel says that the pages are private memory of the program, which it may read and
/// write, and are present.
fn is_present(pages: &Range<u64>, page: u64) -> bool {
    let mut at = pages.start;
    while at < pages.end {
        let Some(end) = end_of_plain_mapping(at) else {
            return false;
        };
        let part = at..end.min(pages.end);
        if !is_resident(&part, page) {
            return false;
        }
        at = part.end;
    }
    true
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    /// Size of the structure, in bytes.
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const PROCMAP_QUERY: Opcode = opcode::read_write::<ProcmapQuery>(b'f', 17);
/// `PROCMAP_QUERY_VMA_READABLE`, `_WRITABLE` and `_SHARED`.
const READABLE: u64 = 0x01;
const WRITABLE: u64 = 0x02;
const SHARED: u64 = 0x08;

/// The mappings of this process, if the system shows them.
static MAPS: PerProcess<Option<OwnedFd>> = PerProcess::new(|| {
    let opened = descriptor::open(|| kernel::own_mappings().ok_or(()));
    opened.ok()
});

/// The end of the mapping that has the byte at `at`, if the kernel says that this is private memory of
/// no file, which the program may read and write.
fn end_of_plain_mapping(at: u64) -> Option<u64> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_addr: at,
        ..ProcmapQuery::default()
    };
    let maps = MAPS.get().as_ref()?;
    // SAFETY: the structure of the request, which is for `maps` alone: another file, which has the
    // number of a descriptor that the program has closed, knows no request of this number and size.
    unsafe { rustix::ioctl::ioctl(maps, Updater::<PROCMAP_QUERY, _>::new(&mut query)) }.ok()?;
    let rights = query.vma_flags & (READABLE | WRITABLE | SHARED);
    let is_plain = query.inode == 0 && rights == READABLE | WRITABLE;
    (is_plain && (query.vma_start..query.vma_end).contains(&at)).then_some(query.vma_end)
}

/// Whether all pages of a range of whole pages are in memory.
fn is_resident(pages: &Range<u64>, page: u64) -> bool {
    let mut states = [MaybeUninit::<u8>::uninit(); PAGES];
    let mut at = pages.start;
    while at < pages.end {
        let count = ((pages.end - at) / page).min(PAGES as u64) as usize;
        let len = count * page as usize;
        // SAFETY: there is room for the states of so many pages.
        let rc = unsafe { libc::mincore(pointer(at), len, states.as_mut_ptr().cast()) };
        if rc != 0 {
            return false;
        }
        // SAFETY: the kernel has written so many.
        let is_resident = |state: &MaybeUninit<u8>| unsafe { state.assume_init() } & 1 == 1;
        if !states[..count].iter().all(is_resident) {
            return false;
        }
        at += len as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pages::{MapFlags, MprotectFlags, ProtFlags, TestPages};

    const BOTH: Access = Access::LOCAL_READ.union(Access::LOCAL_WRITE);

    impl TestPages {
        fn addresses(&self) -> Range<u64> {
            self.addr(0)..self.addr(self.len())
        }

        fn probe(&self, access: Access) -> bool {
            probe(self.addr(1), self.len() as u64 - 2, access).is_ok()
        }

        fn is_present(&self) -> bool {
            is_present(&self.addresses(), TestPages::page() as u64)
        }
    }

    /// More than one part is asked about, and the last page counts.
    #[test]
    fn pages_are_present_afterwards() {
        let knows_mappings = {
            let one = TestPages::new(1);
            end_of_plain_mapping(one.addr(0)).is_some()
        };
        for pages in [17, PAGES, 2 * PAGES + 1] {
            let memory = TestPages::new(pages);
            assert!(!memory.is_present());
            assert!(memory.probe(BOTH));
            assert_eq!(memory.is_present(), knows_mappings);
            let page = TestPages::page();
            for missing in [0, pages / 2, pages - 1] {
                let at = memory.at(missing * page).cast();
                // SAFETY: our own mapping, whose contents nobody needs.
                assert_eq!(unsafe { libc::madvise(at, page, libc::MADV_DONTNEED) }, 0);
                assert!(!memory.is_present(), "{missing} of {pages}");
                assert!(memory.probe(BOTH));
                assert_eq!(memory.is_present(), knows_mappings);
            }
        }
    }

    /// What may not be written is refused for writes, wherever it is in the range; so is a hole.
    #[test]
    fn rights_and_holes() {
        for at in [0, 31, 63] {
            let memory = TestPages::new(64);
            assert!(memory.probe(BOTH));
            memory.protect(at..at + 1, MprotectFlags::READ);
            assert!(!memory.probe(BOTH) && !memory.is_present());
            assert!(memory.probe(Access::LOCAL_READ));
            memory.protect(at..at + 1, MprotectFlags::empty());
            assert!(!memory.probe(Access::LOCAL_READ));
            memory.unmap(at..at + 1);
            assert!(!memory.probe(BOTH) && !memory.is_present());
        }
    }

    #[test]
    fn other_mappings_are_made_present() {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let shared = TestPages::with(64, both, MapFlags::SHARED);
        assert!(shared.probe(BOTH) && !shared.is_present());
        assert!(is_resident(&shared.addresses(), TestPages::page() as u64));
        let read_only = TestPages::with(64, ProtFlags::READ, MapFlags::PRIVATE);
        assert!(read_only.probe(Access::LOCAL_READ) && !read_only.is_present());
    }
}
