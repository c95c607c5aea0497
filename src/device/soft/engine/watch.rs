//! A socket that the engine watches.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kernel::Instant;
use crate::kernel::event::epoll;

use super::poll_set::PollSet;
use super::timers::Timer;
use super::{Acknowledger, EventFlags, Inner, Source};
use crate::descriptor::OwnedFd;
use crate::device::DeviceError;
use crate::device::soft::event_order::EventOrder;
use crate::device::soft::upcalls::{Coalescer, Upcalls};

/// A socket that the engine watches. Dropping the watch closes the socket.
pub(crate) struct Watch {
    /// The engine.
    inner: Arc<Inner>,
    /// The socket.
    fd: OwnedFd,
    /// The token of the source in the engine and in the epoll instance.
    token: u64,
    /// The events that the socket is watched for.
    events: EventFlags,
    /// Whether the socket is in the epoll instance.
    added: bool,
    /// Whether the socket is not in there because consumers read it without asking.
    left_to_polls: bool,
    /// Whether the socket is counted as a connection over TCP.
    is_tcp_conn: AtomicBool,
    /// Whether the socket is counted as a connection that owes its peer an acknowledgement.
    owes_acknowledgement: bool,
}

impl Watch {
    pub(super) fn new(
        inner: &Arc<Inner>,
        fd: OwnedFd,
        events: EventFlags,
        source: Arc<dyn Source>,
    ) -> Result<Watch, DeviceError> {
        let token = inner.sources.lock().add(source);
        let token = token.map_err(|_| DeviceError::Resources)?;
        let mut watch = Watch {
            inner: inner.clone(),
            fd,
            token,
            events: EventFlags::empty(),
            added: false,
            left_to_polls: false,
            is_tcp_conn: AtomicBool::new(false),
            owes_acknowledgement: false,
        };
        watch.set(events)?;
        Ok(watch)
    }

    /// Watches for `events` from now on. With no events at all not even errors and hang-ups are
    /// reported.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn set(&mut self, events: EventFlags) -> Result<(), DeviceError> {
        if self.events == events {
            return Ok(());
        }
        self.update(events)
    }

    /// Has the events that are edge-triggered reported once more if they hold now.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn rearm(&mut self) -> Result<(), DeviceError> {
        self.update(self.events)
    }

    /// Hands `events` to the epoll instance.
    fn update(&mut self, events: EventFlags) -> Result<(), DeviceError> {
        let data = epoll::EventData::new_u64(self.token);
        let epoll_fd = self.inner.epoll();
        let done = match (self.added, events.is_empty()) {
            (false, true) => Ok(()),
            (true, true) => epoll::delete(epoll_fd, &self.fd),
            (false, _) => epoll::add(epoll_fd, &self.fd, data, events),
            (true, _) => epoll::modify(epoll_fd, &self.fd, data, events),
        };
        done.map_err(|_| DeviceError::Resources)?;
        self.added = !events.is_empty();
        self.left_to_polls = false;
        self.events = events;
        Ok(())
    }

    /// Takes the socket out of the epoll instance, if it is there for arrivals: see
    /// [`Source::leave_to_polls`]. It is there again when it is to be watched for other events.
    pub fn leave_to_polls(&mut self) {
        let for_arrivals = self.events.contains(EventFlags::IN | EventFlags::ET);
        if self.added && for_arrivals && epoll::delete(self.inner.epoll(), &self.fd).is_ok() {
            self.added = false;
            self.left_to_polls = true;
        }
    }

    /// Puts the socket into the epoll instance again; what has arrived before is reported.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn take_from_polls(&mut self) -> Result<(), DeviceError> {
        match self.left_to_polls {
            true => self.update(self.events),
            false => Ok(()),
        }
    }

    /// Replaces the source that the events are reported to.
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

    /// The order in which the connections of the engine begin and end.
    pub fn event_order(&self) -> &Arc<EventOrder> {
        &self.inner.event_order
    }

    /// The connections that consumers poll without a system call.
    pub fn poll_set(&self) -> &PollSet {
        &self.inner.poll_set
    }

    /// Has the coalesced sends of a connection flushed soon. Not to be called again before they
    /// were.
    pub fn schedule_send(&self, coalescer: Arc<dyn Coalescer>, now: Instant, up: &mut Upcalls) {
        if self.inner.coalesced.add(coalescer, now, up) {
            self.inner.start_flushing();
        }
    }

    /// Has the connections served whose messages were left, though no consumer polls.
    pub fn serve_again(&self) {
        self.inner.serve_again();
    }

    /// Whether the connection owes its peer an acknowledgement, for which it has to be in the list of
    /// [`Watch::schedule_acknowledgement`].
    #[inline]
    pub fn set_owes_acknowledgement(&mut self, owes: bool) {
        if self.owes_acknowledgement != owes {
            self.owes_acknowledgement = owes;
            self.inner.acknowledgements.count(owes);
        }
    }

    /// Has the acknowledgement of a connection sent soon. Not to be called again before that.
    pub fn schedule_acknowledgement(&self, connection: Arc<dyn Acknowledger>) {
        self.inner.schedule_acknowledgement(connection);
    }

    /// Counts the socket as a connection over TCP, for which consumers that poll make system
    /// calls.
    pub fn count_as_tcp_conn(&self) {
        if !self.is_tcp_conn.load(Ordering::Relaxed)
            && !self.is_tcp_conn.swap(true, Ordering::Relaxed)
        {
            self.inner.tcp_conns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether messages that were just read take turns with those of other connections.
    #[inline]
    pub fn serves_in_rounds(&self) -> bool {
        self.inner.serves_in_rounds()
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
            let _ = epoll::delete(self.inner.epoll(), &self.fd);
        }
        if *self.is_tcp_conn.get_mut() {
            self.inner.tcp_conns.fetch_sub(1, Ordering::Relaxed);
        }
        self.set_owes_acknowledgement(false);
        let source = self.inner.sources.lock().remove(self.token);
        drop(source);
    }
}
