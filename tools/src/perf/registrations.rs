//! Memory that is registered for one operation and freed when that has completed, as MPI libraries
//! without a registration cache do.

use std::cell::RefCell;
use std::collections::VecDeque;

use dat_core::abi::common::{DAT_LMR_CONTEXT, DAT_LMR_HANDLE, DAT_SUCCESS};

use super::api::Api;
use super::failure::Result;
use super::side::Queue;

/// The registrations of the operations that have not completed. There is one endpoint, so the operations
/// of a queue complete in the order in which they were posted.
#[derive(Default)]
pub struct Registrations {
    recv: RefCell<VecDeque<DAT_LMR_HANDLE>>,
    request: RefCell<VecDeque<DAT_LMR_HANDLE>>,
}

impl Registrations {
    fn of(&self, queue: Queue) -> &RefCell<VecDeque<DAT_LMR_HANDLE>> {
        match queue {
            Queue::Recv => &self.recv,
            Queue::Request => &self.request,
        }
    }

    /// The next operation of a queue uses this memory; returns its key.
    pub fn begin(
        &self,
        queue: Queue,
        (lmr, key): (DAT_LMR_HANDLE, DAT_LMR_CONTEXT),
    ) -> DAT_LMR_CONTEXT {
        self.of(queue).borrow_mut().push_back(lmr);
        key
    }

    /// The oldest operation of a queue has completed.
    ///
    /// # Errors
    /// Its memory cannot be freed.
    pub fn end(&self, queue: Queue, api: &Api) -> Result<()> {
        match self.of(queue).borrow_mut().pop_front() {
            // SAFETY: an LMR of ours, which no operation uses any longer.
            Some(lmr) => api.check("dat_lmr_free", unsafe { (api.lmr_free)(lmr) }),
            None => Ok(()),
        }
    }

    /// Frees what is left, when no operation is outstanding any longer: whether all could be freed.
    pub fn free(&self, api: &Api) -> bool {
        let mut freed = true;
        for queue in [&self.recv, &self.request] {
            for lmr in queue.borrow_mut().drain(..) {
                // SAFETY: an LMR of ours.
                freed &= unsafe { (api.lmr_free)(lmr) } == DAT_SUCCESS;
            }
        }
        freed
    }
}
