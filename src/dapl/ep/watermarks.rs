//! The watermarks of an endpoint (`dat_ep_set_watermark`).

use super::Ep;
use crate::dapl::boundary::device_error;
use crate::dapl::ep_attr::EpAttr;
use crate::dapl::rules::Rules;
use crate::device::{Device, QueuePair};
use crate::error::{Error, Kind, Result, Subtype};

/// Watermarks on the number of buffers of its SRQ that an endpoint may hold.
#[derive(Clone, Copy)]
pub(super) struct Watermarks {
    /// Above it an event is posted.
    pub soft: Option<u32>,
    /// Above it the connection breaks.
    pub hard: Option<u32>,
}

impl Watermarks {
    /// Those of a new endpoint. Programs leave the attribute at 0 without wanting a watermark
    /// there: the first message would be an error event.
    pub fn of(attr: &EpAttr, rules: Rules) -> Watermarks {
        let mark = u32::try_from(attr.srq_soft_hw).ok();
        Watermarks {
            soft: mark.filter(|n| *n > 0 || rules.are_pages()),
            hard: None,
        }
    }

    /// Sets them at the queue pair.
    pub fn apply<D: Device>(self, qp: &D::Qp) -> Result<()> {
        qp.set_recv_watermarks(self.soft, self.hard)
            .map_err(|e| device_error(e, Subtype::ResourceTep))
    }
}

impl<D: Device> Ep<D> {
    /// `dat_ep_set_watermark`: only buffers of an SRQ are shared with others, so only those
    /// have watermarks. The hard one ends a connection, which an endpoint for datagrams has not.
    pub(super) fn set_watermarks(&self, watermarks: Watermarks) -> Result<()> {
        let invalid = Error::handle(Subtype::HandleEp);
        let config = self.config.get_shared().ok_or(invalid)?;
        if !config.has_srq || self.is_for_datagrams() && watermarks.hard.is_some() {
            return Err(Kind::ModelNotSupported.into());
        }
        // Without the lock: a mark that is exceeded already is reported at once.
        if let Some(qp) = &config.qp {
            watermarks.apply::<D>(qp)?;
        }
        let mut inner = self.inner.lock();
        let config = self.config.get_shared().ok_or(invalid)?;
        inner.watermarks = watermarks;
        self.set_config(&mut inner, Some(config.with_soft_mark(watermarks.soft)));
        Ok(())
    }
}
