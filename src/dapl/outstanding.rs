//! The count of the buffers of a shared receive queue that the consumer does not have, kept by the queue, by its endpoints
//! and by the EVDs that these receive into.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::abi::common::DAT_COUNT;

/// How many buffers of an SRQ are posted whose completions the consumer has not taken from an EVD yet.
#[derive(Clone, Default)]
pub struct Outstanding(Arc<AtomicI32>);

impl Outstanding {
    /// The number.
    pub fn get(&self) -> DAT_COUNT {
        self.0.load(Ordering::Relaxed)
    }

    /// A buffer is about to be posted.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Buffers have returned to the consumer, or are lost with their endpoint.
    pub fn retire(&self, buffers: usize) {
        let buffers = i32::try_from(buffers).unwrap_or(i32::MAX);
        self.0.fetch_sub(buffers, Ordering::Relaxed);
    }
}
