//! `rustix::time`.

pub use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};

use super::{AsFd, Duration, Errno, NewFd, ask, raw};

/// The simulated clock.
pub fn clock_gettime(_clock: ClockId) -> Timespec {
    let now = ask(|kernel| kernel.now());
    Timespec {
        tv_sec: now.as_secs() as i64,
        tv_nsec: now.subsec_nanos().into(),
    }
}

/// [`ticks`] in a few milliseconds.
pub const SOME_MILLISECONDS: u64 = 4_000_000;

/// [`ticks`] in a few microseconds.
pub const SOME_MICROSECONDS: u64 = 4_000;

/// The simulated clock in nanoseconds.
pub fn ticks() -> u64 {
    ask(|kernel| kernel.now()).as_nanos() as u64
}

/// See [`Kernel::timerfd`](super::Kernel::timerfd).
pub fn timerfd_create(_clock: TimerfdClockId, _flags: TimerfdFlags) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.timerfd()).map(NewFd)
}

/// See [`Kernel::timerfd_set`](super::Kernel::timerfd_set).
pub fn timerfd_settime(
    fd: impl AsFd,
    _flags: TimerfdTimerFlags,
    value: &Itimerspec,
) -> Result<(), Errno> {
    let value = value.it_value;
    let delay = Duration::new(value.tv_sec as u64, value.tv_nsec as u32);
    ask(|kernel| kernel.timerfd_set(raw(fd), delay));
    Ok(())
}
