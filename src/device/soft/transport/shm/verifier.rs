//! Threads that read the challenge of a process that is not verified yet.
//!
//! A read in the memory of another process may take as long as that process likes: the page at
//! the address that it has sent can be one that its own program has to provide (by a file of a
//! file system in user space, or by `userfaultfd(2)`), and the kernel waits for the page. So the
//! threads that serve connections read only in processes that were verified before, and threads
//! of their own read in others.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;
use rustix::io::Errno;

use super::peer::{MemoryProof, VerifiedPeer};
#[cfg(not(dat_sim))]
use crate::device::threads;
use crate::process::PerProcess;

/// The most threads that read at a time. Processes that hold up all of them keep other processes
/// from sharing memory, and from nothing else.
const MAX_THREADS: usize = 16;

/// How far a verification is.
enum Verification {
    /// No thread has begun the read; with what is called at its end.
    Queued(MemoryProof, Box<dyn FnOnce() + Send>),
    /// A thread reads, or the result was taken.
    Begun,
    /// The result.
    Done(Result<VerifiedPeer, Errno>),
}

/// A verification that a thread is to run, unless it was dropped before: an attempt to connect that
/// has ended holds no descriptor here.
type Job = Weak<Mutex<Verification>>;

#[derive(Default)]
struct Verifiers {
    /// Reads that no thread has begun.
    jobs: VecDeque<Job>,
    /// Number of threads that run.
    threads: usize,
}

static VERIFIERS: PerProcess<Mutex<Verifiers>> = PerProcess::new(Mutex::default);

/// A verification, and its result once that is known.
pub(super) struct PendingProof(Arc<Mutex<Verification>>);

impl PendingProof {
    /// Starts a verification. If the result is not known when this returns, `wake` is called once
    /// it is.
    ///
    /// # Errors
    /// `EAGAIN` if no thread can be started.
    pub fn new(
        proof: MemoryProof,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<PendingProof, Errno> {
        if proof.is_of_known_peer() {
            let done = Verification::Done(proof.read_challenge());
            return Ok(PendingProof(Arc::new(Mutex::new(done))));
        }
        let queued = Verification::Queued(proof, Box::new(wake));
        let pending = Arc::new(Mutex::new(queued));
        queue(Arc::downgrade(&pending))?;
        Ok(PendingProof(pending))
    }

    /// Takes the result; `None` as long as it is not known.
    pub fn take(&self) -> Option<Result<VerifiedPeer, Errno>> {
        let mut verification = self.0.lock();
        match std::mem::replace(&mut *verification, Verification::Begun) {
            Verification::Done(result) => Some(result),
            other => {
                *verification = other;
                None
            }
        }
    }
}

/// Runs a job.
fn run(job: &Job) {
    let Some(pending) = job.upgrade() else {
        return;
    };
    let begun = std::mem::replace(&mut *pending.lock(), Verification::Begun);
    // While the read takes its time the attempt to connect may end.
    drop(pending);
    if let Verification::Queued(proof, wake) = begun {
        let result = proof.read_challenge();
        if let Some(pending) = job.upgrade() {
            *pending.lock() = Verification::Done(result);
            drop(pending);
            wake();
        }
    }
}

/// Queues a job for the threads, and starts one more if there may be more.
fn queue(job: Job) -> Result<(), Errno> {
    let mut verifiers = VERIFIERS.lock();
    verifiers.jobs.retain(|job| job.strong_count() > 0);
    verifiers.jobs.try_reserve(1).map_err(|_| Errno::NOMEM)?;
    verifiers.jobs.push_back(job);
    if verifiers.threads < MAX_THREADS {
        match start_thread() {
            Ok(_) => verifiers.threads += 1,
            // The threads that run will take the job.
            Err(_) if verifiers.threads > 0 => {}
            Err(_) => {
                verifiers.jobs.pop_back();
                return Err(Errno::AGAIN);
            }
        }
    }
    Ok(())
}

/// Starts a thread that runs jobs.
fn start_thread() -> std::io::Result<()> {
    #[cfg(dat_sim)]
    return Ok(crate::kernel::start_thread(
        "dat-verify",
        Box::new(run_jobs),
    )?);
    #[cfg(not(dat_sim))]
    threads::start(c"dat-verify", run_jobs).map(drop)
}

/// Runs jobs until there are none.
fn run_jobs() {
    loop {
        let mut verifiers = VERIFIERS.lock();
        let Some(job) = verifiers.jobs.pop_front() else {
            verifiers.threads -= 1;
            return;
        };
        drop(verifiers);
        run(&job);
    }
}
