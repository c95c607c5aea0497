//! Consumer notification objects: `dat_cno_create`, `dat_cno_modify_agent`, `dat_cno_query`,
//! `dat_cno_wait`, `dat_cno_free`; of DAT 2.0 `dat_cno_fd_create`, `dat_cno_trigger`.

mod agent;
mod descriptor;

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;

pub(super) use self::agent::AgentCall;
use self::agent::{Agent, Calls};
use self::descriptor::Descriptor;
use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, non_null, short_boundary, timeout};
use super::ia::{Child, Ia, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::types::Handle;
use super::wait_queue::{WaitQueue, Wake};
use crate::abi::common::*;
use crate::abi::v2;
use crate::cancel::{self, Cancelled, Waiting};
use crate::device::Device;
use crate::error::{Error, Kind, Result, Subtype};

/// A consumer notification object: threads wait in it for any of several EVDs.
#[repr(align(64))]
pub struct Cno<D: Device> {
    base: Base<D>,
    state: Mutex<State>,
    wait_queue: WaitQueue,
    /// The calls of the proxy agent that are under way.
    calls: Arc<Calls>,
}

struct State {
    /// EVDs that have triggered the CNO and that no waiter has returned yet, each once, oldest
    /// first.
    triggered: VecDeque<Handle>,
    /// How often the CNO has lost its last EVD: a waiter that came before is released.
    ends: u64,
    /// Threads in `dat_cno_wait`.
    waiters: usize,
    /// EVDs that refer to the CNO.
    evds: usize,
    /// The proxy agent of the consumer.
    agent: Agent,
    /// Readable while `triggered` has an EVD, or the CNO is closed; of a CNO that was made with one.
    descriptor: Option<Descriptor>,
    /// The CNO is freed, or its IA is closed.
    closed: bool,
}

dat_object!(Cno, Cno, HandleCno);

impl State {
    /// The oldest EVD that has triggered the CNO.
    fn take(&mut self) -> Option<Handle> {
        let evd = self.triggered.pop_front();
        self.set_descriptor();
        evd
    }

    /// The trigger of an EVD is not remembered any more. Gives whether it was.
    fn withdraw(&mut self, evd: Handle) -> bool {
        let at = self.triggered.iter().position(|e| *e == evd);
        let withdrawn = at.and_then(|at| self.triggered.remove(at)).is_some();
        self.set_descriptor();
        withdrawn
    }

    /// After each change of what the descriptor shows.
    fn set_descriptor(&mut self) {
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.set(!self.triggered.is_empty() || self.closed);
        }
    }
}

impl<D: Device> Child for Cno<D> {
    // Waiters are woken and the agent is called, with no EVD.
    fn destroy(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        state.triggered.clear();
        state.set_descriptor();
        self.wait_queue.notify_all(&*self.base.ia.device);
        let call = self.calls.begin(state.agent, Handle::NULL);
        drop(state);
        call.make();
        self.calls.await_others();
        unpublish(self);
    }
}

impl<D: Device> Cno<D> {
    fn create(
        ia: &Arc<Ia<D>>,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        descriptor: Option<Descriptor>,
    ) -> Result<Handle> {
        publish(&Arc::new(Cno {
            base: Base::new(ia.clone()),
            state: Mutex::new(State {
                triggered: VecDeque::new(),
                ends: 0,
                waiters: 0,
                evds: 0,
                agent: Agent(agent),
                descriptor,
                closed: false,
            }),
            wait_queue: WaitQueue::default(),
            calls: Arc::default(),
        }))
    }

    /// An EVD of the same IA begins to refer to the CNO.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` when the CNO is being freed or belongs to another IA,
    /// `DAT_INSUFFICIENT_RESOURCES` when there is no memory.
    pub(super) fn attach(&self, ia: &Arc<Ia<D>>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed || !Arc::ptr_eq(&self.base.ia, ia) {
            return Err(Error::handle(Subtype::HandleCno));
        }
        // Each EVD may be in the queue once, so that an event finds room.
        let evds = state.evds + 1;
        state.triggered.try_reserve(evds)?;
        state.evds = evds;
        Ok(())
    }

