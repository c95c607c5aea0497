//! Events taken from the epoll instance.

use std::ffi::c_int;
use std::mem::MaybeUninit;
#[cfg(not(dat_sim))]
use std::os::fd::AsRawFd;

use crate::kernel::event::{Timespec, epoll};
use rustix::io::Errno;

#[cfg(not(dat_sim))]
use crate::cancel;
use crate::cancel::Cancelled;
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

// SAFETY: the data of an event, which could be a pointer, is the token of its source.
unsafe impl Send for EpollBatch {}

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

    /// [`EpollBatch::fill`] without a wait.
    #[cfg(dat_sim)]
    pub fn fill_cancellable(
        &mut self,
        epoll: &OwnedFd,
        _timeout: c_int,
    ) -> Result<Result<(), Errno>, Cancelled> {
        Ok(self.fill(epoll, Some(&super::ZERO_TIME)))
    }

    /// [`EpollBatch::fill`] for a thread that may be cancelled; `timeout` in milliseconds, -1 for none.
    /// Even then the batch has the events that were taken.
    #[cfg(not(dat_sim))]
    pub fn fill_cancellable(
        &mut self,
        epoll: &OwnedFd,
        timeout: c_int,
    ) -> Result<Result<(), Errno>, Cancelled> {
        // An event always has a flag, so that one without was not written by the kernel.
        for event in &mut self.events {
            event.write(epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            });
        }
        let arguments = [
            epoll.as_raw_fd() as usize,
            self.events.as_mut_ptr().expose_provenance(),
            MAX_EVENTS,
            timeout as isize as usize,
            0,
            0,
        ];
        // SAFETY: the events live during the call.
        let result = unsafe { cancel::sleep(libc::SYS_epoll_pwait, arguments) };
        // SAFETY: written above.
        let is_taken = |event: &&MaybeUninit<epoll::Event>| unsafe {
            let flags = (&raw const (*event.as_ptr()).flags).read_volatile();
            !flags.is_empty()
        };
        self.len = self.events.iter().take_while(is_taken).count();
        let result = result?;
        Ok(match usize::try_from(result) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::from_raw_os_error(-result as i32)),
        })
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
