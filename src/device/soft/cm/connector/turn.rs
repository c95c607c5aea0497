//! The right of an attempt to have a handshake with a port of this host ([`Turns`](crate::device::soft::turns::Turns)).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Connector;
use crate::device::soft::device::Soft;
use crate::device::soft::turns::Waiting;
use crate::device::soft::upcalls::Upcalls;

/// A turn, until the drop.
pub(super) struct Turn {
    device: Arc<Soft>,
    target: SocketAddr,
}

impl Turn {
    /// The turn of an attempt, or `None`: the attempt is called later. `is_called` says that it was.
    pub fn take(connector: &Arc<Connector>, target: SocketAddr, is_called: bool) -> Option<Turn> {
        let device = connector.device.clone();
        let is_taken = device.turns.take(target, connector, is_called);
        is_taken.then(|| Turn { device, target })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let target = self.target;
        let device = Arc::downgrade(&self.device);
        let call = move |up: &mut Upcalls| {
            if let Some(device) = device.upgrade() {
                device.turns.call(target, up);
            }
        };
        let timer = || self.device.engine.timer(Duration::ZERO, call);
        self.device.turns.give_back(target, timer);
    }
}

impl Waiting for Connector {
    fn called(self: Arc<Self>, up: &mut Upcalls) {
        let state = self.state.lock();
        if state.handshake.is_queued() {
            self.advance_locked(state, up);
        }
    }
}
