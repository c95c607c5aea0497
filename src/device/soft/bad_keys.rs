//! Peers over TCP that use keys which are not valid: who guesses is slowed down.
//!
//! A wrong key ends the connection, so a guesser needs a connection for each. After some of them
//! within a minute, requests of its address wait a while before the consumer gets them, and longer
//! with each further wrong key, up to [`LONGEST`]. So a peer in order that shares the address still
//! connects, a little later, and one whose program has a mistake notices nothing.
//!
//! There is no such thing for processes of this host that share memory: they are of the same user
//! and may read this process anyway.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;

use crate::device::log_limit::LogLimit;

/// Number of wrong keys of an address that have no consequence but the end of the connection.
pub(super) const TOLERATED: u32 = 16;
/// How long an address is remembered after its last wrong key.
const MEMORY: Duration = Duration::from_secs(60);
/// How long requests wait after the first wrong key that is not tolerated.
const SHORTEST: Duration = Duration::from_millis(10);
/// How long requests wait at most.
const LONGEST: Duration = Duration::from_secs(2);
/// Number of addresses that are remembered at most.
const MAX_ADDRESSES: usize = 256;

/// What is known of an address.
#[derive(Clone, Copy)]
struct Record {
    /// Number of wrong keys, each within [`MEMORY`] of the one before.
    count: u32,
    /// When the last one was used.
    last: Instant,
}

impl Record {
    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= MEMORY
    }
}

/// The addresses that have used keys which are not valid.
#[derive(Default)]
pub(super) struct BadKeys(Mutex<BTreeMap<IpAddr, Record>>);

/// The address that stands for all that a peer may easily have: the network of an IPv6 address.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

impl BadKeys {
    /// A peer at that address has used a key that is not valid.
    pub fn report(&self, address: IpAddr) {
        self.report_at(address, Instant::now());
    }

    fn report_at(&self, address: IpAddr, now: Instant) {
        let mut records = self.0.lock();
        let address = origin(address);
        if records.len() >= MAX_ADDRESSES && !records.contains_key(&address) {
            records.retain(|_, record| !record.is_forgotten(now));
            // The one that has done the least, longest ago.
            let least = records.iter().min_by_key(|(_, r)| (r.count, r.last));
            if let Some(&least) = least.map(|(address, _)| address)
                && records.len() >= MAX_ADDRESSES
            {
                records.remove(&least);
            }
        }
        let new = Record {
            count: 0,
            last: now,
        };
        let record = records.entry(address).or_insert(new);
        if record.is_forgotten(now) {
            record.count = 0;
        }
        record.count = record.count.saturating_add(1);
        record.last = now;
    }

    /// How long a request from that address waits. The caller holds no lock that a post takes: the
    /// first in a minute that waits is logged.
    pub fn delay(&self, address: IpAddr) -> Duration {
        static LOGGED: LogLimit = LogLimit::new();
        let (delay, count) = self.delay_at(address, Instant::now());
        if !delay.is_zero()
            && let Some(before) = LOGGED.admit()
        {
            log::warn!(
                "{address} has used {count} keys that are not valid: its connection requests wait \
                 {} ms ({before} have waited since the last entry like this, of which there is one \
                 a minute)",
                delay.as_millis()
            );
        }
        delay
    }

    fn delay_at(&self, address: IpAddr, now: Instant) -> (Duration, u32) {
        let records = self.0.lock();
        let record = records.get(&origin(address));
        let count = record
            .filter(|record| !record.is_forgotten(now))
            .map_or(0, |record| record.count);
        let delay = match count.checked_sub(TOLERATED + 1) {
            None => Duration::ZERO,
            Some(excess) => SHORTEST.saturating_mul(1 << excess.min(16)).min(LONGEST),
        };
        (delay, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_and_is_forgotten() {
        let keys = BadKeys::default();
        let (peer, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..TOLERATED + 12 {
            keys.report_at(peer, now);
            delays.push(keys.delay_at(peer, now).0);
        }
        assert!(delays[..TOLERATED as usize].iter().all(Duration::is_zero));
        assert_eq!(delays[TOLERATED as usize], SHORTEST);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&LONGEST));
        assert_eq!(keys.delay_at(other, now).0, Duration::ZERO);
        let later = now + MEMORY;
        assert_eq!(keys.delay_at(peer, later).0, Duration::ZERO);
        keys.report_at(peer, later);
        assert_eq!(keys.delay_at(peer, later), (Duration::ZERO, 1));
    }

    #[test]
    fn many_addresses_take_little_memory() {
        let keys = BadKeys::default();
        let guesser = "192.0.2.1".parse().unwrap();
        let now = Instant::now();
        for _ in 0..100 {
            keys.report_at(guesser, now);
        }
        for address in 0..10_000u32 {
            keys.report_at(IpAddr::from(address.to_be_bytes()), now);
            // All addresses of a network are one.
            let host = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(address));
            keys.report_at(host.into(), now);
        }
        assert_eq!(keys.0.lock().len(), MAX_ADDRESSES);
        assert_eq!(keys.delay_at(guesser, now).0, LONGEST);
        assert_eq!(keys.delay_at("fd00::1".parse().unwrap(), now).1, 10_000);
    }
}
