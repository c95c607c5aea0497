//! Who may reach our memory: the peers of connections that are made.

use std::sync::Arc;

use super::exported_keys;
use super::segment::{EndPhase, SharedSegment};

/// A wire whose peer may reach our memory. Its drop ends that: when it is over the peer does not
/// any more.
pub(crate) struct AccessGrant(Arc<SharedSegment>);

impl AccessGrant {
    /// Before the peer is told that the connection is made. `pd` is the protection domain that
    /// it reaches once our side is [`EndPhase::Open`].
    pub fn new(segment: Arc<SharedSegment>, pd: u32) -> AccessGrant {
        segment.ours().set_pd(pd);
        exported_keys::add_peer(&segment);
        AccessGrant(segment)
    }
}

impl AccessGrant {
    /// What is opened.
    pub fn segment(&self) -> &Arc<SharedSegment> {
        &self.0
    }
}

impl std::ops::Deref for AccessGrant {
    type Target = SharedSegment;

    #[inline]
    fn deref(&self) -> &SharedSegment {
        &self.0
    }
}

impl Drop for AccessGrant {
    fn drop(&mut self) {
        if matches!(self.ours().phase(), EndPhase::Fresh | EndPhase::Open) {
            self.ours().set_phase(EndPhase::Aborted);
        }
        exported_keys::remove_peer(&self.0);
    }
}
