//! The simulated kernel: descriptors, the epoll instances, timers, the clock. What sockets do is in
//! [`net`](super::net).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use dat_core::testing::kernel::{Kernel, Name, SocketOption};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

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
}

/// How an epoll instance watches a descriptor.
#[derive(Clone, Copy, Debug)]
struct Watched {
    epoll: RawFd,
    data: u64,
    events: EventFlags,
    /// Whether something has happened since an edge-triggered event was last reported.
    fresh: bool,
}

/// An open descriptor.
#[derive(Debug)]
struct File {
    /// The number of the process.
    owner: usize,
    object: Object,
    watched: Option<Watched>,
}

/// A process.
#[derive(Debug, Default)]
pub struct Process {
    /// Whether the process was killed: its calls have no effect any more.
    pub dead: bool,
    /// Its epoll instance, which may have events.
    pub hot: bool,
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
}

/// See the module.
pub struct World {
    pub now: Nanos,
    pub rng: Rng,
    pub faults: Faults,
    pub weather: Weather,
    /// The process whose calls are served.
    pub process: usize,
    /// The connection that the program works on, if it is in a call about one.
    pub context: Option<usize>,
    pub processes: [Process; 2],
    pub net: Net,
    /// For each connection whether an error that lasts was injected.
    pub tainted: Vec<bool>,
    files: Vec<Option<File>>,
    queue: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    /// Number of system calls.
    pub calls: u64,
    /// What has happened, if it is to be printed.
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
    pub fn new(rng: Rng, weather: Weather, faults: Faults, connections: usize) -> World {
        World {
            now: SECOND,
            rng,
            faults,
            weather,
            process: 0,
            context: None,
            processes: Default::default(),
            net: Net::default(),
            tainted: vec![false; connections],
            files: Vec::new(),
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
    pub fn owner(&self, fd: RawFd) -> usize {
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

    /// Something has happened to a descriptor that who watches it has to know.
    pub fn wake(&mut self, fd: RawFd) {
        let Some(file) = self.file_mut(fd) else {
            return;
        };
        let owner = file.owner;
        if let Some(watched) = &mut file.watched {
            watched.fresh = true;
            self.processes[owner].hot = true;
        }
    }

    /// What holds of a descriptor.
    fn state(&mut self, fd: RawFd) -> EventFlags {
        match self.object(fd) {
            Some(Object::Eventfd(true)) | Some(Object::Timer(_, true)) => EventFlags::IN,
            Some(Object::Socket(id)) => {
                let id = *id;
                self.socket_state(id)
            }
            _ => EventFlags::empty(),
        }
    }

    /// Kills a process: the kernel closes its descriptors.
    pub fn kill(&mut self, process: usize) {
        let before = std::mem::replace(&mut self.process, process);
        for fd in 0..self.files.len() {
            if self.files[fd].as_ref().is_some_and(|f| f.owner == process) {
                self.close_file(fd as RawFd);
            }
        }
        self.processes[process].dead = true;
        self.process = before;
    }

    fn close_file(&mut self, fd: RawFd) {
        let Some(place) = usize::try_from(fd).ok().and_then(|i| self.files.get_mut(i)) else {
            return;
        };
        let Some(file) = place.take() else {
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
                if let Some(connection) = connection {
                    self.tainted[connection] = true;
                }
                Err(error)
            }
        }
    }

    fn wait(
        &mut self,
        epoll: RawFd,
        most: usize,
        event: &mut dyn FnMut(u64, u32),
    ) -> Result<(), Errno> {
        let Some(Object::Epoll(all)) = self.object(epoll) else {
            return Err(Errno::BADF);
        };
        let all = all.clone();
        let first = match all.len() {
            0 => return Ok(()),
            n => self.rng.below(n as u64) as usize,
        };
        let (mut found, mut left) = (0, false);
        for i in 0..all.len() {
            let fd = all[(first + i) % all.len()];
            let state = self.state(fd);
            let Some(watched) = self.file(fd).and_then(|file| file.watched) else {
                continue;
            };
            let always = EventFlags::ERR | EventFlags::HUP;
            let mut events = state & (watched.events | always);
            let edge = watched.events.contains(EventFlags::ET);
            if events.is_empty() || edge && !watched.fresh {
                if !self.is_spurious(fd, watched.events) {
                    continue;
                }
                events = EventFlags::IN;
            } else if found == most {
                left = true;
                break;
            } else if let Some(file) = self.file_mut(fd)
                && let Some(watched) = &mut file.watched
            {
                watched.fresh = false;
            }
            found += 1;
            trace!(self, "epoll: {fd} {events:?}");
            event(watched.data, events.bits());
        }
        if found == 0 && !left {
            let owner = self.owner(epoll);
            self.processes[owner].hot = false;
        }
        Ok(())
    }

    /// Whether an event is reported of a connected socket of which nothing is to be reported, as
    /// if another thread had read it meanwhile.
    fn is_spurious(&mut self, fd: RawFd, watched: EventFlags) -> bool {
        if !watched.contains(EventFlags::IN) || !self.rng.one_in(self.weather.spurious) {
            return false;
        }
        match self.object(fd) {
            Some(Object::Socket(id)) => self.net.sockets[*id].is_connected(),
            _ => false,
        }
    }
}

/// The kernel of the thread that runs the simulation.
pub struct Sim(pub Rc<RefCell<World>>);

impl Sim {
    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.0.borrow_mut()
    }
}

impl World {
    fn socket_of(&self, fd: RawFd) -> Result<SocketId, Errno> {
        match self.object(fd) {
            Some(Object::Socket(id)) => Ok(*id),
            Some(_) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    /// The socket of a descriptor, unless the call fails by an injected error.
    fn checked(&mut self, call: Call, fd: RawFd) -> Result<SocketId, Errno> {
        let id = self.socket_of(fd)?;
        self.fails(call, self.net.sockets[id].connection)?;
        Ok(id)
    }
}

impl Kernel for Sim {
    fn now(&mut self) -> Duration {
        Duration::from_nanos(self.world().now)
    }

    fn random(&mut self) -> Result<u64, Errno> {
        Ok(self.world().rng.next())
    }

    fn descriptor_limit(&mut self) -> u64 {
        self.world().weather.descriptors
    }

    fn addresses(&mut self) -> Vec<SocketAddr> {
        vec![(HOSTS[self.world().process], 0).into()]
    }

    fn start_thread(&mut self, _name: &str, _body: Box<dyn FnOnce()>) -> Result<(), Errno> {
        self.world().fails(Call::Thread, None)
    }

    fn socket(&mut self, local: bool) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        world.fails(Call::Socket, None)?;
        let id = world.new_socket(local);
        let fd = world.open(Object::Socket(id));
        world.net.sockets[id].fd = Some(fd);
        Ok(fd)
    }

    fn bind(&mut self, fd: RawFd, name: Name) -> Result<(), Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Bind, fd)?;
        world.bind(id, name)
    }

