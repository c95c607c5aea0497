//! Stream sockets and the network between the two hosts. As Linux has them, as far as the library
//! can tell: what arrived before a reset can be read after it, an error is returned once, a socket
//! that is closed with bytes unread resets its connection.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use dat_core::testing::kernel::{Name, SocketOption};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::world::{Event, HOSTS, MILLI, Nanos, SECOND, World, trace};

/// The number of a socket in a run; it stays when the descriptor is closed.
pub type SocketId = usize;

/// The qualifier, and the port, of the first connection of a run; the next ones follow.
pub const FIRST_PORT: u16 = 5000;
/// How often the kernel checks a socket whose peer is silent.
const SILENT_CHECK: Nanos = SECOND / 2;
/// How long the kernel sends again what is not acknowledged.
const RETRANSMISSIONS: Nanos = 900 * SECOND;

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
enum Segment {
    Bytes(usize),
    End,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    pub fd: Option<RawFd>,
    pub phase: Phase,
    /// The connection of the program, once the port is known.
    pub connection: Option<usize>,
    name: Option<Name>,
    remote: Option<SocketAddr>,
    peer: Option<SocketId>,
    /// Connections that wait to be accepted.
    waiting: VecDeque<SocketId>,
    /// An error that was not returned yet.
    pub error: Option<Errno>,
    /// Bytes that this end has sent and that have not arrived.
    pub flight: VecDeque<u8>,
    /// The same in parts.
    segments: VecDeque<Segment>,
    /// When the last segment on its way arrives.
    arrives: Nanos,
    /// Whether the peer takes nothing: its buffer is full.
    stalled: bool,
    /// Whether this end has ended its stream.
    ended: bool,
    /// Whether a write has found no room.
    was_full: bool,
    /// Bytes that have arrived.
    received: VecDeque<u8>,
    /// Whether the end of the peer's stream has arrived.
    peer_ended: bool,
    /// Whether nothing arrives from the peer any more, nor at the peer.
    pub silent: bool,
    /// Since when bytes are on their way, if some are.
    unacknowledged_since: Nanos,
    /// When something arrived last.
    heard: Nanos,
    /// Number of segments that have arrived.
    segments_in: u32,
    linger: Option<Duration>,
    user_timeout: Duration,
    keep: (Duration, Duration, u32),
}

