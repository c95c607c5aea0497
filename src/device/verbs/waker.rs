//! What wakes the service thread of an IA: an eventfd in the epoll instance that the thread sleeps in.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::sources::WAKE;
use crate::descriptor::{self, OwnedFd};
use crate::kernel::event::{EventfdFlags, epoll, eventfd};
use crate::lock::Mutex;

/// See the module.
pub(super) struct Waker {
    epoll: OwnedFd,
    /// The eventfd; `None` if the program has closed it, and there was no other one.
    eventfd: Mutex<Option<OwnedFd>>,
}

impl Waker {
    /// # Errors
    /// There is no descriptor left, or no memory.
    pub fn new() -> io::Result<Waker> {
        let epoll = descriptor::open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let eventfd = watched_eventfd(&epoll, 0)?;
        Ok(Waker {
            epoll,
            eventfd: Mutex::new(Some(eventfd)),
        })
    }

    /// What the thread sleeps in.
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        let mut eventfd = self.eventfd.lock();
        // A full counter is no failure: the thread is being woken.
        let is_closed =
            |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()) == Err(Errno::BADF);
        if eventfd.as_ref().is_none_or(is_closed) {
            // The program has closed it, and perhaps all others. A new one wakes the thread as well, if the epoll
            // instance is still there; otherwise the thread looks for itself.
            if let Some(closed) = eventfd.take() {
                closed.was_closed();
            }
            *eventfd = watched_eventfd(&self.epoll, 1).ok();
        }
    }

    /// The thread was woken.
    pub fn clear(&self) {
        if let Some(eventfd) = &*self.eventfd.lock() {
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
    }
}

/// An eventfd with that value, in the epoll instance.
fn watched_eventfd(epoll: impl AsFd, value: u32) -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let eventfd = descriptor::open(|| eventfd(value, flags))?;
    let data = epoll::EventData::new_u64(WAKE.into());
    epoll::add(epoll, &eventfd, data, epoll::EventFlags::IN)?;
    Ok(eventfd)
}
