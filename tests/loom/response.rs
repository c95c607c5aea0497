//! Models of the response to an atomic operation through shared memory, under loom: see `offer.rs`.
#![cfg(loom)]

mod model;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dat_core::testing::device::WcStatus;
use dat_core::testing::device::soft::transport::shm::atomic_response::AtomicResponse;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use model::model;

/// The number of the first operation, where the low half of numbers is at its end.
const FIRST: u64 = u32::MAX as u64;

struct Shared {
    /// How many operations the initiator has requested: the ring.
    requested: AtomicU64,
    response: AtomicResponse,
    word: UnsafeCell<u64>,
}

// SAFETY: that it is used as if it were is what the model checks.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

fn await_response(shared: &Shared, number: u64) -> Result<u64, WcStatus> {
    loop {
        match shared.response.get(number).unwrap() {
            Some(result) => return result,
            None => thread::yield_now(),
        }
    }
}

/// Each response is that to its request, and the initiator sees what the operation has done.
#[test]
fn operations_one_after_the_other() {
    model(|| {
        let shared = Arc::new(Shared {
            requested: AtomicU64::new(0),
            response: AtomicResponse::new(),
            word: UnsafeCell::new(5),
        });
        let responder = {
            let shared = shared.clone();
            thread::spawn(move || {
                for done in 0..2 {
                    while shared.requested.load(Ordering::Acquire) <= done {
                        thread::yield_now();
                    }
                    // SAFETY: nobody else accesses it, as the model checks.
                    let before = shared.word.with_mut(|at| unsafe {
                        *at += 1;
                        *at - 1
                    });
                    let result = if done == 0 {
                        Ok(before)
                    } else {
                        Err(WcStatus::RemoteAccess)
                    };
                    shared.response.set(FIRST + done, result);
                }
            })
        };
        for (done, expected) in [(0, Ok(5)), (1, Err(WcStatus::RemoteAccess))] {
            shared.response.clear();
            shared.requested.store(done + 1, Ordering::Release);
            assert_eq!(await_response(&shared, FIRST + done), expected);
            // SAFETY: nobody writes now, as the model checks.
            assert_eq!(shared.word.with(|at| unsafe { *at }), 6 + done);
        }
        responder.join().unwrap();
    });
}
