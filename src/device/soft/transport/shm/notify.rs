//! How the two ends of a segment notify each other: by a byte on the local socket, by a ready bit, or
//! not at all while the other end polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::doorbell::WakeOn;
use super::segment::SharedSegment;
use super::socket::send_now;
use crate::device::soft::engine::Watch;
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry};
use crate::device::soft::engine::ready_bitmap::BitmapPlace;
use crate::kernel;
use crate::kernel::net::{RecvFlags, SendFlags, sockopt};

/// At least the room that one byte takes in the send buffer of a socket, in bytes.
const BYTE_ROOM: usize = 4096;
/// The most bytes of the doorbell that are left unread.
const MOST_UNREAD: u32 = 64;

/// Wakes the peer. A socket that is full does already; one that is closed need not.
#[cold]
pub(super) fn wake(socket: &Watch) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = send_now(|| kernel::net::send(socket, &[1], flags));
}

/// Notifies the peer.
#[derive(Default)]
pub(crate) struct PeerNotifier {
    /// The number of the peer's sleep in which it was woken.
    woken_sleep: AtomicU32,
}

impl PeerNotifier {
    /// Notifies the peer in its notify mode: sets its ready bit, or wakes it if it sleeps and waits
    /// for this.
    #[inline(always)]
    pub fn notify(&self, segment: &SharedSegment, socket: &Watch, what: WakeOn) {
        if segment.theirs().doorbell.is_due(what) {
            wake(socket);
        }
        let place = segment.theirs().bitmap_place();
        if place != BitmapPlace::NONE {
            self.set_ready_bit(segment, socket, place);
        }
    }

    /// Marks that there is something, and wakes the peer if that has to be.
    #[inline(never)]
    fn set_ready_bit(&self, segment: &SharedSegment, socket: &Watch, place: BitmapPlace) {
        if let Some(sleep) = segment.peer().bitmaps().set(place)
            && self.woken_sleep.load(Ordering::Relaxed) != sleep
        {
            self.woken_sleep.store(sleep, Ordering::Relaxed);
            wake(socket);
        }
    }
}

/// How the peer notifies this end.
pub(crate) struct Notified {
    mode: NotifyMode,
    /// Whether consumers that poll serve this end: it is in the
    /// [`poll_set`](crate::device::soft::engine::poll_set).
    in_poll_set: bool,
    /// Times that the peer rang the doorbell and its byte was left unread.
    unread: u32,
    /// How often that may be, so that the socket does not fill up.
    max_unread: u32,
}

/// What was read from the socket.
pub(crate) struct Doorbells {
    /// Whether there were bytes.
    pub any: bool,
    /// Whether the socket has ended.
    pub ended: bool,
}

impl Notified {
    /// By the doorbell, whose bytes come from this socket.
    pub fn new(socket: &Watch) -> Notified {
        let room = sockopt::socket_send_buffer_size(socket).unwrap_or(0);
        Notified {
            mode: NotifyMode::Doorbell,
            in_poll_set: false,
            unread: 0,
            max_unread: ((room / BYTE_ROOM) as u32).min(MOST_UNREAD),
        }
    }

    /// Has consumers that poll serve this end, as `entry`. Poll the ring after this.
    pub fn join_poll_set(
        &mut self,
        segment: &SharedSegment,
        socket: &Watch,
        entry: Arc<dyn PollEntry>,
    ) {
        let mode = socket.poll_set().add(entry);
        self.in_poll_set = mode.is_some();
        self.set_mode(segment, mode.unwrap_or(NotifyMode::Doorbell));
    }

    /// Whether consumers that poll serve this end.
    #[inline]
    pub fn in_poll_set(&self) -> bool {
        self.in_poll_set
    }

    /// The notify mode.
    #[inline]
    pub fn mode(&self) -> NotifyMode {
        self.mode
    }

    /// What the peer does from now on when it has something. Poll the ring after this.
    pub fn set_mode(&mut self, segment: &SharedSegment, mode: NotifyMode) {
        let place = match mode {
            NotifyMode::Bitmap(place) => place,
            NotifyMode::Doorbell | NotifyMode::Polled => BitmapPlace::NONE,
        };
        if place != segment.ours().bitmap_place() {
            segment.ours().set_bitmap_place(place);
        }
        self.mode = mode;
        if mode != NotifyMode::Doorbell {
            segment.ours().doorbell.disarm();
        }
    }

    /// The socket is ready, and `ends` perhaps. Its bytes carry no data, and epoll reports the next one in
    /// any case: they are read now and then if they `may_wait`.
    pub fn read_doorbells(&mut self, socket: &Watch, ends: bool, may_wait: bool) -> Doorbells {
        let mut read = Doorbells {
            any: false,
            ended: false,
        };
        if !ends && may_wait && self.unread < self.max_unread {
            self.unread += 1;
            return read;
        }
        self.unread = 0;
        let mut bytes = [0u8; 256];
        loop {
            match kernel::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return read,
                Err(Errno::INTR) => {}
                Ok((_, n)) if n > 0 => {
                    read.any = true;
                    if n < bytes.len() && !ends {
                        return read;
                    }
                }
                // A socket that the peer has closed with bytes unread returns an error.
                _ => {
                    read.ended = true;
                    return read;
                }
            }
        }
    }
}
