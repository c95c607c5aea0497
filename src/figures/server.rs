//! Gives the figures of the process to readers: who connects to the socket gets one JSON object, and
//! then the end of the stream.
//!
//! The socket has a name in the abstract name space: there is no file that a killed process would leave,
//! and the processes of the host find the name in `/proc/net/unix`. Anyone can connect to such a
//! name, so each reader is asked the kernel for; other users get nothing.
//!
//! Readers cannot cost the process more than a little: there are up to [`READERS`] at a time, each for
//! no longer than [`PATIENCE`], what they get is written without waiting, and figures are gathered for at
//! most a twentieth of the time.

use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, process};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags, accept_with, send, shutdown};

use crate::descriptor::{self, OwnedFd};
use crate::device::threads::{self, Thread};
use crate::kernel;
use crate::kernel::event::Timespec;
use crate::kernel::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// What the name of a socket begins with. The identifier of the process, in its own PID namespace, and
/// a random number follow, each after a slash.
const NAME: &str = "libdat-figures";
/// The most readers at a time.
const READERS: usize = 4;
/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The least time between two readers of this user.
const PAUSE: Duration = Duration::from_millis(20);
/// The least time between two attempts of other users.
const PAUSE_OTHERS: Duration = Duration::from_millis(1);
/// The share of the time in which figures are gathered is one divided by this.
const SHARE: u32 = 20;

/// The server, whose drop ends its thread.
pub struct Server {
    /// Readers connect to it.
    listener: Arc<OwnedFd>,
    /// Serves the readers; taken by the drop.
    thread: Option<Thread>,
}

