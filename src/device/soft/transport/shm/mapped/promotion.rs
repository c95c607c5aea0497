//! Promotion: regions that peers use so much that a move to the memory file pays move there while they
//! are in use.
//!
//! A peer counts what the kernel copies for it
//! ([`kernel_copies`](crate::device::soft::transport::shm::kernel_copies)), and asks for the region when
//! that is enough. What goes through a ring the sender counts. A thread of its own moves the region, which
//! takes more than a millisecond for each megabyte. Meanwhile peers go on with copies by the kernel; the
//! keys say how far the move has got.
//! A region that cannot move stays private for good.

use crate::device::soft::mem::key_entry::{Contents, MappedRange};
use crate::device::soft::mem::key_table;
use crate::device::soft::transport::shm::exported_keys;
use crate::device::soft::transport::shm::kernel_copies::KernelCopies;
#[cfg(not(dat_sim))]
use crate::device::threads;
use crate::lock::Mutex;
use crate::process::PerProcess;

use super::registry::{self, MemoryFile, Unmoved, whole_pages};

/// Bytes that move while other registrations wait.
const PART: u64 = 16 << 20;
/// How often the move of a region is tried whose peers do not end a copy: they may be stopped, or starved.
const ATTEMPTS: u32 = 32;
/// The time between two attempts.
const RETRY: std::time::Duration = std::time::Duration::from_millis(10);
/// The most regions that wait for their move. Those that peers ask for later are asked for again.
const MOST_WAITING: usize = 64;

/// The regions that are to move.
#[derive(Default)]
struct Promotions {
    /// Keys of the regions that no thread has begun to move.
    waiting: Vec<u32>,
    /// Whether there is a thread that moves them.
    has_thread: bool,
}

static PROMOTIONS: PerProcess<Mutex<Promotions>> = PerProcess::new(Mutex::default);

/// What this process has copied into rings from each of its regions: as much as peers would have had the kernel
/// copy.
static COPIES: PerProcess<KernelCopies> = PerProcess::new(KernelCopies::default);

/// `len` bytes of the region with this key were sent through a ring. A region that is used so much moves as one
/// that a peer asks for.
pub(in super::super) fn count(key: u32, len: u64) {
    if let Some(region) = promotable(key)
        && region.mapped.is_empty()
        && COPIES.get().add(key, len, region.len)
    {
        // If not, the count begins anew.
        request(key, region.pd);
    }
}

/// A peer asks for the region with this key. It may do so by a connection whose queue pair is of the
/// protection domain `pd`. False if the peer has to ask again.
#[cold]
#[inline(never)]
pub(in crate::device::soft) fn request(key: u32, pd: u32) -> bool {
    if registry::current().is_none() || promotable(key).is_none_or(|region| region.pd != pd) {
        return true;
    }
    let mut promotions = PROMOTIONS.get().lock();
    if !promotions.waiting.contains(&key) {
        if promotions.waiting.len() >= MOST_WAITING || promotions.waiting.try_reserve(1).is_err() {
            return false;
        }
        promotions.waiting.push(key);
    }
    if !promotions.has_thread {
        promotions.has_thread = start_thread();
    }
    promotions.has_thread
}

/// What the key opens, if it is that of a region which may move.
fn promotable(key: u32) -> Option<Contents> {
    key_table::region(key).filter(|region| region.promotable)
}

/// Starts a thread that moves regions. False if the system gives none.
fn start_thread() -> bool {
    #[cfg(dat_sim)]
    unreachable!("memory=shared is not simulated");
    #[cfg(not(dat_sim))]
    threads::start(c"dat-promote", promote_all).is_ok()
}

/// Moves regions until none waits.
#[cfg_attr(dat_sim, expect(dead_code, reason = "memory=shared is not simulated"))]
fn promote_all() {
    loop {
        let mut promotions = PROMOTIONS.get().lock();
        let Some(key) = promotions.waiting.pop() else {
            promotions.has_thread = false;
            return;
        };
        drop(promotions);
        if let (Some(memory), Some(region)) = (registry::current(), promotable(key)) {
            promote(memory, key, &region);
        }
    }
}

