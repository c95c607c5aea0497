//! The rules of endpoints, EVDs and SRQs, as a model of two parties that make one call after the
//! other.
//!
//! The rules are those of the man pages (the pages of each call, and `dat_ep_create` for the states
//! of an endpoint), not those of the code. What happens later than a call, because the other party
//! has to be heard of first, has happened in the model when the call returns: whoever compares the
//! library with the model waits for that.

mod connection;
mod early;
pub mod ep;
pub mod evd;
pub mod memory;
pub mod srq;
mod transfer;

use ep::{Ep, EpName};
use evd::{Evd, Stream};
use memory::Memory;
use srq::Srq;

/// Endpoints of a party.
pub const EPS: usize = 3;
/// SRQs of a party.
pub const SRQS: usize = 2;

/// What the model knows.
pub struct World {
    pub parties: [Party; 2],
    /// The path lets sends complete before the peer has a receive for them, and what was posted
    /// after such a send as well.
    pub early: bool,
    /// Both parties have the IA open in the same process.
    pub one_process: bool,
    /// Counts everything that happens, so that its order is known.
    now: u64,
    /// Cookie of the next request, and number of the next attempt to connect.
    next_number: i64,
}

/// One of two who connect with each other: an open IA and what was created in it.
pub struct Party {
    pub evds: [Option<Evd>; evd::EVDS],
    pub eps: [Option<Ep>; EPS],
    pub srqs: [Option<Srq>; SRQS],
    /// The qualifier of the PSP.
    pub listens: Option<i64>,
    /// Connection requests that were sent to this party and neither accepted nor rejected.
    pub requests: Vec<ConnectionRequest>,
    pub memory: Memory,
}

/// A connection request at the passive party.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest {
    /// The private data: which attempt this is.
    pub number: i64,
    /// The endpoint that wants to connect; none, if it has given up.
    pub from: Option<EpName>,
    /// Where the agent has the CR, once the event was dequeued.
    pub cr: Option<usize>,
}

impl World {
    pub fn new(early: bool, one_process: bool) -> World {
        World {
            early,
            one_process,
            parties: [Party::new(), Party::new()],
            now: 0,
            next_number: 1,
        }
    }

    /// A number that was not given before.
    pub fn number(&mut self) -> i64 {
        self.next_number += 1;
        self.next_number
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The endpoint, if there is one.
    pub fn find(&self, name: EpName) -> Option<&Ep> {
        self.parties[name.party].eps[name.slot].as_ref()
    }

    /// An endpoint that exists.
    pub fn ep(&self, name: EpName) -> &Ep {
        self.find(name).expect("the endpoint exists")
    }

    fn ep_mut(&mut self, name: EpName) -> &mut Ep {
        let ep = &mut self.parties[name.party].eps[name.slot];
        ep.as_mut().expect("the endpoint exists")
    }

    /// Adds an event to a stream of an endpoint.
    fn report(&mut self, name: EpName, stream: Stream, mut event: evd::Event) {
        event.order = self.tick();
        let evd = self.ep(name).evd_of(stream);
        let party = &mut self.parties[name.party];
        let evd = party.evds[evd].as_mut().expect("an EVD in use stays");
        evd.push(stream, event);
    }

    /// Reports an asynchronous error, in all async EVDs of the process.
    fn report_error(&mut self, party: usize, stream: Stream, number: i64) {
        let event = evd::Event {
            number,
            order: self.tick(),
            ..evd::Event::default()
        };
        for (evd, stream) in self.async_evds(party, stream) {
            evd.push(stream, event.clone());
        }
    }

    /// The object of these asynchronous errors is freed.
    pub fn orphan(&mut self, party: usize, stream: Stream) {
        for (evd, stream) in self.async_evds(party, stream) {
            evd.orphan(stream);
        }
    }

    /// The async EVDs that report the errors of an object of this party, each with their stream.
    fn async_evds(
        &mut self,
        party: usize,
        stream: Stream,
    ) -> impl Iterator<Item = (&mut Evd, Stream)> {
        let one_process = self.one_process;
        let parties = self.parties.iter_mut().enumerate();
        parties.filter_map(move |(of, Party { evds, .. })| {
            let evd = evds[evd::ASYNC].as_mut().expect("it is never freed");
            if of == party {
                Some((evd, stream))
            } else if one_process {
                Some((evd, stream.of_the_other_party()))
            } else {
                None
            }
        })
    }

    /// The events of a stream of an endpoint that were not dequeued.
    fn events(&mut self, name: EpName, stream: Stream) -> impl Iterator<Item = &mut evd::Event> {
        let evd = self.ep(name).evd_of(stream);
        let evd = self.parties[name.party].evds[evd].as_mut();
        evd.expect("an EVD in use stays").events(stream)
    }
}

impl Party {
    fn new() -> Party {
        Party {
            evds: evd::all(),
            eps: [const { None }; EPS],
            srqs: [const { None }; SRQS],
            listens: None,
            requests: Vec::new(),
            memory: Memory::new(),
        }
    }

    /// Whether a stream of an endpoint feeds this EVD.
    pub fn feeds(&self, evd: usize) -> bool {
        self.eps.iter().flatten().any(|ep| ep.uses_evd(evd))
    }
}
