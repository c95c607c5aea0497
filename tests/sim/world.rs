//! The simulated world: the clock, what happens at which time, two processes and their descriptors.
//! What sockets do is in [`net`](super::net).

mod epoll;
pub mod kernel;
pub mod memory;
pub mod processes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;

use rustix::io::Errno;

use self::epoll::Watched;
use self::memory::{Mapping, MemoryFile};
use self::processes::{Process, Thread};
use super::faults::{Call, Fault, Faults};
use super::net::{Net, SocketId};
use super::rng::Rng;

/// Nanoseconds since the simulation began.
pub type Nanos = u64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;
/// A millisecond.
pub const MILLI: Nanos = 1_000_000;

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A timer expires, unless it was set again.
    Timer(RawFd),
    /// What a socket has asked for with a connect arrives at the host of the address.
    Connect(SocketId),
    /// The next segment on its way to a socket arrives.
    Arrive(SocketId),
    /// A reset arrives at a socket.
    Reset(SocketId),
    /// The kernel checks a socket whose peer is silent.
    Silent(SocketId),
    /// A process that was stopped goes on.
    Continue(usize),
}

/// What a descriptor stands for.
#[derive(Debug)]
pub enum Object {
    /// An epoll instance: the descriptors that it watches.
    Epoll(Vec<RawFd>),
    /// An eventfd, set or not.
    Eventfd(bool),
    /// A timer: when it expires, and whether it has.
    Timer(Nanos, bool),
    /// A socket.
    Socket(SocketId),
    /// A memory file.
    Memory(Rc<MemoryFile>),
    /// A process.
    Process(usize),
}

/// An open descriptor.
#[derive(Debug)]
struct File {
    /// The number of the process.
    owner: usize,
    object: Object,
    watched: Option<Watched>,
}

/// How the network behaves in a run.
#[derive(Clone, Debug)]
pub struct Weather {
    /// The shortest and the longest time of a segment on its way.
    pub delay: (Nanos, Nanos),
    /// Bytes that a socket takes at most before they have arrived.
    pub send_buffer: usize,
    /// Bytes that have arrived and wait to be read at most.
    pub receive_buffer: usize,
    /// One in so many writes is short; 0 for none.
    pub short_writes: u64,
    /// One in so many reads is short; 0 for none.
    pub short_reads: u64,
    /// The longest segment.
    pub segment: usize,
    /// One in so many events of an epoll instance is reported although there is nothing.
    pub spurious: u64,
    /// Number of descriptors that a process may have.
    pub descriptors: u64,
    /// Whether both processes are on one host.
    pub one_host: bool,
    /// Whether they are connected over TCP if they cannot share memory.
    pub falls_back: bool,
    /// The size of the send buffer of a local socket, as the kernel counts it.
    pub local_buffer: usize,
}

/// See the module.
pub struct World {
    /// The time of the simulated clock.
    pub now: Nanos,
    pub rng: Rng,
    pub faults: Faults,
    pub weather: Weather,
    /// The process whose calls are served.
    pub process: usize,
    /// The connection that the program works on, if it is in a call about one.
    pub context: Option<usize>,
    /// The connection whose socket was used last in the call of the program, or the round of the
    /// engine.
    pub touched: Option<usize>,
    pub processes: [Process; 2],
    pub net: Net,
    /// For each connection the process that connects.
    active: Vec<usize>,
    /// For each connection whether an error that lasts was injected.
    pub tainted: Vec<bool>,
    /// The descriptors of both processes, by number.
    files: Vec<Option<File>>,
    /// What the processes have mapped, by address.
    mappings: BTreeMap<usize, Mapping>,
    /// The registered memory of each connection.
    pub regions: Vec<(Range<u64>, usize)>,
    /// Threads that were started and have not run.
    pub threads: Vec<Thread>,
    /// Number of segments that were made for connections.
    pub segments: u64,
    /// What is to happen, with the time and the number of the event.
    queue: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// Number of events so far; those of one time happen in this order.
    sequence: u64,
    /// Number of system calls.
    pub calls: u64,
    /// Whether everything that happens is printed.
    pub trace: bool,
}

/// The addresses of the two hosts.
pub const HOSTS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace {
            println!("{:>12.6} {} {}", $world.now as f64 / 1e9, $world.process, format!($($what)*));
        }
    };
}
pub(crate) use trace;

impl World {
    pub fn new(rng: Rng, weather: Weather, faults: Faults, active: Vec<usize>) -> World {
        World {
            now: SECOND,
            rng,
            faults,
            weather,
            process: 0,
            context: None,
            touched: None,
            processes: Default::default(),
            net: Net::default(),
            tainted: vec![false; active.len()],
            active,
            files: Vec::new(),
            mappings: BTreeMap::new(),
            regions: Vec::new(),
            threads: Vec::new(),
            segments: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            calls: 0,
            trace: false,
        }
    }

