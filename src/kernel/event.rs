//! `rustix::event`, but for one call.

pub use rustix::event::*;

/// `rustix::event::epoll`, but for one call.
pub mod epoll {
    use std::ffi::c_int;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, AsRawFd};

    pub use rustix::event::epoll::*;
    use rustix::io::Errno;

    use super::Timespec;
    use crate::kernel::call::call;

    /// Waits for events, as `epoll_wait(2)` does, without end if there is no `timeout`, of which a part of a millisecond
    /// counts as one. Returns the events, and what is left of their memory.
    ///
    /// `rustix` leaves the last argument of the system call, which the kernel does not read, to chance. Valgrind reports
    /// that as a mistake of the program.
    ///
    /// # Errors
    /// Of the kernel.
    #[inline]
    pub fn wait<'a>(
        epoll: impl AsFd,
        events: &'a mut [MaybeUninit<Event>],
        timeout: Option<&Timespec>,
    ) -> Result<(&'a mut [Event], &'a mut [MaybeUninit<Event>]), Errno> {
        let arguments = [
            epoll.as_fd().as_raw_fd() as usize,
            events.as_mut_ptr().expose_provenance(),
            events.len(),
            timeout.map_or(-1, milliseconds) as usize,
            0,
            0,
        ];
        // SAFETY: the kernel writes to the events, which live during the call.
        let taken = unsafe { call(libc::SYS_epoll_pwait, arguments) }?;
        let (taken, rest) = events.split_at_mut(taken);
        let taken: *mut [MaybeUninit<Event>] = taken;
        // SAFETY: written by the kernel, and borrowed as long as `events`.
        Ok((unsafe { &mut *(taken as *mut [Event]) }, rest))
    }

    fn milliseconds(timeout: &Timespec) -> c_int {
        let parts = (timeout.tv_nsec + 999_999) / 1_000_000;
        let all = timeout.tv_sec.saturating_mul(1000).saturating_add(parts);
        c_int::try_from(all).unwrap_or(c_int::MAX)
    }

    #[cfg(test)]
    mod tests {
        use super::super::{EventfdFlags, eventfd};
        use super::*;

        #[test]
        fn a_part_of_a_millisecond_counts_as_one() {
            let of = |tv_sec, tv_nsec| milliseconds(&Timespec { tv_sec, tv_nsec });
            assert_eq!([of(0, 0), of(0, 1), of(0, 1_000_000)], [0, 1, 1]);
            assert_eq!([of(2, 999_999_999), of(i64::MAX, 0)], [3000, c_int::MAX]);
        }

        #[test]
        fn events_arrive() {
            let epoll = create(CreateFlags::CLOEXEC).unwrap();
            let source = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            add(&epoll, &source, EventData::new_u64(7), EventFlags::IN).unwrap();
            let mut room = [MaybeUninit::uninit(); 4];
            let at_once = Timespec::default();
            assert!(
                wait(&epoll, &mut room, Some(&at_once))
                    .unwrap()
                    .0
                    .is_empty()
            );
            rustix::io::write(&source, &1u64.to_ne_bytes()).unwrap();
            let (taken, rest) = wait(&epoll, &mut room, None).unwrap();
            assert_eq!((taken.len(), rest.len()), (1, 3));
            let Event { flags, data } = taken[0];
            assert_eq!((flags, data.u64()), (EventFlags::IN, 7));
            assert_eq!(wait(&source, &mut room, None).err(), Some(Errno::INVAL));
        }
    }
}
