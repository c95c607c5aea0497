//! Steps with endpoints and their connections.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Same, Walk};
use crate::agent::{Answer, Call, Code};
use crate::library::observed;
use crate::rules::ep::{Created, Ep, EpName, State};
use crate::rules::{EPS, SRQS, evd, memory};

/// CRs that the agent has room for.
const CRS: usize = 8;
/// `DAT_CONNECTION_REQUEST_EVENT`.
const CONNECTION_REQUEST: i64 = 0x2001;
/// `DAT_COMPLETION_UNSIGNALLED_FLAG`.
const UNSIGNALLED: i64 = 4;

impl Walk<'_> {
    pub(super) fn create(&mut self, name: EpName, shape: u16) -> Same {
        if self.world.find(name).is_some() {
            return Ok(());
        }
        let bit = |n: u16| usize::from(shape >> n & 1);
        let completions = [evd::COMPLETIONS, evd::COMPLETIONS + 1, evd::MIXED];
        let srq = (shape >> 8 & 3 == 0).then_some(usize::from(shape >> 10) % SRQS);
        let srqs = &self.world.parties[name.party].srqs;
        let created = Created {
            recv_evd: completions[usize::from(shape) % 3],
            request_evd: match shape >> 2 & 3 {
                3 => evd::UNSIGNALLED,
                other => completions[usize::from(other)],
            },
            connect_evd: [evd::CONNECTIONS, evd::MIXED][bit(4)],
            srq: srq.filter(|&srq| srqs[srq].is_some()),
            size: 1 + usize::from(shape >> 5 & 7),
        };
        let unsignalled = created.request_evd == evd::UNSIGNALLED;
        let size = created.size as i64;
        let args = [
            name.slot as i64,
            created.recv_evd as i64,
            created.request_evd as i64,
            created.connect_evd as i64,
            created.srq.map_or(-1, |srq| srq as i64),
            size,
            size,
            0,
            if unsignalled { UNSIGNALLED } else { 0 },
        ];
        self.must(Call::EpCreate, name.party, &args, Code::SUCCESS)?;
        self.world.parties[name.party].eps[name.slot] = Some(Ep::new(created));
        self.settle(name)
    }

    pub(super) fn free(&mut self, name: EpName) -> Same {
        let Some(ep) = self.world.find(name) else {
            return Ok(());
        };
        let peer = ep.peer.filter(|_| ep.moves_data());
        self.must(Call::EpFree, name.party, &[name.slot as i64], Code::SUCCESS)?;
        self.world.free(name);
        match peer {
            Some(peer) => self.settle(peer),
            None => Ok(()),
        }
    }

    pub(super) fn reset(&mut self, name: EpName) -> Same {
        let code = match self.state(name) {
            None => return Ok(()),
            Some(State::Unconnected | State::Disconnected) => Code::SUCCESS,
            Some(_) => Code::INVALID_STATE,
        };
        self.must(Call::EpReset, name.party, &[name.slot as i64], code)?;
        if code == Code::SUCCESS {
            self.world.reset(name);
        }
        self.settle(name)
    }

    /// State, and whether the queues are idle.
    pub(super) fn status(&mut self, name: EpName) -> Same {
        let Some(ep) = self.world.find(name) else {
            return Ok(());
        };
        let idle = [ep.receives.is_empty(), ep.requests.is_empty()];
        self.settle(name)?;
        let early = self.world.early;
        let right = |answer: &Answer| {
            (answer.word(2) != 0) == idle[0]
                && ((answer.word(3) != 0) == idle[1] || early && !idle[1])
        };
        let args = [name.slot as i64];
        let answer = self.until(Call::EpGetStatus, name.party, &args, right)?;
        match right(&answer) {
            true => Ok(()),
            false => Err(format!(
                "{name:?} idle: {:?}, not {idle:?}",
                [answer.word(2), answer.word(3)]
            )),
        }
    }

    pub(super) fn listen(&mut self, party: usize) -> Same {
        if self.world.parties[party].listens.is_some() {
            return Ok(());
        }
        let args = [0, evd::REQUESTS as i64];
        let answer = self.must(Call::PspCreate, party, &args, Code::SUCCESS)?;
        self.world.parties[party].listens = Some(answer.word(1));
        Ok(())
    }

    /// Frees the PSP, if no request is under way: one that is may or may not arrive.
    pub(super) fn deafen(&mut self, party: usize) -> Same {
        let party_model = &self.world.parties[party];
        let under_way = party_model
            .requests
            .iter()
            .any(|request| request.cr.is_none());
        if party_model.listens.is_none() || under_way {
            return Ok(());
        }
        self.must(Call::PspFree, party, &[0], Code::SUCCESS)?;
        self.world.parties[party].listens = None;
        Ok(())
    }

    pub(super) fn connect(&mut self, name: EpName) -> Same {
        /// A qualifier that nobody listens on: a port that is reserved.
        const NOBODY: i64 = 1;
        let Some(state) = self.state(name) else {
            return Ok(());
        };
        let other = &self.world.parties[1 - name.party];
        if other.requests.len() >= CRS {
            return Ok(());
        }
        let qualifier = other.listens.unwrap_or(NOBODY);
        let number = self.world.number();
        let args = [name.slot as i64, qualifier, 60_000_000, number];
        let code = match state {
            State::Unconnected => Code::SUCCESS,
            _ => Code::INVALID_STATE,
        };
        self.must(Call::EpConnect, name.party, &args, code)?;
        if code == Code::SUCCESS {
            self.world.connect(name, number);
            self.settle(name)?;
        }
        Ok(())
    }

    /// Accepts or rejects the oldest request.
    pub(super) fn answer(&mut self, name: EpName, accept: bool) -> Same {
        let party = name.party;
        if self.world.parties[party].requests.is_empty() || !self.take_requests(party)? {
            return Ok(());
        }
        let request = self.world.parties[party].requests[0];
        let cr = request.cr.expect("all events were dequeued") as i64;
        // What becomes of an accept whose active end has given up depends on the moment.
        let Some(active) = request.from.filter(|_| accept) else {
            self.must(Call::CrReject, party, &[cr], Code::SUCCESS)?;
            self.world.reject(party, 0);
            return match request.from {
                Some(active) => self.settle(active),
                None => Ok(()),
            };
        };
        let Some(state) = self.state(name) else {
            return Ok(());
        };
        if state != State::Unconnected {
            return self
                .must(
                    Call::CrAccept,
                    party,
                    &[cr, name.slot as i64],
                    Code::INVALID_STATE,
                )
                .map(drop);
        }
        self.must(
            Call::CrAccept,
            party,
            &[cr, name.slot as i64],
            Code::SUCCESS,
        )?;
        self.world.accept(name, 0);
        self.settle_both(name)?;
        for end in [name, active] {
            let zeros = [0; memory::AREA];
            self.library
                .write_memory(end.party, memory::area_offset(end.slot), &zeros)?;
        }
        Ok(())
    }

    /// Dequeues the events of all requests. Says whether there is a request.
    fn take_requests(&mut self, party: usize) -> Result<bool, String> {
        let start = Instant::now();
        loop {
            let requests = &self.world.parties[party].requests;
            let waits = requests.iter().any(|r| r.cr.is_none() && r.from.is_some());
            let given_up = requests.iter().any(|r| r.cr.is_none() && r.from.is_none());
            if !waits && !given_up {
                return Ok(!requests.is_empty());
            }
            let cr = (0..CRS).find(|&cr| requests.iter().all(|r| r.cr != Some(cr)));
            let cr = cr.expect("fewer requests than room for them");
            let args = [evd::REQUESTS as i64, cr as i64];
            let answer = self.library.call(Call::EvdDequeue, party, &args)?;
            if answer.code() == Code::QUEUE_EMPTY {
                if !waits {
                    // Those that were given up before they arrived.
                    let requests = &mut self.world.parties[party].requests;
                    requests.retain(|r| r.cr.is_some());
                    continue;
                }
                if start.elapsed() > self.patience {
                    return Err("a connection request does not arrive".into());
                }
                sleep(Duration::from_micros(20));
                continue;
            }
            let seen = observed(&answer);
            let requests = &mut self.world.parties[party].requests;
            let request = requests
                .iter_mut()
                .find(|r| r.number == seen.cookie && r.cr.is_none());
            match request {
                Some(request) if seen.number == CONNECTION_REQUEST && seen.object == 0 => {
                    request.cr = Some(cr);
                }
                _ => return Err(format!("unexpected connection request {seen:?}")),
            }
        }
    }

    pub(super) fn disconnect(&mut self, name: EpName, graceful: bool, calm: bool) -> Same {
        let Some(state) = self.state(name) else {
            return Ok(());
        };
        if calm {
            self.calm()?;
        }
        // Whether such an end waits for a receive of the peer depends on the path.
        if graceful && self.world.early && !self.world.ep(name).requests.is_empty() {
            return Ok(());
        }
        let code = match state {
            State::Unconnected => Code::INVALID_STATE,
            _ => Code::SUCCESS,
        };
        let args = [name.slot as i64, graceful.into()];
        self.must(Call::EpDisconnect, name.party, &args, code)?;
        if code == Code::SUCCESS {
            self.world.disconnect(name, graceful);
        }
        self.settle_both(name)
    }

    /// Takes two endpoints from wherever they are to a connection.
    pub(super) fn join(&mut self, name: EpName, peer: usize) -> Same {
        let peer = EpName {
            party: 1 - name.party,
            slot: peer % EPS,
        };
        for end in [name, peer] {
            match self.state(end) {
                // Queues of eight, on EVDs that differ from place to place.
                None => self.create(end, 0x1e0 | (0x26 * (end.slot as u16 + 1)))?,
                Some(State::Disconnected) => self.reset(end)?,
                Some(State::Unconnected) => {}
                Some(_) => return Ok(()),
            }
        }
        if !self.world.parties[peer.party].requests.is_empty() {
            return Ok(());
        }
        self.listen(peer.party)?;
        self.connect(name)?;
        self.answer(peer, true)
    }

    /// The areas of a party hold what its peers have written.
    pub(super) fn check_areas(&mut self, party: usize) -> Same {
        for slot in 0..EPS {
            let Some(right) = self.world.parties[party].memory.areas[slot].clone() else {
                continue;
            };
            let start = Instant::now();
            // A write may still be under way that no event reports.
            loop {
                let at = memory::area_offset(slot);
                if self.library.read_memory(party, at, right.len())? == right {
                    break;
                }
                if start.elapsed() > self.patience {
                    return Err(format!(
                        "the area of endpoint {slot} of party {party} differs"
                    ));
                }
                sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}
