//! What must hold for a connection whose peer sends any bytes, in any pieces: shared by
//! `tests/fuzz_connections.rs`, which runs it on the corpus and on random bytes in every test run,
//! and the targets in `fuzz/`, which search.

pub mod input;
pub mod mpa;

pub mod shm;
pub mod stream;

use std::net::TcpStream;
use std::time::Instant;

use dat_core::testing::device::*;

use crate::soft::PATIENCE;
use crate::victim::{Host, Victim};

/// Writes pieces. The device is served between them.
fn write_pieces(host: &Host, peer: &mut TcpStream, pieces: &[&[u8]]) {
    for piece in pieces {
        crate::iwarp::write_all(peer, piece);
        host.device.progress();
    }
}

/// Serves the device until `done` has a value.
fn until<T>(host: &Host, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE / 4;
    loop {
        if let Some(value) = done() {
            return value;
        }
        host.device.progress();
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}

/// The next event of a connection.
fn event(host: &Host, victim: &Victim) -> CmEvent {
    until(host, "an event", || victim.events.try_recv().ok())
}

/// The completions that are there.
fn completions(victim: &Victim) -> Vec<Completion> {
    std::iter::from_fn(|| victim.cq.poll()).collect()
}
