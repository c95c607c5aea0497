//! The thread of an engine, which serves while no consumer does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::EpollBatch;
use super::poll_watch::{POLL_CHECK, PollWatch};
use super::{Inner, LEADER_WAKE};
#[cfg(not(dat_sim))]
use crate::device::threads::{self, Thread};
use crate::kernel::Instant;
use crate::lock;
use crate::sync::relax;
use rustix::io::Errno;

/// How long the start of the thread is waited for, at most.
#[cfg(not(dat_sim))]
const START_LIMIT: Duration = Duration::from_secs(1);
/// How often in a row the thread has to have slept for a lock when it served, until it pauses.
const CONTENDED: u32 = 4;
/// How long it pauses then.
const CONTENDED_PAUSE: Duration = Duration::from_micros(500);
/// How long the thread leaves alone an epoll instance that is none.
const LOST_PAUSE: Duration = Duration::from_millis(20);
/// Rounds in which the thread waits for a leader that it has woken: some 50 microseconds, in which it spins
/// and then offers its processor.
const LEADER_ROUNDS: u32 = 256;

/// The thread, which runs.
#[cfg(not(dat_sim))]
pub(super) struct Running(Thread);

#[cfg(not(dat_sim))]
impl Running {
    /// Starts the thread.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn start(inner: &Arc<Inner>) -> std::io::Result<Running> {
        let running = inner.clone();
        let body = move || {
            request_short_slices();
            running.run();
        };
        let thread = threads::start(c"dat-soft", body).map(Running)?;
        // No peer learns of this process before.
        let begun = Instant::now();
        let mut round = 0;
        while !inner.presence_shown.load(Ordering::Acquire) && begun.elapsed() < START_LIMIT {
            relax(round);
            round = round.saturating_add(1);
        }
        Ok(thread)
    }

    /// Waits for the end of the thread as [`Thread::join`] does: an upcall may have dropped the device, or the thread
    /// of another device frees what was left of this one.
    pub fn join(self) {
        self.0.join();
    }
}

/// What stands for the thread in a simulation: its steps are [`Inner::serve_once`].
#[cfg(dat_sim)]
pub(super) struct Running;

#[cfg(dat_sim)]
impl Running {
    /// Asks the simulated kernel whether there can be a thread.
    pub fn start(_inner: &Arc<Inner>) -> std::io::Result<Running> {
        crate::kernel::start_thread("dat-soft", Box::new(|| ()))?;
        Ok(Running)
    }

    /// There is nothing to wait for.
    pub fn join(self) {}
}

impl Inner {
    /// One round of [`Inner::run`], with what a pause does at its end. Without an event the thread
    /// would wait.
    #[cfg(dat_sim)]
    pub(super) fn serve_once(self: &Arc<Self>) {
        let mut batch = EpollBatch::new();
        let filled = batch.fill(self.epoll(), Some(&super::ZERO_TIME));
        if filled.is_ok() && batch.len() > 0 {
            self.serve(&batch);
        }
        self.coalesced.flush_old();
        self.acknowledgements.flush();
    }

