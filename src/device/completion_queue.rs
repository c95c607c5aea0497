//! What a completion queue can do, and who takes its completions.

use super::{Completion, DeviceError, WcOp};
use crate::handle::Guard;
use crate::handle::pin::pin;

/// A completion queue.
pub trait CompletionQueue: Send + Sync {
    /// Takes the oldest completion, in a section of the caller, and gives it to `taker`, since moving it
    /// would cost as much as the rest.
    fn poll_in<T: Taker>(&self, guard: &Guard, taker: T) -> Option<T::Taken>;
    /// Takes the oldest completion.
    fn poll(&self) -> Option<Completion> {
        self.poll_in(&pin(), ByCopy)
    }
    /// Takes the oldest completion, if that is of an [operation without details](WcOp::plain) and not of a shared
    /// receive queue, and this needs no call.
    ///
    /// # Safety
    /// The thread holds no [biased lock](crate::handle::Biased) of the inner level as its owner.
    #[inline(always)]
    unsafe fn poll_plainly<T: PlainTaker>(&self, _guard: &Guard, _taker: T) -> PlainPoll {
        PlainPoll::Otherwise
    }
    /// Arms one [`CqHandler::notify`], called at the next notifying completion. Completions that
    /// are queued already do not count: poll once more after arming.
    fn arm(&self);
    /// Disarms, if the notification was not delivered yet.
    fn disarm(&self);
    /// How many completions are queued; `None` if the device does not report that.
    fn queued(&self) -> Option<u32>;
    /// How many completions the queue can hold: at least what it was created or resized for.
    fn capacity(&self) -> u32;
    /// Changes the capacity.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if more completions are queued, or the device cannot hold so many.
    fn resize(&self, entries: u32) -> Result<(), DeviceError>;
}

/// What [`CompletionQueue::poll_plainly`] has done.
pub enum PlainPoll {
    /// The taker has the completion.
    Taken,
    /// There is none.
    Nothing,
    /// Nothing. Whether there is a completion has to be found out by [`CompletionQueue::poll_in`].
    Otherwise,
}

/// Who takes completions by [`CompletionQueue::poll_plainly`].
pub trait PlainTaker {
    /// Takes a completion, whose operation is `op`; see [`Taker::take`].
    fn take_plain(self, op: WcOp, completion: &Completion);
}

/// Who takes a completion from its queue. Not a closure, which the compiler does not put in line where the
/// queue calls it in several places.
pub trait Taker {
    /// What the completion becomes.
    type Taken;
    /// Takes the completion. The lock of its queue may be held: this takes no lock and does not block.
    fn take(self, completion: &Completion) -> Self::Taken;
    /// The same out of line, for completions that are not as nearly all are.
    #[inline(never)]
    fn take_rare(self, completion: &Completion) -> Self::Taken
    where
        Self: Sized,
    {
        self.take(completion)
    }
}

/// Takes a copy of the completion.
pub struct ByCopy;

impl Taker for ByCopy {
    type Taken = Completion;
    #[inline(always)]
    fn take(self, completion: &Completion) -> Completion {
        *completion
    }
}

/// When an armed completion queue calls its handler: see [`CompletionQueue::arm`].
///
/// Implemented by the EVD.
pub trait CqHandler: Send + Sync {
    /// A notifying completion arrived while the queue was armed; the arming is used up.
    fn notify(&self);
    /// A completion was lost because the queue was full.
    fn overflow(&self);
}
