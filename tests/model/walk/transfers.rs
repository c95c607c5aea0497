//! Steps that post requests and receives.

use super::{Same, Walk};
use crate::agent::{Call, Code};
use crate::rules::ep::{EpName, Kind, Receive, Request, State};
use crate::rules::evd;
use crate::rules::memory::{self, AREA, BUFFER, PATTERN};

/// `DAT_COMPLETION_SUPPRESS_FLAG`.
const SUPPRESS: i64 = 1;
/// `DAT_COMPLETION_SOLICITED_WAIT_FLAG`.
const SOLICITED_WAIT: i64 = 2;
/// `DAT_COMPLETION_UNSIGNALLED_FLAG`.
const UNSIGNALLED: i64 = 4;
/// `DAT_COMPLETION_BARRIER_FENCE_FLAG`.
const BARRIER_FENCE: i64 = 8;

/// How many bytes a number stands for.
fn length(number: u8) -> usize {
    match number % 16 {
        0 => 0,
        1 => 1,
        2 => BUFFER,
        3 => 500,
        4 => 64,
        5 => 63,
        other => usize::from(other) * 8,
    }
}

/// Buffers are mostly large enough.
pub(super) fn buffer_length(number: u8) -> usize {
    match number % 32 {
        0 => 0,
        1 => 60,
        2 => 500,
        _ => BUFFER,
    }
}

/// What a request is posted with.
struct Posted {
    call: Call,
    kind: Kind,
    /// Where its bytes are in the memory of the party.
    at: usize,
    len: usize,
    /// `DAT_COMPLETION_*_FLAG`.
    flags: i64,
    /// Address and key of the target.
    target: (i64, i64),
}

