//! What the threads of an IA sleep in, and what wakes them: an epoll instance with an eventfd.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::descriptor::{self, OwnedFd};
use crate::kernel::event::{EventfdFlags, epoll, eventfd};
use crate::kernel::io::{read, write};
use crate::lock::Mutex;

/// See the module.
pub(super) struct Waker {
    epoll: OwnedFd,
    /// The data of the eventfd's events.
    data: u64,
    /// The eventfd; `None` if the program has closed it, and there was no other one.
    eventfd: Mutex<Option<OwnedFd>>,
}

impl Waker {
    /// An event with `data` wakes a thread.
    ///
    /// # Errors
    /// There is no descriptor left, or no memory.
    pub fn new(data: u64) -> io::Result<Waker> {
        let epoll = descriptor::open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let eventfd = watched_eventfd(&epoll, data, 0)?;
        Ok(Waker {
            epoll,
            data,
            eventfd: Mutex::new(Some(eventfd)),
        })
    }

    /// What the threads sleep in.
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Wakes a thread.
    pub fn wake(&self) {
        let mut eventfd = self.eventfd.lock();
        // A full counter is no failure: the thread is being woken.
        let is_closed = |fd: &OwnedFd| write(fd, &1u64.to_ne_bytes()) == Err(Errno::BADF);
        if eventfd.as_ref().is_none_or(is_closed) {
            // The program has closed it, and perhaps all others. A new one wakes the thread as well, if the epoll
            // instance is still there; otherwise the thread checks by itself.
            if let Some(closed) = eventfd.take() {
                closed.was_closed();
            }
            *eventfd = watched_eventfd(&self.epoll, self.data, 1).ok();
        }
    }

    /// The thread was woken.
    pub fn clear(&self) {
        if let Some(eventfd) = &*self.eventfd.lock() {
            let _ = read(eventfd, &mut [0; 8]);
        }
    }
}

/// An eventfd with that value, in the epoll instance.
fn watched_eventfd(epoll: impl AsFd, data: u64, value: u32) -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let eventfd = descriptor::open(|| eventfd(value, flags))?;
    let data = epoll::EventData::new_u64(data);
    epoll::add(epoll, &eventfd, data, epoll::EventFlags::IN)?;
    Ok(eventfd)
}
