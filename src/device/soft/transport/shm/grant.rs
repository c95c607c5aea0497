//! The permission of a peer to access our registered memory.

use std::sync::Arc;

use super::copy_waits;
use super::segment::{EndPhase, SharedSegment};
use crate::device::soft::mem::scope::Scope;

/// A segment whose peer may access our registered memory. The drop ends that: the peer begins no
/// access any longer.
pub(crate) struct AccessGrant(Arc<SharedSegment>);

impl AccessGrant {
    /// To be made before the peer learns that the connection is established. The peer may access
    /// memory of this scope once the phase of our end is [`EndPhase::Open`].
    pub fn new(segment: Arc<SharedSegment>, scope: Scope) -> AccessGrant {
        segment.ours().set_scope(scope);
        copy_waits::add_peer(&segment);
        AccessGrant(segment)
    }

    /// The segment of the connection.
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
        copy_waits::remove_peer(&self.0);
    }
}
