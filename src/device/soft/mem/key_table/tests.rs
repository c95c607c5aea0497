//! What who knows keys knows about other keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::device::soft::tests::alone_in;

/// Number of keys of a sample.
const SAMPLE: usize = 10_000;

fn opening() -> Opening {
    Opening {
        pd: 1,
        addr: 0x1000,
        len: 16,
        origin: Origin::Memory,
        access: Access::all(),
        region: None,
        promotable: false,
        mapped: MappedRange::default(),
    }
}

/// Regions that are registered one after the other. The drop deregisters them.
struct Regions(Vec<Region>);

impl Regions {
    fn register(count: usize) -> Regions {
        Regions(
            (0..count)
                .map(|_| Region::register(&opening()).unwrap())
                .collect(),
        )
    }

    fn keys(&self) -> Vec<u32> {
        self.0.iter().map(|region| region.key).collect()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.0.iter().for_each(|region| region.deregister());
    }
}

/// How far the counts of equally likely outcomes are from equal, in standard deviations of what
/// chance does to such a sum.
fn excess(counts: &[u32]) -> f64 {
    let cells = counts.len() as f64;
    let mean = counts.iter().sum::<u32>() as f64 / cells;
    let chi_square: f64 = counts
        .iter()
        .map(|&count| (f64::from(count) - mean).powi(2) / mean)
        .sum();
    (chi_square - (cells - 1.0)) / (2.0 * (cells - 1.0)).sqrt()
}

/// The numbers are spread as random ones are, in each of their bytes. A sample in order fails this
/// once in more than 10^9 runs.
fn assert_random(what: &str, numbers: impl Iterator<Item = u32> + Clone) {
    for shift in [0, 8, 16, 24] {
        let mut counts = [0; 256];
        for number in numbers.clone() {
            counts[(number >> shift) as usize & 0xff] += 1;
        }
        let excess = excess(&counts);
        assert!(excess.abs() < 10.0, "{what}, bit {shift}: {excess}");
    }
}

/// Runs a test of randomness in a process of its own. A key of which another test has the slot is not drawn, and there
/// are few slots at first.
fn without_others(name: &str, test: fn()) {
    alone_in(module_path!(), &[], name, test);
}

#[test]
fn successive_keys_have_no_relation() {
    without_others("successive_keys_have_no_relation", successive_keys);
}

fn successive_keys() {
    let regions = Regions::register(SAMPLE);
    let keys = regions.keys();
    assert!(!keys.contains(&0));
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), SAMPLE);
    assert_random("keys", keys.iter().copied());
    for distance in [1, 2, 3, 64] {
        let pairs = keys.iter().zip(&keys[distance..]);
        assert_random(
            "differences",
            pairs.clone().map(|(a, b)| b.wrapping_sub(*a)),
        );
        assert_random("changed bits", pairs.map(|(a, b)| a ^ b));
    }
    // Of differences of random numbers of 32 bits hardly any two are equal.
    let differences: HashSet<u32> = keys.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(differences.len() > SAMPLE - 100, "{}", differences.len());
}

/// A key that is used again, which a program does that registers and deregisters.
#[test]
fn keys_of_one_entry_have_no_relation() {
    without_others("keys_of_one_entry_have_no_relation", keys_of_one_entry);
}

fn keys_of_one_entry() {
    let keys: Vec<u32> = (0..SAMPLE)
        .map(|_| Regions::register(1).keys()[0])
        .collect();
    assert_random("keys", keys.iter().copied());
    let pairs = keys.iter().zip(&keys[1..]);
    assert_random("differences", pairs.map(|(a, b)| b.wrapping_sub(*a)));
}

/// A peer that has 1000 keys of its own, and guesses those of a neighbour which were registered
/// between them: next to its own, at the distances of its own, and in the pattern of its own bits.
#[test]
fn keys_of_a_neighbour_are_not_guessed() {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let mut held = Vec::new();
    for _ in 0..1000 {
        held.extend([Regions::register(1), Regions::register(1)]);
        let [.., first, second] = &held[..] else {
            unreachable!()
        };
        own.extend(first.keys());
        others.extend(second.keys());
    }
    let others: HashSet<u32> = others.into_iter().collect();
    let mut guesses = HashSet::new();
    for (i, &key) in own.iter().enumerate() {
        for step in 1..=100u32 {
            for unit in [1, 1 << 8, 1 << 11, 1 << 16, 1 << 21, 1 << 24] {
                guesses.insert(key.wrapping_add(step * unit));
                guesses.insert(key.wrapping_sub(step * unit));
            }
        }
        for other in own[i + 1..].iter().take(100) {
            let difference = other.wrapping_sub(key);
            guesses.insert(key.wrapping_add(difference / 2));
            guesses.insert(other.wrapping_add(difference));
            guesses.insert(key ^ (other >> 16));
        }
    }
    let farther = (101..).flat_map(|step| own.iter().map(move |key| key.wrapping_add(step)));
    for guess in farther {
        if guesses.len() >= 1_100_000 {
            break;
        }
        guesses.insert(guess);
    }
    own.iter().for_each(|key| _ = guesses.remove(key));
    // By chance a guess hits once in four million; a relation would give hundreds.
    let hits = guesses.intersection(&others).count();
    assert!(hits <= 5, "{hits} keys in {} guesses", guesses.len());
    assert!(guesses.len() >= 1_000_000);
}

/// Keys stay valid while the directory grows and shrinks in use, and no other number is one.
#[test]
fn keys_are_found_while_the_directory_grows() {
    let mut all = Vec::new();
    for round in 0..6 {
        all.push(Regions::register(100 << round));
        if round == 3 {
            all.remove(0);
        }
        let guard = pin::pin();
        for region in all.iter().flat_map(|regions| &regions.0) {
            let found = TABLE.entry(region.key).unwrap();
            assert!(std::ptr::eq(found, region.entry));
            assert_eq!(
                check(
                    region.key,
                    Scope::of_pd(1),
                    0x1000,
                    16,
                    Access::all(),
                    &guard
                ),
                Ok(())
            );
            for bit in 0..32 {
                let other = region.key ^ 1 << bit;
                if let Some(found) = TABLE.entry(other) {
                    assert_eq!(found.key(), other);
                }
            }
        }
    }
}

/// A section goes on with the directory that it has found.
#[test]
fn a_directory_is_there_as_long_as_sections_that_may_have_found_it() {
    let directory = Arc::new(());
    let section = pin::pin();
    retire(Some(directory.clone()));
    assert_eq!(Arc::strong_count(&directory), 2);
    drop(section);
    // Sections of other threads may be under way.
    let begun = Instant::now();
    while Arc::strong_count(&directory) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "never freed");
        std::thread::yield_now();
        retire(Some(()));
    }
}
