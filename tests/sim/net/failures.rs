//! How connections fail: resets, peers that are silent, and errors that were injected.

use rustix::io::Errno;

use super::super::world::{Event, Nanos, SECOND, World};
use super::SocketId;
use super::socket::Phase;

/// How often the kernel checks a socket whose peer is silent.
pub const SILENT_CHECK: Nanos = SECOND / 2;
/// How long the kernel sends again what is not acknowledged.
const RETRANSMISSIONS: Nanos = 900 * SECOND;

impl World {
    /// Sends a reset to the peer of a socket, behind what is on its way; some of that is lost.
    pub(super) fn reset_peer(&mut self, id: SocketId) {
        let kept = match self.net.sockets[id].segments.len() {
            0 => 0,
            n => self.rng.below(n as u64 + 1) as usize,
        };
        let delay = self.delay();
        let at = self.now + delay;
        let socket = self.socket(id);
        if socket.stalled {
            socket.segments.clear();
        } else {
            socket.segments.truncate(kept);
        }
        socket.arrives = socket.arrives.max(at);
        let at = socket.arrives;
        if let Some(peer) = socket.peer {
            self.at(at, Event::Reset(peer));
        }
    }

    /// A reset arrives at a socket.
    pub fn reset_arrives(&mut self, id: SocketId) {
        let socket = self.socket(id);
        if socket.silent || socket.phase != Phase::Connected {
            return;
        }
        let error = match socket.peer_ended {
            true => Errno::PIPE,
            false => Errno::CONNRESET,
        };
        self.give_up(id, error);
    }

    /// The connection of a socket is over, with an error.
    pub(super) fn give_up(&mut self, id: SocketId, error: Errno) {
        let socket = self.socket(id);
        socket.phase = Phase::Dead;
        socket.error = Some(error);
        socket.flight.clear();
        socket.segments.clear();
        self.wake_socket(id);
    }

    /// A connection is reset by something between its ends.
    pub fn reset_connection(&mut self, connection: usize) {
        for id in 0..self.net.sockets.len() {
            let socket = &self.net.sockets[id];
            if socket.connection == Some(connection)
                && socket.phase == Phase::Connected
                && socket.local.is_none()
            {
                self.reset_arrives(id);
            }
        }
    }

    /// Nothing of a connection arrives from now on.
    pub fn silence(&mut self, connection: usize) {
        for id in 0..self.net.sockets.len() {
            let socket = self.socket(id);
            if socket.connection == Some(connection) && !socket.silent && socket.local.is_none() {
                socket.silent = true;
                if socket.phase == Phase::Connected {
                    self.after(SILENT_CHECK, Event::Silent(id));
                }
            }
        }
    }

    /// The kernel checks whether a silent socket has been silent for too long.
    pub fn check_silent(&mut self, id: SocketId) {
        let now = self.now;
        let socket = &self.net.sockets[id];
        if socket.fd.is_none() {
            return;
        }
        let over = match socket.phase {
            Phase::Connecting => {
                let limit = socket.user_timeout.as_nanos() as Nanos;
                let limit = if limit == 0 { 127 * SECOND } else { limit };
                now - socket.heard.max(SECOND) >= limit
            }
            Phase::Connected if socket.segments.is_empty() => {
                let (idle, interval, count) = socket.keep;
                let limit = idle + interval * count;
                now - socket.heard >= limit.as_nanos() as Nanos
            }
            Phase::Connected => {
                let limit = socket.user_timeout.as_nanos() as Nanos;
                let limit = if limit == 0 { RETRANSMISSIONS } else { limit };
                now - socket.unacknowledged_since >= limit
            }
            _ => return,
        };
        if over {
            self.give_up(id, Errno::TIMEDOUT);
        } else {
            self.after(SILENT_CHECK, Event::Silent(id));
        }
    }

    /// An error was injected into a socket: some end the connection, for both ends.
    pub fn fatal(&mut self, id: SocketId, error: Errno) {
        if self.net.sockets[id].phase != Phase::Connected {
            return;
        }
        if self.net.sockets[id].local.is_some() {
            if matches!(error, Errno::CONNRESET | Errno::PIPE) {
                self.break_local(id);
            }
            return;
        }
        match error {
            Errno::CONNRESET | Errno::PIPE => {
                self.socket(id).phase = Phase::Dead;
                self.reset_peer(id);
                self.wake_socket(id);
            }
            Errno::TIMEDOUT | Errno::HOSTUNREACH => {
                self.socket(id).phase = Phase::Dead;
                self.wake_socket(id);
                if let Some(connection) = self.net.sockets[id].connection {
                    self.silence(connection);
                }
            }
            _ => {}
        }
    }
}
