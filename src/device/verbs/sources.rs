//! What the service thread of an IA sleeps on. `poll(2)` takes no more descriptors than the process may open, which a
//! program may lower to none at all (`RLIMIT_NOFILE`); an epoll instance has no such limit.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;

use super::adapter::Adapter;
use super::sys;
use crate::device::waker::Waker;
use crate::kernel::event::{Timespec, epoll};

/// A bit for each source: the eventfd that wakes the thread, and what reports completions, events of the device and
/// those of connections.
pub(super) const WAKE: u32 = 1;
pub(super) const COMPLETIONS: u32 = 2;
pub(super) const DEVICE: u32 = 4;
pub(super) const CONNECTIONS: u32 = 8;
const ALL: u32 = WAKE | COMPLETIONS | DEVICE | CONNECTIONS;

/// How often the thread looks for its work when the program has closed what wakes the thread.
const UNWOKEN_CHECKS: Duration = Duration::from_millis(100);

/// The sources of an open device, in the order of their bits.
pub(super) struct Sources {
    /// Those that the libraries have opened, which come after [`WAKE`].
    descriptors: [RawFd; 3],
    /// Those that have no more events.
    silent: u32,
}

impl Sources {
    /// Has the epoll instance of the waker watch the sources.
    ///
    /// # Errors
    /// There is no descriptor left, or no memory.
    pub fn new(adapter: &Adapter) -> io::Result<Sources> {
        // SAFETY: the adapter is open, and so are its channels.
        let descriptors = unsafe {
            let completions = adapter.comp_channel.cast::<sys::Channel>();
            [
                (*completions).fd,
                (*adapter.ctx).async_fd,
                (*adapter.cm_channel).fd,
            ]
        };
        for (i, fd) in descriptors.into_iter().enumerate() {
            // SAFETY: open as long as the adapter.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let data = epoll::EventData::new_u64((COMPLETIONS << i).into());
            epoll::add(
                adapter.jobs.waker().epoll(),
                fd,
                data,
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Sources {
            descriptors,
            silent: 0,
        })
    }

    /// Waits for events, for `limit` at most. Gives the sources that have some, and those that have no more from now
    /// on: when a device is removed, the kernel closes what reports its events, and a program may close all
    /// descriptors, the epoll instance among them.
    pub fn wait(&mut self, waker: &Waker, limit: Option<Duration>) -> (u32, u32) {
        if self.silent == ALL {
            // The numbers may be those of the program's descriptors meanwhile.
            std::thread::sleep(limit.map_or(UNWOKEN_CHECKS, |t| t.min(UNWOKEN_CHECKS)));
            return (0, 0);
        }
        let timeout = limit.map(|t| Timespec {
            tv_sec: t.as_secs().min(3600) as i64,
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); 4];
        let events = match epoll::wait(waker.epoll(), &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return (0, 0),
            Err(_) => {
                let ended = ALL & !self.silent;
                self.silent = ALL;
                return (0, ended);
            }
        };
        let (mut ready, mut ended) = (0, 0);
        for epoll::Event { flags, data } in events.iter().copied() {
            // What has events is read first.
            match flags.contains(epoll::EventFlags::IN) {
                true => ready |= data.u64() as u32,
                false => ended |= data.u64() as u32,
            }
        }
        self.silence(waker, ended);
        (ready, ended)
    }

    /// A source without events would be ready all the time.
    fn silence(&mut self, waker: &Waker, ended: u32) {
        self.silent |= ended;
        for (i, fd) in self.descriptors.into_iter().enumerate() {
            if ended & COMPLETIONS << i != 0 {
                // SAFETY: only a number, which may be none any more.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                let _ = epoll::delete(waker.epoll(), fd);
            }
        }
    }
}
