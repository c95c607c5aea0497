//! The end of a socket: the rest of what was begun is sent, then the end of the stream, and what
//! the peer still sends is discarded until the peer ends its stream too. A socket that were
//! closed at once would be reset if anything of the peer were unread, and a reset can destroy
//! what the peer has not read of ours.
//!
//! The peer of a connection that a consumer has ended at once is notified at once. What was sent
//! goes before that; but a peer that reads nothing, since it has no receives, gets a reset, and so
//! does one to which the stream was ended before.
//!
//! Whoever can connect can be rejected, or ask where datagrams are received, and leave the socket open.
//! So of the connections that were never established only the last ones are waited for.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::kernel;
use crate::kernel::Instant;
use crate::kernel::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use crate::lock::Mutex;
use rustix::io::Errno;

use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::socket;
use crate::device::soft::upcalls::Upcalls;
use crate::process::PerProcess;

/// How long all that may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the peer of an aborted connection may take nothing of what was sent.
const STALL: Duration = Duration::from_millis(500);
/// How soon that is checked again.
const PACE: Duration = Duration::from_millis(10);

/// How many connections of the process that were never established may be open.
const MAX_UNESTABLISHED: usize = if cfg!(test) { 20 } else { 64 };

/// Buffers that are thrown away at the very end.
const DRAIN: usize = 256;

/// How a socket ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The peer reads what was sent in its own time.
    Graceful,
    /// The same, for a connection that was never established.
    Unestablished,
    /// A message in the stream notifies the peer that the consumer has ended the connection.
    Aborted,
    /// The same, but the peer, which has to send first, has sent nothing yet.
    Unheard,
    /// The same when the stream was ended before: a reset notifies the peer.
    Reset,
}

struct State {
    watch: Watch,
    rest: Vec<u8>,
    sent: usize,
    ended: bool,
    end: End,
    _timer: Timer,
    /// Looks whether the peer of an aborted connection takes what was sent.
    progress: Option<Progress>,
}

/// What was not with the peer, and since when it was so much.
struct Progress {
    coalesced: usize,
    since: Instant,
    _timer: Timer,
}

struct Linger(Mutex<Option<State>>);

/// The sockets of connections that were never established, the oldest first.
static UNESTABLISHED: PerProcess<Mutex<VecDeque<Weak<Linger>>>> = PerProcess::new(Mutex::default);

impl Linger {
    fn close(&self) {
        let state = self.0.lock().take();
        drop(state);
    }
}

/// Adds a socket to [`UNESTABLISHED`], and closes the oldest one if they are too many.
fn add_unestablished(new: &Arc<Linger>) {
    let oldest = {
        let mut all = UNESTABLISHED.lock();
        all.retain(|linger| linger.strong_count() > 0);
        all.push_back(Arc::downgrade(new));
        all.len()
            .checked_sub(MAX_UNESTABLISHED + 1)
            .map(|_| all.pop_front())
    };
    if let Some(oldest) = oldest.flatten().and_then(|oldest| oldest.upgrade()) {
        oldest.close();
    }
}

/// Sends `rest`, ends the stream, and closes the socket when the peer has too.
pub(crate) fn linger(watch: Watch, rest: Vec<u8>, end: End) {
    let linger = Arc::new(Linger(Mutex::new(None)));
    watch.redirect(linger.clone());
    let weak = Arc::downgrade(&linger);
    let timer = watch.timer(PATIENCE, move |_| {
        if let Some(linger) = weak.upgrade() {
            linger.close();
        }
    });
    let mut state = State {
        watch,
        rest,
        sent: 0,
        ended: false,
        end,
        _timer: timer,
        progress: None,
    };
    // Whoever is called for the socket meanwhile waits for the state.
    let mut place = linger.0.lock();
    // At once, because the device may be closed next.
    let goes_on = match end {
        End::Unheard => state.watch.set(EventFlags::IN).is_ok(),
        _ => state.send(),
    };
    if !goes_on || state.is_to_be_reset(&linger) {
        drop(place);
        // Closed without the lock, as by `Linger::close`.
        drop(state);
        return;
    }
    *place = Some(state);
    drop(place);
    if end == End::Unestablished {
        add_unestablished(&linger);
    }
}

impl State {
    /// Bytes that have not reached the peer.
    fn coalesced(&self) -> usize {
        self.rest.len() - self.sent + kernel::unacknowledged_bytes(&self.watch).unwrap_or(0)
    }

    /// Whether an aborted connection cannot wait any longer: the socket is reset by its close
    /// then. Otherwise this is asked again soon.
    fn is_to_be_reset(&mut self, linger: &Arc<Linger>) -> bool {
        let coalesced = self.coalesced();
        let (before, since) = match &self.progress {
            Some(progress) => (progress.coalesced, progress.since),
            None => (usize::MAX, Instant::now()),
        };
        let reset = match self.end {
            End::Graceful | End::Unestablished | End::Unheard => return false,
            End::Aborted if coalesced == 0 => return false,
            End::Reset if coalesced == 0 => true,
            End::Aborted | End::Reset => coalesced >= before && since.elapsed() >= STALL,
        };
        if reset {
            let _ = sockopt::set_socket_linger(&self.watch, Some(Duration::ZERO));
            return true;
        }
        let weak = Arc::downgrade(linger);
        let timer = self.watch.timer(PACE, move |_| {
            let Some(linger) = weak.upgrade() else {
                return;
            };
            let mut state = linger.0.lock();
            let reset = state.as_mut().is_some_and(|s| s.is_to_be_reset(&linger));
            drop(state);
            if reset {
                linger.close();
            }
        });
        self.progress = Some(Progress {
            coalesced,
            since: if coalesced < before {
                Instant::now()
            } else {
                since
            },
            _timer: timer,
        });
        false
    }

    /// False if there is nothing to wait for.
    fn send(&mut self) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while self.sent < self.rest.len() {
            match kernel::net::send(&self.watch, &self.rest[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(error) if socket::is_passing(error) => {
                    return self.watch.set(EventFlags::IN | EventFlags::OUT).is_ok();
                }
                Err(_) => return false,
            }
        }
        if !self.ended {
            self.ended = true;
            if kernel::net::shutdown(&self.watch, Shutdown::Write).is_err() {
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
            match kernel::net::recv(&self.watch, &mut buffer, RecvFlags::DONTWAIT) {
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
        let read = kernel::net::recv(&this.watch, scratch.rx(), RecvFlags::DONTWAIT);
        let goes_on = match read {
            Ok((_, 0)) => false,
            Err(Errno::AGAIN | Errno::INTR) if this.end == End::Unheard => true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {
                if this.end == End::Unheard {
                    this.end = End::Aborted;
                }
                this.send()
            }
            Err(_) => false,
        };
        drop(state);
        if !goes_on {
            self.close();
        }
    }
}