impl Server {
    /// Begins to serve what `figures` gives, which is called in the thread of the server.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn start(figures: fn() -> Option<Vec<u8>>) -> io::Result<Server> {
        let name = format!("{NAME}/{}/{:x}", process::id(), kernel::random()?);
        let name = SocketAddr::from_abstract_name(name)?;
        let listener = descriptor::open(|| {
            let listener = UnixListener::bind_addr(&name)?;
            listener.set_nonblocking(true)?;
            io::Result::Ok(std::os::fd::OwnedFd::from(listener))
        })?;
        let listener = Arc::new(listener);
        let mut service = Service::new(listener.clone(), figures)?;
        let thread = threads::start(c"dat-figures", move || service.run())?;
        Ok(Server {
            listener,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread sees the end of the listener.
        let _ = shutdown(&*self.listener, Shutdown::Both);
        // Not if it has had the last reference to a source itself.
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// A process that reads the figures.
struct Reader {
    socket: OwnedFd,
    /// What it gets.
    text: Vec<u8>,
    /// How many bytes of the text it has.
    sent: usize,
    /// When it is given up.
    deadline: Instant,
}

impl Reader {
    /// Sends what the socket takes; false when the reader is through or gone.
    fn advance(&mut self) -> bool {
        while self.sent < self.text.len() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.socket, &self.text[self.sent..], flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        false
    }
}

/// Accepts the next reader. `None` if there is none, an error if it is another user.
fn accept(listener: &OwnedFd) -> Option<Result<OwnedFd, ()>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = descriptor::open(|| accept_with(listener, flags)).ok()?;
    let own = rustix::process::geteuid().as_raw();
    Some(match kernel::peer_credentials(&socket) {
        Ok((_, user)) if user == own => Ok(socket),
        _ => Err(()),
    })
}

/// What the thread has.
struct Service {
    listener: Arc<OwnedFd>,
    /// The thread sleeps in it. Not in poll(2), which takes no more descriptors than the process may open: a program
    /// may lower that (`RLIMIT_NOFILE`), to none at all.
    epoll: OwnedFd,
    readers: Vec<Reader>,
    /// No reader is accepted before.
    next: Instant,
    /// Whether the epoll instance reports those that connect; the end of the listener is reported all the same.
    reports_connects: bool,
    figures: fn() -> Option<Vec<u8>>,
}

/// What an epoll instance has of the listener, and of a reader.
const LISTENER: u64 = 0;
const READER: u64 = 1;

impl Service {
    fn new(listener: Arc<OwnedFd>, figures: fn() -> Option<Vec<u8>>) -> io::Result<Service> {
        let epoll = descriptor::open(|| epoll::create(CreateFlags::CLOEXEC))?;
        let data = EventData::new_u64(LISTENER);
        epoll::add(&epoll, &*listener, data, EventFlags::IN)?;
        Ok(Service {
            listener,
            epoll,
            readers: Vec::with_capacity(READERS),
            next: Instant::now(),
            reports_connects: true,
            figures,
        })
    }

    /// Serves readers until the listener is shut down, or the program has closed the descriptors.
    fn run(&mut self) {
        while let Ok(of_listener) = self.sleep() {
            if of_listener.intersects(EventFlags::HUP | EventFlags::ERR) {
                return;
            }
            self.keep(Reader::advance);
            if of_listener.contains(EventFlags::IN) {
                self.accept();
            }
        }
    }

    /// Keeps the readers for which that is true. A copy of the socket may be open in a child for a moment, so that its
    /// close would not end its events.
    fn keep(&mut self, mut stays: impl FnMut(&mut Reader) -> bool) {
        self.readers.retain_mut(|reader| {
            let stays = stays(reader);
            if !stays {
                let _ = epoll::delete(&self.epoll, &reader.socket);
            }
            stays
        });
    }

    /// Sleeps until there is something to do, and gives the events of the listener.
    fn sleep(&mut self) -> Result<EventFlags, Errno> {
        let now = Instant::now();
        self.keep(|reader| reader.deadline > now);
        let accepts = self.readers.len() < READERS;
        let until = match accepts {
            true if self.next > now => Some(self.next),
            _ => self.readers.iter().map(|reader| reader.deadline).min(),
        };
        self.report_connects(accepts && self.next <= now)?;
        let timeout = until.map(|until| timespec(until.saturating_duration_since(now)));
        let mut events = [MaybeUninit::uninit(); 1 + READERS];
        let events = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(EventFlags::empty()),
            Err(error) => return Err(error),
        };
        let of_listener = events.iter().find(|event| event.data.u64() == LISTENER);
        Ok(of_listener.map_or(EventFlags::empty(), |event| event.flags))
    }

    fn report_connects(&mut self, reports: bool) -> Result<(), Errno> {
        if reports != self.reports_connects {
            let events = match reports {
                true => EventFlags::IN,
                false => EventFlags::empty(),
            };
            let data = EventData::new_u64(LISTENER);
            epoll::modify(&self.epoll, &*self.listener, data, events)?;
            self.reports_connects = reports;
        }
        Ok(())
    }

    /// Accepts a reader, and sends what the socket takes.
    fn accept(&mut self) {
        let begun = Instant::now();
        self.next = begun
            + match accept(&self.listener) {
                // No descriptor is left, say.
                None => PAUSE,
                Some(Err(())) => PAUSE_OTHERS,
                Some(Ok(socket)) => {
                    if let Some(text) = (self.figures)() {
                        self.begin(Reader {
                            socket,
                            text,
                            sent: 0,
                            deadline: begun + PATIENCE,
                        });
                    }
                    let took = begun.elapsed();
                    PAUSE.max(took * SHARE)
                }
            };
    }

    fn begin(&mut self, mut reader: Reader) {
        let data = EventData::new_u64(READER);
        if reader.advance()
            && epoll::add(&self.epoll, &reader.socket, data, EventFlags::OUT).is_ok()
        {
            self.readers.push(reader);
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn two_megabytes() -> Option<Vec<u8>> {
        Some(vec![b'x'; 2 << 20])
    }

    fn connect(server: &Server) -> UnixStream {
        let name = rustix::net::getsockname(&*server.listener).unwrap();
        let name: rustix::net::SocketAddrUnix = name.try_into().unwrap();
        let name = SocketAddr::from_abstract_name(name.abstract_name().unwrap()).unwrap();
        UnixStream::connect_addr(&name).unwrap()
    }

    /// How much a reader gets, until the end of the stream or an error.
    fn read(mut stream: UnixStream) -> usize {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        text.len()
    }

    #[test]
    fn readers_that_stall_are_given_up() {
        let server = Server::start(two_megabytes).unwrap();
        let begun = Instant::now();
        let stalled: Vec<UnixStream> = (0..READERS + 2).map(|_| connect(&server)).collect();
        // It has a place when three of them have been given up. One that gets no processor for as long is given up as well.
        while read(connect(&server)) != 2 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        assert!(begun.elapsed() >= PATIENCE);
        let got = stalled.into_iter().map(read);
        let whole = got.filter(|len| *len == 2 << 20).count();
        assert!(whole < READERS, "{whole} have got all");
    }

    #[test]
    fn the_end_of_the_server_is_that_of_its_socket() {
        let server = Server::start(two_megabytes).unwrap();
        let name = rustix::net::getsockname(&*server.listener).unwrap();
        let name: rustix::net::SocketAddrUnix = name.try_into().unwrap();
        let stalled = connect(&server);
        drop(server);
        let name = SocketAddr::from_abstract_name(name.abstract_name().unwrap()).unwrap();
        assert!(UnixStream::connect_addr(&name).is_err());
        assert!(read(stalled) < 2 << 20);
    }
}
