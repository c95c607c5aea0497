//! The sockets that the engine is asked to look after.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::coalesced::Coalescer;
use super::event_order::EventOrder;
use super::poll_set::PollSet;
use super::timers::Timer;
use crate::device::DeviceError;
use crate::device::soft::engine::{EventFlags, Inner, Source};
use crate::device::soft::upcalls::Upcalls;

/// A socket that the engine watches. Dropping it closes the socket.
pub(crate) struct Watch {
    inner: Arc<Inner>,
    fd: OwnedFd,
    token: u64,
    events: EventFlags,
    added: bool,
    stream: bool,
}

impl Watch {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        fd: OwnedFd,
        events: EventFlags,
        source: Arc<dyn Source>,
    ) -> Result<Watch, DeviceError> {
        let token = inner.sources.lock().add(source);
        let mut watch = Watch {
            inner: inner.clone(),
            fd,
            token,
            events: EventFlags::empty(),
            added: false,
            stream: false,
        };
        watch.set(events)?;
        Ok(watch)
    }

    /// Watches for `events` from now on. None at all takes even errors and hang-ups away.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn set(&mut self, events: EventFlags) -> Result<(), DeviceError> {
        if self.events == events {
            return Ok(());
        }
        self.tell(events)
    }

    /// Those who are told of edges are told again of what is there.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn rearm(&mut self) -> Result<(), DeviceError> {
        self.tell(self.events)
    }

    fn tell(&mut self, events: EventFlags) -> Result<(), DeviceError> {
        let data = epoll::EventData::new_u64(self.token);
        let epoll_fd = &self.inner.epoll;
        let done = match (self.added, events.is_empty()) {
            (false, true) => Ok(()),
            (true, true) => epoll::delete(epoll_fd, &self.fd),
            (false, _) => epoll::add(epoll_fd, &self.fd, data, events),
            (true, _) => epoll::modify(epoll_fd, &self.fd, data, events),
        };
        done.map_err(|_| DeviceError::Resources)?;
        self.added = !events.is_empty();
        self.events = events;
        Ok(())
    }

    /// Replaces the source that is told.
    pub fn redirect(&self, source: Arc<dyn Source>) {
        let old = self.inner.sources.lock().replace(self.token, source);
        drop(old);
    }

    /// Runs `task` after `delay`, unless the result is dropped before.
    pub fn timer(
        &self,
        delay: Duration,
        task: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) -> Timer {
        Timer::new(&self.inner, delay, Box::new(task))
    }

    /// The connections of the engine that are coming up.
    pub fn event_order(&self) -> &Arc<EventOrder> {
        &self.inner.event_order
    }

    /// What is looked at without the kernel.
    pub fn poll_set(&self) -> &PollSet {
        &self.inner.poll_set
    }

    /// Somebody is to send soon what was gathered; not to be called again before.
    pub fn schedule_send(&self, gatherer: Arc<dyn Coalescer>, now: Instant, up: &mut Upcalls) {
        if self.inner.coalesced.add(gatherer, now, up) {
            self.inner.wake_for_unsent();
        }
    }

    /// Counts the socket as one that is worth polling for.
    pub fn count_as_tcp_conn(&mut self) {
        if !self.stream {
            self.stream = true;
            self.inner.streams.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.added {
            let _ = epoll::delete(&self.inner.epoll, &self.fd);
        }
        if self.stream {
            self.inner.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let source = self.inner.sources.lock().remove(self.token);
        drop(source);
    }
}