impl Socket {
    fn new() -> Socket {
        Socket {
            fd: None,
            phase: Phase::New,
            connection: None,
            name: None,
            remote: None,
            peer: None,
            waiting: VecDeque::new(),
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

/// All sockets of a run.
#[derive(Debug, Default)]
pub struct Net {
    pub sockets: Vec<Socket>,
    /// The next port for a socket that has not chosen one.
    next_port: u16,
    /// The connection of the program that a port is for.
    ports: HashMap<u16, usize>,
}

impl World {
    pub fn new_socket(&mut self, _local: bool) -> SocketId {
        self.net.sockets.push(Socket::new());
        self.net.sockets.len() - 1
    }

    fn socket(&mut self, id: SocketId) -> &mut Socket {
        &mut self.net.sockets[id]
    }

    fn wake_socket(&mut self, id: SocketId) {
        if let Some(fd) = self.net.sockets[id].fd {
            self.wake(fd);
        }
    }

    fn delay(&mut self) -> Nanos {
        let (from, to) = self.weather.delay;
        self.rng.range(from, to)
    }

    fn free_port(&mut self) -> u16 {
        self.net.next_port += 1;
        40000 + self.net.next_port
    }

    pub fn bind(&mut self, id: SocketId, name: Name) -> Result<(), Errno> {
        let name = match name {
            Name::Inet(address) if address.port() == 0 => Name::Inet(address),
            name => {
                let taken = |s: &Socket| {
                    s.fd.is_some() && s.phase != Phase::Connected && s.name.as_ref() == Some(&name)
                };
                if self.net.sockets.iter().any(taken) {
                    return Err(Errno::ADDRINUSE);
                }
                name
            }
        };
        if let (Name::Inet(address), Some(connection)) = (&name, self.context) {
            self.net.ports.insert(address.port(), connection);
        }
        self.socket(id).name = Some(name);
        Ok(())
    }

    pub fn listen(&mut self, id: SocketId) -> Result<(), Errno> {
        self.socket(id).phase = Phase::Listening;
        Ok(())
    }

    /// The connection of the program that a socket is for, by the port that it connects to.
    pub fn name_connection(&mut self, id: SocketId, name: &Name) {
        if let Name::Inet(address) = name {
            let index = usize::from(address.port().wrapping_sub(FIRST_PORT));
            let index = (index < self.tainted.len()).then_some(index);
            let named = self.net.ports.get(&address.port()).copied();
            self.socket(id).connection = index.or(named);
        }
    }

    pub fn connect(&mut self, id: SocketId, name: Name) -> Result<(), Errno> {
        let Name::Inet(remote) = name else {
            return Err(Errno::CONNREFUSED);
        };
        let port = self.free_port();
        let process = self.process;
        let own = SocketAddr::from((HOSTS[process], port));
        let socket = self.socket(id);
        (socket.phase, socket.remote) = (Phase::Connecting, Some(remote));
        socket.name = Some(Name::Inet(own));
        let delay = self.delay();
        self.after(delay, Event::Connect(id));
        Err(Errno::INPROGRESS)
    }

    /// The request of a socket to connect arrives.
    pub fn connect_arrives(&mut self, id: SocketId) {
        let socket = &self.net.sockets[id];
        if socket.phase != Phase::Connecting || socket.fd.is_none() {
            return;
        }
        let Some(remote) = socket.remote else {
            return;
        };
        if socket.silent {
            self.after(SILENT_CHECK, Event::Silent(id));
            return;
        }
        let connection = socket.connection;
        let listens = |s: &Socket| {
            s.fd.is_some() && s.phase == Phase::Listening && s.name == Some(Name::Inet(remote))
        };
        let Some(listener) = self.net.sockets.iter().position(listens) else {
            self.give_up(id, Errno::CONNREFUSED);
            return;
        };
        let now = self.now;
        let local = self.net.sockets[id].name.clone();
        let new = self.new_socket(false);
        let other = self.socket(new);
        other.phase = Phase::Connected;
        other.connection = connection;
        other.name = Some(Name::Inet(remote));
        other.remote = match local {
            Some(Name::Inet(address)) => Some(address),
            _ => None,
        };
        other.peer = Some(id);
        other.heard = now;
        let socket = self.socket(id);
        socket.phase = Phase::Connected;
        socket.peer = Some(new);
        socket.heard = now;
        self.wake_socket(id);
        self.socket(listener).waiting.push_back(new);
        self.wake_socket(listener);
    }

    pub fn accept(&mut self, id: SocketId) -> Result<SocketId, Errno> {
        self.socket(id).waiting.pop_front().ok_or(Errno::AGAIN)
    }

    pub fn address(&mut self, id: SocketId, peer: bool) -> Result<SocketAddr, Errno> {
        let socket = &self.net.sockets[id];
        if peer {
            match socket.phase {
                Phase::Connected => socket.remote.ok_or(Errno::NOTCONN),
                _ => Err(Errno::NOTCONN),
            }
        } else {
            match &socket.name {
                Some(Name::Inet(address)) => Ok(*address),
                _ => Err(Errno::INVAL),
            }
        }
    }

    pub fn send(&mut self, id: SocketId, parts: &[&[u8]]) -> Result<usize, Errno> {
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
                // Nobody reads: the connection is reset.
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
        if !socket.ended {
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
            self.socket(other).phase = Phase::Dead;
            self.reset_peer(other);
        }
        let socket = self.socket(id);
        if socket.phase != Phase::Connected {
            return;
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

    /// Sends a reset to the peer of a socket, behind what is on its way; some of that is lost.
    fn reset_peer(&mut self, id: SocketId) {
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
    fn give_up(&mut self, id: SocketId, error: Errno) {
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
            if socket.connection == Some(connection) && socket.phase == Phase::Connected {
                self.reset_arrives(id);
            }
        }
    }

    /// Nothing of a connection arrives from now on.
    pub fn silence(&mut self, connection: usize) {
        for id in 0..self.net.sockets.len() {
            let socket = self.socket(id);
            if socket.connection == Some(connection) && !socket.silent {
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
                // It was sent again a moment ago.
                info.tcpi_last_data_sent = info.tcpi_last_data_sent.min(700);
                info.tcpi_retransmits = 1;
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
        state.set(EventFlags::ERR, socket.error.is_some());
        state
    }
}

/// Two different sockets.
fn pair(all: &mut [Socket], a: SocketId, b: SocketId) -> (&mut Socket, &mut Socket) {
    let [a, b] = all
        .get_disjoint_mut([a, b])
        .expect("the two ends of a connection");
    (a, b)
}
