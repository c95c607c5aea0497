//! Calls of the kernel that block, made in threads of their own.
//!
//! siw connects TCP before it sends a request, which takes two minutes if the peer does not react. Neither a
//! consumer that gives an attempt up nor the thread that serves the IA may wait so long. The threads exist only while
//! they have calls to make, which take no lock of rdma-core: a fork does not wait for them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::lock::Mutex;

use crate::device::threads;

type Call = Box<dyn FnOnce() + Send>;

/// The blocking calls of one kind, of one IA.
pub(super) struct BlockingCalls {
    /// Threads there may be at a time.
    max_threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Calls that no thread has begun yet.
    queue: VecDeque<Call>,
    /// Threads there are. Each takes calls until the queue is empty.
    threads: usize,
}

impl BlockingCalls {
    /// Calls that up to `max_threads` threads make. With one thread the calls keep their order.
    pub fn new(max_threads: usize) -> Arc<BlockingCalls> {
        let state = Mutex::default();
        Arc::new(BlockingCalls { max_threads, state })
    }

    /// Makes a call in one of the threads; in this thread if there can be none.
    pub fn run(self: &Arc<BlockingCalls>, call: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.queue.push_back(Box::new(call));
        if state.threads == self.max_threads {
            return;
        }
        state.threads += 1;
        drop(state);
        let calls = self.clone();
        if let Err(error) = threads::start(c"dat-verbs-calls", move || calls.make_all()) {
            log::warn!("no thread for a call that blocks: {error}");
            self.make_all();
        }
    }

    fn make_all(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(call) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn callers_do_not_wait_and_one_thread_keeps_the_order() {
        let calls = BlockingCalls::new(1);
        let (go, gate) = channel();
        let (done, results) = channel();
        for number in 0..2 {
            let done = done.clone();
            calls.run(move || done.send(number).unwrap());
        }
        let last = done.clone();
        calls.run(move || {
            gate.recv().unwrap();
            last.send(2).unwrap();
        });
        calls.run(move || done.send(3).unwrap());
        // The third call, and so the fourth, cannot end before this.
        go.send(()).unwrap();
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn no_more_threads_than_allowed() {
        let calls = BlockingCalls::new(2);
        let (done, results) = channel();
        let gates: Vec<_> = (0..3)
            .map(|number| {
                let (go, gate) = channel::<()>();
                let done = done.clone();
                calls.run(move || {
                    done.send(number).unwrap();
                    gate.recv().unwrap();
                });
                go
            })
            .collect();
        let mut first = [results.recv().unwrap(), results.recv().unwrap()];
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert!(results.recv_timeout(Duration::from_millis(50)).is_err());
        gates[1].send(()).unwrap();
        assert_eq!(results.recv().unwrap(), 2);
        gates[0].send(()).unwrap();
        gates[2].send(()).unwrap();
    }

    #[test]
    fn a_thread_ends_with_its_last_call() {
        let calls = BlockingCalls::new(1);
        for _ in 0..2 {
            calls.run(|| ());
            while calls.state.lock().threads > 0 || Arc::strong_count(&calls) > 1 {
                std::thread::yield_now();
            }
        }
    }
}
