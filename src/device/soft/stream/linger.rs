//! The last moments of a socket: the rest of what was begun goes out, then the end of the
//! stream, and what the peer still sends is thrown away until it ends too. A socket that were
//! closed at once would be reset if anything of the peer were unread, and a reset can destroy
//! what the peer has not read of ours.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::upcall::Upcalls;

/// How long all that may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Buffers that are thrown away at the very end.
const DRAIN: usize = 256;

struct State {
    watch: Watch,
    rest: Vec<u8>,
    sent: usize,
    ended: bool,
    _timer: Timer,
}

struct Linger(Mutex<Option<State>>);

/// Sends `rest`, ends the stream, and closes the socket when the peer has too.
pub(in crate::device::soft) fn linger(watch: Watch, rest: Vec<u8>) {
    let linger = Arc::new(Linger(Mutex::new(None)));
    watch.redirect(linger.clone());
    let weak = Arc::downgrade(&linger);
    let timer = watch.timer(PATIENCE, move |_| {
        if let Some(linger) = weak.upgrade() {
            linger.0.lock().take();
        }
    });
    let mut state = State {
        watch,
        rest,
        sent: 0,
        ended: false,
        _timer: timer,
    };
    // At once, because the device may be closed next.
    if state.send() {
        *linger.0.lock() = Some(state);
    }
}

impl State {
    /// False if there is nothing to wait for.
    fn send(&mut self) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while self.sent < self.rest.len() {
            match rustix::net::send(&self.watch, &self.rest[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN | Errno::INTR) => {
                    return self.watch.set(EventFlags::IN | EventFlags::OUT).is_ok();
                }
                Err(_) => return false,
            }
        }
        if !self.ended {
            self.ended = true;
            if rustix::net::shutdown(&self.watch, Shutdown::Write).is_err() {
                return false;
            }
        }
        self.watch.set(EventFlags::IN).is_ok()
    }
}

impl Drop for State {
    /// What is unread at the end would make the kernel reset the connection.
    fn drop(&mut self) {
        let mut buffer = [0; 4096];
        for _ in 0..DRAIN {
            match rustix::net::recv(&self.watch, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, n)) if n > 0 => {}
                _ => return,
            }
        }
    }
}

impl Source for Linger {
    fn ready(self: Arc<Self>, _events: EventFlags, scratch: &mut Scratch, _up: &mut Upcalls) {
        let mut state = self.0.lock();
        let Some(this) = &mut *state else {
            return;
        };
        let read = rustix::net::recv(&this.watch, scratch.rx(), RecvFlags::DONTWAIT);
        let goes_on = match read {
            Ok((_, 0)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => this.send(),
            Err(_) => false,
        };
        if !goes_on {
            let done = state.take();
            drop(state);
            drop(done);
        }
    }
}
