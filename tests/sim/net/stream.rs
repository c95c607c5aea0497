//! The bytes of a connection: written, on their way, arrived and read, up to the end of the stream.

use std::time::Duration;

use rustix::io::Errno;

use super::super::world::{Event, World, trace};
use super::SocketId;
use super::socket::{Phase, Segment, Socket};

impl World {
    pub fn send(&mut self, id: SocketId, parts: &[&[u8]]) -> Result<usize, Errno> {
        if self.net.sockets[id].local.is_some() {
            return self.send_local(id, parts, Vec::new());
        }
        let most = self.weather.send_buffer;
        let (now, segment) = (self.now, self.weather.segment);
        let short = self.rng.one_in(self.weather.short_writes);
        let socket = &mut self.net.sockets[id];
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        match socket.phase {
            Phase::Dead => return Err(Errno::PIPE),
            Phase::Connected => {}
            _ => return Err(Errno::NOTCONN),
        }
        if socket.ended {
            return Err(Errno::PIPE);
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut room = most.saturating_sub(socket.flight.len()).min(total);
        if room == 0 && total > 0 {
            socket.was_full = true;
            return Err(Errno::AGAIN);
        }
        if short && room > 1 {
            room = self.rng.range(1, room as u64) as usize;
        }
        let socket = &mut self.net.sockets[id];
        if room < total {
            socket.was_full = true;
        }
        if socket.flight.is_empty() {
            socket.unacknowledged_since = now;
        }
        let mut left = room;
        for part in parts {
            let n = part.len().min(left);
            socket.flight.extend(&part[..n]);
            left -= n;
        }
        let mut left = room;
        while left > 0 {
            let n = left.min(segment);
            left -= n;
            self.on_its_way(id, Segment::Bytes(n));
        }
        if room < total {
            // A write that was short finds room again when something has arrived.
            trace!(self, "short write: {room} of {total}");
        }
        Ok(room)
    }

    /// A segment leaves; it arrives after those before it.
    fn on_its_way(&mut self, id: SocketId, segment: Segment) {
        let delay = self.delay();
        let at = self.now + delay;
        let socket = self.socket(id);
        socket.segments.push_back(segment);
        socket.arrives = socket.arrives.max(at);
        let at = socket.arrives;
        if let Some(peer) = socket.peer {
            self.at(at, Event::Arrive(peer));
        }
    }

    /// A segment arrives at a socket.
    pub fn segment_arrives(&mut self, id: SocketId) {
        let Some(from) = self.net.sockets[id].peer else {
            return;
        };
        if self.net.sockets[id].silent || self.net.sockets[from].stalled {
            return;
        }
        let Some(segment) = self.net.sockets[from].segments.pop_front() else {
            return;
        };
        let (now, most) = (self.now, self.weather.receive_buffer);
        let (to, sender) = pair(&mut self.net.sockets, id, from);
        if to.phase == Phase::Dead {
            if let Segment::Bytes(n) = segment {
                sender.flight.drain(..n.min(sender.flight.len()));
            }
            return;
        }
        to.heard = now;
        to.segments_in += 1;
        match segment {
            Segment::Bytes(n) if to.fd.is_none() && !self.is_waiting(id) => {
                // There is no reader: the connection is reset.
                let sender = self.socket(from);
                sender.flight.drain(..n.min(sender.flight.len()));
                self.socket(id).phase = Phase::Dead;
                let delay = self.delay();
                self.after(delay, Event::Reset(from));
                return;
            }
            Segment::Bytes(n) => {
                let (to, sender) = pair(&mut self.net.sockets, id, from);
                let room = most.saturating_sub(to.received.len()).min(n);
                let (first, second) = sender.flight.as_slices();
                let n1 = room.min(first.len());
                to.received.extend(&first[..n1]);
                to.received.extend(&second[..room - n1]);
                sender.flight.drain(..room);
                sender.heard = now;
                sender.segments_in += u32::from(room > 0);
                sender.unacknowledged_since = now;
                if room < n {
                    sender.segments.push_front(Segment::Bytes(n - room));
                    sender.stalled = true;
                }
                let enough = sender.flight.len() <= self.weather.send_buffer * 2 / 3;
                if sender.was_full && enough {
                    sender.was_full = false;
                    self.wake_socket(from);
                }
            }
            Segment::End => {
                let (to, sender) = pair(&mut self.net.sockets, id, from);
                to.peer_ended = true;
                sender.heard = now;
                sender.segments_in += 1;
            }
        }
        self.wake_socket(id);
    }

    /// Whether a connection waits to be accepted.
    fn is_waiting(&self, id: SocketId) -> bool {
        self.net.sockets.iter().any(|s| s.waiting.contains(&id))
    }

    pub fn recv(&mut self, id: SocketId, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        if self.net.sockets[id].local.is_some() {
            return self.recv_local(id, to, peek).map(|(n, _)| n);
        }
        let short = self.rng.one_in(self.weather.short_reads);
        let socket = &self.net.sockets[id];
        if socket.received.is_empty() {
            let socket = self.socket(id);
            if let Some(error) = socket.error {
                if !peek {
                    socket.error = None;
                }
                return Err(error);
            }
            return match socket.phase {
                Phase::Dead => Ok(0),
                Phase::Connected if socket.peer_ended => Ok(0),
                Phase::Connected => Err(Errno::AGAIN),
                _ => Err(Errno::NOTCONN),
            };
        }
        let mut n = socket.received.len().min(to.len());
        if short && n > 1 {
            n = self.rng.range(1, n as u64) as usize;
        }
        let socket = self.socket(id);
        let (first, second) = socket.received.as_slices();
        let n1 = n.min(first.len());
        to[..n1].copy_from_slice(&first[..n1]);
        to[n1..n].copy_from_slice(&second[..n - n1]);
        if peek {
            return Ok(n);
        }
        socket.received.drain(..n);
        let peer = socket.peer;
        if short {
            // As if the rest had arrived after the call.
            self.wake_socket(id);
        }
        if let Some(peer) = peer
            && self.net.sockets[peer].stalled
        {
            // The window opens.
            let delay = self.delay();
            let sender = self.socket(peer);
            sender.stalled = false;
            let at = self.now + delay;
            self.at(at, Event::Arrive(id));
            // Each segment behind has its own arrival, some of which have passed.
            let behind = self.net.sockets[peer].segments.len();
            for _ in 1..behind {
                self.at(at, Event::Arrive(id));
            }
        }
        Ok(n)
    }

    pub fn shutdown(&mut self, id: SocketId) -> Result<(), Errno> {
        let socket = self.socket(id);
        if socket.phase != Phase::Connected {
            return Err(Errno::NOTCONN);
        }
        if socket.local.is_some() {
            self.end_local(id);
        } else if !socket.ended {
            socket.ended = true;
            self.on_its_way(id, Segment::End);
            self.wake_socket(id);
        }
        Ok(())
    }

    /// The descriptor of a socket is closed.
    pub fn close_socket(&mut self, id: SocketId) {
        let socket = self.socket(id);
        socket.fd = None;
        let waiting = std::mem::take(&mut socket.waiting);
        for other in waiting {
            if self.net.sockets[other].local.is_some() {
                self.close_local(other, true);
                continue;
            }
            self.socket(other).phase = Phase::Dead;
            self.reset_peer(other);
        }
        let socket = self.socket(id);
        if socket.phase != Phase::Connected {
            return;
        }
        if socket.local.is_some() {
            return self.close_local(id, false);
        }
        let unread = !socket.received.is_empty();
        if unread || socket.linger == Some(Duration::ZERO) {
            socket.phase = Phase::Dead;
            self.reset_peer(id);
        } else if !socket.ended {
            socket.ended = true;
            self.on_its_way(id, Segment::End);
        }
    }
}

/// Two different sockets.
fn pair(all: &mut [Socket], a: SocketId, b: SocketId) -> (&mut Socket, &mut Socket) {
    let [a, b] = all
        .get_disjoint_mut([a, b])
        .expect("the two ends of a connection");
    (a, b)
}
