//! Models of the keys that a process publishes for others of its host, under loom: every interleaving
//! of a few threads, within a bound of preemptions, and every value that the memory model lets a load
//! see. They run the code that ships; see `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::ops::Range;
use std::sync::Arc;

use dat_core::testing::device::Access;
use dat_core::testing::device::soft::mem::key_entry::{Contents, KeyEntry, MappedRange, Origin};
use dat_core::testing::device::soft::mem::scope::Scope;
use dat_core::testing::device::soft::transport::shm::mapped::order::{
    after_publishing, unregistered,
};
use dat_core::testing::device::soft::transport::shm::moving_pages::MovingPages;
use dat_core::testing::device::soft::transport::shm::remote_keys::{
    CopyGuard, RemoteAddress, RemoteKeys, RemoteRange, spread,
};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use model::model;

const KEY: u32 = 0x0000_0001;
const PD: u32 = 7;
const ADDR: u64 = 4096;
/// What an initiator accesses.
const RANGE: RemoteRange = RemoteRange {
    kind: RemoteAddress::OfKey,
    addr: ADDR,
    len: 8,
};

/// A target with one key, and the copy guard of the initiator.
struct Target {
    entries: Vec<KeyEntry>,
    /// The registered memory.
    memory: UnsafeCell<u32>,
    copy_guard: CopyGuard,
}

// SAFETY: that it is used as if it were is what the models check.
unsafe impl Sync for Target {}
// SAFETY: as above.
unsafe impl Send for Target {}

fn contents(pd: u32) -> Contents {
    Contents {
        pd,
        addr: ADDR,
        len: 100,
        origin: Origin::Memory,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        promotable: false,
        serial: 1,
        region: (0, 0),
        mapped: MappedRange::default(),
    }
}

impl Target {
    fn new() -> Arc<Target> {
        let entry = KeyEntry::default();
        entry.fill(&contents(PD));
        entry.set_key(KEY);
        Arc::new(Target {
            entries: vec![entry],
            memory: UnsafeCell::new(0),
            copy_guard: CopyGuard::new(),
        })
    }

    /// A copy of the initiator. True if the key permitted it.
    fn copy(&self, count: &mut u32, pd: u32) -> bool {
        let section = self.copy_guard.begin(count, KEY);
        let table = RemoteKeys {
            entries: &self.entries,
        };
        let open = table.check(&section, Scope::of_pd(pd), RANGE, Access::REMOTE_WRITE);
        if open.is_ok() {
            // SAFETY: loom checks that no other thread accesses the memory.
            self.memory.with_mut(|m| unsafe { *m += 1 });
        }
        open.is_ok()
    }

    /// The owner waits for the copy section that may use the revoked key.
    fn wait(&self) {
        if let Some(section) = self.copy_guard.running()
            && section.key() == Some(KEY)
        {
            while self.copy_guard.is_running(section) {
                thread::yield_now();
            }
        }
    }
}

/// Once a key is revoked, only the owner accesses the memory.
#[test]
fn no_copy_runs_after_a_key_is_revoked() {
    model(|| {
        let target = Target::new();
        let initiator = {
            let target = target.clone();
            thread::spawn(move || {
                let mut count = 0;
                while target.copy(&mut count, PD) && count < 4 {}
            })
        };
        target.entries[0].set_key(0);
        target.wait();
        // SAFETY: loom checks that no other thread accesses the memory.
        target.memory.with_mut(|m| unsafe { *m = 0xdead });
        initiator.join().unwrap();
    });
}

/// An entry is used again: an initiator reads one of its two contents, not a mixture.
#[test]
fn an_entry_that_is_used_again() {
    model(|| {
        let target = Target::new();
        let initiator = {
            let target = target.clone();
            thread::spawn(move || {
                let mut count = 0;
                (0..2).for_each(|_| _ = target.copy(&mut count, PD));
            })
        };
        let entry = &target.entries[0];
        entry.set_key(0);
        target.wait();
        // SAFETY: loom checks that no other thread accesses the memory.
        target.memory.with_mut(|m| unsafe { *m = 0xdead });
        // The same key for another domain, which the initiator may not use.
        entry.fill(&contents(PD + 1));
        entry.set_key(KEY);
        // SAFETY: as above, for good.
        target.memory.with_mut(|m| unsafe { *m = 0xbeef });
        initiator.join().unwrap();
    });
}

/// What the entry of a key holds in the models of tables.
fn of_key(key: u32) -> Contents {
    let start = u64::from(key) << 12;
    Contents {
        mapped: MappedRange {
            start,
            end: start + 100,
        },
        ..contents(PD)
    }
}

