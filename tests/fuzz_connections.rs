//! Whole connections with peers that send anything: the committed corpus of the fuzz targets, and a
//! short random run, the same every time. `fuzz/` holds the targets that search longer.

#[path = "connection_properties/mod.rs"]
mod connection_properties;
#[path = "common/iwarp.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod iwarp;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/shm_peer.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod shm_peer;
#[path = "common/soft.rs"]
mod soft;
#[path = "hostile/victim.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod victim;

use connection_properties::mpa::mpa_handshake;
use connection_properties::shm::shm_handshake;
use connection_properties::stream::tcp_stream;

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit
    }

    /// Fields are right for bytes below 0xf0, and one byte of so many is above.
    fn bytes(&mut self, limit: u64) -> Vec<u8> {
        let len = 2 + self.below(limit);
        let rare = [1000, 100, 20, 4][self.below(4) as usize];
        let byte = |_| match self.below(rare) {
            0 => 0xf0 | self.below(16) as u8,
            _ => self.below(0xf0) as u8,
        };
        (0..len).map(byte).collect()
    }
}

/// The files of a corpus, and inputs from numbers.
fn all(name: &str, random: usize, run: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0, "no corpus of {name}");
    let mut numbers = Random(0x636f_6e6e);
    for _ in 0..random {
        run(&numbers.bytes(300));
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
