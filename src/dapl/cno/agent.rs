//! The proxy agent of a CNO: a function of the consumer's, which is called for each trigger.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_api::GetThreadId;

use crate::abi::common::DAT_OS_WAIT_PROXY_AGENT;
use crate::cancel::Disabled;
use crate::dapl::types::Handle;
use crate::delay;
use crate::handle::pin;
use crate::lock::{Condvar, Mutex, ThreadId};
use crate::thread_sanitizer;

/// How long a call that ends the use of an agent waits for other threads that are in the agent.
const CALL_TIME: Duration = Duration::from_secs(1);

/// The function, and its argument.
#[derive(Clone, Copy)]
pub(super) struct Agent(pub DAT_OS_WAIT_PROXY_AGENT);

// SAFETY: the argument is the consumer's; it is passed on and never followed here.
unsafe impl Send for Agent {}

/// The calls of the agents of a CNO that are under way.
#[derive(Default)]
pub(super) struct Calls {
    /// The threads that are in the agent, or about to be, once for each call.
    threads: Mutex<Vec<NonZeroUsize>>,
    /// Signalled when a call has ended.
    ended: Condvar,
}

fn this_thread() -> NonZeroUsize {
    ThreadId::INIT.nonzero_thread_id()
}

impl Calls {
    /// Notes that this thread is about to call the agent. The caller holds the lock of the CNO, by
    /// which the agent is replaced.
    pub fn begin(self: &Arc<Self>, agent: Agent, evd: Handle) -> AgentCall {
        if agent.0.proxy_agent_func.is_none() {
            return AgentCall(None);
        }
        self.threads.lock().push(this_thread());
        AgentCall(Some((self.clone(), agent, evd)))
    }

    /// Waits until other threads have returned from the agent: when the consumer has ended its use,
    /// the consumer frees what the agent uses. For a limited time, since the agent may wait for
    /// something that the caller holds. The caller holds no lock.
    pub fn await_others(&self) {
        let own = this_thread();
        let end = Instant::now() + CALL_TIME;
        let mut threads = self.threads.lock();
        while threads.iter().any(|thread| *thread != own) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.ended.wait_for(&mut threads, left);
        }
    }

    fn end(&self) {
        let own = this_thread();
        let mut threads = self.threads.lock();
        if let Some(at) = threads.iter().position(|thread| *thread == own) {
            threads.swap_remove(at);
        }
        drop(threads);
        self.ended.notify_all();
    }
}

/// A call that is to be made, by the thread that has triggered the CNO.
#[must_use]
pub(crate) struct AgentCall(Option<(Arc<Calls>, Agent, Handle)>);

impl AgentCall {
    /// Without an agent.
    pub const NONE: AgentCall = AgentCall(None);

    /// Calls the agent, as soon as this thread is outside of any section of [`pin`]. The caller
    /// holds no lock.
    pub fn make(self) {
        let Some((calls, agent, evd)) = self.0 else {
            return;
        };
        pin::outside(move || {
            delay::point("cno.agent");
            // The agent may call points of cancellation, and the callers of this function cannot be unwound.
            let _disabled = Disabled::begin();
            if let Some(function) = agent.0.proxy_agent_func {
                thread_sanitizer::call_agent(evd.0, || {
                    // SAFETY: the consumer gave the function for exactly this.
                    unsafe { function(agent.0.instance_data, evd.0) };
                });
            }
            calls.end();
        });
    }
}
