//! Calls to the handlers of the consumer, collected while locks are held and made afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::cm::listener::{ConnRequest, Listening};
use super::cq::Cq;
use super::engine::coalesced::Gatherer;
use super::engine::event_order::Handshake;
use super::qp::srq::Srq;
use crate::device::connection_log::LogEntry;
use crate::device::{CmEvent, QpHandler, QueuePair};
use crate::handle::{Guard, pin};

/// What is to be told about a queue pair.
enum Event {
    /// The connection of the queue pair is up, which then starts to receive. Ends of other
    /// connections may wait until this was told.
    Established(Box<[u8]>, Weak<dyn QueuePair>, Option<Handshake>),
    /// Any other change of the connection.
    Connection(CmEvent),
    SoftWatermark,
    /// Not for the consumer but for the log, which says what happened before the consumer is told.
    Log(LogEntry),
}

/// The events of a queue pair. They are handed over one by one and in order, whichever threads
/// find them.
pub(crate) struct Events {
    handler: Arc<dyn QpHandler>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Event>,
    /// A thread is handing events over; it will see what is added.
    busy: bool,
    /// The queue pair is gone: no further events.
    closed: bool,
}

impl Events {
    pub(crate) fn new(handler: Arc<dyn QpHandler>) -> Arc<Events> {
        Arc::new(Events {
            handler,
            state: Mutex::default(),
        })
    }

    fn push(&self, event: Event) {
        let mut state = self.state.lock();
        if !state.closed {
            state.queue.push_back(event);
        }
    }

    /// Forgets events that were not handed over; the log has them all the same.
    pub(crate) fn clear(&self) {
        let queue = std::mem::take(&mut self.state.lock().queue);
        for event in queue {
            if let Event::Log(line) = event {
                line.write();
            }
        }
    }

    /// Nothing is handed over from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.clear();
    }

    fn hand_over(&self) {
        let mut state = self.state.lock();
        if state.busy {
            return;
        }
        state.busy = true;
        while let Some(event) = state.queue.pop_front() {
            drop(state);
            match event {
                Event::Established(private_data, qp, handshake) => {
                    self.handler
                        .connection(CmEvent::Established { private_data });
                    if let Some(qp) = qp.upgrade() {
                        qp.start_receiving();
                    }
                    drop(handshake);
                }
                Event::Connection(event) => self.handler.connection(event),
                Event::SoftWatermark => self.handler.soft_watermark(),
                Event::Log(line) => line.write(),
            }
            state = self.state.lock();
        }
        state.busy = false;
    }
}

/// What is to be called. Mostly nothing: then there is only a null pointer to look at.
#[derive(Default)]
#[must_use]
pub(crate) struct Upcalls(Option<Box<Calls>>);

#[derive(Default)]
struct Calls {
    notify: Vec<Arc<Cq>>,
    overflow: Vec<Arc<Cq>>,
    events: Vec<Arc<Events>>,
    limits: Vec<Arc<Srq>>,
    requests: Vec<(Arc<Listening>, ConnRequest)>,
    send: Option<Arc<dyn Gatherer>>,
}

fn add<T>(list: &mut Vec<Arc<T>>, item: &Arc<T>) {
    if !list.iter().any(|i| Arc::ptr_eq(i, item)) {
        list.push(item.clone());
    }
}

impl Upcalls {
    #[cold]
    fn calls(&mut self) -> &mut Calls {
        self.0.get_or_insert_default()
    }

    #[cold]
    pub(crate) fn notify(&mut self, cq: &Arc<Cq>) {
        add(&mut self.calls().notify, cq);
    }

    /// Each completion that is lost is told of, however many are queued at once.
    #[cold]
    pub(crate) fn overflow(&mut self, cq: &Arc<Cq>) {
        self.calls().overflow.push(cq.clone());
    }

    pub(crate) fn event(&mut self, events: &Arc<Events>, event: CmEvent) {
        events.push(Event::Connection(event));
        add(&mut self.calls().events, events);
    }

    pub(crate) fn established(
        &mut self,
        events: &Arc<Events>,
        qp: Weak<dyn QueuePair>,
        private_data: Box<[u8]>,
        handshake: Option<Handshake>,
    ) {
        events.push(Event::Established(private_data, qp, handshake));
        add(&mut self.calls().events, events);
    }

    /// The log is to have a line before what is queued next.
    pub(crate) fn log(&mut self, events: &Arc<Events>, line: Option<LogEntry>) {
        if let Some(line) = line {
            events.push(Event::Log(line));
            add(&mut self.calls().events, events);
        }
    }

    #[cold]
    pub(crate) fn soft_watermark(&mut self, events: &Arc<Events>) {
        events.push(Event::SoftWatermark);
        add(&mut self.calls().events, events);
    }

    #[cold]
    pub(crate) fn limit(&mut self, srq: &Arc<Srq>) {
        add(&mut self.calls().limits, srq);
    }

    pub(crate) fn request(&mut self, listening: Arc<Listening>, request: ConnRequest) {
        self.calls().requests.push((listening, request));
    }

    /// Another connection is to send what it has gathered, which takes its lock.
    #[cold]
    pub(crate) fn send(&mut self, gatherer: Arc<dyn Gatherer>) {
        self.calls().send = Some(gatherer);
    }

    /// Makes the calls when the read-side section of the caller ends.
    #[inline]
    pub(super) fn run_after(self, _section: &Guard) {
        if let Some(calls) = self.0 {
            pin::outside(move || calls.run());
        }
    }

    /// Makes the calls. The caller holds no lock and is in no read-side section.
    #[inline(always)]
    pub(crate) fn run(self) {
        if let Some(calls) = self.0 {
            calls.run();
        }
    }
}

impl Calls {
    #[cold]
    #[inline(never)]
    fn run(self) {
        // Completions come before the event that ends their connection, so their queues do.
        self.overflow.iter().for_each(|cq| cq.handler().overflow());
        self.notify.iter().for_each(|cq| cq.handler().notify());
        self.limits.iter().for_each(|srq| srq.handler().limit());
        self.events.iter().for_each(|e| e.hand_over());
        for (listening, request) in self.requests {
            listening.hand_over(request);
        }
        if let Some(gatherer) = self.send {
            let mut up = Upcalls::default();
            gatherer.send_gathered(false, &mut up);
            up.run();
        }
    }
}