impl Walk<'_> {
    pub(super) fn post_receive(&mut self, name: EpName, len: u8, flags: u8) -> Same {
        if self.world.find(name).is_none() {
            return Ok(());
        }
        let Some(buffer) = self.world.parties[name.party].memory.take() else {
            return Ok(());
        };
        let receive = Receive {
            cookie: self.world.number(),
            buffer,
            len: buffer_length(len),
        };
        // No receive queue is configured for this flag.
        let flags = if flags == 0 { UNSIGNALLED } else { 0 };
        let at = memory::buffer_offset(buffer) as i64;
        let args = [
            name.slot as i64,
            at,
            receive.len as i64,
            receive.cookie,
            flags,
        ];
        let posted = match self.world.may_receive(name) {
            Err(code) if flags == 0 => {
                self.must(Call::EpPostRecv, name.party, &args, code)?;
                false
            }
            Ok(_) if flags != 0 => {
                self.must(Call::EpPostRecv, name.party, &args, Code::INVALID_PARAMETER)?;
                false
            }
            Ok(room) => self.post(Call::EpPostRecv, name.party, &args, room)?,
            // Two errors at once.
            Err(_) => false,
        };
        match posted {
            true => self.world.post_receive(name, receive),
            false => self.world.parties[name.party].memory.give_back(buffer),
        }
        self.settle_after_post(name)
    }

    pub(super) fn post_send(&mut self, name: EpName, len: u8, flags: u8) -> Same {
        if self.world.find(name).is_none() || self.is_race(name)? {
            return Ok(());
        }
        let from = usize::from(len) * 8;
        self.post_request(name, flags, |_| Posted {
            call: Call::EpPostSend,
            kind: Kind::Send { from },
            at: from,
            len: length(len),
            flags: SUPPRESS | SOLICITED_WAIT | UNSIGNALLED | BARRIER_FENCE,
            target: (0, 0),
        })
    }

    pub(super) fn post_write(&mut self, name: EpName, len: u8, flags: u8, at: u8) -> Same {
        let from = usize::from(len) * 8;
        let (to, len) = range(length(len), at);
        self.post_request(name, flags, |target| Posted {
            call: Call::EpPostRdmaWrite,
            kind: Kind::Write { from, to },
            at: from,
            len,
            flags: SUPPRESS | UNSIGNALLED | BARRIER_FENCE,
            target: (target.1 + to as i64, target.0),
        })
    }

    pub(super) fn post_read(&mut self, name: EpName, len: u8, flags: u8, at: u8) -> Same {
        if self.world.find(name).is_none() {
            return Ok(());
        }
        let Some(buffer) = self.world.parties[name.party].memory.take() else {
            return Ok(());
        };
        let (from, len) = range(length(len), at);
        // Its buffer is free with its event, so there has to be one.
        self.post_request(name, flags & !(SUPPRESS as u8), |target| Posted {
            call: Call::EpPostRdmaRead,
            kind: Kind::Read { from, buffer },
            at: memory::buffer_offset(buffer),
            len,
            flags: UNSIGNALLED | BARRIER_FENCE,
            target: (target.1 + from as i64, target.0),
        })
    }

    /// With a key that does not exist.
    pub(super) fn post_forbidden(&mut self, name: EpName, read: bool) -> Same {
        self.post_request(name, 0, |target| Posted {
            call: if read {
                Call::EpPostRdmaRead
            } else {
                Call::EpPostRdmaWrite
            },
            kind: Kind::Forbidden,
            at: 0,
            len: 8,
            flags: 0,
            target: (target.1, target.0 ^ 0x55),
        })
    }

    /// Posts a request; `make` gets the key and the address of the area of the peer.
    fn post_request(
        &mut self,
        name: EpName,
        flags: u8,
        make: impl Fn((i64, i64)) -> Posted,
    ) -> Same {
        let Some(ep) = self.world.find(name) else {
            return Ok(());
        };
        // Without a peer there is nothing that it could reach; it is flushed, or refused.
        let peer = ep.peer.unwrap_or(EpName {
            party: 1 - name.party,
            slot: 0,
        });
        let configured = ep.created.request_evd == evd::UNSIGNALLED;
        let (key, memory) = self.library.targets[peer.party];
        let posted = make((key, memory + memory::area_offset(peer.slot) as i64));
        let flags = i64::from(flags) & posted.flags;
        let cookie = self.world.number();
        let args = [
            name.slot as i64,
            posted.at as i64,
            posted.len as i64,
            cookie,
            flags,
            posted.target.0,
            posted.target.1,
        ];
        let request = Request {
            cookie,
            kind: posted.kind,
            len: posted.len,
            suppressed: flags & SUPPRESS != 0,
        };
        let bad_flags = flags & UNSIGNALLED != 0 && !configured;
        let success = match self.world.may_request(name) {
            Ok(_) if bad_flags => {
                self.must(posted.call, name.party, &args, Code::INVALID_PARAMETER)?;
                false
            }
            Ok(room) => self.post(posted.call, name.party, &args, room)?,
            Err(code) if !bad_flags => {
                self.must(posted.call, name.party, &args, code)?;
                false
            }
            // Two errors at once.
            Err(_) => false,
        };
        if success {
            self.world.post_request(name, request);
        } else if let Kind::Read { buffer, .. } = posted.kind {
            self.world.parties[name.party].memory.give_back(buffer);
        }
        self.settle_after_post(name)
    }

    /// A connection that breaks, or ends gracefully, does so before the next step.
    fn settle_after_post(&mut self, name: EpName) -> Same {
        match self.state(name) {
            Some(State::Disconnected) => self.settle_both(name),
            _ => Ok(()),
        }
    }

    /// Whether this message and others of other endpoints would race for the buffers of an SRQ.
    fn is_race(&mut self, name: EpName) -> Result<bool, String> {
        let Some(peer) = self
            .world
            .ep(name)
            .peer
            .filter(|_| self.world.ep(name).moves_data())
        else {
            return Ok(false);
        };
        let Some(srq) = self.world.ep(peer).created.srq else {
            return Ok(false);
        };
        let others = self.world.parties[1 - peer.party].eps.iter().flatten();
        let waits = others.filter(|ep| ep.moves_data()).any(|ep| {
            let to = ep.peer.filter(|&to| to != peer).map(|to| self.world.ep(to));
            to.is_some_and(|to| to.created.srq == Some(srq)) && !ep.requests.is_empty()
        });
        if !waits {
            self.settle_srq(peer.party, srq)?;
        }
        Ok(waits)
    }
}

/// A range of bytes in the area of a peer.
fn range(len: usize, at: u8) -> (usize, usize) {
    let at = usize::from(at) * 4 % AREA;
    (at, len.min(AREA - at))
}

const _: () = assert!(PATTERN >= 255 * 8 + BUFFER);
