//! Local sockets, which carry files and report which process is at the other end. Nothing on them
//! takes time: what one end sends is there for the other.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;

use dat_core::testing::kernel::Name;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::super::faults::Call;
use super::super::world::memory::MemoryFile;
use super::super::world::{Object, World};
use super::SocketId;
use super::socket::Phase;

/// What the kernel counts for a message beside its bytes.
const MESSAGE_COST: usize = 768;

/// A message that was sent and not read.
#[derive(Debug)]
struct Message {
    /// The bytes that were not read.
    bytes: VecDeque<u8>,
    /// What the message takes of the buffer of its sender.
    cost: usize,
    files: Vec<Rc<MemoryFile>>,
}

/// What a local socket has.
#[derive(Debug, Default)]
pub struct Local {
    /// The process that has made this end: the one that connected, or that listened.
    maker: usize,
    /// Messages that have arrived.
    messages: VecDeque<Message>,
    /// What of the buffer of this end is used by messages that the peer has not read.
    used: usize,
}

impl Local {
    /// A socket of a process.
    pub fn new(maker: usize) -> Local {
        Local {
            maker,
            ..Local::default()
        }
    }
}

impl World {
    fn local(&mut self, id: SocketId) -> &mut Local {
        let local = &mut self.net.sockets[id].local;
        local.as_mut().expect("a local socket")
    }

    /// The process at the other end of a connected socket.
    pub fn peer_maker(&mut self, id: SocketId) -> Result<usize, Errno> {
        let peer = self.net.sockets[id].peer.ok_or(Errno::NOTCONN)?;
        Ok(self.local(peer).maker)
    }

    /// Connects a socket to the one that listens with that name.
    pub(super) fn connect_local(&mut self, id: SocketId, name: Name) -> Result<(), Errno> {
        let listener = self.listener(&name).ok_or(Errno::CONNREFUSED)?;
        let maker = self.local(listener).maker;
        let new = self.new_socket(Some(Local::new(maker)));
        let connection = self.net.sockets[id].connection;
        for (end, peer) in [(id, new), (new, id)] {
            let end = &mut self.net.sockets[end];
            (end.phase, end.peer, end.connection) = (Phase::Connected, Some(peer), connection);
        }
        self.net.sockets[listener].waiting.push_back(new);
        self.wake_socket(listener);
        Ok(())
    }

    /// Sends a message.
    pub(super) fn send_local(
        &mut self,
        id: SocketId,
        parts: &[&[u8]],
        files: Vec<Rc<MemoryFile>>,
    ) -> Result<usize, Errno> {
        let socket = &self.net.sockets[id];
        let Some(peer) = socket.peer else {
            return Err(Errno::NOTCONN);
        };
        if socket.ended {
            return Err(Errno::PIPE);
        }
        let most = self.weather.local_buffer;
        let local = self.local(id);
        // The kernel takes a message whole while anything is left of the buffer.
        if local.used >= most {
            return Err(Errno::AGAIN);
        }
        let bytes: VecDeque<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let n = bytes.len();
        let cost = MESSAGE_COST + n;
        local.used += cost;
        let message = Message { bytes, cost, files };
        self.local(peer).messages.push_back(message);
        self.wake_socket(peer);
        Ok(n)
    }

    /// Sends bytes, and files with them.
    pub fn send_files(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        files: &[RawFd],
    ) -> Result<usize, Errno> {
        let files = files.iter().map(|fd| self.memory_file(*fd).cloned());
        let files = files.collect::<Result<Vec<_>, Errno>>()?;
        self.send_local(id, &[bytes], files)
    }

