//! A socket, and what the kernel knows of it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use dat_core::testing::kernel::{Name, SocketOption};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::super::world::{MILLI, Nanos, World};
use super::SocketId;
use super::local::Local;

/// How far a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    New,
    Listening,
    Connecting,
    Connected,
    /// Reset, or given up.
    Dead,
}

/// A part of a stream on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    Bytes(usize),
    End,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    pub fd: Option<RawFd>,
    /// What the socket has if it is a local one.
    pub local: Option<Local>,
    pub phase: Phase,
    /// The connection of the program, once the port is known.
    pub connection: Option<usize>,
    pub(super) name: Option<Name>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) peer: Option<SocketId>,
    /// Connections that wait to be accepted.
    pub(super) waiting: VecDeque<SocketId>,
    /// The error of the last connection that was to be accepted, if there was one.
    pub accept_error: Option<Errno>,
    /// An error that was not returned yet.
    pub error: Option<Errno>,
    /// Bytes that this end has sent and that have not arrived.
    pub flight: VecDeque<u8>,
    /// The same in parts.
    pub(super) segments: VecDeque<Segment>,
    /// When the last segment on its way arrives.
    pub(super) arrives: Nanos,
    /// Whether the peer takes nothing: its buffer is full.
    pub(super) stalled: bool,
    /// Whether this end has ended its stream.
    pub(super) ended: bool,
    /// Whether a write has found no room.
    pub(super) was_full: bool,
    /// Bytes that have arrived.
    pub(super) received: VecDeque<u8>,
    /// Whether the end of the peer's stream has arrived.
    pub(super) peer_ended: bool,
    /// Whether nothing arrives from the peer any more, nor at the peer.
    pub silent: bool,
    /// Since when bytes are on their way, if some are.
    pub(super) unacknowledged_since: Nanos,
    /// When something arrived last.
    pub(super) heard: Nanos,
    /// Number of segments that have arrived.
    pub(super) segments_in: u32,
    pub(super) linger: Option<Duration>,
    pub(super) user_timeout: Duration,
    pub(super) keep: (Duration, Duration, u32),
}

impl Socket {
    pub fn new() -> Socket {
        Socket {
            fd: None,
            local: None,
            phase: Phase::New,
            connection: None,
            name: None,
            remote: None,
            peer: None,
            waiting: VecDeque::new(),
            accept_error: None,
            error: None,
            flight: VecDeque::new(),
            segments: VecDeque::new(),
            arrives: 0,
            stalled: false,
            ended: false,
            was_full: false,
            received: VecDeque::new(),
            peer_ended: false,
            silent: false,
            unacknowledged_since: 0,
            heard: 0,
            segments_in: 0,
            linger: None,
            user_timeout: Duration::ZERO,
            keep: (Duration::from_secs(7200), Duration::from_secs(75), 9),
        }
    }

    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    pub fn set_option(&mut self, option: SocketOption) {
        match option {
            SocketOption::KeepIdle(time) => self.keep.0 = time,
            SocketOption::KeepInterval(time) => self.keep.1 = time,
            SocketOption::KeepCount(count) => self.keep.2 = count,
            SocketOption::UserTimeout(time) => self.user_timeout = time,
            SocketOption::Linger(time) => self.linger = time,
            SocketOption::Sharing | SocketOption::Other => {}
        }
    }
}

impl World {
    pub fn tcp_info(&mut self, id: SocketId) -> libc::tcp_info {
        let now = self.now;
        let socket = &self.net.sockets[id];
        let millis = |since: Nanos| ((now - since.min(now)) / MILLI) as u32;
        // SAFETY: all zero is valid for a structure of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        info.tcpi_state = match socket.phase {
            Phase::Connected if socket.ended => 4,
            Phase::Connected => 1,
            _ => 7,
        };
        info.tcpi_segs_in = socket.segments_in;
        info.tcpi_last_ack_recv = millis(socket.heard);
        info.tcpi_last_data_sent = millis(socket.unacknowledged_since);
        if socket.stalled && !socket.silent {
            // The window is closed, and the peer answers the probes.
            info.tcpi_notsent_bytes = socket.flight.len() as u32;
            info.tcpi_last_ack_recv = 10;
        } else if !socket.segments.is_empty() {
            info.tcpi_unacked = socket.segments.len() as u32;
            if socket.silent {
                // The first timeout is after 200 ms, each further one after twice as long.
                let unacknowledged = millis(socket.unacknowledged_since);
                info.tcpi_retransmits = (unacknowledged / 200 + 1).ilog2() as u8;
                info.tcpi_last_data_sent = match id.is_multiple_of(2) {
                    true => unacknowledged.min(700),
                    // The link is down: nothing is sent again.
                    false => info.tcpi_last_ack_recv,
                };
            }
        }
        info
    }

    /// What holds of a socket, for an epoll instance.
    pub fn socket_state(&mut self, id: SocketId) -> EventFlags {
        let most = self.weather.send_buffer;
        let socket = self.socket(id);
        let mut state = EventFlags::empty();
        match socket.phase {
            Phase::New => return EventFlags::OUT | EventFlags::HUP,
            Phase::Listening => {
                state.set(EventFlags::IN, !socket.waiting.is_empty());
                return state;
            }
            Phase::Connecting => return state,
            Phase::Connected if socket.local.is_some() => state = self.local_state(id),
            Phase::Connected => {
                let room = most - socket.flight.len().min(most) >= (most / 3).max(1);
                state.set(EventFlags::OUT, room || socket.ended);
                if !room {
                    socket.was_full = true;
                }
                let ended = socket.peer_ended;
                state.set(EventFlags::IN, ended || !socket.received.is_empty());
                state.set(EventFlags::RDHUP, ended);
                state.set(EventFlags::HUP, ended && socket.ended);
            }
            Phase::Dead => {
                state = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::HUP;
            }
        }
        state.set(EventFlags::ERR, self.socket(id).error.is_some());
        state
    }
}
