//! EVDs: which events there are, and in which order.

use std::collections::{BTreeMap, VecDeque};

/// EVDs of a party.
pub const EVDS: usize = 8;
/// Has the asynchronous events of the IA.
pub const ASYNC: usize = 0;
/// Has software events only.
pub const SOFTWARE: usize = 1;
/// Has the connection requests of the PSP.
pub const REQUESTS: usize = 2;
/// Has connection events of endpoints.
pub const CONNECTIONS: usize = 3;
/// Has completions of endpoints; so have 5 and 6.
pub const COMPLETIONS: usize = 4;
/// Has completions and connection events of endpoints.
pub const MIXED: usize = 6;
/// Has completions of requests, which may be unsignalled.
pub const UNSIGNALLED: usize = 7;

/// What each EVD is created with: length, and `DAT_EVD_*_FLAG`.
pub const CREATED: [(i64, i64); EVDS] = [
    (16, FLAG_ASYNC),
    (4, FLAG_SOFTWARE),
    (64, FLAG_CR),
    (64, FLAG_CONNECTION),
    (256, FLAG_DTO),
    (256, FLAG_DTO),
    (256, FLAG_DTO | FLAG_CONNECTION),
    (256, FLAG_DTO),
];

const FLAG_SOFTWARE: i64 = 0x1;
const FLAG_CR: i64 = 0x10;
const FLAG_DTO: i64 = 0x20;
const FLAG_CONNECTION: i64 = 0x40;
const FLAG_ASYNC: i64 = 0x100;

/// Events of one origin, which arrive in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// The receives of the endpoint in this place.
    Receives(usize),
    /// Its sends and RDMA operations.
    Requests(usize),
    /// Its connection.
    Connection(usize),
    /// `dat_evd_post_se`.
    Software,
    /// The asynchronous errors of the endpoint in this place.
    EpErrors(usize),
    /// Those of the SRQ in this place.
    SrqErrors(usize),
    /// Asynchronous errors of objects that are not there any more.
    Errors,
    /// Errors of an endpoint of the other party, which has the IA open in the same process.
    OtherEpErrors(usize),
    /// Low watermarks of an SRQ of the other party, which has the IA open in the same process.
    OtherSrqErrors(usize),
}

impl Stream {
    /// The endpoint whose connection the events are of.
    fn ep(self) -> Option<usize> {
        match self {
            Stream::Receives(ep) | Stream::Requests(ep) | Stream::Connection(ep) => Some(ep),
            _ => None,
        }
    }

    /// The stream in which the other party of the process has these asynchronous errors.
    pub(super) fn of_the_other_party(self) -> Stream {
        match self {
            Stream::EpErrors(ep) => Stream::OtherEpErrors(ep),
            Stream::SrqErrors(srq) => Stream::OtherSrqErrors(srq),
            _ => unreachable!("no asynchronous errors of an object"),
        }
    }
}

/// `DAT_EVENT_NUMBER`.
pub mod number {
    pub const DTO_COMPLETION: i64 = 0x1;
    pub const ESTABLISHED: i64 = 0x4001;
    pub const PEER_REJECTED: i64 = 0x4002;
    pub const NON_PEER_REJECTED: i64 = 0x4003;
    pub const DISCONNECTED: i64 = 0x4005;
    pub const BROKEN: i64 = 0x4006;
    /// `DAT_ASYNC_ERROR_EP_BROKEN`, of an endpoint that takes no more buffers of its SRQ.
    pub const EP_BROKEN: i64 = 0x8003;
    /// `DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR`, with the reason `DAT_SRQ_LOW_WATERMARK_EVENT`:
    /// there is no number for this.
    pub const LOW_WATERMARK: i64 = 0x8005;
    pub const SOFTWARE: i64 = 0x1_0001;
}

/// `DAT_DTO_COMPLETION_STATUS`, and sets of them as bits.
pub mod status {
    pub const SUCCESS: u32 = 1 << 0;
    pub const FLUSHED: u32 = 1 << 1;
    pub const LOCAL_LENGTH: u32 = 1 << 2;
    pub const REMOTE_ACCESS: u32 = 1 << 6;
    pub const REMOTE_RESPONDER: u32 = 1 << 7;
}

/// What the library has to report.
#[derive(Clone, Debug, Default)]
pub struct Event {
    pub number: i64,
    /// Of a completion: that of the request. Of a software event: its pointer.
    pub cookie: i64,
    /// Of a completion: those that are right.
    pub statuses: u32,
    /// Of a completion with success.
    pub length: usize,
    /// Of a receive or a read with success: what its buffer holds, if that is known.
    pub contents: Option<Vec<u8>>,
    /// The buffer that is free when the event was dequeued.
    pub buffer: Option<usize>,
    /// Of a read: where in the area of the peer it begins.
    pub read_from: Option<usize>,
    /// The SRQ whose buffer this was.
    pub srq: Option<usize>,
    /// The library may leave it out.
    pub optional: bool,
    /// It may be there, although its time has not come.
    pub early: bool,
    /// Cookies of those before it that were early, and gave no event: with it they are complete.
    pub passed: Vec<i64>,
    /// When this happened; see [`World`](super::World).
    pub order: u64,
}

/// An event that was dequeued.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    pub number: i64,
    /// Place of the endpoint (of an asynchronous event: of the SRQ); -1 for none that is known.
    pub object: i64,
    pub cookie: i64,
    pub status: i64,
    pub length: i64,
}

/// An EVD.
pub struct Evd {
    /// Events that fit.
    pub length: i64,
    pub waitable: bool,
    streams: BTreeMap<Stream, VecDeque<Event>>,
}

/// The EVDs of a party that has just begun.
pub fn all() -> [Option<Evd>; EVDS] {
    CREATED.map(|(length, _)| Some(Evd::new(length)))
}