    /// Reads bytes, up to the end of a message with files, and those.
    pub(super) fn recv_local(
        &mut self,
        id: SocketId,
        to: &mut [u8],
        peek: bool,
    ) -> Result<(usize, Vec<Rc<MemoryFile>>), Errno> {
        let Some(peer) = self.net.sockets[id].peer else {
            return Err(Errno::NOTCONN);
        };
        let local = self.local(id);
        let (mut n, mut given_back, mut files) = (0, 0, Vec::new());
        let mut number = 0;
        while n < to.len()
            && let Some(message) = local.messages.get_mut(number)
        {
            let take = message.bytes.len().min(to.len() - n);
            for (to, byte) in to[n..].iter_mut().zip(message.bytes.iter().take(take)) {
                *to = *byte;
            }
            n += take;
            if peek {
                number += 1;
                continue;
            }
            message.bytes.drain(..take);
            files = std::mem::take(&mut message.files);
            if message.bytes.is_empty() {
                given_back += message.cost;
                local.messages.pop_front();
            }
            if !files.is_empty() {
                break;
            }
        }
        if given_back > 0 {
            self.local(peer).used -= given_back;
            self.wake_socket(peer);
        }
        if n > 0 {
            return Ok((n, files));
        }
        let socket = &mut self.net.sockets[id];
        match (socket.error, socket.peer_ended) {
            (Some(error), _) => {
                if !peek {
                    socket.error = None;
                }
                Err(error)
            }
            (None, true) => Ok((0, files)),
            (None, false) => Err(Errno::AGAIN),
        }
    }

    /// Reads bytes, and the files that were sent with them; without room for files these are closed.
    pub fn recv_files(
        &mut self,
        id: SocketId,
        to: &mut [u8],
        has_files: bool,
    ) -> Result<(usize, Vec<RawFd>), Errno> {
        let (n, mut files) = self.recv_local(id, to, false)?;
        let connection = self.net.sockets[id].connection;
        if !files.is_empty() && self.fails(Call::ReceiveFiles, connection).is_err() {
            let kept = self.rng.below(files.len() as u64);
            files.truncate(kept as usize);
        }
        if !has_files {
            files.clear();
        }
        let files = files.into_iter();
        Ok((
            n,
            files.map(|file| self.open(Object::Memory(file))).collect(),
        ))
    }

    /// Ends the stream of this end.
    pub(super) fn end_local(&mut self, id: SocketId) {
        let socket = &mut self.net.sockets[id];
        socket.ended = true;
        if let Some(peer) = socket.peer {
            self.net.sockets[peer].peer_ended = true;
            self.wake_socket(peer);
        }
        self.wake_socket(id);
    }

    /// Closes this end. `unaccepted` is one that was never accepted.
    pub(super) fn close_local(&mut self, id: SocketId, unaccepted: bool) {
        let unread = !self.local(id).messages.is_empty();
        self.local(id).messages.clear();
        self.end_local(id);
        let socket = &mut self.net.sockets[id];
        socket.phase = Phase::Dead;
        let Some(peer) = socket.peer else {
            return;
        };
        let peer = &mut self.net.sockets[peer];
        peer.ended = true;
        if (unread || unaccepted) && peer.phase == Phase::Connected {
            peer.error = Some(Errno::CONNRESET);
        }
    }

    /// An error was injected that a local socket has only when its peer has closed its end.
    pub(super) fn break_local(&mut self, id: SocketId) {
        let ends = [Some(id), self.net.sockets[id].peer];
        for end in ends.into_iter().flatten() {
            let socket = &mut self.net.sockets[end];
            (socket.ended, socket.peer_ended) = (true, true);
            self.wake_socket(end);
        }
    }

    /// What holds of a connected local socket, for an epoll instance.
    pub(super) fn local_state(&mut self, id: SocketId) -> EventFlags {
        let most = self.weather.local_buffer;
        let socket = &self.net.sockets[id];
        let (ended, both) = (socket.peer_ended, socket.peer_ended && socket.ended);
        let local = self.local(id);
        let mut state = EventFlags::empty();
        state.set(EventFlags::OUT, 4 * local.used <= most);
        state.set(EventFlags::IN, ended || !local.messages.is_empty());
        state.set(EventFlags::RDHUP, ended);
        state.set(EventFlags::HUP, both);
        state
    }
}
