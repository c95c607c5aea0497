//! The buffers of SRQs whose completions an EVD has: each is counted as the consumer's again when its completion is
//! taken.

use std::collections::HashMap;

use crate::dapl::outstanding::Outstanding;
use crate::dapl::types::Handle;
use crate::device::Completion;
use crate::error::Result;

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
