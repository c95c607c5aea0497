//! First looks into the memory of processes that are not known yet.
//!
//! Such a look may take as long as the process likes: what is at the address that it has told can
//! be a page that its own program is to provide (a file of a file system in user space, or
//! `userfaultfd(2)`), and the kernel waits for that. So none of the threads that serve
//! connections looks itself, unless it is at a process that has proved before who it is.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::peer::{MemoryProof, VerifiedPeer};
use crate::device::threads;

/// Threads that look at a time. Processes that hold up all of them keep others from sharing
/// memory, and from nothing else.
const THREADS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

struct Verifiers {
    /// Looks that nobody has begun yet.
    jobs: VecDeque<Job>,
    /// Threads that there are.
    threads: usize,
    /// Whose they are: a child has none.
    pid: u32,
}

static VERIFIERS: Mutex<Verifiers> = Mutex::new(Verifiers {
    jobs: VecDeque::new(),
    threads: 0,
    pid: 0,
});

/// What a look has found, once it is over.
pub(super) struct PendingProof(Arc<Mutex<Option<Result<VerifiedPeer, Errno>>>>);

impl PendingProof {
    /// Begins a look. If it is not over when this returns, `wake` is called when it is.
    ///
    /// # Errors
    /// `EAGAIN` if there can be no thread for it.
    pub fn new(
        look: MemoryProof,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<PendingProof, Errno> {
        if look.is_at_peer() {
            return Ok(PendingProof(Arc::new(Mutex::new(Some(look.look())))));
        }
        let found = Arc::<Mutex<_>>::default();
        let result = Arc::downgrade(&found);
        post(Box::new(move || {
            // Somebody may have lost patience while this waited for its turn.
            if result.strong_count() == 0 {
                return;
            }
            let reached = look.look();
            if let Some(result) = result.upgrade() {
                *result.lock() = Some(reached);
                drop(result);
                wake();
            }
        }))?;
        Ok(PendingProof(found))
    }

    /// What was found; `None` as long as the look goes on.
    pub fn take(&self) -> Option<Result<VerifiedPeer, Errno>> {
        self.0.lock().take()
    }
}

/// Has a thread do that.
fn post(job: Job) -> Result<(), Errno> {
    let mut scouts = VERIFIERS.lock();
    if scouts.pid != std::process::id() {
        // The parent's jobs hold what is the parent's.
        std::mem::forget(std::mem::take(&mut scouts.jobs));
        scouts.threads = 0;
        scouts.pid = std::process::id();
    }
    scouts.jobs.push_back(job);
    if scouts.threads < THREADS {
        match threads::start("dat-scout", work) {
            Ok(_) => scouts.threads += 1,
            // Those that there are do it in time.
            Err(_) if scouts.threads > 0 => {}
            Err(_) => {
                let job = scouts.jobs.pop_back();
                drop(scouts);
                drop(job);
                return Err(Errno::AGAIN);
            }
        }
    }
    Ok(())
}

/// Does what there is to do.
fn work() {
    loop {
        let mut scouts = VERIFIERS.lock();
        let Some(job) = scouts.jobs.pop_front() else {
            scouts.threads -= 1;
            return;
        };
        drop(scouts);
        job();
    }
}
