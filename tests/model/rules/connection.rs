//! Connections: how endpoints get into and out of them.

use super::ep::{EpName, State};
use super::evd::{Event, Stream, number};
use super::{ConnectionRequest, World, memory};

impl World {
    /// `dat_ep_connect` has succeeded, to the PSP of the other party.
    pub fn connect(&mut self, name: EpName, number: i64) {
        let other = 1 - name.party;
        self.ep_mut(name).state = State::ActiveConnectionPending;
        if self.parties[other].listens.is_none() {
            self.refuse(name, number::NON_PEER_REJECTED);
            return;
        }
        self.parties[other].requests.push(ConnectionRequest {
            number,
            from: Some(name),
            cr: None,
        });
    }

    /// The attempt of this endpoint has failed.
    fn refuse(&mut self, name: EpName, number: i64) {
        self.flush(name);
        self.ep_mut(name).state = State::Disconnected;
        self.report_connection(name, number);
    }

    /// `dat_cr_accept` has succeeded.
    pub fn accept(&mut self, name: EpName, request: usize) {
        let request = self.parties[name.party].requests.remove(request);
        let active = request.from.expect("the active end waits");
        for (end, peer) in [(active, name), (name, active)] {
            let ep = self.ep_mut(end);
            ep.state = State::Connected;
            ep.peer = Some(peer);
            self.parties[end.party].memory.areas[end.slot] = Some(vec![0; memory::AREA]);
            self.report_connection(end, number::ESTABLISHED);
        }
    }

    /// `dat_cr_reject` has succeeded.
    pub fn reject(&mut self, party: usize, request: usize) {
        let request = self.parties[party].requests.remove(request);
        if let Some(active) = request.from {
            self.refuse(active, number::PEER_REJECTED);
        }
    }

    /// `dat_ep_disconnect` has succeeded.
    pub fn disconnect(&mut self, name: EpName, graceful: bool) {
        match self.ep(name).state {
            State::Connected if graceful => {
                self.ep_mut(name).state = State::DisconnectPending;
                self.progress(name);
            }
            State::DisconnectPending if graceful => {}
            State::Connected | State::DisconnectPending => {
                self.doubt(name);
                self.end(name, number::DISCONNECTED);
            }
            State::ActiveConnectionPending => {
                self.withdraw(name);
                self.refuse(name, number::DISCONNECTED);
            }
            State::Disconnected | State::Unconnected => {}
        }
    }

    /// The endpoint is about to be freed.
    pub(super) fn abandon(&mut self, name: EpName) {
        match self.ep(name).state {
            State::Connected | State::DisconnectPending => {
                self.doubt(name);
                self.end(name, number::DISCONNECTED);
            }
            State::ActiveConnectionPending => self.withdraw(name),
            State::Disconnected | State::Unconnected => {}
        }
        // The one that it was connected with keeps its state.
        if let Some(peer) = self.ep(name).peer
            && self.find(peer).is_some_and(|ep| ep.peer == Some(name))
        {
            self.ep_mut(peer).peer = None;
        }
    }

    /// The attempt of this endpoint is given up.
    fn withdraw(&mut self, name: EpName) {
        for request in &mut self.parties[1 - name.party].requests {
            if request.from == Some(name) {
                request.from = None;
            }
        }
    }

    /// The connection ends, by this end.
    pub(super) fn end(&mut self, name: EpName, event: i64) {
        let peer = self.ep(name).peer.expect("it is connected");
        // What the peer has sent may not have arrived.
        self.doubt(peer);
        for end in [name, peer] {
            self.flush(end);
            self.ep_mut(end).state = State::Disconnected;
            self.report_connection(end, event);
            if self.ep(end).created.srq.is_some() {
                self.report_error(end.party, Stream::EpErrors(end.slot), number::EP_BROKEN);
            }
        }
    }

    /// The connection breaks, by a request of this end.
    pub(super) fn break_by(&mut self, name: EpName) {
        self.end(name, number::BROKEN);
    }

    fn report_connection(&mut self, name: EpName, number: i64) {
        let event = Event {
            number,
            ..Event::default()
        };
        self.report(name, Stream::Connection(name.slot), event);
    }
}