impl Evd {
    pub fn new(length: i64) -> Evd {
        Evd {
            length,
            waitable: true,
            streams: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, stream: Stream, event: Event) {
        self.streams.entry(stream).or_default().push_back(event);
    }

    /// How many events there are, and how many there may be besides.
    pub fn count(&self) -> (usize, usize) {
        let all = self.streams.values().flatten();
        let due = all.clone().filter(|event| !event.optional).count();
        let never = |event: &&Event| event.number == number::DTO_COMPLETION && event.statuses == 0;
        (
            due,
            all.filter(|event| event.optional && !never(event)).count(),
        )
    }

    /// The events that are due, for messages.
    pub fn describe(&self) -> String {
        let all = self
            .streams
            .iter()
            .flat_map(|(stream, events)| events.iter().map(move |event| (stream, event)));
        let due = all.filter(|(_, event)| !event.optional);
        let due =
            due.map(|(stream, event)| format!("{stream:?} {:#x} {}", event.number, event.cookie));
        due.collect::<Vec<_>>().join(", ")
    }

    /// The events of a stream.
    pub fn events(&mut self, stream: Stream) -> impl Iterator<Item = &mut Event> {
        self.streams.get_mut(&stream).into_iter().flatten()
    }

    /// The object of the errors in this stream is gone: they may still be there, of an object that
    /// nobody knows.
    pub fn orphan(&mut self, stream: Stream) {
        for mut event in self.streams.remove(&stream).into_iter().flatten() {
            event.optional = true;
            self.push(Stream::Errors, event);
        }
    }

    /// Takes away all events of an endpoint's connections.
    pub fn purge(&mut self, ep: usize) -> Vec<Event> {
        let mut gone = Vec::new();
        self.streams.retain(|stream, events| {
            let keep = stream.ep() != Some(ep);
            if !keep {
                gone.extend(events.drain(..));
            }
            keep
        });
        gone
    }

    /// Takes the event that was dequeued.
    ///
    /// # Errors
    /// Why there is no such event now.
    pub fn take(&mut self, seen: &Observed) -> Result<Event, String> {
        let mut reasons = Vec::new();
        let streams: Vec<Stream> = self.streams.keys().copied().collect();
        for stream in streams {
            match self.take_from(stream, seen) {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(reason) => reasons.push(format!("{stream:?}: {reason}")),
            }
        }
        Err(format!(
            "unexpected event {seen:?} ({})",
            reasons.join("; ")
        ))
    }

    fn take_from(&mut self, stream: Stream, seen: &Observed) -> Result<Option<Event>, String> {
        if !fits(stream, seen) {
            return Ok(None);
        }
        let before = self.completions_before(stream);
        let Some(events) = self.streams.get_mut(&stream) else {
            return Ok(None);
        };
        // Those that may be left out were left out if a later one is there.
        let Some(place) = events.iter().position(|event| {
            let skipped = event.optional && !(event.early && event.statuses != 0);
            !skipped || matches(event, seen).is_ok()
        }) else {
            return Err("no event is due".into());
        };
        let event = &events[place];
        matches(event, seen)?;
        if let Some(order) = before
            && order < event.order
            && matches!(event.number, number::DISCONNECTED | number::BROKEN)
        {
            return Err("the end of the connection before its completions".into());
        }
        let mut event = event.clone();
        let passed = events.drain(..=place).filter(|event| event.early);
        event.passed = passed.map(|event| event.cookie).collect();
        if events.is_empty() {
            self.streams.remove(&stream);
        }
        Ok(Some(event))
    }

    /// When the oldest completion happened, of those that are queued here and have to be dequeued
    /// before the end of this connection.
    fn completions_before(&self, stream: Stream) -> Option<u64> {
        let Stream::Connection(ep) = stream else {
            return None;
        };
        let both = [Stream::Receives(ep), Stream::Requests(ep)];
        let all = both.iter().filter_map(|stream| self.streams.get(stream));
        let due = all.flatten().filter(|event| !event.optional);
        due.map(|event| event.order).min()
    }
}

/// Whether an event can be of this stream.
fn fits(stream: Stream, seen: &Observed) -> bool {
    match stream {
        Stream::Receives(ep) | Stream::Requests(ep) => {
            seen.number == number::DTO_COMPLETION && seen.object == ep as i64
        }
        Stream::Connection(ep) => seen.number >> 12 == 4 && seen.object == ep as i64,
        Stream::Software => seen.number == number::SOFTWARE,
        Stream::EpErrors(ep) => seen.number == number::EP_BROKEN && seen.object == ep as i64,
        Stream::SrqErrors(srq) => seen.number == number::LOW_WATERMARK && seen.object == srq as i64,
        Stream::Errors => seen.number >> 12 == 8 && seen.object == -1,
        Stream::OtherEpErrors(_) => seen.number == number::EP_BROKEN && seen.object == -1,
        Stream::OtherSrqErrors(_) => seen.number == number::LOW_WATERMARK && seen.object == -1,
    }
}

/// Whether this is what was dequeued.
fn matches(event: &Event, seen: &Observed) -> Result<(), String> {
    if event.number != seen.number || event.cookie != seen.cookie {
        return Err(format!("next is {:#x} of {}", event.number, event.cookie));
    }
    if event.number != number::DTO_COMPLETION {
        return Ok(());
    }
    let seen_status = 1 << seen.status;
    if event.statuses & seen_status == 0 {
        return Err(format!("status {}, of {:#b}", seen.status, event.statuses));
    }
    if seen_status == status::SUCCESS && event.length as i64 != seen.length {
        return Err(format!("length {}, not {}", seen.length, event.length));
    }
    Ok(())
}
