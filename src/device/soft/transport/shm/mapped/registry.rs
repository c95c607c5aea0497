//! What of this process is in its file, and the decision what comes in and goes out.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::FILE_LEN;
use super::fork::{self, Copies};
use super::moves::{self, STEP, size};
use super::proc_maps::{Maps, Vma};
use super::range_set::Ranges;
use super::userfault::Faults;
use crate::device::process::Creator;
use crate::device::soft::mem::key_entry::Run;
use crate::device::soft::mem::key_table;
use crate::device::soft::transport::shm::memfd;

/// That of this process, or of the one it was forked from.
pub(super) static ARENA: OnceLock<Arena> = OnceLock::new();

/// Where this process has mapped files of peers ([`mirror`](crate::device::soft::transport::shm::peer_map)),
/// one of which may be itself: that is not memory of the program.
pub(super) static VIEWS: Mutex<Ranges> = Mutex::new(Ranges::new());

/// The file and what is in it. All descriptors are made at the beginning: memory has to move back
/// when there are no more to be had, too.
pub(crate) struct Arena {
    pub file: Arc<OwnedFd>,
    faults: Faults,
    /// What is mapped, as the kernel tells it.
    maps: File,
    /// Device and number of the file.
    name: (u32, u32, u64),
    /// The process that made the file.
    creator: Creator,
    pub state: Mutex<State>,
}

/// Who holds the lock of it may move memory.
#[derive(Default)]
pub(crate) struct State {
    /// Addresses whose bytes are in the file.
    pub runs: Ranges,
    /// For a child that is being made.
    pub copies: Copies,
}

/// Memory is registered in files from now on, by those who ask for it.
///
/// # Errors
/// Why that cannot be.
pub(crate) fn enable() -> Result<(), String> {
    if ARENA.get().is_some() {
        return match current() {
            Some(_) => Ok(()),
            None => Err("this is a forked child".into()),
        };
    }
    // The kernel would refuse the file as well, but not say why.
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|limit| limit < FILE_LEN)
    {
        return Err("the size of files is limited (RLIMIT_FSIZE)".into());
    }
    let faults = Faults::open().map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => "userfaultfd is not permitted: see dat.conf(5)".to_string(),
        error => format!("userfaultfd of Linux 6.8 is needed: {error}"),
    })?;
    let arena = Arena::new(faults).map_err(|error| format!("no file for it: {error}"))?;
    fork::install();
    // Another thread may have been faster.
    let _ = ARENA.set(arena);
    Ok(())
}

/// The one of this process.
pub(crate) fn current() -> Option<&'static Arena> {
    ARENA.get().filter(|arena| arena.is_ours())
}

/// Moves what can be moved of a range that is to be registered, and registers it: `register` is
/// told what peers may map.
pub(crate) fn share<R>(addr: u64, len: u64, register: impl FnOnce(Run) -> Option<R>) -> Option<R> {
    let Some(arena) = current() else {
        return register(Run::default());
    };
    let mut state = arena.state.lock();
    let run = match arena.take_in(&mut state, whole_pages(addr, len)) {
        Ok(run) => run,
        Err(why) => {
            log::info!("registered memory stays private: {why}");
            Run::default()
        }
    };
    let region = register(run);
    if region.is_none() {
        arena.give_up(&mut state, &touched_pages(addr, len));
    }
    region
}

/// A region was registered, without [`share`]. Before anybody learns its key, moves that do not
/// know of it are over.
pub(crate) fn moves_are_over() {
    fence(Ordering::SeqCst);
    if let Some(arena) = current() {
        drop(arena.state.lock());
    }
}

/// A region is not registered any more: what nobody else has registered moves back.
pub(crate) fn settle(addr: u64, len: u64) {
    if let Some(arena) = current() {
        arena.give_up(&mut arena.state.lock(), &touched_pages(addr, len));
    }
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// The pages of which a range has anything.
fn touched_pages(addr: u64, len: u64) -> Range<u64> {
    let mask = page() - 1;
    let end = addr.saturating_add(len).saturating_add(mask) & !mask;
    if len == 0 { 0..0 } else { addr & !mask..end }
}

/// The pages of which it has everything.
fn whole_pages(addr: u64, len: u64) -> Range<u64> {
    let mask = page() - 1;
    let start = addr.saturating_add(mask) & !mask;
    start..(addr.saturating_add(len) & !mask).max(start)
}

/// Parts that move at once.
fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let cut = move |start: &u64| start.checked_add(STEP).filter(|next| *next < range.end);
    std::iter::successors(Some(range.start), cut)
        .map(move |start| start..(start + STEP).min(range.end))
}

/// Whether this thread needs the memory in order to go on: its stack, or what belongs to it.
fn is_needed_here(pages: &Range<u64>) -> bool {
    let local = 0u8;
    // SAFETY: always works.
    let errno = unsafe { libc::__errno_location() }.expose_provenance();
    let stack = std::ptr::from_ref(&local).expose_provenance();
    [stack, errno]
        .iter()
        .any(|at| pages.contains(&(*at as u64)))
}

