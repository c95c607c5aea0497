//! Stream sockets and the network between the two hosts. As Linux has them, as far as the library
//! can tell: what arrived before a reset can be read after it, an error is returned once, a socket
//! that is closed with bytes unread resets its connection.

mod failures;
mod local;
pub mod socket;
mod stream;

use std::collections::HashMap;
use std::net::SocketAddr;

use dat_core::testing::kernel::Name;
use rustix::io::Errno;

use self::failures::SILENT_CHECK;
pub use self::local::Local;
use self::socket::{Phase, Socket};
use super::world::{Event, HOSTS, Nanos, World};

/// The number of a socket in a run; it stays when the descriptor is closed.
pub type SocketId = usize;

/// The qualifier, and the port, of the first connection of a run; the next ones follow.
pub const FIRST_PORT: u16 = 5000;

/// All sockets of a run.
#[derive(Debug, Default)]
pub struct Net {
    pub sockets: Vec<Socket>,
    /// The next port for a socket that has not chosen one.
    next_port: u16,
    /// The connection of the program that a port is for.
    ports: HashMap<u16, usize>,
}

/// The port in the name of a local socket.
fn port_in(name: &[u8]) -> Option<u16> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix("libdat/")?;
    name.split_once('@')?.0.parse().ok()
}

impl World {
    /// The socket that listens with a name.
    fn listener(&self, name: &Name) -> Option<SocketId> {
        let listens = |s: &Socket| {
            s.fd.is_some() && s.phase == Phase::Listening && s.name.as_ref() == Some(name)
        };
        self.net.sockets.iter().position(listens)
    }

    /// Whether a TCP socket of any host listens on a port.
    pub fn is_listened_on(&self, port: u16) -> bool {
        let listens = |s: &Socket| {
            let named = matches!(&s.name, Some(Name::Inet(address)) if address.port() == port);
            s.fd.is_some() && s.phase == Phase::Listening && named
        };
        self.net.sockets.iter().any(listens)
    }

    pub fn new_socket(&mut self, local: Option<Local>) -> SocketId {
        let mut socket = Socket::new();
        socket.local = local;
        self.net.sockets.push(socket);
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

    /// The connection of the program that a socket is for, by the port that it connects to, or by the
    /// call of the program if nothing listens on that port yet.
    pub fn name_connection(&mut self, id: SocketId, name: &Name) {
        let port = match name {
            Name::Inet(address) => Some(address.port()),
            Name::Local(name) => port_in(name),
        };
        if let Some(port) = port {
            let index = usize::from(port.wrapping_sub(FIRST_PORT));
            let index = (index < self.tainted.len()).then_some(index);
            let named = self.net.ports.get(&port).copied();
            self.socket(id).connection = index.or(named).or(self.context);
        }
    }

    pub fn connect(&mut self, id: SocketId, name: Name) -> Result<(), Errno> {
        let remote = match name {
            Name::Inet(remote) => remote,
            name => return self.connect_local(id, name),
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
        let Some(listener) = self.listener(&Name::Inet(remote)) else {
            self.give_up(id, Errno::CONNREFUSED);
            return;
        };
        let now = self.now;
        let local = self.net.sockets[id].name.clone();
        let new = self.new_socket(None);
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
}
