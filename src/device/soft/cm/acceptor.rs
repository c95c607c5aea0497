//! The listening sockets of a port, and the connections that are accepted on them.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::descriptor::OwnedFd;
use crate::lock::Mutex;
use rustix::io::Errno;

use super::error::ConnectError;
use super::listener::Listening;
use super::pending::PendingRequest;
use super::{Transport, incomplete};
use crate::device::DeviceError;
use crate::device::log_limit::LogLimit;
use crate::device::soft::device::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::socket;
use crate::device::soft::transport::shm;
use crate::device::soft::upcalls::Upcalls;
use crate::reserve;

/// Connections that are accepted in one round.
const MAX_ACCEPTS: usize = 64;
/// How long a socket accepts no connections after the system has run out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that a device listens on, for one qualifier or more.
pub(crate) struct Acceptor {
    /// The port.
    pub port: u16,
    /// The device that listens.
    device: Weak<Soft>,
    /// The listeners, by qualifier.
    pub listeners: Mutex<BTreeMap<u64, Arc<Listening>>>,
    /// The sockets.
    state: Mutex<State>,
}

/// Dropped in this order: a process that gets the port next has to find its local name free.
#[derive(Default)]
struct State {
    /// The local socket on which processes of this host connect that share memory; `None` if the
    /// port has none, or is closed.
    shm: Option<ListeningSocket>,
    /// The TCP socket; `None` once the port is closed.
    tcp: Option<ListeningSocket>,
}

impl State {
    fn socket(&mut self, transport: Transport) -> Option<&mut ListeningSocket> {
        match transport {
            Transport::Tcp => self.tcp.as_mut(),
            Transport::Shm => self.shm.as_mut(),
        }
    }
}

/// A socket that listens.
struct ListeningSocket {
    /// Holds the socket.
    watch: Watch,
    /// Ends a pause, while there is one.
    pause: Option<Timer>,
}

/// Reports connections of one of the two sockets to the acceptor.
struct AcceptSource {
    acceptor: Weak<Acceptor>,
    transport: Transport,
}

impl Source for AcceptSource {
    fn ready(self: Arc<Self>, _events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        if let Some(acceptor) = self.acceptor.upgrade() {
            acceptor.accept(self.transport, up);
        }
    }
}

impl Acceptor {
    /// Accepts connections on a TCP socket that listens on `port`, and on the local socket of the
    /// port if there is one.
    pub fn new(
        device: &Arc<Soft>,
        tcp: OwnedFd,
        shm: Option<OwnedFd>,
        port: u16,
    ) -> Result<Arc<Acceptor>, DeviceError> {
        let acceptor = Arc::new(Acceptor {
            port,
            device: Arc::downgrade(device),
            listeners: Mutex::default(),
            state: Mutex::default(),
        });
        let watch = |fd, transport| {
            let acceptor = Arc::downgrade(&acceptor);
            let source = Arc::new(AcceptSource {
                acceptor,
                transport,
            });
            let watch = device.engine.watch(fd, EventFlags::IN, source)?;
            Ok::<_, DeviceError>(ListeningSocket { watch, pause: None })
        };
        // Sockets are watched under the lock: the first connection waits until both are in place.
        let mut state = acceptor.state.lock();
        state.tcp = Some(watch(tcp, Transport::Tcp)?);
        state.shm = shm.map(|fd| watch(fd, Transport::Shm)).transpose()?;
        drop(state);
        Ok(acceptor)
    }

