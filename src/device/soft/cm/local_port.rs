//! Ports of ends that connect without a TCP socket.
//!
//! Programs distinguish their peers by address and port. The kernel gives a port to the end of a TCP
//! connection alone; over loopback and shared memory the end that connects has a number of its own.
//! The number is nothing that a peer could connect to.

use std::sync::atomic::{AtomicU32, Ordering};

/// The first of the ports that no service has by convention (RFC 6335), and how many there are.
const FIRST: u32 = 49152;
const COUNT: u32 = 65536 - FIRST;

/// The number of ends before, in this process.
static ENDS: AtomicU32 = AtomicU32::new(0);

/// The port of an end that begins to connect. Consecutive ends of a process have different ports, and
/// so have the first ends of processes that run at the same time, as a rule.
pub(super) fn next() -> u16 {
    // An odd factor: the processes of a host begin at places that are far from each other.
    let start = std::process::id().wrapping_mul(40_503);
    let number = start.wrapping_add(ENDS.fetch_add(1, Ordering::Relaxed));
    (FIRST + number % COUNT) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_dynamic() {
        let ports: Vec<u16> = (0..1000).map(|_| next()).collect();
        assert!(ports.iter().all(|port| u32::from(*port) >= FIRST));
        let distinct: std::collections::HashSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
    }
}