/// The table grows while an initiator checks a key that moves, and another key gets the slot that
/// the first one has left: the initiator finds the key, and what belongs to it.
#[test]
fn a_table_that_grows() {
    const MOVES: u32 = 2;
    const NEXT: u32 = 4;
    model(|| {
        let entries: Arc<[KeyEntry]> = (0..4).map(|_| KeyEntry::default()).collect();
        entries[0].fill(&of_key(MOVES));
        entries[0].set_key(MOVES);
        let initiator = {
            let entries = entries.clone();
            thread::spawn(move || {
                let (guard, mut count) = (CopyGuard::new(), 0);
                let section = guard.begin(&mut count, MOVES);
                let check = |size: usize| {
                    let entries = &entries[..size];
                    let keys = RemoteKeys { entries };
                    keys.check(&section, Scope::of_pd(PD), RANGE, Access::REMOTE_WRITE)
                };
                // An initiator that does not find a key asks for the size of the table.
                let found = check(2).or_else(|_| check(4));
                assert_eq!(found.ok(), Some((ADDR, of_key(MOVES).mapped)));
            })
        };
        spread(&entries, 2);
        entries[0].fill(&of_key(NEXT));
        entries[0].set_key(NEXT);
        initiator.join().unwrap();
    });
}

/// A region is promoted, in two parts, while an initiator uses its key: what the initiator finds is
/// mapped is in the file.
#[test]
fn a_promotion_in_use() {
    model(|| {
        let entries: Arc<[KeyEntry]> = [KeyEntry::default()].into();
        entries[0].fill(&contents(PD));
        entries[0].set_key(KEY);
        let file: Arc<[Pages; 2]> = Arc::new([(); 2].map(|()| Pages(UnsafeCell::new(0))));
        let initiator = {
            let (entries, file) = (entries.clone(), file.clone());
            thread::spawn(move || {
                let (guard, mut count) = (CopyGuard::new(), 0);
                let section = guard.begin(&mut count, KEY);
                let keys = RemoteKeys { entries: &entries };
                let checked = keys.check(&section, Scope::of_pd(PD), RANGE, Access::REMOTE_WRITE);
                let (at, mapped) = checked.unwrap();
                assert_eq!(at, ADDR);
                let parts = mapped.end.saturating_sub(mapped.start) / PART;
                for part in &file[..parts as usize] {
                    // SAFETY: loom checks that no other thread writes to the file.
                    assert_eq!(part.0.with(|moved| unsafe { *moved }), 1);
                }
            })
        };
        for (number, part) in (1..).zip(&*file) {
            // SAFETY: loom checks that no other thread uses this part of the file.
            part.0.with_mut(|moved| unsafe { *moved = 1 });
            entries[0].extend_mapped(MappedRange {
                start: ADDR,
                end: ADDR + number * PART,
            });
        }
        initiator.join().unwrap();
    });
}

/// Bytes of a part of a region that moves.
const PART: u64 = 4096;

/// The memory file is made, and pages move out of it, while a region with them is registered by another
/// IA: the pages stay, or the registration waits for the move.
#[test]
fn a_registration_during_a_move() {
    fn page(_: u64, _: u64) -> Range<u64> {
        ADDR..ADDR + 4096
    }
    model(|| {
        let entry = Arc::new(KeyEntry::default());
        // The pages, which the move and a copy for a peer access.
        let pages = Arc::new((Mutex::new(()), Pages(UnsafeCell::new(0))));
        let made = Arc::new(AtomicBool::new(false));
        let mover = {
            let (entry, pages, made) = (entry.clone(), pages.clone(), made.clone());
            thread::spawn(move || {
                made.store(true, Ordering::Release);
                let _moves = pages.0.lock().unwrap();
                for _ in unregistered([page(0, 0)], page, |each| each(&entry)) {
                    // SAFETY: loom checks that no other thread accesses the pages.
                    pages.1.0.with_mut(|pages| unsafe { *pages += 1 });
                }
            })
        };
        entry.fill(&contents(PD));
        entry.set_key(KEY);
        after_publishing(|| {
            if made.load(Ordering::Acquire) {
                drop(pages.0.lock().unwrap());
            }
        });
        // SAFETY: as above.
        pages.1.0.with_mut(|pages| unsafe { *pages += 1 });
        mover.join().unwrap();
    });
}

struct Pages(UnsafeCell<u32>);

// SAFETY: that it is used as if it were is what the model checks.
unsafe impl Sync for Pages {}
// SAFETY: as above.
unsafe impl Send for Pages {}

/// No copy by the kernel runs while its pages move, and a later one finds what has become of them.
#[test]
fn no_copy_runs_while_pages_move() {
    model(|| {
        let target = Target::new();
        let moving = Arc::new(MovingPages::new());
        let initiator = {
            let (target, moving) = (target.clone(), moving.clone());
            thread::spawn(move || {
                let mut count = 0;
                for _ in 0..2 {
                    let _section = target.copy_guard.begin(&mut count, KEY);
                    if !moving.has(ADDR, 8) {
                        // SAFETY: loom checks that no other thread accesses the memory.
                        target.memory.with_mut(|m| unsafe { *m += 1 });
                    }
                }
            })
        };
        let announced = moving.announce(&(ADDR..ADDR + 4096));
        target.wait();
        // SAFETY: loom checks that no other thread accesses the memory.
        target.memory.with_mut(|m| unsafe { *m += 1 });
        drop(announced);
        initiator.join().unwrap();
    });
}
