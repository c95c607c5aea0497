//! What the posts need of an endpoint.

use std::sync::Arc;

use crate::abi::common::*;
use crate::dapl::ep_attr::EpAttr;
use crate::dapl::evd::Evd;
use crate::dapl::rules::Rules;
use crate::dapl::work_request::OpFlags;
use crate::device::Device;

/// What the posts need of an endpoint; replaced as a whole.
pub(in crate::dapl) struct Config<D: Device> {
    /// The attributes as they are in force.
    pub attr: EpAttr,
    /// The completion flags that requests may have.
    pub request_flags: OpFlags,
    /// The completion flags that receives may have.
    pub recv_flags: OpFlags,
    /// Receives come from an SRQ.
    pub has_srq: bool,
    /// The EVD for requests takes no completions of binds, to the letter of the man pages. Existing
    /// libraries put these there all the same.
    pub refuses_binds: bool,
    /// The queue pair; `None` while the endpoint has no protection zone.
    pub qp: Option<Arc<D::Qp>>,
}

impl<D: Device> Config<D> {
    /// That of an endpoint with these attributes.
    pub fn new(
        attr: EpAttr,
        rules: Rules,
        has_srq: bool,
        request_evd: Option<&Evd<D>>,
        qp: Option<Arc<D::Qp>>,
    ) -> Arc<Self> {
        Arc::new(Config {
            refuses_binds: rules.are_pages() && request_evd.is_some_and(|evd| !evd.takes_binds()),
            request_flags: OpFlags::new(attr.request_completion_flags, rules),
            recv_flags: OpFlags::new(attr.recv_completion_flags, rules),
            attr,
            has_srq,
            qp,
        })
    }

    /// The same with another soft high watermark among the attributes.
    pub fn with_soft_mark(&self, mark: Option<u32>) -> Arc<Self> {
        let srq_soft_hw = mark.map_or(DAT_WATERMARK_INFINITE, |n| n as DAT_COUNT);
        Arc::new(Config {
            attr: EpAttr {
                srq_soft_hw,
                ..self.attr
            },
            qp: self.qp.clone(),
            ..*self
        })
    }
}
