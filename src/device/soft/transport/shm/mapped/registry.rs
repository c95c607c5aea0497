//! The memory file of this process: which pages are in it, which ones a registration moves in, and
//! which ones move out when it ends.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use crate::descriptor::{self, OwnedFd};
use crate::kernel::limit_of;
use crate::kernel::process::Resource;
use crate::lock::{Mutex, MutexGuard};
use crate::process::PerProcess;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::FILE_LEN;
use super::fork::{self, Copies};
use super::moves::{self, STEP, size};
use super::order;
use super::proc_maps::{ProcMaps, Vma};
use super::range_set::RangeSet;
use super::userfault::UserFaults;
use crate::device::soft::mem::key_entry::MappedRange;
use crate::device::soft::mem::key_table;
use crate::device::soft::transport::shm::moving_pages::Announced;
use crate::device::soft::transport::shm::{copy_waits, memfd, ready_bitmap_file};

/// The memory file of this process, once it is made.
static MEMORY_FILE: PerProcess<OnceLock<MemoryFile>> = PerProcess::new(OnceLock::new);

/// Where this process has mapped memory files of peers
/// ([`peer_map`](crate::device::soft::transport::shm::peer_map)). This process may be its own peer,
/// and these mappings of the file are not memory of the program.
pub(super) static PEER_EXTENTS: PerProcess<Mutex<RangeSet>> = PerProcess::new(Mutex::default);

/// The memory file. All descriptors are opened at the beginning, because memory has to move back
/// even when the process has no descriptors left.
pub(crate) struct MemoryFile {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// Makes threads wait while memory moves.
    faults: UserFaults,
    /// `/proc/self/maps`.
    maps: OwnedFd,
    /// Major and minor device number and inode number of the file.
    id: (u32, u32, u64),
    /// Memory moves only under this lock. Threads take it by [`MemoryFile::lock`].
    pub(super) state: Mutex<FileState>,
}

thread_local! {
    /// Whether this thread has the lock of the state or waits for it.
    static IS_MOVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread, which a signal may have interrupted, has the lock of a memory file or waits for it.
pub(super) fn is_moving() -> bool {
    IS_MOVING.get()
}

/// The lock of the state of a memory file. The drop unlocks it, and then forgets that the thread has it.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, FileState>,
    _moving: Moving,
}

struct Moving;

impl Drop for Moving {
    fn drop(&mut self) {
        IS_MOVING.set(false);
    }
}

impl Deref for Locked<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

/// What changes when memory moves.
#[derive(Default)]
pub(crate) struct FileState {
    /// Addresses whose bytes are in the file.
    pub in_file: RangeSet,
    /// The copies for a child while it is being forked.
    pub copies: Copies,
}

/// Why memory does not move into the file.
#[derive(Debug)]
pub(super) enum Unmoved {
    /// A peer does not end a copy from or to it. That may be otherwise later.
    InUse,
    /// Another reason, in words for the log.
    Other(Cow<'static, str>),
}

impl From<String> for Unmoved {
    fn from(why: String) -> Unmoved {
        Unmoved::Other(why.into())
    }
}

impl From<&'static str> for Unmoved {
    fn from(why: &'static str) -> Unmoved {
        Unmoved::Other(why.into())
    }
}

impl std::fmt::Display for Unmoved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unmoved::InUse => "a peer does not end its access to it",
            Unmoved::Other(why) => why,
        })
    }
}

/// Makes the memory file, if there is none. Then [`register`] moves memory into it.
///
/// # Errors
/// The reason, in words for the user, why memory cannot move.
pub(crate) fn enable() -> Result<(), String> {
    if current().is_some() {
        return Ok(());
    }
    if size_of::<usize>() < size_of::<u64>() {
        return Err("addresses of 32 bits leave no room for the memory of peers".into());
    }
    // The kernel would refuse the file too, but for no reason that a user could find.
    if limit_of(Resource::Fsize).is_some_and(|limit| limit < FILE_LEN) {
        return Err("the size of files is limited (RLIMIT_FSIZE)".into());
    }
    let faults = UserFaults::open().map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => "userfaultfd is not permitted: see dat.conf(5)".to_string(),
        error => format!("userfaultfd of Linux 6.8 is needed: {error}"),
    })?;
    let memory = MemoryFile::new(faults).map_err(|error| format!("no file for it: {error}"))?;
    fork::install();
    // Another thread may have been faster: its file is used then.
    let _ = MEMORY_FILE.get().set(memory);
    Ok(())
}

/// The memory file of this process, if it has one.
pub(crate) fn current() -> Option<&'static MemoryFile> {
    MEMORY_FILE.made()?.get()
}