/// Whether the kernel holds memory of this process for devices.
fn is_held() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_none_or(|kilobytes| !kilobytes.trim_start().starts_with("0 "))
}

impl Arena {
    fn new(faults: Faults) -> std::io::Result<Arena> {
        let file = memfd::file(c"libdat-memory", FILE_LEN)?;
        let stat = rustix::fs::fstat(&file)?;
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        Ok(Arena {
            file: Arc::new(file),
            faults,
            maps: File::open("/proc/self/maps")?,
            name: (major, minor, stat.st_ino),
            creator: Creator::current(),
            state: Mutex::default(),
        })
    }

    /// Not the parent's.
    pub fn is_ours(&self) -> bool {
        self.creator.is_current()
    }

    /// Whether a mapping is one of the file.
    fn is_of_file(&self, vma: &Vma) -> bool {
        vma.file == self.name
    }

    /// Where the program has the file, which may have moved mappings or removed them.
    pub fn mappings(&self) -> std::io::Result<Vec<Vma>> {
        // No view comes or goes meanwhile.
        let views = VIEWS.lock();
        let mut all = Maps::read(&self.maps)?.all;
        all.retain(|vma| self.is_of_file(vma) && views.misses(&vma.at));
        Ok(all)
    }

    /// Sees to it that all the pages are in the file.
    fn take_in(&self, state: &mut State, pages: Range<u64>) -> Result<Run, String> {
        if pages.is_empty() {
            return Err("it has no whole page".into());
        }
        if pages.end > FILE_LEN || is_needed_here(&pages) {
            return Err("it is the stack of a thread, or far away".into());
        }
        let maps = Maps::read_in_detail().map_err(|error| error.to_string())?;
        if maps.asynchronous || is_held() {
            return Err("the kernel may access it on its own".into());
        }
        let private = self.private_parts(state, &maps, &pages)?;
        for part in private.into_iter().flat_map(steps) {
            let moved = populate(&part)
                .and_then(|()| moves::into_file(&self.faults, self.file.as_fd(), &part));
            if let Err(error) = moved {
                self.give_up(state, &pages);
                return Err(format!("it does not move: {error}"));
            }
            state.runs.insert(part);
        }
        Ok(Run {
            start: pages.start,
            end: pages.end,
        })
    }

    /// The parts of the range that are not in the file yet.
    fn private_parts(
        &self,
        state: &State,
        maps: &Maps,
        pages: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, String> {
        let mut parts = Vec::new();
        let mut at = pages.start;
        for vma in maps.all.iter().filter(|vma| vma.at.end > pages.start) {
            if at >= pages.end || vma.at.start > at {
                break;
            }
            let part = at..vma.at.end.min(pages.end);
            at = part.end;
            let in_place = self.is_of_file(vma) && vma.offset == vma.at.start;
            if in_place && vma.is_shared() && state.runs.contains(&part) {
                continue;
            }
            if !vma.is_plain() {
                return Err("it is not plain private memory".into());
            }
            // Another registration has had what was there before.
            if !state.runs.misses(&part) {
                return Err("it was exchanged while it was registered".into());
            }
            parts.push(part);
        }
        if at < pages.end {
            return Err("some of it is not mapped".into());
        }
        Ok(parts)
    }

    /// Moves back what is in the file of the range and in no region.
    fn give_up(&self, state: &mut State, range: &Range<u64>) {
        let mut free = Ranges::default();
        state
            .runs
            .within(range)
            .into_iter()
            .for_each(|run| free.insert(run));
        if free.all().is_empty() {
            return;
        }
        // A region whose key this does not see yet waits for us: see `moves_are_over`.
        fence(Ordering::SeqCst);
        key_table::each(|(_, slot)| {
            if slot.key() != 0 && slot.is_region() {
                let contents = slot.contents();
                free.remove(&touched_pages(contents.addr, contents.len));
            }
        });
        let free = free.all();
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
            match self.put_out(&mappings, &part) {
                Ok(()) => state.runs.remove(&part),
                Err(error) => log::warn!("memory that was registered stays shared: {error}"),
            }
        }
    }

    /// Makes a part of the file private wherever the program has it by now, and frees it.
    fn put_out(&self, mappings: &[Vma], part: &Range<u64>) -> Result<(), Errno> {
        for vma in mappings {
            let there = vma.of_file();
            let offset = there.start.max(part.start);
            let end = there.end.min(part.end);
            if offset >= end {
                continue;
            }
            let at = vma.at.start + (offset - there.start);
            let at = at..at + (end - offset);
            moves::out_of_file(&self.faults, self.file.as_fd(), (at, offset), vma)?;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, part.start, size(part) as u64)
    }
}

/// Sees to it that the pages are there, and the process's alone.
fn populate(pages: &Range<u64>) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(pages.start as usize);
    let advice = rustix::mm::Advice::LinuxPopulateWrite;
    // SAFETY: changes no contents.
    unsafe { rustix::mm::madvise(at, size(pages), advice) }
}
