//! The system calls of the simulated kernel: what an injected error does to each, and what it does
//! otherwise.

use std::cell::{RefCell, RefMut};
use std::ffi::{CStr, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use dat_core::testing::kernel::{FileCall, Kernel, Name, SocketOption};
use rustix::event::epoll::EventFlags;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use super::super::faults::Call;
use super::super::net::{Local, SocketId};
use super::processes::Thread;
use super::{Event, HOSTS, Nanos, Object, World, trace};

/// The kernel of the thread that runs the simulation.
pub struct Sim(pub Rc<RefCell<World>>);

impl Sim {
    fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }
}

/// Whether an error of `accept` is one of the connection that was to be accepted: the next one may
/// be there.
fn is_of_connection(error: Errno) -> bool {
    matches!(error, Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN)
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
        let connection = self.net.sockets[id].connection;
        self.touched = connection.or(self.touched);
        self.fails(call, connection)?;
        Ok(id)
    }

    /// The same for a call that transfers bytes: an injected error may end the connection.
    fn checked_transfer(&mut self, call: Call, fd: RawFd) -> Result<SocketId, Errno> {
        let id = self.socket_of(fd)?;
        let checked = self.checked(call, fd);
        if let Err(error) = checked {
            self.fatal(id, error);
        }
        checked
    }

    /// The call that a write to a socket is.
    fn send_call(&self, id: SocketId, parts: &[&[u8]]) -> Call {
        match self.net.sockets[id].local {
            None => Call::Send,
            Some(_) if parts.iter().map(|part| part.len()).sum::<usize>() == 1 => Call::Ring,
            Some(_) => Call::SendLocal,
        }
    }

    /// The call that a read of a socket is.
    fn recv_call(&self, id: SocketId) -> Call {
        match self.net.sockets[id].local {
            None => Call::Recv,
            Some(_) => Call::RecvLocal,
        }
    }

    /// A new descriptor for a socket.
    fn open_socket(&mut self, id: SocketId) -> RawFd {
        let fd = self.open(Object::Socket(id));
        self.net.sockets[id].fd = Some(fd);
        fd
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

    fn process_id(&mut self) -> u32 {
        self.world().process_id()
    }

    fn addresses(&mut self) -> Vec<SocketAddr> {
        let world = self.world();
        let all = HOSTS.iter().enumerate();
        let own = all.filter(|(host, _)| world.weather.one_host || *host == world.process);
        own.map(|(_, host)| (*host, 0).into()).collect()
    }

    fn start_thread(&mut self, name: &str, body: Box<dyn FnOnce()>) -> Result<(), Errno> {
        let world = &mut *self.world();
        if name != "dat-verify" {
            return world.fails(Call::Thread, None);
        }
        world.fails(Call::Verifier, world.touched)?;
        let process = world.process;
        world.threads.push(Thread { process, body });
        Ok(())
    }

    fn socket(&mut self, local: bool) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        world.fails(Call::Socket, None)?;
        let local = local.then(|| Local::new(world.process));
        let id = world.new_socket(local);
        Ok(world.open_socket(id))
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
        let id = world.socket_of(fd)?;
        let accepted = world.checked(Call::Accept, fd);
        world.net.sockets[id].accept_error = accepted.err();
        let new = world.accept(accepted?)?;
        Ok(world.open_socket(new))
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
        let call = world.send_call(world.socket_of(fd)?, parts);
        let id = world.checked_transfer(call, fd)?;
        let sent = world.send(id, parts);
        trace!(world, "send {fd}: {sent:?}");
        sent
    }

    fn recv(&mut self, fd: RawFd, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let world = &mut *self.world();
        let call = world.recv_call(world.socket_of(fd)?);
        let id = world.checked_transfer(call, fd)?;
        let read = world.recv(id, to, peek);
        trace!(world, "recv {fd}: {read:?}");
        read
    }

    fn send_files(&mut self, fd: RawFd, bytes: &[u8], files: &[RawFd]) -> Result<usize, Errno> {
        let world = &mut *self.world();
        let id = world.checked_transfer(Call::SendMessage, fd)?;
        let sent = world.send_files(id, bytes, files);
        trace!(world, "send {fd} with {} files: {sent:?}", files.len());
        sent
    }

    fn recv_files(
        &mut self,
        fd: RawFd,
        to: &mut [u8],
        has_files: bool,
    ) -> Result<(usize, Vec<RawFd>), Errno> {
        let world = &mut *self.world();
        let id = world.checked_transfer(Call::RecvLocal, fd)?;
        let read = world.recv_files(id, to, has_files);
        trace!(world, "recv {fd} with files: {read:?}");
        read
    }

    fn send_buffer_size(&mut self, fd: RawFd) -> usize {
        let world = self.world();
        match world.socket_of(fd) {
            Ok(id) if world.net.sockets[id].local.is_some() => world.weather.local_buffer,
            _ => 200 * 1024,
        }
    }

    fn is_listened_on(&mut self, port: u16) -> bool {
        self.world().is_listened_on(port)
    }

    fn peer_credentials(&mut self, fd: RawFd) -> Result<(u32, u32), Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::Credentials, fd)?;
        let peer = world.peer_maker(id)?;
        Ok((World::id_of(peer), rustix::process::geteuid().as_raw()))
    }

    fn peer_process(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        let world = &mut *self.world();
        let id = world.checked(Call::PeerProcess, fd)?;
        let peer = world.peer_maker(id)?;
        world.open_process(peer)
    }

    fn has_exited(&mut self, fd: RawFd) -> Result<bool, Errno> {
        self.world().has_exited(fd)
    }

    unsafe fn process_vm(
        &mut self,
        write: bool,
        process: u32,
        local: &[libc::iovec],
        remote: &[libc::iovec],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.world().process_vm(write, process, local, remote) }
    }

    fn duplicate(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        self.world().duplicate(fd)
    }

    fn memory_file(&mut self, name: &CStr, flags: MemfdFlags) -> Result<RawFd, Errno> {
        self.world().make_memory(name, flags)
    }

    fn real_file(&mut self, fd: RawFd, call: FileCall) -> Result<RawFd, Errno> {
        self.world().real_file(fd, call)
    }

    fn open_for_reading(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        self.world().reopen(fd)
    }

    fn map(
        &mut self,
        hint: *mut c_void,
        len: usize,
        protection: ProtFlags,
        file: Option<(RawFd, u64)>,
    ) -> Result<*mut c_void, Errno> {
        self.world().map(hint, len, protection, file)
    }

    unsafe fn unmap(&mut self, at: *mut c_void, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.world().unmap(at, len) };
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
            Some(Object::Socket(id)) => {
                let socket = &world.net.sockets[*id];
                // accept(2): a pending error of the new connection is to be treated like EAGAIN.
                assert!(
                    !(new && socket.accept_error.is_some_and(is_of_connection)),
                    "who listens has paused since a connection failed: {:?}",
                    socket.accept_error
                );
                socket.connection
            }
            _ => None,
        };
        match (new, watched) {
            (true, _) => world.fails(Call::EpollAdd, connection)?,
            (false, Some(_)) => world.fails(Call::EpollChange, connection)?,
            // Removal does not fail.
            (false, None) if world.processes[world.process].dead => return Err(Errno::BADF),
            (false, None) => {}
        }
        let watched = watched.map(|(data, events)| (data, EventFlags::from_bits_retain(events)));
        world.watch(epoll, fd, new, watched)
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
