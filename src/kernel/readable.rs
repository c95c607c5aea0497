//! Waiting for one descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event;
use rustix::io::Errno;

/// Waits until a descriptor is readable, for `limit` at most, and says whether it is. One that is closed is.
///
/// # Errors
/// Of the kernel, and `NOMEM`.
pub fn is_readable(fd: impl AsFd, limit: &event::Timespec) -> Result<bool, Errno> {
    let fd = fd.as_fd();
    let mut polled = [event::PollFd::from_borrowed_fd(fd, event::PollFlags::IN)];
    match event::poll(&mut polled, Some(limit)) {
        Ok(ready) => Ok(ready == 1),
        // A program may lower the number of its descriptors to none at all (`RLIMIT_NOFILE`), and poll(2) takes no
        // more of them. Those that are open stay so.
        Err(Errno::INVAL) => select_readable(fd, limit),
        Err(error) => Err(error),
    }
}

/// [`is_readable`] by select(2), which takes any descriptor, but a bit for each number up to that.
fn select_readable(fd: BorrowedFd<'_>, limit: &event::Timespec) -> Result<bool, Errno> {
    let len = event::fd_set_num_elements(1, fd.as_raw_fd() + 1);
    let mut set = Vec::new();
    set.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    set.resize(len, event::FdSetElement::default());
    event::fd_set_insert(&mut set, fd.as_raw_fd());
    // SAFETY: the set has the bit of one descriptor; the kernel notices if the program has closed that.
    match unsafe { event::select(fd.as_raw_fd() + 1, Some(&mut set), None, None, Some(limit)) } {
        Err(Errno::BADF) => Ok(true),
        ready => Ok(ready? == 1),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::process::tests::{WELL, allow_no_descriptor, status_of_child};

    #[test]
    fn descriptors_are_readable_without_a_right_to_have_some() {
        const NOW: event::Timespec = event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        const SOON: event::Timespec = event::Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let readable = || {
            let full = event::eventfd(1, event::EventfdFlags::empty()).unwrap();
            let empty = event::eventfd(0, event::EventfdFlags::empty()).unwrap();
            // The set has several words.
            let high = rustix::io::fcntl_dupfd_cloexec(&full, 200).unwrap();
            let closed = rustix::io::fcntl_dupfd_cloexec(&full, 300)
                .unwrap()
                .as_raw_fd();
            // SAFETY: only a number.
            let closed = unsafe { BorrowedFd::borrow_raw(closed) };
            move || {
                let begun = Instant::now();
                let empty = is_readable(&empty, &NOW) == Ok(false)
                    && is_readable(&empty, &SOON) == Ok(false)
                    && begun.elapsed().as_millis() >= 20;
                let full = is_readable(&full, &SOON) == Ok(true);
                let high = is_readable(&high, &NOW) == Ok(true);
                empty && full && high && is_readable(closed, &NOW) == Ok(true)
            }
        };
        let before = status_of_child(|| readable()());
        let after = status_of_child(|| {
            let readable = readable();
            allow_no_descriptor();
            readable()
        });
        assert_eq!((before, after), (WELL, WELL));
    }
}
