//! Requests to connect that the kernel waits for an answer to.
//!
//! Until the peer has answered, or a limit of the kernel has passed (ten seconds for siw), an iWARP device keeps the
//! queue pair and the identifier of a request; a call that destroys one of them takes as long. Neither a consumer that
//! gives an attempt up nor the thread that serves the IA may wait for that. A thread of its own may not either: at
//! its end such a call takes the locks of rdma-core, for which a fork has to wait
//! ([`library_use`](super::library_use)). So these calls are put off until the event that brings the answer.

use std::collections::BTreeMap;

use crate::lock::Mutex;

type Call = Box<dyn FnOnce() + Send>;

/// The requests, by the numbers of their identifiers, with the calls that are put off.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<BTreeMap<u64, Vec<Call>>>);

impl Unanswered {
    /// A request is about to be sent.
    pub fn sent(&self, token: u64) {
        self.0.lock().entry(token).or_default();
    }

    /// Whether the kernel waits for the answer to a request.
    pub fn has(&self, token: u64) -> bool {
        self.0.lock().contains_key(&token)
    }

    /// Whether the kernel waits for no answer at all.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Makes a call when the request has its answer: at once, if the kernel waits for none.
    pub fn after(&self, token: u64, call: impl FnOnce() + Send + 'static) {
        let mut requests = self.0.lock();
        if let Some(calls) = requests.get_mut(&token) {
            calls.push(Box::new(call));
            return;
        }
        drop(requests);
        call();
    }

    /// The answer has arrived, or the request was not sent: makes the calls that were put off, in their order. The
    /// caller holds no lock.
    pub fn answered(&self, token: u64) {
        let calls = self.0.lock().remove(&token);
        for call in calls.into_iter().flatten() {
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn calls_wait_for_the_answer_to_their_request() {
        let unanswered = Unanswered::default();
        let (done, made) = channel();
        let call = |token, number| {
            let done = done.clone();
            unanswered.after(token, move || done.send(number).unwrap());
        };
        call(1, 0);
        assert_eq!(made.try_iter().collect::<Vec<_>>(), [0]);
        unanswered.sent(1);
        unanswered.sent(2);
        call(1, 1);
        call(2, 3);
        call(1, 2);
        assert!(unanswered.has(1) && made.try_recv().is_err());
        unanswered.answered(1);
        assert_eq!(made.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert!(!unanswered.has(1) && !unanswered.is_empty());
        call(1, 4);
        unanswered.answered(1);
        unanswered.answered(2);
        assert_eq!(made.try_iter().collect::<Vec<_>>(), [4, 3]);
        assert!(unanswered.is_empty());
    }
}