    /// An EVD no longer refers to the CNO. If it was the last, waiters are released and the agent
    /// is called, with no EVD (`dat_cno_wait`).
    pub(super) fn detach(&self, evd: Handle) {
        let mut state = self.state.lock();
        state.withdraw(evd);
        state.evds -= 1;
        // `destroy` has called the agent already.
        if state.evds > 0 || state.closed {
            return;
        }
        state.ends += 1;
        self.wait_queue.notify_all(&*self.base.ia.device);
        let call = self.calls.begin(state.agent, Handle::NULL);
        drop(state);
        call.make();
    }

    /// Withdraws the trigger of an EVD that gets another CNO, for which the caller holds its lock. Gives
    /// whether there is one that no waiter has returned.
    pub(super) fn withdraw(&self, evd: Handle) -> bool {
        self.state.lock().withdraw(evd)
    }

    /// An event arrived on an EVD, whose lock the caller holds: one waiter is released, or the next
    /// one will be. The caller makes the call of the agent without that lock.
    pub(super) fn trigger(&self, evd: Handle) -> AgentCall {
        let mut state = self.state.lock();
        if state.closed {
            return AgentCall::NONE;
        }
        if !state.triggered.contains(&evd) {
            state.triggered.push_back(evd);
            state.set_descriptor();
        }
        if state.waiters > 0 {
            self.wait_queue.notify_one(&*self.base.ia.device);
        }
        self.calls.begin(state.agent, evd)
    }

    /// Waits for a trigger. `Ok(NULL)` when the IA closes or the last EVD is detached. The caller is
    /// [waiting](cancel::Waiting).
    fn wait(&self, timeout: Option<Duration>) -> std::result::Result<Result<Handle>, Cancelled> {
        let deadline = timeout.map(|t| Instant::now() + t);
        let device = &self.base.ia.device;
        if timeout == Some(Duration::ZERO) {
            // What has arrived at the device and is not processed yet may trigger the CNO.
            device.progress();
        }
        let mut state = self.state.lock();
        if state.closed {
            return Ok(Err(Error::handle(Subtype::HandleCno)));
        }
        if let Some(evd) = state.take() {
            return Ok(Ok(evd));
        }
        if timeout == Some(Duration::ZERO) {
            return Ok(Err(Kind::QueueEmpty.into()));
        }
        state.waiters += 1;
        let ends = state.ends;
        let evd = loop {
            if let Some(evd) = state.take() {
                break Ok(Ok(evd));
            }
            if state.closed || state.ends != ends {
                break Ok(Ok(Handle::NULL));
            }
            let wake = self.wait_queue.wait(&**device, &mut state, deadline);
            if wake == Wake::Cancelled {
                // A notification may have been for this thread.
                self.wait_queue.notify_one(&**device);
                break Err(Cancelled);
            }
            if state.triggered.is_empty() && !state.closed && state.ends == ends {
                match wake {
                    Wake::Woken => {}
                    Wake::TimedOut => break Ok(Err(Kind::QueueEmpty.into())),
                    Wake::Interrupted => break Ok(Err(Kind::InterruptedCall.into())),
                    Wake::Cancelled => {}
                }
            }
        };
        state.waiters -= 1;
        evd
    }

    /// Takes the EVD that has triggered the CNO, without waiting.
    fn take(&self) -> Result<Handle> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::handle(Subtype::HandleCno));
        }
        state.take().ok_or(Kind::QueueEmpty.into())
    }

    fn free(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::handle(Subtype::HandleCno));
        }
        if state.evds > 0 || state.waiters > 0 {
            return Err(Error::state(Subtype::StateCnoInUse));
        }
        state.closed = true;
        drop(state);
        self.calls.await_others();
        unpublish(self);
        Ok(())
    }
}

/// `dat_cno_create`.
///
/// # Safety
/// `cno_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn cno_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    agent: DAT_OS_WAIT_PROXY_AGENT,
    cno_handle: *mut DAT_CNO_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(cno_handle, Subtype::Arg3)?;
        let handle = Cno::create(&ia, agent, None)?;
        // SAFETY: not NULL.
        unsafe { cno_handle.write(handle.0) };
        Ok(())
    })
}

