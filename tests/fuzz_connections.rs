//! Whole connections with peers that send anything: the committed corpus of the fuzz targets, and a
//! short random run, the same every time. `fuzz/` holds the targets that search longer.

#[path = "connection_properties/mod.rs"]
mod connection_properties;
#[path = "common/iwarp.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod iwarp;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/random.rs"]
mod random;
#[path = "common/shm_peer.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod shm_peer;
#[path = "common/soft.rs"]
mod soft;
#[path = "hostile/victim.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod victim;

use std::sync::{Mutex, PoisonError};

use connection_properties::mpa::mpa_handshake;
use connection_properties::shm::shm_handshake;
use connection_properties::stream::tcp_stream;
use random::Random;

/// Bytes of an input. Fields are right for bytes below 0xf0, and one byte of so many is above.
fn bytes(random: &mut Random, limit: usize) -> Vec<u8> {
    let len = 2 + random.below(limit);
    let rare = [1000, 100, 20, 4][random.below(4)];
    let byte = |_| match random.below(rare) {
        0 => 0xf0 | random.below(16) as u8,
        _ => random.below(0xf0) as u8,
    };
    (0..len).map(byte).collect()
}

/// The files of a corpus, and inputs from numbers. One test at a time: descriptors of the process are counted.
fn all(name: &str, random: usize, run: fn(&[u8])) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0, "no corpus of {name}");
    let mut numbers = Random(0x636f_6e6e);
    for _ in 0..random {
        run(&bytes(&mut numbers, 300));
    }
}

#[test]
fn streams() {
    all("tcp_stream", 300, tcp_stream);
}

#[test]
fn set_up_over_tcp() {
    all("mpa_handshake", 500, mpa_handshake);
}

#[test]
fn set_up_through_shared_memory() {
    all("shm_handshake", 300, shm_handshake);
}
