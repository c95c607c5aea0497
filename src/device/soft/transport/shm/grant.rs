//! Who may reach our memory: the peers of connections that are made.

use std::sync::Arc;

use super::exported_keys;
use super::segment::{State, Wire};

/// A wire whose peer may reach our memory. Its drop ends that: when it is over the peer does not
/// any more.
pub(crate) struct Opened(Arc<Wire>);

impl Opened {
    /// Before the peer is told that the connection is made. `pd` is the protection domain that
    /// it reaches once our side is [`State::Open`].
    pub fn new(wire: Arc<Wire>, pd: u32) -> Opened {
        wire.ours().set_pd(pd);
        exported_keys::admit(&wire);
        Opened(wire)
    }
}

impl Opened {
    /// What is opened.
    pub fn wire(&self) -> &Arc<Wire> {
        &self.0
    }
}

impl std::ops::Deref for Opened {
    type Target = Wire;

    #[inline]
    fn deref(&self) -> &Wire {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if matches!(self.ours().state(), State::Fresh | State::Open) {
            self.ours().set_state(State::Aborted);
        }
        exported_keys::dismiss(&self.0);
    }
}
