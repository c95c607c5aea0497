//! Short RDMA writes that an end has put into its ring ([`ring_writes`](super::ring_writes)): what both ends agree on
//! in shared memory.
//!
//! The initiator offers some writes in cells of the ring, which the peer takes, all of them at once, and executes. A
//! peer that does not take them for a moment does not poll: the initiator takes the writes back then, and the
//! peer consumes their cells without executing any. Which of the two happens is decided by one compare-and-exchange.
//!
//! The peer is not trusted: a number that an end does not expect is a violation of the protocol.

use super::ring::Violation;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Nobody has taken the writes.
const OFFERED: u32 = 1;
/// The peer executes them.
const TAKEN: u32 = 2;
/// The initiator has taken them back.
const WITHDRAWN: u32 = 3;

/// The words of one direction, in shared memory. All of it is zero while nothing was offered.
#[repr(C, align(64))]
pub struct WriteClaim {
    /// The low 32 bits of the number of the first cell, above one of the stages.
    state: AtomicU64,
    /// The low 32 bits of the number of the cell whose write has failed, above 1; 0 if none has.
    failed: AtomicU64,
}

fn state(number: u64, stage: u32) -> u64 {
    number << 32 | u64::from(stage)
}

impl WriteClaim {
    /// Nothing was offered.
    #[allow(clippy::new_without_default)]
    pub fn new() -> WriteClaim {
        WriteClaim {
            state: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Called by the initiator before it fills the first cell, which has that number. The writes before are
    /// executed or withdrawn.
    pub fn offer(&self, number: u64) {
        self.failed.store(0, Ordering::Relaxed);
        self.state.store(state(number, OFFERED), Ordering::Release);
    }

    /// Called by the peer. True if it is to execute the writes whose first cell has that number.
    pub fn take(&self, number: u64) -> bool {
        self.change(number, TAKEN).is_ok()
    }

    /// Called by the initiator. True if it has the writes back, false if the peer executes them.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn withdraw(&self, number: u64) -> Result<bool, Violation> {
        match self.change(number, WITHDRAWN) {
            Ok(_) => Ok(true),
            Err(found) if found == state(number, TAKEN) => Ok(false),
            Err(_) => Err(Violation),
        }
    }

    fn change(&self, number: u64, stage: u32) -> Result<u64, u64> {
        let (from, to) = (state(number, OFFERED), state(number, stage));
        (self.state).compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Called by the peer before it consumes the cell of that number, whose write has failed. It executes none
    /// behind that one.
    pub fn fail(&self, number: u64) {
        self.failed.store(number << 32 | 1, Ordering::Relaxed);
    }

    /// Called by the initiator after it has read which cells are consumed: how many cells lie between the first one,
    /// of that number, and the one whose write has failed.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn failed(&self, number: u64) -> Result<Option<u32>, Violation> {
        let failed = self.failed.load(Ordering::Relaxed);
        match failed as u32 {
            0 => Ok(None),
            1 => Ok(Some(((failed >> 32) as u32).wrapping_sub(number as u32))),
            _ => Err(Violation),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A number of which only the low half is in the words.
    const NUMBER: u64 = 1 << 32 | 0xffff_fffe;

    #[test]
    fn writes_are_taken_or_withdrawn() {
        let claim = WriteClaim::new();
        claim.offer(NUMBER);
        assert!(!claim.take(NUMBER + 1) && claim.take(NUMBER) && !claim.take(NUMBER));
        assert_eq!(claim.withdraw(NUMBER), Ok(false));
        claim.offer(NUMBER + 5);
        assert!(!claim.take(NUMBER));
        assert_eq!(claim.withdraw(NUMBER + 5), Ok(true));
        assert!(!claim.take(NUMBER + 5));
        assert_eq!(claim.withdraw(NUMBER + 5), Err(Violation));
        assert_eq!(claim.withdraw(NUMBER), Err(Violation));
    }

    #[test]
    fn a_write_that_has_failed_is_one_of_those_that_were_offered() {
        let claim = WriteClaim::new();
        claim.offer(NUMBER);
        assert_eq!(claim.failed(NUMBER), Ok(None));
        claim.fail(NUMBER + 3);
        assert_eq!(claim.failed(NUMBER), Ok(Some(3)));
        claim.fail(NUMBER - 1);
        assert_eq!(claim.failed(NUMBER), Ok(Some(u32::MAX)));
        claim.offer(NUMBER + 7);
        assert_eq!(claim.failed(NUMBER + 7), Ok(None));
        claim.failed.store(2, Ordering::Relaxed);
        assert_eq!(claim.failed(NUMBER), Err(Violation));
    }
}
