//! The events of a queue pair on their way to its handler: one by one and in the order in which
//! they were queued, whichever threads find them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::delay;
use crate::lock::Mutex;

use super::connection_log::LogEntry;
use super::{CmEvent, QpHandler, QueuePair};

/// An event of a queue pair.
pub(crate) enum QpEvent {
    /// The connection is established. When the handler has returned, the queue pair starts to
    /// receive.
    Established {
        /// Private data of the peer.
        private_data: Box<[u8]>,
        /// The queue pair.
        qp: Weak<dyn QueuePair>,
        /// Dropped when the handler has returned and the queue pair receives.
        until_delivered: Option<Box<dyn Send>>,
    },
    /// Any other change of the connection.
    Connection(CmEvent),
    /// See [`QpHandler::soft_watermark`].
    SoftWatermark,
    /// An entry for the log, which is written before the handler is called for what is queued
    /// behind it. It is written even if the events around it are discarded.
    Log(LogEntry),
}

/// The events of a queue pair that were not delivered yet.
pub(crate) struct EventQueue {
    handler: Arc<dyn QpHandler>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<QpEvent>,
    /// A thread is delivering events; it takes those that are queued meanwhile.
    delivering: bool,
    /// The queue pair was destroyed: nothing but log entries is queued any more.
    closed: bool,
}

impl EventQueue {
    /// A queue that delivers to `handler`.
    pub fn new(handler: Arc<dyn QpHandler>) -> EventQueue {
        EventQueue {
            handler,
            state: Mutex::default(),
        }
    }

    /// Queues an event. The caller may hold locks; it calls [`EventQueue::deliver`] without them.
    pub fn push(&self, event: QpEvent) {
        let mut state = self.state.lock();
        if !state.closed || matches!(event, QpEvent::Log(_)) {
            state.queue.push_back(event);
        }
    }

    /// Calls the handler for what is queued, unless another thread is doing so. The caller holds
    /// no lock.
    pub fn deliver(&self) {
        delay::point("qp.deliver");
        let mut state = self.state.lock();
        if state.delivering {
            return;
        }
        state.delivering = true;
        while let Some(event) = state.queue.pop_front() {
            drop(state);
            delay::point("upcall.qp");
            self.deliver_one(event);
            state = self.state.lock();
        }
        state.delivering = false;
    }

    fn deliver_one(&self, event: QpEvent) {
        match event {
            QpEvent::Established {
                private_data,
                qp,
                until_delivered,
            } => {
                self.handler
                    .connection(CmEvent::Established { private_data });
                if let Some(qp) = qp.upgrade() {
                    qp.start_receiving();
                }
                drop(until_delivered);
            }
            QpEvent::Connection(event) => self.handler.connection(event),
            QpEvent::SoftWatermark => self.handler.soft_watermark(),
            QpEvent::Log(entry) => entry.write(),
        }
    }

    /// Discards the events that were not delivered. The caller holds no lock.
    pub fn clear(&self) {
        let queue = std::mem::take(&mut self.state.lock().queue);
        for event in queue {
            if let QpEvent::Log(entry) = event {
                entry.write();
            }
        }
    }

    /// Discards the events that were not delivered and those that are queued from now on. The
    /// caller holds no lock.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{OnceLock, mpsc::TryRecvError};

    use super::*;
    use crate::device::{DeviceError, PostError, RecvWr, SendWr};
    use crate::handle::Guard;

    /// Reports each call; waits in the first one until it may go on.
    struct Handler {
        calls: Sender<String>,
        gate: Mutex<Option<Receiver<()>>>,
        queue: OnceLock<Weak<EventQueue>>,
    }

    impl QpHandler for Handler {
        fn connection(&self, event: CmEvent) {
            if let CmEvent::TimedOut = event {
                // As a consumer that disconnects in a callback.
                let queue = self.queue.get().and_then(Weak::upgrade).unwrap();
                queue.push(QpEvent::Connection(CmEvent::Broken));
                queue.deliver();
            }
            self.calls.send(format!("{event:?}")).unwrap();
            let gate = self.gate.lock().take();
            if let Some(gate) = gate {
                gate.recv().unwrap();
            }
        }

        fn soft_watermark(&self) {
            self.calls.send("soft watermark".into()).unwrap();
        }
    }

