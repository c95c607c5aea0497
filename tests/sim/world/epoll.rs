//! The epoll instances of the simulated kernel: which descriptors they watch, and the events that they
//! report, in any order and now and then for nothing.

use std::os::fd::RawFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::{Object, World, trace};

/// How an epoll instance watches a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    pub(super) epoll: RawFd,
    data: u64,
    events: EventFlags,
    /// Whether something has happened since an edge-triggered event was last reported.
    fresh: bool,
}

impl World {
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

    /// Has an epoll instance watch a descriptor (`new`), watch it in another way, or no more.
    pub(super) fn watch(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        new: bool,
        watched: Option<(u64, EventFlags)>,
    ) -> Result<(), Errno> {
        let is_watched = self.file(fd).ok_or(Errno::BADF)?.watched.is_some();
        match (new, is_watched) {
            (true, true) => return Err(Errno::EXIST),
            (false, false) => return Err(Errno::NOENT),
            _ => {}
        }
        trace!(self, "watch {fd}: {:?}", watched.map(|(_, events)| events));
        if let Some(Object::Epoll(all)) = self.object_mut(epoll) {
            match (new, watched) {
                (true, _) => all.push(fd),
                (_, None) => all.retain(|other| *other != fd),
                _ => {}
            }
        }
        self.processes[self.process].hot = true;
        if let Some(file) = self.file_mut(fd) {
            file.watched = watched.map(|(data, events)| Watched {
                epoll,
                data,
                events,
                fresh: true,
            });
        }
        Ok(())
    }

    /// Reports at most `most` events of an epoll instance.
    pub(super) fn wait(
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
