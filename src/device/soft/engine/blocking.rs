//! Consumers that block. One of them, the leader, serves the device meanwhile in its own thread
//! ([`LeaderSlot`](super::leader)), so that what the leader waits for wakes it directly. The other
//! consumers sleep elsewhere and are woken by the thread that serves.
//!
//! The engine's thread is in the same epoll instance all the time. The kernel wakes only the
//! thread that began to wait last, which is the leader; when the leader leaves, the engine's
//! thread is there already, and no thread need be woken to take over. That order is a habit of
//! the kernel and no promise: whichever thread is woken serves, and wakes the consumers concerned.
//! An engine's thread that comes back after the leader has gone to sleep is woken first. Once it has
//! woken the leader for what it has served, it comes back while the leader runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::kernel;
use crate::kernel::Instant;
use rustix::io::Errno;

use super::batch::EpollBatch;
use super::leader::WakeLeader;
use super::poll_watch::POLL_CHECK;
use super::timers::timespec;
use super::{Engine, Inner, Scratch};
use crate::cancel::Cancelled;
use crate::device::Wake;
use crate::device::waker::Waker;
use crate::guarded;
use crate::lock::MutexGuard;

/// Number of other consumers that may come to block while one leads before the leader gives up
/// the slot: then one of the others is likelier to wait for what arrives.
const MAX_CONTENDERS: u32 = 3;
/// The longest single sleep.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

impl WakeLeader for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }

    fn clear(&self) {
        Waker::clear(self);
    }
}

/// What a word is called in the leader slot.
fn name(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

impl Engine {
    /// A consumer blocks until `word` is not `value` any more, in this thread and serving, if no
    /// other consumer leads; `None` if the consumer is to sleep in its own way.
    pub fn block(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> Option<Wake> {
        let inner = &self.inner;
        inner.coalesced.flush();
        inner.acknowledgements.flush();
        // From now on peers notify the engine.
        inner.arrange(inner.poll_set.before_block());
        let Some(leader) = inner.leader.take() else {
            inner.contenders.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // From now on no socket is taken out of the epoll instance.
        if !inner.watch_all(deadline) {
            return Some(Wake::TimedOut);
        }
        let has_changed = || word.load(Ordering::SeqCst) != value;
        let polls = inner.polls.load(Ordering::Relaxed);
        let contenders = inner.contenders.load(Ordering::Relaxed);
        let mut batch = EpollBatch::new();
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            // If the engine's thread began to wait after this one, the kernel would wake that
            // thread first: a short sleep makes this one the last again.
            let busy = inner.thread_busy.load(Ordering::Relaxed);
            let short = busy.then(|| left.map_or(POLL_CHECK, |left| left.min(POLL_CHECK)));
            let sleep = || inner.sleep(&mut batch, short.or(left));
            match leader.sleep(name(word), has_changed, sleep) {
                None => return Some(Wake::Woken),
                Some(Ok(Ok(()))) => {
                    if !inner.serve_until(&mut batch, deadline) {
                        return Some(Wake::TimedOut);
                    }
                }
                Some(Err(Cancelled)) => {
                    // No other thread gets the events of sockets that were taken.
                    inner.serve(&batch);
                    return Some(Wake::Cancelled);
                }
                Some(Ok(Err(Errno::INTR))) if !has_changed() && ends_calls(left.is_none()) => {
                    return Some(Wake::Interrupted);
                }
                Some(Ok(Err(Errno::INTR))) => {}
                // The program has closed all descriptors: no arrival wakes this thread any more.
                Some(Ok(Err(_))) => return None,
            }
            if has_changed() {
                return Some(Wake::Woken);
            }
            inner.acknowledgements.flush();
            if left.is_some_and(|left| left.is_zero()) {
                return Some(Wake::TimedOut);
            }
            // If another consumer polls, or is likelier to find in the sockets what it waits for,
            // the leader would be woken each time in vain.
            let others = inner.contenders.load(Ordering::Relaxed);
            let others = others.wrapping_sub(contenders);
            if inner.polls.load(Ordering::Relaxed) != polls || others >= MAX_CONTENDERS {
                return None;
            }
        }
    }

    /// `word` has another value now. True if that has woken a thread in [`Engine::block`].
    pub fn unblock(&self, word: &AtomicU32) -> bool {
        self.inner.leader.wake(name(word))
    }
}

impl Inner {
    /// Takes the engine lock for a consumer that blocks until `deadline`; `None` if it is not to be had before. A
    /// thread that holds the lock may be without a processor for any time.
    pub(super) fn lock_until(&self, deadline: Option<Instant>) -> Option<MutexGuard<'_, Scratch>> {
        let Some(deadline) = deadline else {
            return Some(self.lock());
        };
        if let Some(scratch) = self.try_lock() {
            return Some(scratch);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.scratch.try_lock_for(left)
    }

    /// [`Inner::serve`] for a consumer that blocks until `deadline`. False if the engine lock is not to be had before:
    /// the events are left to a timer then.
    fn serve_until(self: &Arc<Self>, batch: &mut EpollBatch, deadline: Option<Instant>) -> bool {
        self.announce();
        match self.lock_until(deadline) {
            Some(scratch) => {
                self.serve_announced(batch, scratch);
                true
            }
            None => {
                self.serve_later(std::mem::replace(batch, EpollBatch::new()));
                false
            }
        }
    }

    /// Sleeps in the epoll instance until something is ready, or `left` has passed.
    fn sleep(
        &self,
        batch: &mut EpollBatch,
        left: Option<Duration>,
    ) -> Result<Result<(), Errno>, Cancelled> {
        const MILLI: Duration = Duration::from_millis(1);
        let left = left.map(|left| left.min(MAX_SLEEP));
        match left {
            // epoll_wait(2) counts in milliseconds, and epoll_pwait2(2) is not everywhere.
            Some(left) if left < MILLI && !left.is_zero() => {
                if let Err(error) = kernel::is_readable(self.epoll(), &timespec(left)) {
                    return Ok(Err(error));
                }
                batch.fill_cancellable(self.epoll(), 0)
            }
            Some(left) => {
                let whole = left.as_millis() as i32;
                batch.fill_cancellable(self.epoll(), whole)
            }
            None => batch.fill_cancellable(self.epoll(), -1),
        }
    }
}

/// Whether an interruption may have been by a signal handler that ends calls, rather than by a
/// stop of the process, which ends this system call as well, or by a handler after which a call
/// without a timeout goes on (`SA_RESTART`). `forever` is whether the call has no timeout.
#[cold]
fn ends_calls(forever: bool) -> bool {
    (1..=libc::SIGRTMAX()).any(|number| {
        // SAFETY: an action of zeros is valid, and the one of the process is only read.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(number, std::ptr::null(), &mut action) != 0 {
                return false;
            }
            action
        };
        let (handler, flags) = guarded::action_of_program(number, &action);
        let handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler);
        handled && !(forever && flags & libc::SA_RESTART != 0)
    })
}