    fn listen(&mut self, fd: RawFd) -> Result<(), Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Listen, fd)?;
        world.listen(id)
    }

    fn accept(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Accept, fd)?;
        let new = world.accept(id)?;
        let fd = world.open(Object::Socket(new));
        world.net.sockets[new].fd = Some(fd);
        Ok(fd)
    }

    fn connect(&mut self, fd: RawFd, name: Name) -> Result<(), Errno> {
        let world = &mut *self.world();
        let id = world.socket_of(fd)?;
        world.name_connection(id, &name);
        let id = world.checked(Call::Connect, fd)?;
        world.connect(id, name)
    }

    fn address(&mut self, fd: RawFd, peer: bool) -> Result<SocketAddr, Errno> {
        let world = &mut *self.world();
        let call = if peer { Call::PeerName } else { Call::SockName };
        let id = world.checked(call, fd)?;
        world.address(id, peer)
    }

    fn set_option(&mut self, fd: RawFd, option: SocketOption) -> Result<(), Errno> {
        let world = &mut *self.world();
        // An end by a reset, and the limits of silence, always take effect.
        let id = match option {
            SocketOption::Other => world.checked(Call::SetOption, fd)?,
            SocketOption::Sharing => world.checked(Call::Share, fd)?,
            _ => world.socket_of(fd)?,
        };
        world.net.sockets[id].set_option(option);
        Ok(())
    }

    fn socket_error(&mut self, fd: RawFd) -> Result<Option<Errno>, Errno> {
        let world = &mut *self.world();
        let id = world.socket_of(fd)?;
        Ok(world.net.sockets[id].error.take())
    }

    fn tcp_info(&mut self, fd: RawFd) -> Result<libc::tcp_info, Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::TcpInfo, fd)?;
        Ok(world.tcp_info(id))
    }

    fn unacknowledged_bytes(&mut self, fd: RawFd) -> Result<usize, Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Unacknowledged, fd)?;
        Ok(world.net.sockets[id].flight.len())
    }

    fn send(&mut self, fd: RawFd, parts: &[&[u8]]) -> Result<usize, Errno> {
        let world = &mut *self.world();
        let id = world.socket_of(fd)?;
        if let Err(error) = world.checked(Call::Send, fd) {
            world.fatal(id, error);
            return Err(error);
        }
        let sent = world.send(id, parts);
        trace!(world, "send {fd}: {sent:?}");
        sent
    }

    fn recv(&mut self, fd: RawFd, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let world = &mut *self.world();
        let id = world.socket_of(fd)?;
        if let Err(error) = world.checked(Call::Recv, fd) {
            world.fatal(id, error);
            return Err(error);
        }
        let read = world.recv(id, to, peek);
        trace!(world, "recv {fd}: {read:?}");
        read
    }

    fn send_files(&mut self, _: RawFd, _: &[u8], _: &[RawFd]) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn recv_files(&mut self, _: RawFd, _: &mut [u8]) -> Result<(usize, Vec<RawFd>), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn shutdown(&mut self, fd: RawFd) -> Result<(), Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Shutdown, fd)?;
        trace!(world, "shutdown {fd}");
        world.shutdown(id)
    }

    fn close(&mut self, fd: RawFd) {
        let world = &mut *self.world();
        if world.processes[world.process].dead {
            return;
        }
        trace!(world, "close {fd}");
        world.close_file(fd);
    }

    fn epoll_create(&mut self) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        world.fails(Call::EpollCreate, None)?;
        Ok(world.open(Object::Epoll(Vec::new())))
    }

    fn epoll_control(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        new: bool,
        watched: Option<(u64, u32)>,
    ) -> Result<(), Errno> {
        let world = &mut *self.world();
        let connection = match world.object(fd) {
            Some(Object::Socket(id)) => world.net.sockets[*id].connection,
            _ => None,
        };
        match (new, watched) {
            (true, _) => world.fails(Call::EpollAdd, connection)?,
            (false, Some(_)) => world.fails(Call::EpollChange, connection)?,
            // Removal does not fail.
            (false, None) if world.processes[world.process].dead => return Err(Errno::BADF),
            (false, None) => {}
        }
        let there = world.file(fd).ok_or(Errno::BADF)?.watched.is_some();
        match (new, there) {
            (true, true) => return Err(Errno::EXIST),
            (false, false) => return Err(Errno::NOENT),
            _ => {}
        }
        trace!(
            world,
            "watch {fd}: {:?}",
            watched.map(|(_, events)| EventFlags::from_bits_retain(events))
        );
        if let Some(Object::Epoll(all)) = world.object_mut(epoll) {
            match (new, watched) {
                (true, _) => all.push(fd),
                (_, None) => all.retain(|other| *other != fd),
                _ => {}
            }
        }
        let process = world.process;
        world.processes[process].hot = true;
        if let Some(file) = world.file_mut(fd) {
            file.watched = watched.map(|(data, events)| Watched {
                epoll,
                data,
                events: EventFlags::from_bits_retain(events),
                fresh: true,
            });
        }
        Ok(())
    }

    fn epoll_wait(
        &mut self,
        epoll: RawFd,
        most: usize,
        event: &mut dyn FnMut(u64, u32),
    ) -> Result<(), Errno> {
        let world = &mut *self.world();
        world.fails(Call::EpollWait, None)?;
        world.wait(epoll, most, event)
    }

    fn eventfd(&mut self) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        world.fails(Call::Eventfd, None)?;
        Ok(world.open(Object::Eventfd(false)))
    }

    fn eventfd_set(&mut self, fd: RawFd, set: bool) {
        let world = &mut *self.world();
        if let Some(Object::Eventfd(state)) = world.object_mut(fd) {
            *state = set;
            world.wake(fd);
        }
    }

    fn timerfd(&mut self) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        world.fails(Call::Timerfd, None)?;
        Ok(world.open(Object::Timer(0, false)))
    }

    fn timerfd_set(&mut self, fd: RawFd, delay: Duration) {
        let world = &mut *self.world();
        let at = world.now.saturating_add(delay.as_nanos() as Nanos);
        if let Some(Object::Timer(when, expired)) = world.object_mut(fd) {
            (*when, *expired) = (at, false);
            world.at(at, Event::Timer(fd));
        }
    }
}
