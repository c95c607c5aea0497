//! Events taken from the epoll instance.

use std::mem::MaybeUninit;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::descriptor::OwnedFd;

/// Events that one system call takes at most.
const MAX_EVENTS: usize = 64;

/// Events that were taken from the epoll instance and are to be served.
pub(crate) struct EpollBatch {
    /// The first `len` of them are written.
    events: [MaybeUninit<epoll::Event>; MAX_EVENTS],
    /// Number of events.
    len: usize,
}

impl EpollBatch {
    /// Without an event.
    pub fn new() -> EpollBatch {
        EpollBatch {
            events: [const { MaybeUninit::uninit() }; MAX_EVENTS],
            len: 0,
        }
    }

    /// Replaces the events by those that are ready, for which the call waits up to `timeout`.
    pub fn fill(&mut self, epoll: &OwnedFd, timeout: Option<&Timespec>) -> Result<(), Errno> {
        self.len = 0;
        let (ready, _) = epoll::wait(epoll, &mut self.events, timeout)?;
        self.len = ready.len();
        Ok(())
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The events, in the order of the kernel.
    pub fn iter(&self) -> impl Iterator<Item = &epoll::Event> {
        // SAFETY: `fill` has had the first `len` events written.
        self.events[..self.len]
            .iter()
            .map(|event| unsafe { event.assume_init_ref() })
    }

    /// Whether there is an event of the source with that token.
    pub fn contains(&self, token: u64) -> bool {
        self.iter().any(|event| event.data.u64() == token)
    }
}
