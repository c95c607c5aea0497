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
        self.request();
    }

    /// What a thread does that finds the queue armed.
    fn request(&self) {
        // Not a store: loom does not order one with the swap of a device that has not seen it.
        let ask = || _ = self.asked.swap(true, Ordering::Relaxed);
        self.arming.request(ALL, ask);
    }

    /// What the service thread does when the device has answered; `true` if it notifies.
    fn answered(&self) -> bool {
        self.arming.answered();
        self.arming.is_armed() && self.arming.take()
    }
}

/// The service thread handles an event of which the consumer has the completion already, while the
/// consumer arms the queue for the next: it is notified, or the device was asked for it.
#[test]
fn an_event_while_the_queue_is_armed() {
    model(|| {
        let shared = Shared::new();
        // The request that the event answers.
        shared.arming.request(ALL, || {});
        let service = {
            let shared = shared.clone();
            thread::spawn(move || shared.answered())
        };
        shared.arm();
        let notified = service.join().unwrap();
        assert!(notified || shared.asked.load(Ordering::Relaxed));
    });
}

/// The consumer arms the queue while another thread, which has found it armed, asks the device: when the
/// consumer polls, the device was asked.
#[test]
fn another_thread_asks_the_device() {
    model(|| {
        let shared = Shared::new();
        shared.arming.arm();
        let consumer = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.arm();
                assert!(shared.asked.load(Ordering::Relaxed));
            })
        };
        shared.request();
        consumer.join().unwrap();
    });
}

/// The device answers as soon as it is asked, and the service thread handles that before the thread that
/// has asked goes on: who arms the queue afterwards asks again.
#[test]
fn an_answer_while_the_device_is_asked() {
    model(|| {
        let shared = Shared::new();
        let service = {
            let shared = shared.clone();
            thread::spawn(move || {
                if shared.asked.swap(false, Ordering::AcqRel) {
                    shared.answered();
                }
            })
        };
        shared.arm();
        service.join().unwrap();
        shared.arm();
        assert!(shared.asked.load(Ordering::Relaxed));
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
