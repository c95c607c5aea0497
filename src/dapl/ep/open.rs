//! The queue pair of an endpoint that takes posts: what nearly every post finds by one load in place of the
//! configuration, the queue pair in it and the state, each with its test. A post that does not find it
//! looks at those, and finds out why it is refused, or that it is not.

use std::ptr::{from_ref, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::config::Config;
use super::{Ep, Inner};
use crate::abi::common::*;
use crate::device::Device;
use crate::handle::Guard;
use crate::handle::pin::pin;

/// The queue pair of an endpoint, as far as it takes posts. Changed under the lock of the endpoint; the queue
/// pair is kept alive by the present configuration.
pub(super) struct OpenQueues<Q> {
    /// Set while requests may be posted, whatever their segments are.
    requests: AtomicPtr<Q>,
    /// Set while receives may be.
    receives: AtomicPtr<Q>,
}

impl<Q> OpenQueues<Q> {
    /// That of an endpoint without a configuration.
    pub fn none() -> Self {
        OpenQueues {
            requests: AtomicPtr::new(null_mut()),
            receives: AtomicPtr::new(null_mut()),
        }
    }

    /// The queue pair, if it takes requests.
    #[inline(always)]
    pub fn requests<'g>(&self, _guard: &'g Guard) -> Option<&'g Q> {
        // SAFETY: null, or a queue pair in the present configuration, as `set` was told. It is cleared before
        // the configuration is replaced, which is then kept until this section ends.
        unsafe { self.requests.load(Ordering::Acquire).as_ref() }
    }

    /// The queue pair, if it takes receives.
    #[inline(always)]
    pub fn receives<'g>(&self, _guard: &'g Guard) -> Option<&'g Q> {
        // SAFETY: as above.
        unsafe { self.receives.load(Ordering::Acquire).as_ref() }
    }

    fn set(&self, requests: *const Q, receives: *const Q) {
        self.requests.store(requests.cast_mut(), Ordering::Release);
        self.receives.store(receives.cast_mut(), Ordering::Release);
    }
}

impl<D: Device> Ep<D> {
    /// Replaces the configuration; `None` when the endpoint is freed. The lock that orders changes is held.
    pub(super) fn set_config(&self, inner: &mut Inner<D>, config: Option<Arc<Config<D>>>) {
        self.open.set(null(), null());
        self.config.set(config);
        self.update_open(inner);
    }

    /// The state or the configuration has changed; the lock that orders changes is held.
    pub(super) fn update_open(&self, _inner: &mut Inner<D>) {
        let guard = pin();
        let config = self.config.get(&guard);
        let qp = config.and_then(|config| Some((config, from_ref(&**config.qp.as_ref()?))));
        let Some((config, qp)) = qp else {
            self.open.set(null(), null());
            return;
        };
        let takes_requests = matches!(
            self.state(),
            DAT_EP_STATE_CONNECTED | DAT_EP_STATE_DISCONNECTED
        );
        let requests = if takes_requests { qp } else { null() };
        let receives = if config.has_srq { null() } else { qp };
        self.open.set(requests, receives);
    }
}
