//! Completions, for programs on the soft device that poll.

use std::sync::Arc;
use std::time::Instant;

use dat_core::testing::device::soft::{Cq, Soft};
use dat_core::testing::device::*;

use crate::soft::PATIENCE;

/// The next completion, for which this thread makes progress.
pub fn completion(device: &Arc<Soft>, cq: &Arc<Cq>) -> Completion {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(completion) = cq.poll() {
            return completion;
        }
        device.progress();
        assert!(Instant::now() < end, "no completion");
        std::thread::yield_now();
    }
}
