//! `rustix::event`.

pub use rustix::event::{EventfdFlags, Timespec};

use super::{Errno, NewFd, ask};

/// See [`Kernel::eventfd`](super::Kernel::eventfd).
pub fn eventfd(_value: u32, _flags: EventfdFlags) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.eventfd()).map(NewFd)
}

/// `rustix::event::epoll`.
pub mod epoll {
    use std::mem::MaybeUninit;

    pub use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags};

    use super::super::{AsFd, Errno, NewFd, ask, raw};
    use super::Timespec;

    /// See [`Kernel::epoll_create`](crate::kernel::Kernel::epoll_create).
    pub fn create(_flags: CreateFlags) -> Result<NewFd, Errno> {
        ask(|kernel| kernel.epoll_create()).map(NewFd)
    }

    /// Has an epoll instance watch a descriptor (`new`), or watch it in another way.
    fn watch(
        epoll: impl AsFd,
        source: impl AsFd,
        new: bool,
        data: EventData,
        events: EventFlags,
    ) -> Result<(), Errno> {
        let watched = Some((data.u64(), events.bits()));
        ask(|kernel| kernel.epoll_control(raw(epoll), raw(source), new, watched))
    }

    /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
    pub fn add(
        epoll: impl AsFd,
        source: impl AsFd,
        data: EventData,
        events: EventFlags,
    ) -> Result<(), Errno> {
        watch(epoll, source, true, data, events)
    }

    /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
    pub fn modify(
        epoll: impl AsFd,
        source: impl AsFd,
        data: EventData,
        events: EventFlags,
    ) -> Result<(), Errno> {
        watch(epoll, source, false, data, events)
    }

    /// See [`Kernel::epoll_control`](crate::kernel::Kernel::epoll_control).
    pub fn delete(epoll: impl AsFd, source: impl AsFd) -> Result<(), Errno> {
        ask(|kernel| kernel.epoll_control(raw(epoll), raw(source), false, None))
    }

    /// See [`Kernel::epoll_wait`](crate::kernel::Kernel::epoll_wait).
    pub fn wait<'a>(
        epoll: impl AsFd,
        events: &'a mut [MaybeUninit<Event>],
        _timeout: Option<&Timespec>,
    ) -> Result<(&'a mut [Event], &'a mut [MaybeUninit<Event>]), Errno> {
        let mut len = 0;
        ask(|kernel| {
            kernel.epoll_wait(raw(epoll), events.len(), &mut |data, flags| {
                events[len].write(Event {
                    flags: EventFlags::from_bits_retain(flags),
                    data: EventData::new_u64(data),
                });
                len += 1;
            })
        })?;
        let (written, rest) = events.split_at_mut(len);
        let written: *mut [MaybeUninit<Event>] = written;
        // SAFETY: written above, and borrowed as long as `events`.
        Ok((unsafe { &mut *(written as *mut [Event]) }, rest))
    }
}
