//! Endpoints: their states and queues.

use std::collections::{BTreeSet, VecDeque};

use super::evd::{self, Stream};
use super::srq::Room;
use super::{Party, World};
use crate::agent::Code;

/// An endpoint, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpName {
    pub party: usize,
    pub slot: usize,
}

/// `DAT_EP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Unconnected = 0,
    ActiveConnectionPending = 6,
    Connected = 9,
    DisconnectPending = 10,
    Disconnected = 11,
}

/// What an endpoint is created with.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// EVD of the receives.
    pub recv_evd: usize,
    /// EVD of sends and RDMA operations.
    pub request_evd: usize,
    /// EVD of the connection.
    pub connect_evd: usize,
    pub srq: Option<usize>,
    /// Size of each of the two queues.
    pub size: usize,
}

/// A buffer that waits for a message.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub cookie: i64,
    pub buffer: usize,
    pub len: usize,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sends these bytes of the pattern.
    Send { from: usize },
    /// Writes these bytes of the pattern to this place in the area of the peer.
    Write { from: usize, to: usize },
    /// Reads from this place in the area of the peer into a buffer.
    Read { from: usize, buffer: usize },
    /// Uses a key that does not exist.
    Forbidden,
}

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub cookie: i64,
    pub kind: Kind,
    pub len: usize,
    /// Gives no event if it succeeds.
    pub suppressed: bool,
}

impl Request {
    /// The buffer that it fills.
    pub fn buffer(&self) -> Option<usize> {
        match self.kind {
            Kind::Read { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// The first byte of the peer's area that it reads.
    pub fn read_from(&self) -> Option<usize> {
        match self.kind {
            Kind::Read { from, .. } => Some(from),
            _ => None,
        }
    }
}

/// An endpoint.
pub struct Ep {
    pub created: Created,
    pub state: State,
    /// The endpoint that this one is or was connected with, or wants to be.
    pub peer: Option<EpName>,
    /// Posted, and without a message.
    pub receives: VecDeque<Receive>,
    /// Posted, and not completed.
    pub requests: VecDeque<Request>,
    /// Requests that wait, and whose completion was dequeued already.
    pub seen_early: BTreeSet<i64>,
    /// Requests that completed without an event, and of which nobody can know that yet.
    pub unretired: usize,
}

impl Ep {
    pub fn new(created: Created) -> Ep {
        Ep {
            created,
            state: State::Unconnected,
            peer: None,
            receives: VecDeque::new(),
            requests: VecDeque::new(),
            seen_early: BTreeSet::new(),
            unretired: 0,
        }
    }

    pub fn uses_evd(&self, evd: usize) -> bool {
        let all = &self.created;
        [all.recv_evd, all.request_evd, all.connect_evd].contains(&evd)
    }

    /// The EVD that a stream of this endpoint feeds.
    pub fn evd_of(&self, stream: Stream) -> usize {
        match stream {
            Stream::Receives(_) => self.created.recv_evd,
            Stream::Requests(_) => self.created.request_evd,
            Stream::Connection(_) => self.created.connect_evd,
            _ => unreachable!("no stream of an endpoint's connection"),
        }
    }

    /// Whether messages can arrive and leave.
    pub fn moves_data(&self) -> bool {
        matches!(self.state, State::Connected | State::DisconnectPending)
    }

    /// Whether another receive fits.
    pub fn room_for_receive(&self) -> Room {
        match self.receives.len() < self.created.size {
            true => Room::Yes,
            false => Room::No,
        }
    }

    /// Whether another request fits. One that was suppressed may take its place until a later one
    /// that is not has completed.
    pub fn room_for_request(&self) -> Room {
        if self.requests.len() >= self.created.size {
            Room::No
        } else if self.requests.len() + self.unretired < self.created.size {
            Room::Yes
        } else {
            Room::Maybe
        }
    }
}

impl World {
    /// What `dat_ep_post_recv` returns.
    pub fn may_receive(&self, name: EpName) -> Result<Room, Code> {
        let ep = self.ep(name);
        if ep.created.srq.is_some() {
            return Err(Code::INVALID_STATE);
        }
        Ok(match ep.state {
            State::Disconnected => Room::Yes,
            _ => ep.room_for_receive(),
        })
    }

    /// What a post of a send or of an RDMA operation returns.
    pub fn may_request(&self, name: EpName) -> Result<Room, Code> {
        let ep = self.ep(name);
        match ep.state {
            State::Connected => Ok(match ep.room_for_request() {
                Room::No if self.early => Room::Maybe,
                room => room,
            }),
            State::Disconnected => Ok(Room::Yes),
            _ => Err(Code::INVALID_STATE),
        }
    }

    /// `dat_ep_reset` has succeeded. Nothing of the previous connection is reported after that.
    pub fn reset(&mut self, name: EpName) {
        if self.ep(name).state == State::Unconnected {
            return;
        }
        self.parties[name.party].purge(name.slot);
        let created = self.ep(name).created;
        *self.ep_mut(name) = Ep::new(created);
    }

    /// `dat_ep_free` has succeeded.
    pub fn free(&mut self, name: EpName) {
        self.abandon(name);
        let party = &mut self.parties[name.party];
        party.purge(name.slot);
        let ep = party.eps[name.slot].take().expect("the endpoint exists");
        for receive in ep.receives {
            party.memory.give_back(receive.buffer);
        }
        self.orphan(name.party, Stream::EpErrors(name.slot));
    }
}

impl Party {
    /// The events of an endpoint are gone.
    fn purge(&mut self, slot: usize) {
        for evd in self.evds.iter_mut().flatten() {
            for event in evd.purge(slot) {
                Party::forget(&mut self.memory, &mut self.srqs, &event);
                if let Some(srq) = event.srq {
                    let srq = self.srqs[srq].as_mut().expect("an SRQ in use stays");
                    srq.lost = true;
                }
            }
        }
    }

    /// What an event was for is free again.
    pub fn forget(memory: &mut super::Memory, srqs: &mut [Option<super::Srq>], event: &evd::Event) {
        if let Some(buffer) = event.buffer {
            memory.give_back(buffer);
        }
        if let Some(srq) = event.srq.and_then(|srq| srqs[srq].as_mut()) {
            srq.taken -= 1;
        }
    }
}