/// Moves the pages of a range that is to be registered into the file, if that is possible, and
/// calls `register` with the range that peers may map. If `register` fails the pages move back.
pub(crate) fn register<R>(
    addr: u64,
    len: u64,
    register: impl FnOnce(MappedRange) -> Option<R>,
) -> Option<R> {
    let Some(memory) = current() else {
        return register(MappedRange::default());
    };
    let mut state = memory.lock();
    let mapped = match memory.move_in(&mut state, whole_pages(addr, len)) {
        Ok(mapped) => mapped,
        Err(why) => {
            log::info!("registered memory stays private: {why}");
            MappedRange::default()
        }
    };
    let region = register(mapped);
    if region.is_none() {
        memory.move_out_unregistered(&mut state, &touched_pages(addr, len));
    }
    region
}

/// To be called after a region was registered without [`register`], before its key is used: waits
/// for moves that began before the region was registered.
pub(crate) fn wait_for_moves() {
    order::after_publishing(|| {
        if let Some(memory) = current() {
            drop(memory.lock());
        }
    });
}

/// To be called after a region was deregistered: pages that are in no other region which peers may
/// access move back.
pub(crate) fn release(addr: u64, len: u64) {
    if let Some(memory) = current() {
        memory.move_out_unregistered(&mut memory.lock(), &touched_pages(addr, len));
    }
}

/// Size of a page, in bytes.
fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The pages of which at least one byte is in the range.
fn touched_pages(addr: u64, len: u64) -> Range<u64> {
    let mask = page_size() - 1;
    let end = addr.saturating_add(len).saturating_add(mask) & !mask;
    if len == 0 { 0..0 } else { addr & !mask..end }
}

/// The pages of which all bytes are in the range.
pub(super) fn whole_pages(addr: u64, len: u64) -> Range<u64> {
    let mask = page_size() - 1;
    let start = addr.saturating_add(mask) & !mask;
    start..(addr.saturating_add(len) & !mask).max(start)
}

/// The parts of a range that move at once.
fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let cut = move |start: &u64| start.checked_add(STEP).filter(|next| *next < range.end);
    std::iter::successors(Some(range.start), cut)
        .map(move |start| start..(start + STEP).min(range.end))
}

/// How far below its present end the stack of a thread may reach while the thread moves memory, in bytes.
const STACK_REACH: u64 = 64 << 10;

/// Whether the pages are of the stack of this thread, or of its thread-local memory, which the
/// thread uses while it moves memory.
fn is_used_by_this_thread(pages: &Range<u64>) -> bool {
    let local = 0u8;
    // SAFETY: may be called at any time.
    let errno = unsafe { libc::__errno_location() }.expose_provenance();
    let stack = std::ptr::from_ref(&local).expose_provenance();
    let (stack, errno) = (stack as u64, errno as u64);
    let holds_stack = pages.start <= stack && stack.saturating_sub(STACK_REACH) < pages.end;
    holds_stack || pages.contains(&errno)
}

/// Whether memory of this process is pinned for devices.
fn has_pinned_memory() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_none_or(|kilobytes| !kilobytes.trim_start().starts_with("0 "))
}

impl MemoryFile {
    fn new(faults: UserFaults) -> std::io::Result<MemoryFile> {
        let file = memfd::file(c"libdat-memory", FILE_LEN)?;
        let stat = rustix::fs::fstat(&file)?;
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        Ok(MemoryFile {
            file: Arc::new(file),
            faults,
            maps: descriptor::open(|| File::open("/proc/self/maps"))?,
            id: (major, minor, stat.st_ino),
            state: Mutex::default(),
        })
    }

