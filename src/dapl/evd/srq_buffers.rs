//! The buffers of SRQs whose completions an EVD has: each is counted as the consumer's again when its completion is
//! taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::abi::common::DAT_COUNT;
use crate::dapl::types::Handle;
use crate::device::Completion;
use crate::error::Result;

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

/// What an SRQ is to know of a completion.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    /// [`Completion::from_srq`].
    from_srq: bool,
    /// [`Completion::context`].
    context: u64,
}

impl From<&Completion> for Buffer {
    #[inline]
    fn from(completion: &Completion) -> Buffer {
        Buffer {
            from_srq: completion.from_srq,
            context: completion.context,
        }
    }
}

/// The counts of the SRQs of the endpoints that receive into an EVD, by the handles of those endpoints. Part of the
/// state of the EVD: a completion that is taken under its lock is counted before the endpoint is gone.
#[derive(Default)]
pub(super) struct SrqBuffers(HashMap<u64, Outstanding>);

/// What completions name an endpoint by.
fn key(ep: Handle) -> u64 {
    ep.0.addr() as u64
}

impl SrqBuffers {
    /// An endpoint with an SRQ begins to receive into the EVD.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn enter(&mut self, ep: Handle, outstanding: &Outstanding) -> Result<()> {
        self.0.try_reserve(1)?;
        self.0.insert(key(ep), outstanding.clone());
        Ok(())
    }

    /// The EVD has no completion of the endpoint any more, and gets none.
    pub fn leave(&mut self, ep: Handle) {
        self.0.remove(&key(ep));
    }

    /// The completion of a buffer leaves the EVD for good.
    #[inline]
    pub fn count(&self, buffer: Buffer) {
        if buffer.from_srq {
            self.retire(buffer.context);
        }
    }

    /// Out of line, as most completions are not of an SRQ.
    #[inline(never)]
    fn retire(&self, context: u64) {
        if let Some(outstanding) = self.0.get(&context) {
            outstanding.retire(1);
        }
    }
}