    /// Stops listening; connections whose request has not arrived whole are dropped.
    pub fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        for pending in incomplete::of_acceptor(self) {
            pending.cancel(&ConnectError::Closed);
        }
        drop(state);
    }

    /// The listener of a qualifier.
    pub fn listener(&self, qual: u64) -> Option<Arc<Listening>> {
        self.listeners.lock().get(&qual).cloned()
    }

    /// Accepts the connections that wait at one of the sockets.
    fn accept(self: &Arc<Self>, transport: Transport, up: &mut Upcalls) {
        let Some(device) = self.device.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        for _ in 0..MAX_ACCEPTS {
            let Some(listening) = state.socket(transport) else {
                return;
            };
            if !reserve::fill() {
                self.pause(listening, transport, ACCEPT_PAUSE);
                return;
            }
            match socket::accept(&listening.watch) {
                Ok(fd) => {
                    let scarce = incomplete::are_descriptors_scarce(fd.as_raw_fd());
                    let wait = incomplete::make_room(scarce);
                    self.start_request(&device, fd, transport, up);
                    if let Some(wait) = wait {
                        self.pause(listening, transport, wait);
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(error) if socket::is_out_of_resources(error) => {
                    if !incomplete::release_descriptor() {
                        self.pause(listening, transport, ACCEPT_PAUSE);
                        return;
                    }
                }
                // The peer has ended the connection before it was accepted.
                Err(_) => {}
            }
        }
    }

    /// Begins to receive the request of a connection.
    fn start_request(
        self: &Arc<Self>,
        device: &Arc<Soft>,
        fd: OwnedFd,
        transport: Transport,
        up: &mut Upcalls,
    ) {
        let addrs = match transport {
            Transport::Tcp => {
                socket::tune(&fd, &device.params);
                let addrs = socket::local(&fd).zip(socket::remote(&fd));
                if addrs.is_none() {
                    return;
                }
                addrs
            }
            Transport::Shm if shm::is_same_user(&fd) => {
                if device.params.may_be_traced {
                    shm::permit_peers();
                }
                None
            }
            // A peer that is refused here connects over TCP.
            Transport::Shm => return,
        };
        // The request is often there already. It needs no descriptor that others give way for.
        if let Some(pending) = PendingRequest::start(self, device, fd, addrs) {
            pending.advance(up);
        }
    }

    /// Leaves connections in the queue of the kernel for a while: there are no descriptors for
    /// them, or no memory.
    fn pause(
        self: &Arc<Self>,
        listening: &mut ListeningSocket,
        transport: Transport,
        delay: Duration,
    ) {
        let _ = listening.watch.set(EventFlags::empty());
        let acceptor = Arc::downgrade(self);
        listening.pause = Some(listening.watch.timer(delay, move |_| {
            if let Some(acceptor) = acceptor.upgrade() {
                acceptor.resume(transport);
            }
        }));
    }

    /// Accepts connections again after a pause, unless there is a reason for another one.
    fn resume(self: &Arc<Self>, transport: Transport) {
        static LOGGED: LogLimit = LogLimit::new();
        let mut state = self.state.lock();
        let Some(listening) = state.socket(transport) else {
            return;
        };
        if let Some(wait) = incomplete::make_room(false) {
            self.pause(listening, transport, wait);
            return;
        }
        if listening.watch.set(EventFlags::IN).is_ok() {
            return;
        }
        // The shortage that the pause was for may go on, and no event follows on a socket that is not watched.
        self.pause(listening, transport, ACCEPT_PAUSE);
        drop(state);
        if let Some(before) = LOGGED.admit() {
            log::warn!(
                "port {}: connections wait, since the system has no memory to watch for them, or the limit \
                 fs.epoll.max_user_watches is reached ({before} such pauses since the last entry like this, of \
                 which there is one a minute)",
                self.port
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::device::Device;
    use crate::kernel;

    /// A socket that listens on a free port, and the address.
    fn tcp() -> (OwnedFd, SocketAddr) {
        let socket = socket::tcp(false).unwrap();
        kernel::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        kernel::net::listen(&socket, 16).unwrap();
        let address = socket::local(&socket).unwrap();
        (socket, address)
    }

    /// A connection is accepted: what is no request ends it.
    fn is_accepted(mut peer: impl Read + Write) {
        peer.write_all(&[7; 100]).unwrap();
        let answer = peer.read(&mut [0]);
        let in_time = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(answer.map_or_else(in_time, |n| n == 0));
    }

    #[test]
    fn a_socket_that_cannot_be_watched_at_the_end_of_a_pause_is_watched_later() {
        let limit = Some(Duration::from_secs(20));
        let device = Soft::open("127.0.0.1").unwrap();
        device.engine.start().unwrap();
        for transport in [Transport::Tcp, Transport::Shm] {
            let (socket, address) = tcp();
            let local = shm::listen(Some(address), address.port()).unwrap();
            let acceptor = Acceptor::new(&device, socket, Some(local), address.port()).unwrap();
            let mut state = acceptor.state.lock();
            let listening = state.socket(transport).unwrap();
            acceptor.pause(listening, transport, Duration::from_millis(1));
            // A file cannot be watched.
            let place = listening.watch.as_fd().as_raw_fd();
            let listens = listening.watch.as_fd().try_clone_to_owned().unwrap();
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            // SAFETY: the descriptor stays open, and only the watch has it.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), place) }, place);
            drop(state);
            std::thread::sleep(ACCEPT_PAUSE / 2);
            let state = acceptor.state.lock();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(listens.as_raw_fd(), place) }, place);
            drop(state);
            match transport {
                Transport::Tcp => {
                    let peer = TcpStream::connect(address).unwrap();
                    peer.set_read_timeout(limit).unwrap();
                    is_accepted(peer);
                }
                Transport::Shm => {
                    let peer = shm::connect(address).unwrap().unwrap();
                    let peer = UnixStream::from(peer.as_fd().try_clone_to_owned().unwrap());
                    peer.set_nonblocking(false).unwrap();
                    peer.set_read_timeout(limit).unwrap();
                    is_accepted(peer);
                }
            }
            acceptor.close();
        }
    }
}