    /// Has something happen after `delay`.
    pub fn after(&mut self, delay: Nanos, event: Event) {
        self.at(self.now.saturating_add(delay), event);
    }

    /// Has something happen at a time.
    pub fn at(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, event)));
    }

    /// When the next thing happens.
    pub fn next_time(&mut self) -> Option<Nanos> {
        while let Some(Reverse((at, _, event))) = self.queue.peek() {
            // Timers that were set again are nothing that happens.
            if let Event::Timer(fd) = event
                && !matches!(self.object(*fd), Some(Object::Timer(set, false)) if set == at)
            {
                self.queue.pop();
                continue;
            }
            return Some(*at);
        }
        None
    }

    /// Lets the next thing happen; false if nothing ever will.
    pub fn step(&mut self) -> bool {
        if self.next_time().is_none() {
            return false;
        }
        let Some(Reverse((at, _, event))) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        trace!(self, "-- {event:?}");
        match event {
            Event::Timer(fd) => {
                if let Some(Object::Timer(_, expired)) = self.object_mut(fd) {
                    *expired = true;
                    self.wake(fd);
                }
            }
            Event::Connect(socket) => self.connect_arrives(socket),
            Event::Arrive(socket) => self.segment_arrives(socket),
            Event::Reset(socket) => self.reset_arrives(socket),
            Event::Silent(socket) => self.check_silent(socket),
            Event::Continue(_) => {}
        }
        true
    }

    fn file(&self, fd: RawFd) -> Option<&File> {
        self.files.get(usize::try_from(fd).ok()?)?.as_ref()
    }

    fn file_mut(&mut self, fd: RawFd) -> Option<&mut File> {
        self.files.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    /// What a descriptor stands for.
    pub fn object(&self, fd: RawFd) -> Option<&Object> {
        self.file(fd).map(|file| &file.object)
    }

    fn object_mut(&mut self, fd: RawFd) -> Option<&mut Object> {
        self.file_mut(fd).map(|file| &mut file.object)
    }

    /// The process that has a descriptor.
    fn owner(&self, fd: RawFd) -> usize {
        self.file(fd).map_or(0, |file| file.owner)
    }

    /// The lowest descriptor that is free.
    pub fn open(&mut self, object: Object) -> RawFd {
        let owner = self.process;
        let file = Some(File {
            owner,
            object,
            watched: None,
        });
        match self.files.iter().position(Option::is_none) {
            Some(free) => {
                self.files[free] = file;
                free as RawFd
            }
            None => {
                self.files.push(file);
                self.files.len() as RawFd - 1
            }
        }
    }

    /// The open descriptors of a process: how many, and how many of them are sockets.
    pub fn descriptors(&self, process: usize) -> (usize, usize) {
        let own = self.files.iter().flatten().filter(|f| f.owner == process);
        let (mut all, mut sockets) = (0, 0);
        for file in own {
            all += 1;
            sockets += usize::from(matches!(file.object, Object::Socket(_)));
        }
        (all, sockets)
    }

    /// What the open descriptors of a process are, for a report.
    pub fn describe(&self, process: usize) -> String {
        let own = self.files.iter().enumerate();
        let own = own.filter_map(|(fd, file)| Some((fd, file.as_ref()?)));
        let own = own.filter(|(_, file)| file.owner == process);
        own.map(|(fd, file)| match &file.object {
            Object::Socket(id) => format!("{fd}: {:?}\n", self.net.sockets[*id]),
            other => format!("{fd}: {other:?}\n"),
        })
        .collect()
    }

    fn close_file(&mut self, fd: RawFd) {
        let place = usize::try_from(fd).ok().and_then(|i| self.files.get_mut(i));
        let Some(file) = place.and_then(Option::take) else {
            return;
        };
        if let Some(watched) = file.watched
            && let Some(Object::Epoll(all)) = self.object_mut(watched.epoll)
        {
            all.retain(|other| *other != fd);
        }
        if let Object::Socket(id) = file.object {
            self.close_socket(id);
        }
    }

    /// Whether a call fails, by an injected error. A dead process fails in all of them.
    pub fn fails(&mut self, call: Call, connection: Option<usize>) -> Result<(), Errno> {
        self.calls += 1;
        self.count_call();
        if self.processes[self.process].dead {
            return Err(Errno::BADF);
        }
        let connection = connection.or(self.context);
        match self.faults.strike(&mut self.rng, call, connection) {
            None => Ok(()),
            Some(Fault::Passing(error)) => {
                trace!(self, "!! {call:?} fails in passing: {error:?}");
                Err(error)
            }
            Some(Fault::Lasting(error)) => {
                trace!(self, "!! {call:?} of {connection:?} fails: {error:?}");
                if let Some(connection) = connection
                    && !(self.weather.falls_back
                        && call.is_of_handshake(self.active[connection] == self.process))
                {
                    self.tainted[connection] = true;
                }
                Err(error)
            }
        }
    }
}
