//! Models of the RDMA writes in a ring, which the peer takes or the initiator takes back, under loom: see `offer.rs`.
#![cfg(loom)]

mod model;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dat_core::testing::device::soft::transport::shm::write_claim::WriteClaim;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use model::model;

/// The number of the first cell, where the low half of numbers is at its end.
const FIRST: u64 = u32::MAX as u64;

struct Shared {
    /// How many cells are filled, and how many of them the peer has consumed: the ring.
    filled: AtomicU64,
    consumed: AtomicU64,
    claim: WriteClaim,
    /// What the writes write to: how often each was executed.
    written: [UnsafeCell<u32>; 2],
}

// SAFETY: that it is used as if it were is what the models check.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            filled: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            claim: WriteClaim::new(),
            written: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    /// Executes a write; loom ends the model if the other end does so at the same time.
    fn write(&self, cell: u64) {
        // SAFETY: nobody else accesses it, as the model checks.
        self.written[cell as usize].with_mut(|at| unsafe { *at += 1 });
    }

    /// Each write was executed once.
    fn check(&self, writes: u64) {
        for cell in 0..writes {
            // SAFETY: nobody writes any more, as the model checks.
            let times = self.written[cell as usize].with(|at| unsafe { *at });
            assert_eq!(times, 1);
        }
    }

    /// Consumes the cells, each with a claim of its own or all with one, and executes the writes. That of `bad` fails.
    fn consume(&self, cells: u64, claims: u64, bad: Option<u64>) {
        let mut is_ours = false;
        for cell in 0..cells {
            while self.filled.load(Ordering::Acquire) <= cell {
                thread::yield_now();
            }
            if cell < claims {
                is_ours = self.claim.take(FIRST + cell);
            }
            match is_ours {
                true if bad == Some(cell) => {
                    self.claim.fail(FIRST + cell);
                    is_ours = false;
                }
                true => self.write(cell),
                false => {}
            }
            self.consumed.store(cell + 1, Ordering::Release);
        }
    }
}

/// The peer executes all writes of a claim, or the initiator does.
#[test]
fn one_end_executes_the_writes() {
    model(|| {
        let shared = Shared::new();
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || shared.consume(2, 1, None))
        };
        shared.claim.offer(FIRST);
        shared.filled.store(1, Ordering::Release);
        shared.filled.store(2, Ordering::Release);
        if shared.claim.withdraw(FIRST).unwrap() {
            shared.write(0);
            shared.write(1);
        }
        while shared.consumed.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
        assert_eq!(shared.claim.failed(FIRST), Ok(None));
        shared.check(2);
        peer.join().unwrap();
    });
}

/// What was withdrawn is not mistaken for the writes that are offered next.
#[test]
fn writes_behind_writes_that_were_withdrawn() {
    model(|| {
        let shared = Shared::new();
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || shared.consume(2, 2, None))
        };
        for cell in 0..2 {
            shared.claim.offer(FIRST + cell);
            shared.filled.store(cell + 1, Ordering::Release);
            match shared.claim.withdraw(FIRST + cell).unwrap() {
                true => shared.write(cell),
                // The next ones are offered when these are executed.
                false => {
                    while shared.consumed.load(Ordering::Acquire) <= cell {
                        thread::yield_now();
                    }
                }
            }
        }
        peer.join().unwrap();
        shared.check(2);
    });
}

/// The initiator of consumed cells knows which write has failed, and that none behind it was executed.
#[test]
fn a_write_that_fails() {
    model(|| {
        let shared = Shared::new();
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || shared.consume(2, 1, Some(1)))
        };
        shared.claim.offer(FIRST);
        shared.filled.store(2, Ordering::Release);
        loop {
            let consumed = shared.consumed.load(Ordering::Acquire);
            if consumed == 2 {
                assert_eq!(shared.claim.failed(FIRST), Ok(Some(1)));
                break;
            }
            assert!(matches!(shared.claim.failed(FIRST), Ok(None | Some(1))));
            thread::yield_now();
        }
        peer.join().unwrap();
        shared.check(1);
    });
}
