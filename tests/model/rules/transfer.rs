//! Transfers: when requests and receives complete, and with what.

use std::ops::Range;

use super::World;
use super::ep::{EpName, Kind, Receive, Request, State};
use super::evd::{Event, Stream, number, status};
use super::memory;

impl World {
    /// `dat_ep_post_recv` has succeeded.
    pub fn post_receive(&mut self, name: EpName, receive: Receive) {
        if self.ep(name).state == State::Disconnected {
            self.flush_receive(name, receive);
            return;
        }
        self.ep_mut(name).receives.push_back(receive);
        if let Some(peer) = self.ep(name).peer {
            self.progress(peer);
        }
    }

    /// A post of a request has succeeded.
    pub fn post_request(&mut self, name: EpName, request: Request) {
        if self.ep(name).state == State::Disconnected {
            self.complete_request(name, request, status::FLUSHED, None);
            return;
        }
        self.ep_mut(name).requests.push_back(request);
        self.progress(name);
        if self.early {
            self.execute_early(name, request);
        }
    }

    /// `dat_srq_post_recv` has succeeded.
    pub fn post_shared(&mut self, party: usize, srq: usize, receive: Receive) {
        let queue = self.parties[party].srqs[srq].as_mut();
        queue.expect("the SRQ exists").buffers.push_back(receive);
        for slot in 0..super::EPS {
            let ep = self.parties[party].eps[slot].as_ref();
            if let Some(peer) = ep
                .filter(|ep| ep.created.srq == Some(srq))
                .and_then(|ep| ep.peer)
            {
                self.progress(peer);
            }
        }
    }

    /// Executes the requests of an endpoint, up to one that has to wait for a receive.
    pub(super) fn progress(&mut self, name: EpName) {
        while let Some(request) = self.next_request(name)
            && self.execute(name, request)
        {}
        // A graceful disconnect ends with the last request.
        if self
            .find(name)
            .is_some_and(|ep| ep.state == State::DisconnectPending && ep.requests.is_empty())
        {
            self.end(name, number::DISCONNECTED);
        }
    }

    fn next_request(&self, name: EpName) -> Option<Request> {
        let ep = self.find(name).filter(|ep| ep.moves_data())?;
        let peer = self.find(ep.peer?)?;
        assert!(peer.moves_data(), "both ends of a connection end together");
        ep.requests.front().copied()
    }

    /// Whether the first request was executed, and with success.
    fn execute(&mut self, name: EpName, request: Request) -> bool {
        let peer = self.ep(name).peer.expect("it is connected");
        let mut contents = None;
        match request.kind {
            Kind::Send { from } => {
                let Some((receive, srq)) = self.take_receive(peer) else {
                    return false;
                };
                if receive.len < request.len {
                    self.complete_receive(peer, receive, srq, status::LOCAL_LENGTH, &[]);
                    self.fail(name, status::REMOTE_RESPONDER | status::REMOTE_ACCESS);
                    return false;
                }
                let bytes = memory::pattern(from, request.len);
                self.complete_receive(peer, receive, srq, status::SUCCESS, &bytes);
            }
            // It was executed before its turn.
            _ if self.was_executed(name, &request) => {}
            Kind::Write { .. } | Kind::Read { .. } => {
                contents = self.access(name, peer, &request);
            }
            Kind::Forbidden => {
                self.fail(name, status::REMOTE_ACCESS);
                return false;
            }
        }
        self.ep_mut(name).requests.pop_front();
        self.complete_request(name, request, status::SUCCESS, contents);
        true
    }

    /// A request of an endpoint writes to or reads from the area of the target. Gives what was read.
    pub(super) fn access(
        &mut self,
        name: EpName,
        target: EpName,
        request: &Request,
    ) -> Option<Vec<u8>> {
        if let Kind::Write { to, .. } = request.kind {
            self.blur_reads(name, to..to + request.len);
        }
        let area = self.parties[target.party].memory.areas[target.slot].as_mut()?;
        match request.kind {
            Kind::Write { from, to } => {
                let bytes = memory::pattern(from, request.len);
                area[to..to + request.len].copy_from_slice(&bytes);
                None
            }
            Kind::Read { from, .. } => Some(area[from..from + request.len].to_vec()),
            Kind::Send { .. } | Kind::Forbidden => None,
        }
    }

    /// The endpoint writes to this range, without a fence: its reads of the range that are not known to
    /// have completed have the bytes of before or those of now.
    fn blur_reads(&mut self, name: EpName, range: Range<usize>) {
        for event in self.events(name, Stream::Requests(name.slot)) {
            let end = |from| from + event.length;
            if event
                .read_from
                .is_some_and(|from| from < range.end && range.start < end(from))
            {
                event.contents = None;
            }
        }
    }

