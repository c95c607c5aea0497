//! Short RDMA writes that go through the ring, for a peer that polls to execute.
//!
//! The kernel takes up to two microseconds to write to the memory of the peer, and up to half of one for each further
//! range. A peer that polls takes less than a tenth of that for a write that it finds in a cell. So short
//! writes to such a peer go into the ring with their data, and complete when the peer has consumed their cells:
//!
//! * Writes that were [coalesced](super::coalesced_writes) go together, if consumers poll at both ends. Their requests
//!   stay at the head of the send queue, and nothing behind them is executed meanwhile.
//! * For one write the initiator waits, as it would for the kernel.
//!
//! A peer that polls its memory alone, or computes, does not find them. So the peer has to
//! [claim](super::write_claim) writes before it executes the first of them, and the initiator takes them back after
//! a few microseconds, or when another request was posted behind them, and has the kernel make them. After
//! that it leaves the next writes to the kernel, twice as many each time.

mod initiator;
mod responder;

use super::ring::{MAX_INLINE, TARGET_LEN};

pub(crate) use self::initiator::RingWrites;
pub(crate) use self::responder::Taken;

/// The most data of a write in its cell, in bytes.
const MOST_IN_CELL: usize = MAX_INLINE - TARGET_LEN;

/// What a cell has in front of the data: the address, and the key in the low half of the second word. A cell
/// without a write has [`NO_KEY`].
type Target = [u64; TARGET_LEN / 8];
/// No region has that key.
const NO_KEY: u32 = 0;