    #[cfg_attr(dat_sim, expect(dead_code, reason = "the simulation has no threads"))]
    fn run(self: &Arc<Self>) {
        let mut watch = PollWatch::default();
        watch.check(self.polls.load(Ordering::Relaxed));
        let mut batch = EpollBatch::new();
        let mut pauses = false;
        let mut contended: u32 = 0;
        self.show_presence();
        self.presence_shown.store(true, Ordering::Release);
        while !self.stop.load(Ordering::SeqCst) {
            self.show_presence();
            self.thread_busy.store(false, Ordering::Relaxed);
            let filled = batch.fill(self.epoll(), None);
            self.thread_busy.store(true, Ordering::Relaxed);
            if let Err(error) = filled {
                // The program has closed all descriptors, as daemons do, those of the library too.
                if error != Errno::INTR {
                    self.pause(LOST_PAUSE, Duration::ZERO);
                }
                continue;
            }
            let sleeps = lock::sleeps();
            self.serve(&batch);
            contended = match lock::sleeps() == sleeps {
                true => 0,
                false => contended.saturating_add(1),
            };
            if contended >= CONTENDED {
                // A consumer is in calls of its own nearly all the time: one that posts long messages, say,
                // each of which the peer acknowledges. To serve each arrival would interrupt the consumer
                // twice, and would have to wait for the end of the call.
                self.pause(CONTENDED_PAUSE, Duration::ZERO);
            }
            // The event stays until the leader that was woken has run and cleared it.
            if batch.contains(LEADER_WAKE) && !self.leader_runs() {
                self.pause(POLL_CHECK, Duration::ZERO);
            }
            // Consumers that poll serve the sockets themselves.
            while watch.check(self.polls.load(Ordering::Relaxed)) {
                if !pauses {
                    pauses = true;
                    self.scratch.lock().thread_pauses = true;
                }
                self.acknowledgements.leave_to_polls();
                self.show_presence();
                self.pause(watch.pause(), watch.slack());
            }
            if std::mem::take(&mut pauses) {
                self.scratch.lock().thread_pauses = false;
                self.watch_all(None);
            }
            self.acknowledgements.take_from_polls();
            self.acknowledgements.flush();
        }
        self.thread_busy.store(false, Ordering::Relaxed);
        if let Some(presence) = self.presence {
            (presence.end)();
        }
    }

    fn show_presence(&self) {
        if let Some(presence) = self.presence {
            (presence.show)();
        }
    }

    /// Waits a short time until the leader that was woken runs; true if it does. The thread is then in the
    /// epoll instance before that leader is there again. Otherwise it would be the thread that the kernel
    /// wakes for what arrives next, and would wake the leader for that, and so on.
    fn leader_runs(&self) -> bool {
        let has_run = |round| {
            relax(round);
            !self.leader.is_woken()
        };
        (0..LEADER_ROUNDS).any(has_run) && !self.leader.is_asleep()
    }

    /// Leaves the sockets alone for so long, or up to `slack` less, and flushes coalesced sends meanwhile.
    fn pause(&self, length: Duration, slack: Duration) {
        let end = Instant::now() + length;
        loop {
            self.coalesced.flush_old();
            let mut paused = self.pause.lock();
            let left = end.saturating_duration_since(Instant::now());
            if left <= slack || self.stop.load(Ordering::SeqCst) {
                return;
            }
            let rest = left - slack;
            match self.coalesced.until_flush() {
                Some(flush) => self.pause_end.wait_for(&mut paused, flush.min(rest)),
                None if slack.is_zero() => self.pause_end.wait_for(&mut paused, rest),
                None => {
                    set_timer_slack(slack);
                    self.pause_end.wait_for(&mut paused, rest);
                    set_timer_slack(Duration::ZERO);
                }
            }
        }
    }

    /// Has a thread that pauses check for coalesced sends, and whether the engine ends.
    pub(super) fn interrupt_pause(&self) {
        // The thread either has not read what has changed yet, or waits.
        drop(self.pause.lock());
        self.pause_end.notify_one();
    }
}

/// Asks the scheduler to run this thread soon and briefly.
///
/// Programs poll memory for RDMA writes with all the cores they have. The thread of the engine,
/// which puts the writes there, would wait for the time slice of such a program to end. Kernels
/// before 6.12 ignore the request.
///
/// The policy is for the program to choose, and stays: threads for real time have no slice, and refuse the
/// request.
#[cfg(not(dat_sim))]
fn request_short_slices() {
    /// `struct sched_attr` of sched_setattr(2), in its first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    /// The policy stays, whatever it is. Since Linux 5.3.
    const SCHED_FLAG_KEEP_POLICY: u64 = 0x08;
    let mut attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: 0,
        flags: SCHED_FLAG_KEEP_POLICY,
        nice: 0,
        priority: 0,
        // The shortest slice there is, in nanoseconds.
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the structure is as large as its field `size` says, and lives during the calls.
    unsafe {
        // The niceness stays as the program has set it.
        attr.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}

/// Has timeouts of this thread end up to so much later, together with another interrupt of its processor;
/// zero for the slack that the thread has begun with.
fn set_timer_slack(slack: Duration) {
    let nanoseconds = slack.as_nanos() as libc::c_ulong;
    // SAFETY: the call takes a number, and changes nothing but the slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
}