    /// The receive that the next message for this endpoint takes, and its SRQ.
    fn take_receive(&mut self, name: EpName) -> Option<(Receive, Option<usize>)> {
        let Some(srq) = self.ep(name).created.srq else {
            let receive = self.ep_mut(name).receives.pop_front()?;
            return Some((receive, None));
        };
        let party = &mut self.parties[name.party];
        let queue = party.srqs[srq].as_mut().expect("an SRQ in use stays");
        let receive = queue.buffers.pop_front()?;
        queue.taken += 1;
        if queue.falls_below() {
            self.report_error(name.party, Stream::SrqErrors(srq), number::LOW_WATERMARK);
        }
        Some((receive, Some(srq)))
    }

    /// `dat_srq_set_lw` has succeeded.
    pub fn set_low_watermark(&mut self, party: usize, srq: usize, mark: usize) {
        let queue = self.parties[party].srqs[srq].as_mut();
        let queue = queue.expect("the SRQ exists");
        queue.low_watermark = Some(mark);
        if queue.falls_below() {
            self.report_error(party, Stream::SrqErrors(srq), number::LOW_WATERMARK);
        }
    }

    /// The first request fails, which breaks the connection.
    pub(super) fn fail(&mut self, name: EpName, mut statuses: u32) {
        if self.early {
            statuses |= status::SUCCESS;
        }
        let request = self.ep_mut(name).requests.pop_front();
        let request = request.expect("there is one that fails");
        self.complete_request(name, request, statuses, None);
        self.break_by(name);
    }

    pub(super) fn complete_request(
        &mut self,
        name: EpName,
        request: Request,
        statuses: u32,
        contents: Option<Vec<u8>>,
    ) {
        let silent = request.suppressed && statuses == status::SUCCESS;
        let ep = self.ep_mut(name);
        if silent {
            ep.unretired += 1;
        } else if statuses == status::SUCCESS {
            ep.unretired = 0;
        }
        if self.early && self.settle_early(name, &request, statuses) {
            return;
        }
        let event = Event {
            number: number::DTO_COMPLETION,
            cookie: request.cookie,
            // One that is never reported, unless the connection ends before it was executed.
            statuses: if silent { 0 } else { statuses },
            length: request.len,
            contents,
            buffer: request.buffer(),
            read_from: request.read_from(),
            optional: silent || request.suppressed && statuses & status::SUCCESS != 0,
            ..Event::default()
        };
        self.report(name, Stream::Requests(name.slot), event);
    }

    fn complete_receive(
        &mut self,
        name: EpName,
        receive: Receive,
        srq: Option<usize>,
        statuses: u32,
        contents: &[u8],
    ) {
        let event = Event {
            number: number::DTO_COMPLETION,
            cookie: receive.cookie,
            statuses,
            length: contents.len(),
            contents: Some(contents.to_vec()),
            buffer: Some(receive.buffer),
            srq,
            ..Event::default()
        };
        self.report(name, Stream::Receives(name.slot), event);
    }

    fn flush_receive(&mut self, name: EpName, receive: Receive) {
        self.complete_receive(name, receive, None, status::FLUSHED, &[]);
    }

    /// Everything that an endpoint has outstanding completes.
    pub(super) fn flush(&mut self, name: EpName) {
        let ep = self.ep_mut(name);
        let receives = std::mem::take(&mut ep.receives);
        let requests = std::mem::take(&mut ep.requests);
        for receive in receives {
            self.flush_receive(name, receive);
        }
        for request in requests {
            self.complete_request(name, request, status::FLUSHED, None);
        }
    }

    /// Messages of this endpoint to its peer may have been under way when the connection ended:
    /// what was not dequeued may be flushed as well.
    pub(super) fn doubt(&mut self, name: EpName) {
        let Some(peer) = self.ep(name).peer.filter(|&peer| self.find(peer).is_some()) else {
            return;
        };
        let mut doubtful = false;
        for event in self.events(name, Stream::Requests(name.slot)) {
            if event.statuses & status::SUCCESS != 0 || event.optional {
                event.statuses |= status::FLUSHED;
                doubtful = true;
            }
        }
        for event in self.events(peer, Stream::Receives(peer.slot)) {
            if event.statuses & status::SUCCESS != 0 {
                event.statuses |= status::FLUSHED;
            }
        }
        if doubtful {
            self.parties[peer.party].memory.areas[peer.slot] = None;
        }
    }
}
