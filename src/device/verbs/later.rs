//! What the kernel takes its time for.
//!
//! An iWARP device keeps the queue pair and the identifier of a request to connect until the peer
//! has answered, or until the kernel has lost patience: siw gives it ten seconds. Whoever destroys
//! them waits as long. A consumer that gives an attempt up, and the thread that serves the IA,
//! must not, so a thread of its own does. It is there only while it has work.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

type Work = Box<dyn FnOnce() + Send>;

/// The work of one IA.
#[derive(Default)]
pub(super) struct Later(Mutex<State>);

#[derive(Default)]
struct State {
    list: VecDeque<Work>,
    /// There is a thread, which looks at the list once more before it ends.
    running: bool,
}

impl Later {
    /// Has `work` done by a thread that may wait, in the order of the calls. One thread is
    /// enough: the kernel's patience with each of several attempts runs at the same time.
    pub fn run(self: &Arc<Later>, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.list.push_back(Box::new(work));
        if state.running {
            return;
        }
        let later = self.clone();
        let thread = std::thread::Builder::new().name("dat-verbs-later".into());
        let result = thread.spawn(move || later.work_off());
        state.running = result.is_ok();
        drop(state);
        if let Err(error) = result {
            log::warn!("no thread to wait for the kernel: {error}");
            self.work_off();
        }
    }

    fn work_off(&self) {
        loop {
            let mut state = self.0.lock();
            let Some(work) = state.list.pop_front() else {
                state.running = false;
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

    #[test]
    fn nobody_waits_and_the_order_is_kept() {
        let later = Arc::new(Later::default());
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
    fn the_thread_ends_with_its_work() {
        let later = Arc::new(Later::default());
        for _ in 0..2 {
            later.run(|| ());
            while later.0.lock().running || Arc::strong_count(&later) > 1 {
                std::thread::yield_now();
            }
        }
    }
}
