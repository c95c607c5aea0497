//! What the thread that serves the sockets needs. The engine lock guards it.

use std::sync::Arc;

use zerocopy::{AllocError, FromZeros};

use super::rounds::ServiceClock;
use super::{Backlog, EventFlags, Source};
use crate::device::soft::upcalls::Upcalls;
use crate::kernel;
use crate::kernel::page_place;

/// Length of the buffer that all sockets are read into, in bytes.
pub(crate) const RX_BUFFER_LEN: usize = 512 * 1024;
/// Number of reads in a row of the only busy socket that may find nothing before the epoll
/// instance is asked. A read takes the lock of the connection, for which another thread that has
/// an arrival for that connection would wait; asking the epoll instance takes no such lock, and
/// is the pause between reads.
const MAX_VAIN_READS: u32 = 2;
/// Number of reads in a row of the only busy socket after which the epoll instance is asked in any case, if that was
/// not done for [`kernel::SOME_MILLISECONDS`]: timers and other sockets are not to wait until a stream, or the rest of
/// a message, has arrived.
const MAX_READS: u32 = 64;
/// Number of times in a row that one socket must have been the only ready one before it is read
/// without asking the epoll instance.
const MIN_STREAK: u32 = 4;
/// Number of reads that must have found something before the socket is left to the polls: enough that
/// what it takes to watch the socket again does not count.
const MIN_READS: u32 = 256;

/// What the thread that serves the sockets needs.
pub(crate) struct Scratch {
    /// Memory with the buffer that sockets are read into.
    rx: Box<[u8]>,
    /// Where the buffer begins.
    rx_start: usize,
    /// Whether the source that was called last has received bytes.
    pub received: bool,
    /// Whether the source that was called last waits for more of a stream of long messages.
    pub streams: bool,
    /// Since when, in [`kernel::ticks`], the polls leave the only busy socket alone, so that more of its stream
    /// is there when it is read again.
    pause_begun: Option<u64>,
    /// Connections that have read messages which are not delivered.
    pub backlog: Vec<Arc<dyn Backlog>>,
    /// Whether a timer has expired whose task has not run.
    pub timer_expired: bool,
    /// The clock of [`Backlog::last_served`].
    pub clock: ServiceClock,
    /// The socket that was the only ready one in the last batch of events. Consumers that poll
    /// read it first: the question which socket is ready is a system call of its own.
    only: Option<Arc<dyn Source>>,
    /// Number of further batches in a row in which it was.
    streak: u32,
    /// Number of reads of it in a row that have found nothing.
    vain_reads: u32,
    /// Number of reads of it since the epoll instance was asked, or might have been because of them.
    reads_in_a_row: u32,
    /// When the epoll instance was asked because of them, in [`kernel::ticks`].
    asked: u64,
    /// Number of reads of it that have found something, since it was last watched.
    reads: u32,
    /// Whether it was [left to the polls](Source::leave_to_polls).
    pub(super) only_left: bool,
    /// Whether the thread of the engine pauses, because consumers poll.
    pub thread_pauses: bool,
}