/// Moves a region, part by part. A region that is deregistered meanwhile moves back as any other: its
/// deregistration waits for the part that moves.
fn promote(memory: &MemoryFile, key: u32, region: &Contents) {
    let pages = whole_pages(region.addr, region.len);
    let (mut moved, mut attempts) = (pages.start, ATTEMPTS);
    loop {
        let end = moved.saturating_add(PART).min(pages.end);
        let mut state = memory.lock();
        // Under the lock, which a deregistration takes when the key is invalid.
        if promotable(key).is_none_or(|now| now.serial != region.serial) {
            return;
        }
        match memory.move_in(&mut state, moved..end) {
            Ok(_) => {}
            Err(Unmoved::InUse) if attempts > 1 => {
                attempts -= 1;
                drop(state);
                std::thread::sleep(RETRY);
                continue;
            }
            Err(why) => {
                log::info!("registered memory stays private: {why}");
                exported_keys::keep_private(key, region.serial);
                return;
            }
        }
        let mapped = MappedRange {
            start: pages.start,
            end,
        };
        if !exported_keys::extend_mapped(key, region.serial, mapped) || end == pages.end {
            return;
        }
        drop(state);
        moved = end;
        // Registrations that wait for the lock have their turn.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(all(test, not(dat_sim)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::Access;
    use crate::device::soft::mem::region::Mr;
    use crate::device::soft::params::Memory;
    use crate::device::{Addressing, MemoryRegion, soft::transport::shm::mapped};

    /// Pages that no other test has anything on.
    #[repr(align(4096))]
    struct Pages([u8; 2 * 4096]);

    fn register(pages: &Pages, memory: Memory) -> Mr {
        let addr = std::ptr::from_ref(pages).expose_provenance() as u64;
        let (len, addressing) = (size_of::<Pages>() as u64, Addressing::Virtual);
        Mr::new(7, addr, len, Access::all(), addressing, memory).unwrap()
    }

    /// Waits until a region moves that `ask` was called for. Peers of other tests in this process may claim to
    /// copy by its key when it is deregistered, for good: the pages stay private then, and the next attempt has
    /// other ones.
    fn moves(ask: impl Fn(u32)) {
        let begun = Instant::now();
        let mut used = Vec::new();
        loop {
            let pages = Box::new(Pages([1; _]));
            let shared = register(&pages, Memory::Shared);
            ask(shared.lkey());
            let soon = |_| {
                std::thread::sleep(Duration::from_millis(1));
                !shared.region().mapped_range().is_empty()
            };
            let moved = (0..500).any(soon);
            drop(shared);
            assert!(pages.0.iter().all(|byte| *byte == 1));
            used.push(pages);
            if moved {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }

    /// Only a region that may move moves, for a peer that may access it.
    #[test]
    fn who_may_ask_for_what() {
        if let Err(why) = mapped::enable() {
            eprintln!("\nskipped: who_may_ask_for_what: {why}");
            return;
        }
        let pages = [(); 2].map(|()| Box::new(Pages([1; _])));
        let private = register(&pages[0], Memory::Private);
        let shared = register(&pages[1], Memory::Shared);
        for (key, pd) in [(private.lkey(), 7), (shared.lkey(), 8), (0, 7), (!0, 7)] {
            assert!(request(key, pd));
        }
        assert!(PROMOTIONS.get().lock().waiting.is_empty());
        drop(shared);
        moves(|key| assert!(request(key, 7)));
        // The same if what this process sends of it is enough.
        let send = |key| {
            (0..10_000).for_each(|_| count(key, 16 << 10));
        };
        moves(send);
        send(private.lkey());
        assert!(private.region().mapped_range().is_empty());
    }
}