    /// Locks the state.
    pub fn lock(&self) -> Locked<'_> {
        IS_MOVING.set(true);
        Locked {
            state: self.state.lock(),
            _moving: Moving,
        }
    }

    /// Whether a mapping is one of the file.
    fn is_of_file(&self, vma: &Vma) -> bool {
        vma.file == self.id
    }

    /// The mappings of the file that are memory of the program, which may have moved mappings or
    /// removed them.
    pub fn mappings(&self) -> std::io::Result<Vec<Vma>> {
        // No extent is mapped or unmapped meanwhile.
        let extents = PEER_EXTENTS.lock();
        let mut all = ProcMaps::read(&self.maps)?.all;
        all.retain(|vma| self.is_of_file(vma) && extents.is_disjoint(&vma.at));
        Ok(all)
    }

    /// Moves the pages into the file that are not there.
    pub(super) fn move_in(
        &self,
        state: &mut FileState,
        pages: Range<u64>,
    ) -> Result<MappedRange, Unmoved> {
        if pages.is_empty() {
            return Err("it has no whole page".into());
        }
        if pages.end > FILE_LEN || is_used_by_this_thread(&pages) {
            return Err("it is the stack of a thread, or at too high an address".into());
        }
        let maps = ProcMaps::read_smaps().map_err(|error| error.to_string())?;
        if maps.has_async_io || has_pinned_memory() {
            return Err("the kernel may access it on its own".into());
        }
        let private = self.private_parts(state, &maps, &pages)?;
        for part in private.into_iter().flat_map(steps) {
            if let Err(unmoved) = self.move_part_in(&part) {
                self.move_out_unregistered(state, &pages);
                return Err(unmoved);
            }
            state.in_file.insert(part);
        }
        Ok(MappedRange {
            start: pages.start,
            end: pages.end,
        })
    }

    /// Moves pages, all of one mapping, into the file.
    fn move_part_in(&self, part: &Range<u64>) -> Result<(), Unmoved> {
        let error = |error| Unmoved::from(format!("it cannot be moved: {error}"));
        populate(part).map_err(error)?;
        let (_announced, is_still) = announce(part);
        if !is_still {
            return Err(Unmoved::InUse);
        }
        moves::move_into_file(self.faults.requests(), self.file.as_fd(), part).map_err(error)
    }

    /// The parts of the range that are not in the file.
    fn private_parts(
        &self,
        state: &FileState,
        maps: &ProcMaps,
        pages: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, Unmoved> {
        let mut parts = Vec::new();
        let mut at = pages.start;
        for vma in maps.all.iter().filter(|vma| vma.at.end > pages.start) {
            if at >= pages.end || vma.at.start > at {
                break;
            }
            let part = at..vma.at.end.min(pages.end);
            at = part.end;
            let in_place = self.is_of_file(vma) && vma.offset == vma.at.start;
            if in_place && vma.is_shared() && state.in_file.contains(&part) {
                continue;
            }
            if !vma.is_plain() {
                return Err("it is not plain private memory".into());
            }
            // The addresses were registered, and the program has mapped other memory there since.
            if !state.in_file.is_disjoint(&part) {
                return Err("other memory was mapped there while it was registered".into());
            }
            if copy_waits::is_abandoned(&part) {
                return Err("a stopped process may still write to it".into());
            }
            parts.push(part);
        }
        if at < pages.end {
            return Err("some of it is not mapped".into());
        }
        Ok(parts)
    }

    /// Moves the pages of the range that are in the file, but in no region that peers may access,
    /// back to private memory.
    fn move_out_unregistered(&self, state: &mut FileState, range: &Range<u64>) {
        let in_file = state.in_file.intersection(range);
        let free = order::unregistered(in_file, touched_pages, |entry| {
            key_table::for_each_entry(entry);
        });
        if free.is_empty() {
            return;
        }
        let mappings = match self.mappings() {
            Ok(mappings) => mappings,
            Err(error) => {
                log::warn!("memory that was registered stays shared: {error}");
                return;
            }
        };
        for part in free.into_iter().flat_map(steps) {
            // Pages are protected while they move, so that this thread would wait for itself. What stays in the file is
            // there as memory that is registered.
            if is_used_by_this_thread(&part) {
                log::info!("memory that was registered stays shared: it is the stack of a thread");
                continue;
            }
            match self.move_out(&mappings, &part) {
                Ok(()) => state.in_file.remove(&part),
                Err(error) => log::warn!("memory that was registered stays shared: {error}"),
            }
        }
    }

    /// Makes a part of the file private wherever the program has mapped it, and frees that part of
    /// the file.
    fn move_out(&self, mappings: &[Vma], part: &Range<u64>) -> Result<(), Errno> {
        for vma in mappings {
            let offsets = vma.file_range();
            let offset = offsets.start.max(part.start);
            let end = offsets.end.min(part.end);
            if offset >= end {
                continue;
            }
            let at = vma.at.start + (offset - offsets.start);
            let at = at..at + (end - offset);
            // A peer that does not end its copy has to wait: memory is not left in the file for that.
            let (_announced, _) = announce(&at);
            moves::move_out_of_file(self.faults.requests(), self.file.as_fd(), (at, offset), vma)?;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, part.start, size(part) as u64)
    }
}

/// Has peers leave these pages alone, until the drop of what is returned, and waits a little for those that copy from or to
/// them. False if one does not end its copy.
fn announce(pages: &Range<u64>) -> (Option<Announced<'static>>, bool) {
    // Without the memory for it there are no peers either.
    let moving = ready_bitmap_file::own_moving();
    let announced = moving.ok().map(|moving| moving.announce(pages));
    let is_still = copy_waits::wait_for_pages(pages);
    (announced, is_still)
}

/// Allocates the pages that are missing, and copies those that are shared with a child.
fn populate(pages: &Range<u64>) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(pages.start as usize);
    let advice = rustix::mm::Advice::LinuxPopulateWrite;
    // SAFETY: changes no contents.
    unsafe { rustix::mm::madvise(at, size(pages), advice) }
}
