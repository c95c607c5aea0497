//! What the kernel takes its time for.
//!
//! An iWARP device keeps the queue pair and the identifier of a request to connect until the peer
//! has answered, or until the kernel has lost patience: siw gives it ten seconds. Whoever destroys
//! them waits as long. siw also waits until TCP has a connection before it sends the request, two
//! minutes where nobody says no. A consumer that gives an attempt up, and the thread that serves
//! the IA, must not wait, so threads of their own do. They are there only while they have work.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::threads;

type Work = Box<dyn FnOnce() + Send>;

/// Work of one kind of one IA.
pub(super) struct Later {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    list: VecDeque<Work>,
    /// Threads, each of which looks at the list once more before it ends.
    threads: usize,
}

impl Later {
    /// For as many threads at a time. Where the times that the kernel takes run side by side
    /// anyhow, one is enough, and keeps the order.
    pub fn new(most: usize) -> Arc<Later> {
        let state = Mutex::default();
        Arc::new(Later { most, state })
    }

    /// Has `work` done by a thread that may wait.
    pub fn run(self: &Arc<Later>, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.list.push_back(Box::new(work));
        if state.threads == self.most {
            return;
        }
        state.threads += 1;
        drop(state);
        let later = self.clone();
        if let Err(error) = threads::start("dat-verbs-later", move || later.work_off()) {
            log::warn!("no thread to wait for the kernel: {error}");
            self.work_off();
        }
    }

    fn work_off(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(work) = state.list.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn nobody_waits_and_the_order_is_kept() {
        let later = Later::new(1);
        let (go, gate) = channel();
        let (done, told) = channel();
        for number in 0..2 {
            let done = done.clone();
            later.run(move || done.send(number).unwrap());
        }
        let last = done.clone();
        later.run(move || {
            gate.recv().unwrap();
            last.send(2).unwrap();
        });
        later.run(move || done.send(3).unwrap());
        // Not before this.
        go.send(()).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn no_more_wait_than_may() {
        let later = Later::new(2);
        let (done, told) = channel();
        let gates: Vec<_> = (0..3)
            .map(|number| {
                let (go, gate) = channel::<()>();
                let done = done.clone();
                later.run(move || {
                    done.send(number).unwrap();
                    gate.recv().unwrap();
                });
                go
            })
            .collect();
        let mut first = [told.recv().unwrap(), told.recv().unwrap()];
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        gates[1].send(()).unwrap();
        assert_eq!(told.recv().unwrap(), 2);
        gates[0].send(()).unwrap();
        gates[2].send(()).unwrap();
    }

    #[test]
    fn the_thread_ends_with_its_work() {
        let later = Later::new(1);
        for _ in 0..2 {
            later.run(|| ());
            while later.state.lock().threads > 0 || Arc::strong_count(&later) > 1 {
                std::thread::yield_now();
            }
        }
    }
}
