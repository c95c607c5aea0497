//! Consumers that block: one of them, the leader, serves the device meanwhile in its own thread
//! ([`LeaderSlot`](crate::device::soft::engine::leader)), so that what it waits for wakes it in one hop. The others sleep
//! elsewhere and are woken by whoever serves.
//!
//! The engine's thread sits in the same epoll instance all the time. The kernel wakes only the
//! one that came last, which is the leader; when the leader goes the thread is there already,
//! and nobody need be woken to take over. That order is the kernel's habit and no promise:
//! whoever is woken serves, and calls whom it concerns.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::leader::WakeLeader;
use crate::device::Wake;
use crate::device::soft::engine::{Engine, EpollBatch, NAP};

/// A leader beside which others have come to wait so many times is not the one that should lead.
const GUESTS: u32 = 3;
/// The longest single sleep.
const LONGEST: Duration = Duration::from_secs(3600);

/// The bell of the seat, which is in the epoll instance.
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    pub fn new() -> std::io::Result<Eventfd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Eventfd(eventfd(0, flags)?))
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WakeLeader for Eventfd {
    fn ring(&self) {
        // Fails only when the counter is full: then it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// What the seat knows a word by.
fn name(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

impl Engine {
    /// A consumer blocks until `word` is not `value` any more. In this thread, serving, if no
    /// other one leads; `None` if the consumer is to sleep in its own way.
    pub fn block(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> Option<Wake> {
        let inner = &self.inner;
        inner.coalesced.send();
        // From now on peers wake us.
        inner.poll_set.sleep();
        let Some(leader) = inner.leader.take() else {
            inner.guests.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let is_there = || word.load(Ordering::SeqCst) != value;
        let polls = inner.polls.load(Ordering::Relaxed);
        let guests = inner.guests.load(Ordering::Relaxed);
        let mut batch = EpollBatch::new();
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            // The thread would be above us if it came back now: then we sit down anew.
            let away = inner.away.load(Ordering::Relaxed);
            let nap = away.then(|| left.map_or(NAP, |left| left.min(NAP)));
            let sleep = || inner.sleep(&mut batch, nap.or(left));
            match leader.sleep(name(word), is_there, sleep) {
                None => return Some(Wake::Woken),
                Some(Ok(())) => inner.serve(&batch),
                Some(Err(Errno::INTR)) if !is_there() && was_told(left.is_none()) => {
                    return Some(Wake::Interrupted);
                }
                Some(Err(_)) => {}
            }
            if is_there() {
                return Some(Wake::Woken);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Some(Wake::TimedOut);
            }
            // Somebody else looks at the sockets, or would more often find there what it waits
            // for. We would be woken each time for nothing.
            let others = inner.guests.load(Ordering::Relaxed).wrapping_sub(guests);
            if inner.polls.load(Ordering::Relaxed) != polls || others >= GUESTS {
                return None;
            }
        }
    }

    /// `word` has another value now. True if that has woken a thread in [`Engine::block`].
    pub fn unblock(&self, word: &AtomicU32) -> bool {
        self.inner.leader.call(name(word))
    }
}

impl crate::device::soft::engine::Inner {
    /// Sleeps in the epoll instance until something is ready, or `left` has passed.
    fn sleep(&self, batch: &mut EpollBatch, left: Option<Duration>) -> Result<(), Errno> {
        const MILLI: Duration = Duration::from_millis(1);
        let left = left.map(|left| left.min(LONGEST));
        match left {
            // The older call counts in milliseconds, and the newer one is not everywhere.
            Some(left) if left < MILLI && !left.is_zero() => {
                let left = timespec(left);
                poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&left))?;
                batch.fill(&self.epoll, Some(&timespec(Duration::ZERO)))
            }
            Some(left) => {
                let whole = Duration::from_millis(left.as_millis() as u64);
                batch.fill(&self.epoll, Some(&timespec(whole)))
            }
            None => batch.fill(&self.epoll, None),
        }
    }
}

fn timespec(t: Duration) -> Timespec {
    Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: t.subsec_nanos().into(),
    }
}

/// Whether an interruption may have been a signal handler that wants calls to end, rather than a
/// stop of the process, which ends this system call as well, or a handler after which a call
/// without a timeout goes on.
#[cold]
fn was_told(forever: bool) -> bool {
    (1..=libc::SIGRTMAX()).any(|number| {
        // SAFETY: all zero is a valid place for an action, which is only read.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(number, std::ptr::null(), &mut action) != 0 {
                return false;
            }
            action
        };
        let handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        handled && !(forever && action.sa_flags & libc::SA_RESTART != 0)
    })
}