impl Scratch {
    /// Without connections.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new() -> Result<Scratch, AllocError> {
        let rx: Box<[u8]> = FromZeros::new_box_zeroed_with_elems(RX_BUFFER_LEN + page_place::PAGE)?;
        Ok(Scratch {
            rx_start: page_place::bytes_before(rx.as_ptr()),
            rx,
            received: false,
            streams: false,
            pause_begun: None,
            backlog: Vec::new(),
            timer_expired: false,
            clock: ServiceClock::default(),
            only: None,
            streak: 0,
            vain_reads: 0,
            reads_in_a_row: 0,
            asked: 0,
            reads: 0,
            only_left: false,
            thread_pauses: false,
        })
    }

    /// The buffer that sockets are read into.
    pub fn rx(&mut self) -> &mut [u8] {
        &mut self.rx[self.rx_start..][..RX_BUFFER_LEN]
    }

    /// Adds a connection to the backlog. Without memory for that the connection delivers all its
    /// messages at once.
    pub fn defer(&mut self, connection: Arc<dyn Backlog>, up: &mut Upcalls) {
        match self.backlog.try_reserve(1) {
            Ok(()) => self.backlog.push(connection),
            Err(_) => {
                connection.deliver(true, &self.clock, up);
            }
        }
    }

    /// Notes that a socket was ready, `alone` if it was the only one of its batch.
    pub fn note_ready(&mut self, source: &Arc<dyn Source>, alone: bool, up: &mut Upcalls) {
        let alone = alone && source.is_pollable();
        if alone && matches!(&self.only, Some(only) if Arc::ptr_eq(only, source)) {
            self.streak = self.streak.saturating_add(1);
            // It may be watched again because something else is waited for.
            if std::mem::take(&mut self.only_left) {
                self.reads = 0;
            }
        } else {
            self.watch_only(up);
            self.only = alone.then(|| source.clone());
            self.streak = 0;
        }
    }

    /// Has the socket that was left to the polls watched again.
    pub fn watch_only(&mut self, up: &mut Upcalls) {
        self.reads = 0;
        if std::mem::take(&mut self.only_left)
            && let Some(only) = &self.only
        {
            only.take_from_polls(up);
        }
    }

    /// Reads the socket that was left to the polls, if there is one.
    pub fn read_left_to_polls(&mut self, up: &mut Upcalls) {
        if self.only_left
            && let Some(only) = self.only.clone()
        {
            only.ready(EventFlags::IN, self, up);
        }
    }

    /// Reads the socket that was the only ready one in the last batch of events.
    #[cfg(test)]
    pub fn read_only(&mut self, up: &mut Upcalls) {
        let only = self.only.clone().unwrap();
        only.ready(EventFlags::IN, self, up);
    }

    /// Whether the epoll instance is to be asked although there may be more to read.
    fn is_to_ask(&mut self) -> bool {
        if self.reads_in_a_row < MAX_READS {
            return false;
        }
        self.reads_in_a_row = 0;
        let now = kernel::ticks();
        let due = now.wrapping_sub(self.asked) >= kernel::SOME_MILLISECONDS;
        if due {
            self.asked = now;
        }
        due
    }

    /// Reads the socket that has lately been the only ready one, unless it is left alone for a moment. False
    /// if the epoll instance is to be asked instead. The socket may be left to the polls if that `may_leave`: no consumer
    /// sleeps in the epoll instance, and there is no other connection over TCP.
    pub fn try_only(&mut self, may_leave: impl Fn() -> bool, up: &mut Upcalls) -> bool {
        if let Some(begun) = self.pause_begun {
            if kernel::ticks().wrapping_sub(begun) < kernel::SOME_MICROSECONDS {
                return true;
            }
            self.pause_begun = None;
        }
        if self.vain_reads >= MAX_VAIN_READS || self.streak < MIN_STREAK || self.is_to_ask() {
            self.vain_reads = 0;
            self.reads_in_a_row = 0;
            return false;
        }
        let Some(only) = self.only.clone() else {
            return false;
        };
        self.reads_in_a_row += 1;
        self.received = false;
        self.streams = false;
        only.ready(EventFlags::IN, self, up);
        if !self.received {
            // Each read takes the lock of the connection, which the sender needs to append to the stream.
            match self.streams {
                true => self.pause_begun = Some(kernel::ticks()),
                false => self.vain_reads += 1,
            }
            return true;
        }
        self.vain_reads = 0;
        self.reads = self.reads.saturating_add(1);
        if self.thread_pauses
            && self.reads >= MIN_READS
            && !self.only_left
            && may_leave()
            && let Some(only) = &self.only
        {
            only.leave_to_polls(up);
            self.only_left = true;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A socket that is read, with or without success, in the midst of a stream if it `streams`.
    struct Socket {
        received: bool,
        streams: bool,
        reads: AtomicU32,
    }

    impl Source for Socket {
        fn ready(self: Arc<Self>, _events: EventFlags, scratch: &mut Scratch, _up: &mut Upcalls) {
            self.reads.fetch_add(1, Ordering::Relaxed);
            scratch.received = self.received;
            scratch.streams = self.streams;
        }

        fn is_pollable(&self) -> bool {
            true
        }
    }

    /// How many of so many polls read a socket, and how many ask the epoll instance.
    fn polled(polls: u32, received: bool, streams: bool) -> (u32, u32) {
        let socket = Arc::new(Socket {
            received,
            streams,
            reads: AtomicU32::new(0),
        });
        let (mut scratch, mut up) = (Scratch::new().unwrap(), Upcalls::default());
        let source: Arc<dyn Source> = socket.clone();
        for _ in 0..=MIN_STREAK {
            scratch.note_ready(&source, true, &mut up);
        }
        let asks = (0..polls).filter(|_| !scratch.try_only(|| true, &mut up));
        let asks = asks.count() as u32;
        (socket.reads.load(Ordering::Relaxed), asks)
    }

    #[test]
    fn the_buffer_begins_where_the_kernel_copies_well_to() {
        let mut scratch = Scratch::new().unwrap();
        assert_eq!(page_place::bytes_before(scratch.rx().as_ptr()), 0);
        assert_eq!(scratch.rx().len(), RX_BUFFER_LEN);
    }

    #[test]
    fn a_socket_amid_a_stream_is_left_alone_for_a_moment() {
        // Every third poll asks the epoll instance.
        assert_eq!(polled(3000, false, false), (2000, 1000));
        const MANY: u32 = 1_000_000;
        if kernel::SOME_MICROSECONDS > 0 {
            let (reads, _) = polled(MANY, false, true);
            assert!((2..MANY / 2).contains(&reads));
        }
    }

    /// Timers and other sockets have their turn while a stream arrives, and while the rest of a message does not.
    #[test]
    fn the_epoll_instance_is_asked_beside_a_stream() {
        // The first time, as it was never asked.
        assert!(polled(MAX_READS + 1, true, true).1 >= 1);
        assert!(polled(1_000_000, false, true).1 >= 1);
        let mut scratch = Scratch::new().unwrap();
        let long_ago = kernel::ticks().wrapping_sub(kernel::SOME_MILLISECONDS);
        for (reads, due) in [(MAX_READS - 1, false), (MAX_READS, true)] {
            (scratch.asked, scratch.reads_in_a_row) = (long_ago, reads);
            assert_eq!(scratch.is_to_ask(), due);
        }
    }
}
