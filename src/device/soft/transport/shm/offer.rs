//! A long message that is not copied into the ring: the receiver copies it out of the memory of the
//! sender, and the sender may copy its second half meanwhile. This is what both agree on in shared
//! memory.
//!
//! The sender *offers* the message in a cell of the ring and waits. A receiver that has a receive for
//! the message either copies all of it, or names the place of its second half and begins with the
//! first; a sender that polls then copies the second half. A receiver that is done with the first half
//! takes the second one back if the sender has not claimed it. The last bytes of the message belong to neither half:
//! they are in the cell ([`bulk`](super::bulk)).
//!
//! ```text
//!    Offered ───► Own ─────────────────────────► Taken, or refused
//!       │          ▲ ▲                             ▲
//!       ▼          │ └── Declined ◄──┐             │
//!      Open ───────┤                 │             │
//!       └──────────┴──► Helping ─────┴──► Helped ──┘
//! ```
//!
//! The sender may withdraw the offer in every stage but the last ones and [`Stage::Helping`], the
//! receiver in that one. A stage changes by compare-and-exchange from the stage that the end has found:
//! so both ends agree on how an offer ended, and the sender completes a request with success if and
//! only if the receiver has completed the receive.
//!
//! The peer is not trusted: a stage that an end does not expect is a violation of the protocol.

use super::ring::Violation;
use crate::device::Remote;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How far an offer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stage {
    /// The receiver has not begun.
    Offered = 1,
    /// The receiver copies the first half, and the sender may copy the second one.
    Open = 2,
    /// The sender copies the second half.
    Helping = 3,
    /// The sender has copied the second half.
    Helped = 4,
    /// The sender cannot copy the second half.
    Declined = 5,
    /// The receiver copies what is not copied.
    Own = 6,
    /// The message is in its receive.
    Taken = 7,
    /// The memory of the sender cannot be read.
    Unreadable = 8,
    /// The message does not fit its receive, or cannot be written there.
    Unfit = 9,
    /// The key that the message invalidates is not one.
    BadKey = 10,
    /// An end has given the offer up.
    Withdrawn = 11,
}

impl Stage {
    fn from_bits(bits: u32) -> Option<Stage> {
        use Stage::*;
        let all = [
            Offered, Open, Helping, Helped, Declined, Own, Taken, Unreadable, Unfit, BadKey,
            Withdrawn,
        ];
        all.into_iter().find(|stage| *stage as u32 == bits)
    }

    /// Whether nothing follows.
    pub fn is_last(self) -> bool {
        self as u32 >= Stage::Taken as u32
    }
}

/// What is to be done by the receiver of a message whose first half is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// To copy the second half. The stage is [`Stage::Own`].
    Copy,
    /// The sender copies the second half.
    Awaited,
    /// All is copied; with the stage.
    Copied(Stage),
    /// The sender has withdrawn the offer.
    Void,
}

/// An honest peer changes the stage less often.
const MOST_CHANGES: usize = 8;

/// Where the second half of a message belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecondHalf {
    /// Bytes of the message that precede it.
    pub offset: u64,
    /// Where its first byte belongs in the memory of the receiver.
    pub at: Remote,
}

/// The words of one direction, in shared memory. All of it is zero while nothing was offered.
#[repr(C, align(128))]
pub struct Offer {
    /// The low 32 bits of the number of the cell that has the offer, above the [`Stage`].
    state: AtomicU64,
    /// See [`SecondHalf`].
    offset: AtomicU64,
    addr: AtomicU64,
    key: AtomicU32,
}

fn state(number: u64, stage: Stage) -> u64 {
    number << 32 | u64::from(stage as u32)
}

impl Offer {
    /// Nothing was offered.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Offer {
        Offer {
            state: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            addr: AtomicU64::new(0),
            key: AtomicU32::new(0),
        }
    }

    /// Called by the sender before it fills the cell of that number. The offer before is over.
    pub fn make(&self, number: u64) {
        self.state
            .store(state(number, Stage::Offered), Ordering::Release);
    }

    /// How far the offer in the cell of that number is.
    ///
    /// # Errors
    /// [`Violation`].
    #[inline]
    pub fn stage(&self, number: u64) -> Result<Stage, Violation> {
        let found = self.state.load(Ordering::Acquire);
        if (found >> 32) as u32 != number as u32 {
            return Err(Violation);
        }
        Stage::from_bits(found as u32).ok_or(Violation)
    }

    /// Changes the stage; false if it is not `from`.
    #[inline]
    pub fn change(&self, number: u64, from: Stage, to: Stage) -> bool {
        let (from, to) = (state(number, from), state(number, to));
        let changed = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }

    /// Called by the receiver in the stage [`Stage::Offered`]: lets the sender copy the second half.
    /// False if the offer was withdrawn.
    #[inline]
    pub fn open(&self, number: u64, half: SecondHalf) -> bool {
        self.offset.store(half.offset, Ordering::Relaxed);
        self.addr.store(half.at.addr, Ordering::Relaxed);
        self.key.store(half.at.rkey, Ordering::Relaxed);
        self.change(number, Stage::Offered, Stage::Open)
    }

    /// What the sender may copy in the stage [`Stage::Open`].
    pub fn second_half(&self) -> SecondHalf {
        SecondHalf {
            offset: self.offset.load(Ordering::Relaxed),
            at: Remote {
                addr: self.addr.load(Ordering::Relaxed),
                rkey: self.key.load(Ordering::Relaxed),
            },
        }
    }

    /// Called by the receiver once the first half is copied.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn rest(&self, number: u64) -> Result<Rest, Violation> {
        // The sender claims or declines its half once.
        for _ in 0..MOST_CHANGES {
            match self.stage(number)? {
                stage @ (Stage::Open | Stage::Declined) => {
                    if self.change(number, stage, Stage::Own) {
                        return Ok(Rest::Copy);
                    }
                }
                Stage::Helping => return Ok(Rest::Awaited),
                stage @ (Stage::Own | Stage::Helped) => return Ok(Rest::Copied(stage)),
                Stage::Withdrawn => return Ok(Rest::Void),
                _ => return Err(Violation),
            }
        }
        Err(Violation)
    }

    /// Called by the sender: gives the offer up. Returns the last stage, which is another one if the
    /// receiver was faster.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn withdraw(&self, number: u64) -> Result<Stage, Violation> {
        for _ in 0..MOST_CHANGES {
            let stage = self.stage(number)?;
            if stage.is_last() {
                return Ok(stage);
            }
            if self.change(number, stage, Stage::Withdrawn) {
                return Ok(Stage::Withdrawn);
            }
        }
        Err(Violation)
    }
}
