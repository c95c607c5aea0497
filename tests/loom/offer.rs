//! Models of what two processes agree on for a long message, under loom: every interleaving of the two
//! ends, within a bound of preemptions, and every value that the memory model lets a load see. They run
//! the code that ships; see `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use dat_core::testing::device::Remote;
use dat_core::testing::device::soft::transport::shm::doorbell::{Doorbell, WakeOn};
use dat_core::testing::device::soft::transport::shm::offer::{Offer, Rest, SecondHalf, Stage};
use dat_core::testing::device::soft::transport::shm::remote_keys::CopyGuard;
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use model::model;

const NUMBER: u64 = 3;
const KEY: u32 = 1;
const HALF: SecondHalf = SecondHalf {
    offset: 1,
    at: Remote {
        addr: 4096,
        rkey: KEY,
    },
};

/// An offer, and the receive that its message is for.
struct Shared {
    offer: Offer,
    /// That of the sender.
    copy_guard: CopyGuard,
    halves: [UnsafeCell<u32>; 2],
}

// SAFETY: that it is used as if it were is what the models check.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// The sender has made the offer.
    fn new() -> Arc<Shared> {
        let shared = Arc::new(Shared {
            offer: Offer::new(),
            copy_guard: CopyGuard::new(),
            halves: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        shared.offer.make(NUMBER);
        shared
    }

    fn stage(&self) -> Stage {
        self.offer.stage(NUMBER).unwrap()
    }

    fn change(&self, from: Stage, to: Stage) -> bool {
        self.offer.change(NUMBER, from, to)
    }

    /// Copies to one half; loom ends the model if the other end does so at the same time.
    fn copy(&self, half: usize) {
        // SAFETY: nobody else accesses it, as the model checks.
        self.halves[half].with_mut(|at| unsafe { *at += 1 });
    }

    /// Helps with the second half if that is open, in as many sections; with `able` false it cannot.
    fn help(&self, sections: u32, able: bool) {
        if self.stage() != Stage::Open {
            return;
        }
        assert_eq!(self.offer.second_half(), HALF);
        let mut count = 0;
        for section in 0..sections {
            let _section = self.copy_guard.begin(&mut count, KEY);
            let wanted = match section {
                0 => self.change(Stage::Open, Stage::Helping),
                _ => self.stage() == Stage::Helping,
            };
            if !wanted {
                return;
            }
            if able && section + 1 == sections {
                self.copy(1);
            }
        }
        let helped = if able { Stage::Helped } else { Stage::Declined };
        self.change(Stage::Helping, helped);
    }

    /// Receives; true if the message was taken.
    fn receive(&self) -> bool {
        if !self.offer.open(NUMBER, HALF) {
            return false;
        }
        self.copy(0);
        let from = loop {
            match self.offer.rest(NUMBER).unwrap() {
                Rest::Copy => {
                    self.copy(1);
                    break Stage::Own;
                }
                Rest::Awaited => thread::yield_now(),
                Rest::Copied(from) => break from,
                Rest::Void => return false,
            }
        };
        self.change(from, Stage::Taken)
    }

    /// The consumer of the receiver has the message.
    fn check(&self) {
        for half in &self.halves {
            // SAFETY: nobody writes any more, as the model checks.
            assert_eq!(half.with(|at| unsafe { *at }), 1);
        }
    }
}

fn transfer(able: bool) {
    model(move || {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                assert!(shared.receive());
                shared.check();
            })
        };
        while shared.stage() != Stage::Taken {
            shared.help(1, able);
            thread::yield_now();
        }
        other.join().unwrap();
    });
}

#[test]
fn each_half_is_copied_once() {
    transfer(true);
}

#[test]
fn a_sender_that_cannot_help() {
    transfer(false);
}

/// The sender gives up at any time: both ends agree on what has become of the message.
#[test]
fn withdrawn_or_taken() {
    model(|| {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.receive())
        };
        shared.help(1, true);
        let last = shared.offer.withdraw(NUMBER).unwrap();
        let taken = other.join().unwrap();
        assert_eq!(taken, last == Stage::Taken);
        assert!(taken || last == Stage::Withdrawn);
        if taken {
            shared.check();
        }
    });
}

/// The receiver gives up while the sender helps: the memory of the receive is its own then.
#[test]
fn a_receiver_that_gives_up() {
    model(|| {
        let shared = Shared::new();
        assert!(shared.offer.open(NUMBER, HALF));
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.help(2, true))
        };
        if let Rest::Awaited = shared.offer.rest(NUMBER).unwrap()
            && shared.change(Stage::Helping, Stage::Withdrawn)
            && let Some(section) = shared.copy_guard.running()
        {
            while shared.copy_guard.is_running(section) {
                thread::yield_now();
            }
        }
        shared.copy(1);
        other.join().unwrap();
    });
}

/// A receiver that sleeps while the sender copies its half is woken when that is done. loom ends the model if it
/// sleeps for ever.
#[test]
fn a_receiver_that_sleeps_for_a_half() {
    model(|| {
        let shared = Shared::new();
        let doorbell = Arc::new(Doorbell::new());
        let socket = Arc::new((Mutex::new(false), Condvar::new()));
        assert!(shared.offer.open(NUMBER, HALF));
        let other = {
            let (shared, doorbell, socket) = (shared.clone(), doorbell.clone(), socket.clone());
            thread::spawn(move || {
                shared.help(1, true);
                if doorbell.is_due(WakeOn::CELLS) {
                    *socket.0.lock().unwrap() = true;
                    socket.1.notify_one();
                }
            })
        };
        shared.copy(0);
        let from = loop {
            match shared.offer.rest(NUMBER).unwrap() {
                Rest::Copy => {
                    shared.copy(1);
                    break Stage::Own;
                }
                Rest::Copied(from) => break from,
                Rest::Void => unreachable!("nobody withdraws the offer"),
                Rest::Awaited => {}
            }
            doorbell.arm(WakeOn::CELLS);
            if shared.stage() == Stage::Helping {
                let mut rung = socket.0.lock().unwrap();
                while !*rung {
                    rung = socket.1.wait(rung).unwrap();
                }
            }
        };
        assert!(shared.change(from, Stage::Taken));
        other.join().unwrap();
        shared.check();
    });
}
