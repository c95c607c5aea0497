//! The change of a queue pair: the device makes another one.

use std::sync::Arc;

use super::hw::Hw;
use super::qp::{Parts, Qp, check};
use super::{Verbs, post};
use crate::device::attempt::Phase;
use crate::device::{DeviceError, PostError, QpAttr, QpParts};

impl Qp {
    /// See [`Device::modify_qp`](crate::device::Device::modify_qp).
    pub(super) fn modify(
        &self,
        parts: &QpParts<'_, Verbs>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError> {
        check(&self.device, attr)?;
        let state = self.state.lock();
        if state.attempt.phase != Phase::Idle || attr.datagrams != self.is_for_datagrams() {
            return Err(DeviceError::Unsupported);
        }
        let parts = Parts::of(parts);
        let hw = Hw::new(&self.device, &self.weak, &parts, attr)?;
        let Ok(old) = self.replace(&hw) else {
            hw.close();
            hw.retire(false);
            return Err(DeviceError::Limit);
        };
        *self.parts.lock() = (parts, *attr);
        self.max_sizes.set(attr);
        drop(state);
        if let Some(old) = old {
            old.close();
            old.retire(false);
        }
        Ok(())
    }

    /// Puts another queue pair of the device in the place of the one there is, and gives that: the receives
    /// that were posted to it are posted to the new one. With an error nothing has changed.
    fn replace(&self, hw: &Arc<Hw>) -> Result<Option<Arc<Hw>>, PostError> {
        // Until the end: a receive that is posted meanwhile is either posted again or posted to the new one.
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        let mut preposted = rq.preposted.take().unwrap_or_default();
        if let Some(old) = &rq.hw {
            preposted.keep(old.recv.len());
        }
        if let Err(error) = preposted.repost(|wr| post::recv(hw, wr)) {
            rq.preposted = Some(preposted);
            return Err(error);
        }
        let old = rq.hw.take();
        Qp::install_in(&mut sq, &mut rq, hw, preposted);
        Ok(old)
    }
}