    struct Qp(Sender<String>);

    impl QueuePair for Qp {
        fn post_send_in(&self, _: &SendWr<'_>, _: &Guard) -> Result<(), PostError> {
            Err(PostError::NotConnected)
        }
        fn post_recv_in(&self, _: &RecvWr<'_>, _: &Guard) -> Result<(), PostError> {
            Err(PostError::QueueFull)
        }
        fn start_receiving(&self) {
            self.0.send("receives".into()).unwrap();
        }
        fn disconnect_attempt(&self, _: u64, _: bool) {}
        fn attempt(&self) -> u64 {
            0
        }
        fn reset(&self) -> u32 {
            0
        }
        fn destroy(&self) -> u32 {
            0
        }
        fn send_outstanding(&self) -> u32 {
            0
        }
        fn recv_outstanding(&self) -> u32 {
            0
        }
        fn set_recv_watermarks(&self, _: Option<u32>, _: Option<u32>) -> Result<(), DeviceError> {
            Err(DeviceError::Unsupported)
        }
        fn path(&self) -> Option<String> {
            None
        }
        fn addrs(&self) -> Option<(std::net::SocketAddr, std::net::SocketAddr)> {
            None
        }
    }

    struct Dropped(Sender<String>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send("dropped".into()).unwrap();
        }
    }

    fn queue(gate: Option<Receiver<()>>) -> (Arc<EventQueue>, Sender<String>, Receiver<String>) {
        let (calls, called) = channel();
        let handler = Arc::new(Handler {
            calls: calls.clone(),
            gate: Mutex::new(gate),
            queue: OnceLock::new(),
        });
        let queue = Arc::new(EventQueue::new(handler.clone()));
        let _ = handler.queue.set(Arc::downgrade(&queue));
        (queue, calls, called)
    }

    fn connection(event: CmEvent) -> QpEvent {
        QpEvent::Connection(event)
    }

    #[test]
    fn the_queue_pair_receives_when_the_consumer_was_notified() {
        let (queue, calls, called) = queue(None);
        let qp: Arc<dyn QueuePair> = Arc::new(Qp(calls.clone()));
        queue.push(QpEvent::Established {
            private_data: b"x"[..].into(),
            qp: Arc::downgrade(&qp),
            until_delivered: Some(Box::new(Dropped(calls))),
        });
        queue.push(QpEvent::SoftWatermark);
        queue.push(connection(CmEvent::Disconnected));
        assert_eq!(called.try_recv(), Err(TryRecvError::Empty));
        queue.deliver();
        assert_eq!(
            called.try_iter().collect::<Vec<_>>(),
            [
                "Established { private_data: [120] }",
                "receives",
                "dropped",
                "soft watermark",
                "Disconnected"
            ]
        );
    }

    #[test]
    fn one_thread_delivers_at_a_time() {
        let (go, gate) = channel();
        let (queue, _calls, called) = queue(Some(gate));
        queue.push(connection(CmEvent::Unreachable));
        let first = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.deliver())
        };
        assert_eq!(called.recv().unwrap(), "Unreachable");
        queue.push(connection(CmEvent::Broken));
        // The other thread is still in the handler and goes on with this event.
        queue.deliver();
        assert_eq!(called.try_recv(), Err(TryRecvError::Empty));
        go.send(()).unwrap();
        first.join().unwrap();
        assert_eq!(called.recv().unwrap(), "Broken");
    }

    #[test]
    fn a_handler_may_cause_events() {
        let (queue, _calls, called) = queue(None);
        queue.push(connection(CmEvent::TimedOut));
        queue.deliver();
        assert_eq!(
            called.try_iter().collect::<Vec<_>>(),
            ["TimedOut", "Broken"]
        );
    }

    #[test]
    fn nothing_is_delivered_for_a_queue_pair_that_was_destroyed() {
        let (queue, _calls, called) = queue(None);
        queue.push(connection(CmEvent::Unreachable));
        queue.clear();
        queue.deliver();
        queue.push(connection(CmEvent::Broken));
        queue.close();
        queue.push(connection(CmEvent::Disconnected));
        queue.deliver();
        assert_eq!(called.try_recv(), Err(TryRecvError::Empty));
        assert!(queue.state.lock().queue.is_empty());
    }
}
