//! Models of the bitmap in which peers set the bits of connections, under loom: every interleaving
//! of owner and peers, within a bound of preemptions. They run the code that ships; see `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use dat_core::testing::device::soft::engine::ready_bitmap::{OwnerState, ReadyBits};
use dat_core::testing::device::soft::transport::shm::doorbell::{Doorbell, WakeOn};
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use model::model;

/// One connection.
struct Connection {
    /// Messages that have arrived.
    arrived: AtomicU32,
    doorbell: Doorbell,
    /// 1 if the peer is to set the bit of the connection, 0 if not.
    has_bit: AtomicU32,
}

/// An owner with two connections.
struct Owner {
    state: OwnerState,
    ready_bits: ReadyBits,
    connections: [Connection; 2],
    /// Bytes in the sockets, and the kernel that waits for one.
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Owner {
    fn new(has_bit: u32) -> Arc<Owner> {
        let connection = || Connection {
            arrived: AtomicU32::new(0),
            doorbell: Doorbell::new(),
            has_bit: AtomicU32::new(has_bit),
        };
        Arc::new(Owner {
            state: OwnerState::new(),
            ready_bits: ReadyBits::new(),
            connections: [connection(), connection()],
            rung: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// Sends `count` messages over a connection, as a peer does.
    fn produce(&self, place: usize, count: u32) {
        let connection = &self.connections[place];
        let mut rung = 0;
        for number in 1..=count {
            connection.arrived.store(number, Ordering::Release);
            if connection.doorbell.is_due(WakeOn::CELLS) {
                self.ring();
            }
            if connection.has_bit.load(Ordering::Acquire) == 0 {
                continue;
            }
            self.ready_bits.set(place as u32);
            if let Some(sleep) = self.state.sleep_number()
                && rung != sleep
            {
                rung = sleep;
                self.ring();
            }
        }
    }

    /// Receives from the connections whose bits are set.
    fn poll(&self, got: &mut [u32; 2]) {
        let ready = self.ready_bits.take(0);
        for (place, got) in got.iter_mut().enumerate() {
            if ready & 1 << place != 0 {
                *got = self.connections[place].arrived.load(Ordering::Acquire);
            }
        }
    }
}

/// The owner polls and sleeps by turns until it has received everything.
fn sleeper(counts: [u32; 2]) {
    model(move || {
        let owner = Owner::new(1);
        let peers: Vec<_> = (0..2)
            .filter(|&place| counts[place] > 0)
            .map(|place| {
                let owner = owner.clone();
                thread::spawn(move || owner.produce(place, counts[place]))
            })
            .collect();
        let mut got = [0; 2];
        owner.poll(&mut got);
        while got != counts {
            owner.state.sleep();
            owner.poll(&mut got);
            if got != counts {
                owner.wait();
            }
        }
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

#[test]
fn no_bit_of_one_peer_is_lost() {
    sleeper([3, 0]);
}

#[test]
fn no_bit_of_two_peers_is_lost() {
    sleeper([1, 1]);
}

/// An owner that stops sleeping by itself, and polls again.
#[test]
fn an_owner_that_wakes_by_itself_misses_nothing() {
    model(|| {
        let owner = Owner::new(1);
        let peer = {
            let owner = owner.clone();
            thread::spawn(move || owner.produce(0, 2))
        };
        let mut got = [0; 2];
        owner.state.sleep();
        owner.poll(&mut got);
        owner.state.wake();
        owner.poll(&mut got);
        owner.state.sleep();
        owner.poll(&mut got);
        while got[0] != 2 {
            owner.wait();
            owner.state.sleep();
            owner.poll(&mut got);
        }
        peer.join().unwrap();
    });
}

/// A connection whose doorbell was armed gets a bit.
#[test]
fn the_change_from_doorbell_to_bitmap() {
    model(|| {
        let owner = Owner::new(0);
        let connection = &owner.connections[0];
        connection.doorbell.arm(WakeOn::CELLS);
        let peer = {
            let owner = owner.clone();
            thread::spawn(move || owner.produce(0, 2))
        };
        owner.state.sleep();
        connection.has_bit.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        connection.doorbell.disarm();
        let mut got = [connection.arrived.load(Ordering::Acquire), 0];
        owner.state.sleep();
        owner.poll(&mut got);
        while got[0] != 2 {
            owner.wait();
            owner.state.sleep();
            owner.poll(&mut got);
        }
        peer.join().unwrap();
    });
}
