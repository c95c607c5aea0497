//! What the counters say about the connections of an endpoint. Nothing happens without counters.

use super::Ep;
use crate::abi::common::*;
use crate::abi::v2::*;
use crate::device::{CmEvent, Device};

impl<D: Device> Ep<D> {
    /// A request was sent to a peer.
    pub(super) fn count_connect(&self) {
        if let Some(counters) = &self.counters {
            counters.add(DCNT_EP_CONNECT, 1);
        }
        self.base.ia.count(match self.is_for_datagrams() {
            true => DCNT_IA_CM_AH_REQ_TX,
            false => DCNT_IA_CM_REQ_TX,
        });
    }

    /// The consumer ends a connection.
    pub(super) fn count_disconnect(&self) {
        if let Some(counters) = &self.counters {
            counters.add(DCNT_EP_DISCONNECT, 1);
        }
        self.base.ia.count(DCNT_IA_CM_DREQ_TX);
    }

    /// A request was accepted.
    pub(in crate::dapl) fn count_accept(&self) {
        self.base.ia.count(DCNT_IA_SP_CR_ACCEPTED);
        self.base.ia.count(DCNT_IA_CM_REP_TX);
    }

    /// An event of the device came in the state `before`.
    pub(super) fn count_event(&self, event: &CmEvent, before: DAT_EP_STATE) {
        let counters: &[_] = match event {
            CmEvent::Established { .. } if before == DAT_EP_STATE_ACTIVE_CONNECTION_PENDING => {
                &[DCNT_IA_CM_REP_RX, DCNT_IA_CM_RTU_TX, DCNT_IA_CM_ACTIVE_EST]
            }
            CmEvent::Established { .. } => &[DCNT_IA_CM_RTU_RX, DCNT_IA_CM_PASSIVE_EST],
            CmEvent::Resolved(_) => &[DCNT_IA_CM_AH_RESOLVED],
            CmEvent::PeerRejected { .. } => &[DCNT_IA_CM_USER_REJ_RX],
            CmEvent::NonPeerRejected => &[DCNT_IA_CM_ERR_REFUSED],
            CmEvent::Unreachable | CmEvent::AcceptError => &[DCNT_IA_CM_ERR],
            CmEvent::TimedOut => &[DCNT_IA_CM_ERR_TIMEOUT],
            CmEvent::Broken => &[DCNT_IA_CM_ERR_RESET],
            // The answer to a request of this end to disconnect, or the request of the peer.
            CmEvent::Disconnected if before == DAT_EP_STATE_DISCONNECT_PENDING => {
                &[DCNT_IA_CM_DREP_RX]
            }
            CmEvent::Disconnected => &[DCNT_IA_CM_DREQ_RX],
        };
        for &counter in counters {
            self.base.ia.count(counter);
        }
    }
}
