//! Calls to the handlers of the consumer, collected while locks are held and made afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::event_order::SetupGuard;
use crate::device::connection_log::LogEntry;
use crate::device::{CmEvent, QpHandler, QueuePair};
use crate::handle::{Guard, pin};

/// A completion queue that has something for its handler.
pub(crate) trait CqUpcalls: Send + Sync {
    /// A completion arrived that the consumer is to be notified of.
    fn notify(&self);
    /// A completion was lost because the queue was full.
    fn overflow(&self);
}

/// A shared receive queue that has something for its handler.
pub(crate) trait SrqUpcalls: Send + Sync {
    /// Fewer buffers are left than the consumer has set.
    fn limit(&self);
}

/// A listener that gets requests of the kind `R`.
pub(crate) trait RequestUpcall<R>: Send + Sync {
    /// A peer asks for a connection.
    fn deliver(&self, request: R);
}

/// A connection with requests that wait to be sent together with later ones.
pub(crate) trait Coalescer: Send + Sync {
    /// Sends them; `late` if no consumer polled in time. The engine has the connection no longer in
    /// its list. Takes the lock of the queue pair.
    fn send_coalesced(&self, late: bool, up: &mut Upcalls);
}

/// What the handler of a queue pair is to be called for.
enum Event {
    /// The connection of the queue pair is up, which then starts to receive. Ends of other
    /// connections may wait until the handler has returned.
    Established(Box<[u8]>, Weak<dyn QueuePair>, Option<SetupGuard>),
    /// Any other change of the connection.
    Connection(CmEvent),
    SoftWatermark,
    /// An entry of the log, written before the next event is delivered.
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
    /// The queue pair is destroyed: there are no further events.
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

/// The calls to make. Mostly none: then this is a null pointer.
#[derive(Default)]
#[must_use]
pub(crate) struct Upcalls(Option<Box<Calls>>);

#[derive(Default)]
struct Calls {
    notify: Vec<Arc<dyn CqUpcalls>>,
    overflow: Vec<Arc<dyn CqUpcalls>>,
    events: Vec<Arc<Events>>,
    limits: Vec<Arc<dyn SrqUpcalls>>,
    requests: Vec<Box<dyn FnOnce()>>,
    send: Option<Arc<dyn Coalescer>>,
}

fn add<T: ?Sized>(list: &mut Vec<Arc<T>>, item: &Arc<T>) {
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
    pub(crate) fn notify<C: CqUpcalls + 'static>(&mut self, cq: &Arc<C>) {
        let cq: Arc<dyn CqUpcalls> = cq.clone();
        add(&mut self.calls().notify, &cq);
    }

    /// One call for each completion that is lost, however many are lost at once.
    #[cold]
    pub(crate) fn overflow<C: CqUpcalls + 'static>(&mut self, cq: &Arc<C>) {
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
        handshake: Option<SetupGuard>,
    ) {
        events.push(Event::Established(private_data, qp, handshake));
        add(&mut self.calls().events, events);
    }

    /// An entry of the log, written before the events that are queued later.
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
    pub(crate) fn limit<S: SrqUpcalls + 'static>(&mut self, srq: &Arc<S>) {
        let srq: Arc<dyn SrqUpcalls> = srq.clone();
        add(&mut self.calls().limits, &srq);
    }

    pub(crate) fn request<R: 'static>(
        &mut self,
        listener: Arc<impl RequestUpcall<R> + 'static>,
        request: R,
    ) {
        let call = move || listener.deliver(request);
        self.calls().requests.push(Box::new(call));
    }

    /// Another connection is to send its coalesced requests, which takes its lock.
    #[cold]
    pub(crate) fn send(&mut self, gatherer: Arc<dyn Coalescer>) {
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
        self.overflow.iter().for_each(|cq| cq.overflow());
        self.notify.iter().for_each(|cq| cq.notify());
        self.limits.iter().for_each(|srq| srq.limit());
        self.events.iter().for_each(|e| e.hand_over());
        self.requests.into_iter().for_each(|deliver| deliver());
        if let Some(gatherer) = self.send {
            let mut up = Upcalls::default();
            gatherer.send_coalesced(false, &mut up);
            up.run();
        }
    }
}
