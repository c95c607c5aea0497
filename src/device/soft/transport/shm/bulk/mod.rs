//! Long messages that are not copied into the ring: offering them, taking them and helping with
//! their second half ([`offer`](super::offer)).
//!
//! The cell of an offer has the segments of the message and its last bytes. The receiver stores these when all
//! others are in the receive, since programs wait for a message by polling its last byte.

mod receiver;
mod sender;
mod source;

use super::ring::MAX_INLINE;

/// The shortest message that is offered, in bytes. Shorter ones are copied into the ring: two copies
/// take less time than a system call does. For some longer ones that is [measured](super::choice).
pub(super) const OFFER_MIN: u32 = 16 * 1024;
/// Bytes of a segment in the cell of an offer: address, length and key.
const ENTRY: usize = 16;
/// Bytes at the end of a message that are in the cell of the offer, behind the segments.
const TAIL: usize = 8;
/// The most segments of a message that is offered.
const MOST_SEGMENTS: usize = (MAX_INLINE - TAIL) / ENTRY;

/// What the receiver knows of the offer in the next cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Taking {
    /// Nothing was done with it, or there is none.
    #[default]
    NotBegun,
    /// This end copies the bytes in front of `middle`, and has copied those in front of `copied`: it waits for memory of
    /// the sender that moves, or, with all of them copied, for the sender, which copies the others.
    Begun { copied: u64, middle: u64 },
    /// The offer is over without a message. The connection ends.
    Void,
}
