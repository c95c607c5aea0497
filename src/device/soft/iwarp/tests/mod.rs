//! Golden bytes, written by hand from the RFCs; rules, exhaustively where the space is small;
//! round trips with random values.

mod acknowledge;
mod extensions;
mod fpdu;
mod mpa;
mod rdmap;
mod terminate;

use proptest::test_runner::{Config, RngSeed};

/// The same cases in every run, and no files written into the source tree.
fn fixed() -> Config {
    Config {
        rng_seed: RngSeed::Fixed(0x6977_6172),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Bytes from hexadecimal digits; blanks are ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert_eq!(digits.len() % 2, 0, "odd number of digits");
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}
