//! What readers of the process see of an endpoint ([`crate::figures`]).

use super::Ep;
use crate::abi::common::*;
use crate::dapl::counters::{Counters, EP_FAILED, EP_FLUSHED, names};
use crate::dapl::figures::write_counters;
use crate::device::{Device, QueuePair};
use crate::figures::Json;

/// The name of a state without `DAT_EP_STATE_`.
fn name(state: DAT_EP_STATE) -> &'static str {
    match state {
        DAT_EP_STATE_UNCONNECTED => "UNCONNECTED",
        DAT_EP_STATE_UNCONFIGURED_UNCONNECTED => "UNCONFIGURED_UNCONNECTED",
        DAT_EP_STATE_RESERVED => "RESERVED",
        DAT_EP_STATE_UNCONFIGURED_RESERVED => "UNCONFIGURED_RESERVED",
        DAT_EP_STATE_PASSIVE_CONNECTION_PENDING => "PASSIVE_CONNECTION_PENDING",
        DAT_EP_STATE_UNCONFIGURED_PASSIVE => "UNCONFIGURED_PASSIVE",
        DAT_EP_STATE_ACTIVE_CONNECTION_PENDING => "ACTIVE_CONNECTION_PENDING",
        DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING => "TENTATIVE_CONNECTION_PENDING",
        DAT_EP_STATE_UNCONFIGURED_TENTATIVE => "UNCONFIGURED_TENTATIVE",
        DAT_EP_STATE_CONNECTED => "CONNECTED",
        DAT_EP_STATE_DISCONNECT_PENDING => "DISCONNECT_PENDING",
        DAT_EP_STATE_DISCONNECTED => "DISCONNECTED",
        DAT_EP_STATE_COMPLETION_PENDING => "COMPLETION_PENDING",
        _ => "UNKNOWN",
    }
}

impl<D: Device> Ep<D> {
    /// See [`Child::figures`](crate::dapl::ia::Child::figures).
    pub(super) fn write_figures(&self, json: &mut Json) {
        json.text("state", name(self.state()));
        json.boolean("datagrams", self.datagrams);
        let config = self.config.get_shared();
        let qp = config.as_ref().and_then(|config| config.qp.as_ref());
        json.text_or_null("path", qp.and_then(|qp| qp.path()));
        let (local, peer) = qp.and_then(|qp| qp.addrs()).unzip();
        json.text_or_null("local", local);
        json.text_or_null("peer", peer);
        let count = |n: DAT_COUNT| u64::try_from(n).ok();
        let attr = config.as_ref().map(|config| config.attr);
        json.number_or_null("requests", qp.map(|qp| qp.send_outstanding()));
        json.number_or_null(
            "max_requests",
            attr.and_then(|attr| count(attr.max_request_dtos)),
        );
        json.number_or_null("receives", qp.map(|qp| qp.recv_outstanding()));
        json.number_or_null(
            "max_receives",
            attr.and_then(|attr| count(attr.max_recv_dtos)),
        );
        let counters = self.counters();
        let failed = |counter: u32| {
            counters.map(|counters: &Counters| counters.read(counter as usize, false))
        };
        json.number_or_null("flushed", failed(EP_FLUSHED));
        json.number_or_null("failed", failed(EP_FAILED));
        write_counters(counters, &names::EP, json);
    }
}
