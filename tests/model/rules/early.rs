//! Paths where a send completes before the peer has a receive for it.
//!
//! RDMA operations that were posted after it are executed then, although the send still waits, and
//! all of their completions may be there before those of the model.

use super::World;
use super::ep::{EpName, Kind, Request};
use super::evd::{Event, Stream, number, status};

impl World {
    /// A request was posted, perhaps behind sends that wait.
    pub(super) fn execute_early(&mut self, name: EpName, request: Request) {
        let ep = self.ep(name);
        let waits = ep.moves_data()
            && ep
                .requests
                .back()
                .is_some_and(|r| r.cookie == request.cookie);
        if !waits {
            return;
        }
        if request.kind == Kind::Forbidden {
            self.fail_early(name);
            return;
        }
        let peer = self.ep(name).peer.expect("it is connected");
        let contents = self.access(name, peer, &request);
        let event = Event {
            number: number::DTO_COMPLETION,
            cookie: request.cookie,
            statuses: if request.suppressed {
                0
            } else {
                status::SUCCESS
            },
            length: request.len,
            contents,
            buffer: request.buffer(),
            read_from: request.read_from(),
            optional: true,
            early: true,
            ..Event::default()
        };
        self.report(name, Stream::Requests(name.slot), event);
    }

    /// The last request breaks the connection, and those before it have completed or not.
    fn fail_early(&mut self, name: EpName) {
        let mut requests = std::mem::take(&mut self.ep_mut(name).requests);
        let last = requests.pop_back().expect("the one that was posted");
        for request in requests {
            self.complete_request(name, request, status::SUCCESS | status::FLUSHED, None);
        }
        self.ep_mut(name).requests.push_back(last);
        self.fail(name, status::REMOTE_ACCESS);
    }

    /// Whether a request was executed when it was posted.
    pub(super) fn was_executed(&mut self, name: EpName, request: &Request) -> bool {
        self.early
            && (self.ep(name).seen_early.contains(&request.cookie)
                || self
                    .events(name, Stream::Requests(name.slot))
                    .any(|event| event.cookie == request.cookie))
    }

    /// An event was dequeued, of this endpoint.
    pub fn dequeued(&mut self, name: EpName, event: &Event) {
        self.ep_mut(name).seen_early.extend(&event.passed);
    }

    /// The time of a completion has come that may have been there before. Says whether the model
    /// has or had its event.
    pub(super) fn settle_early(&mut self, name: EpName, request: &Request, statuses: u32) -> bool {
        let order = self.tick();
        let cookie = request.cookie;
        let mut known = false;
        for event in self.events(name, Stream::Requests(name.slot)) {
            if event.cookie == cookie {
                known = true;
                event.early = false;
                event.optional = request.suppressed;
                event.order = order;
                if statuses != status::SUCCESS {
                    event.statuses |= statuses;
                }
            }
        }
        known || self.ep_mut(name).seen_early.remove(&cookie)
    }
}