/// `dat_cno_fd_create` of DAT 2.0: a CNO with a descriptor, which the library closes when the CNO is
/// freed.
///
/// # Safety
/// The pointers are NULL or point to memory for what they name.
pub unsafe extern "C" fn cno_fd_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    fd: *mut v2::DAT_FD,
    cno_handle: *mut DAT_CNO_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(fd, Subtype::Arg2)?;
        non_null(cno_handle, Subtype::Arg3)?;
        let descriptor = Descriptor::new().map_err(|_| Error::resource(Subtype::ResourceMemory))?;
        let number = descriptor.number();
        let no_agent = DAT_OS_WAIT_PROXY_AGENT {
            instance_data: null_mut(),
            proxy_agent_func: None,
        };
        let handle = Cno::create(&ia, no_agent, Some(descriptor))?;
        // SAFETY: not NULL.
        unsafe {
            fd.write(number);
            cno_handle.write(handle.0);
        }
        Ok(())
    })
}

/// `dat_cno_trigger` of DAT 2.0: gives the EVD that has triggered the CNO, without waiting.
///
/// # Safety
/// `evd_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn cno_trigger<A: Abi, D: Device>(
    cno_handle: DAT_CNO_HANDLE,
    evd_handle: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cno: Arc<Cno<D>> = lookup(cno_handle)?;
        non_null(evd_handle, Subtype::Arg2)?;
        let taken = cno.take();
        let evd = *taken.as_ref().unwrap_or(&Handle::NULL);
        // SAFETY: not NULL.
        unsafe { evd_handle.write(evd.0) };
        taken.map(|_| ())
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// No pointers that are followed; any handle value is safe.
pub unsafe extern "C" fn cno_modify_agent<A: Abi, D: Device>(
    cno_handle: DAT_CNO_HANDLE,
    agent: DAT_OS_WAIT_PROXY_AGENT,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cno: Arc<Cno<D>> = lookup(cno_handle)?;
        cno.state.lock().agent = Agent(agent);
        cno.calls.await_others();
        Ok(())
    })
}

/// `dat_cno_query`.
///
/// # Safety
/// `cno_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn cno_query<A: Abi, D: Device>(
    cno_handle: DAT_CNO_HANDLE,
    mask: DAT_CNO_PARAM_MASK,
    cno_param: *mut A::CnoParam,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cno: Arc<Cno<D>> = lookup(cno_handle)?;
        let read = || {
            let state = cno.state.lock();
            let fd = state.descriptor.as_ref().map(Descriptor::number);
            Ok(A::cno_param(cno.base.ia.handle().0, state.agent.0, fd))
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), A::CNO_FIELDS.into(), cno_param, read) }
    })
}

/// `dat_cno_wait`.
///
/// # Safety
/// `evd_handle` is NULL or points to memory for a handle.
pub unsafe extern "C-unwind" fn cno_wait<A: Abi, D: Device>(
    cno_handle: DAT_CNO_HANDLE,
    wait: DAT_TIMEOUT,
    evd_handle: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    let mut cancelled = false;
    let code = short_boundary::<A>(|| {
        let cno: Arc<Cno<D>> = lookup(cno_handle)?;
        non_null(evd_handle, Subtype::Arg3)?;
        let Ok(_waiting) = Waiting::begin() else {
            cancelled = true;
            return Ok(());
        };
        let result = cno.wait(timeout(wait));
        // If the IA was closed meanwhile, all that it had may go with this reference.
        cancel::drop_reference(cno);
        let Ok(result) = result else {
            cancelled = true;
            return Ok(());
        };
        let evd = *result.as_ref().unwrap_or(&Handle::NULL);
        // SAFETY: not NULL.
        unsafe { evd_handle.write(evd.0) };
        result.map(|_| ())
    });
    if cancelled {
        // SAFETY: all that this call had is destroyed, and its callers in the library, which have
        // nothing, may be unwound.
        unsafe { cancel::exit() };
    }
    code
}

/// `dat_cno_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn cno_free<A: Abi, D: Device>(cno_handle: DAT_CNO_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Cno<D>>(cno_handle)?.free())
}
