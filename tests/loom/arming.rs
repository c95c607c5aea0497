//! A model of how the consumer of a completion queue of a device is notified, under loom; see
//! `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use dat_core::testing::device::verbs::arming::{ALL, Arming};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use model::model;

struct Shared {
    arming: Arming,
    /// The device notifies of the next completion.
    asked: AtomicBool,
    /// A completion is in the queue of the library.
    pushed: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            arming: Arming::new(),
            asked: AtomicBool::new(false),
            pushed: AtomicBool::new(false),
        })
    }

    /// What a consumer does before it polls and sleeps.
    fn arm(&self) {
        self.arming.arm();
        if self.arming.request(ALL) {
            self.asked.store(true, Ordering::Relaxed);
        }
    }
}

/// The service thread handles an event of which the consumer has the completion already, while the
/// consumer arms the queue for the next: it is notified, or the device was asked for it.
#[test]
fn an_event_while_the_queue_is_armed() {
    model(|| {
        let shared = Shared::new();
        // The request that the event answers.
        assert!(shared.arming.request(ALL));
        let service = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.arming.answered();
                shared.arming.is_armed() && shared.arming.take()
            })
        };
        shared.arm();
        let notified = service.join().unwrap();
        assert!(notified || shared.asked.load(Ordering::Relaxed));
    });
}

/// The library adds a completion of its own while the consumer arms the queue: it is notified, or its
/// next poll finds the completion.
#[test]
fn a_completion_of_the_library() {
    model(|| {
        let shared = Shared::new();
        let library = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.pushed.store(true, Ordering::Release);
                shared.arming.take()
            })
        };
        shared.arming.arm();
        let found = shared.pushed.load(Ordering::Acquire);
        let notified = library.join().unwrap();
        assert!(notified || found);
    });
}
