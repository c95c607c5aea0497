//! Calls to the handlers of the consumer, collected while locks are held and made afterwards.

use std::sync::{Arc, Weak};

use super::event_order::SetupGuard;
use crate::device::connection_log::LogEntry;
use crate::device::events::{EventQueue, QpEvent};
use crate::device::{CmEvent, QueuePair};
use crate::handle::{Guard, pin};
use crate::{delay, errno};

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

/// The calls to make. Mostly none: then this is a null pointer.
#[derive(Default)]
#[must_use]
pub(crate) struct Upcalls(Option<Box<Calls>>);

#[derive(Default)]
struct Calls {
    notify: Vec<Arc<dyn CqUpcalls>>,
    overflow: Vec<Arc<dyn CqUpcalls>>,
    events: Vec<Arc<EventQueue>>,
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

    pub(crate) fn event(&mut self, events: &Arc<EventQueue>, event: CmEvent) {
        events.push(QpEvent::Connection(event));
        add(&mut self.calls().events, events);
    }

    pub(crate) fn established(
        &mut self,
        events: &Arc<EventQueue>,
        qp: Weak<dyn QueuePair>,
        private_data: Box<[u8]>,
        handshake: Option<SetupGuard>,
    ) {
        events.push(QpEvent::Established {
            private_data,
            qp,
            until_delivered: handshake.map(|guard| Box::new(guard) as Box<dyn Send>),
        });
        add(&mut self.calls().events, events);
    }

    /// An entry of the log, written before the events that are queued later.
    pub(crate) fn log(&mut self, events: &Arc<EventQueue>, line: Option<LogEntry>) {
        if let Some(line) = line {
            events.push(QpEvent::Log(line));
            add(&mut self.calls().events, events);
        }
    }

    #[cold]
    pub(crate) fn soft_watermark(&mut self, events: &Arc<EventQueue>) {
        events.push(QpEvent::SoftWatermark);
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

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
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

impl Upcalls {
    /// [`Upcalls::run`] that leaves `errno` as it is.
    #[inline(always)]
    pub(crate) fn run_rarely(self) {
        if self.0.is_some() {
            run_apart(self);
        }
    }
}

#[cold]
#[inline(never)]
fn run_apart(up: Upcalls) {
    errno::kept(|| up.run());
}

impl Calls {
    #[cold]
    #[inline(never)]
    fn run(self) {
        // Completions come before the event that ends their connection, so their queues do.
        self.overflow.iter().for_each(|cq| {
            delay::point("upcall.overflow");
            cq.overflow();
        });
        self.notify.iter().for_each(|cq| {
            delay::point("upcall.cq");
            cq.notify();
        });
        self.limits.iter().for_each(|srq| {
            delay::point("upcall.srq");
            srq.limit();
        });
        self.events.iter().for_each(|events| events.deliver());
        self.requests.into_iter().for_each(|deliver| {
            delay::point("upcall.request");
            deliver();
        });
        if let Some(gatherer) = self.send {
            let mut up = Upcalls::default();
            gatherer.send_coalesced(false, &mut up);
            up.run();
        }
    }
}
