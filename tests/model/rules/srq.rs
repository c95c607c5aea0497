//! Shared receive queues.

use std::collections::VecDeque;

use super::ep::Receive;

/// An SRQ.
pub struct Srq {
    /// Buffers that fit, as the library says.
    pub limit: usize,
    /// Buffers that an endpoint may take.
    pub buffers: VecDeque<Receive>,
    /// Buffers whose completion was not dequeued.
    pub taken: usize,
    /// Completions were lost with the reset of their endpoint, so nobody knows how many are
    /// outstanding.
    pub lost: bool,
    /// Reports once when fewer buffers are left.
    pub low_watermark: Option<usize>,
}

/// Whether a call has to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has.
    Yes,
    /// It fails.
    No,
    /// The man page leaves it open.
    Maybe,
}

impl Srq {
    pub fn new(limit: usize) -> Srq {
        Srq {
            limit,
            buffers: VecDeque::new(),
            taken: 0,
            lost: false,
            low_watermark: None,
        }
    }

    /// Whether another buffer fits.
    pub fn room(&self) -> Room {
        if self.buffers.len() >= self.limit {
            Room::No
        } else if self.buffers.len() + self.taken < self.limit && !self.lost {
            Room::Yes
        } else {
            Room::Maybe
        }
    }

    /// Whether the low watermark has to be reported now; it is not set any more then.
    pub fn falls_below(&mut self) -> bool {
        let below = self
            .low_watermark
            .is_some_and(|mark| self.buffers.len() < mark);
        if below {
            self.low_watermark = None;
        }
        below
    }
}
