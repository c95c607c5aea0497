//! Counters of an IA, its endpoints and its EVDs, for programs that ask by `dat_ib_query_counters` and
//! the macros beside it (`dat_ib_extensions.h`). They are there for IAs with `counters=on` in
//! `dat.conf`.
//!
//! What is counted seldom is counted where it happens. The calls of the data path are counted by
//! functions in front of them ([`super::counted_calls`]), in a function table of its own: without counters
//! they cost nothing.

mod hardware;
pub mod names;
mod of_ia;

pub use of_ia::IaCounters;

use std::sync::atomic::{AtomicU64, Ordering};

use super::types::HandleType;
use crate::abi::v2::*;

/// The counter of an endpoint for completions that were flushed. It is behind those that programs can
/// read, as the next one.
pub const EP_FLUSHED: u32 = DCNT_EP_ALL_COUNTERS;
/// The counter of an endpoint for completions with other errors.
pub const EP_FAILED: u32 = EP_FLUSHED + 1;
/// How many counters an endpoint has.
pub const EP_COUNTERS: u32 = EP_FAILED + 1;

/// The counters of one object.
pub struct Counters(Box<[AtomicU64]>);

impl Counters {
    /// `len` counters, all 0.
    pub fn new(len: u32) -> Self {
        Counters((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds to a counter. Those that the object does not have are left alone.
    pub fn add(&self, counter: u32, count: u64) {
        if let Some(counter) = self.0.get(counter as usize) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The value of a counter of the object; with `reset` it is 0 from then on.
    pub fn read(&self, counter: usize, reset: bool) -> u64 {
        match reset {
            true => self.0[counter].swap(0, Ordering::Relaxed),
            false => self.0[counter].load(Ordering::Relaxed),
        }
    }

    /// Sets a counter of the object.
    fn set(&self, counter: u32, value: u64) {
        if let Some(counter) = self.0.get(counter as usize) {
            counter.store(value, Ordering::Relaxed);
        }
    }
}

/// The counters of an IA for new objects of a kind and for those that were freed.
pub fn of_kind(kind: HandleType) -> Option<(DAT_IA_COUNTERS, DAT_IA_COUNTERS)> {
    Some(match kind {
        HandleType::Pz => (DCNT_IA_PZ_CREATE, DCNT_IA_PZ_FREE),
        HandleType::Lmr => (DCNT_IA_LMR_CREATE, DCNT_IA_LMR_FREE),
        HandleType::Rmr => (DCNT_IA_RMR_CREATE, DCNT_IA_RMR_FREE),
        HandleType::Psp => (DCNT_IA_PSP_CREATE, DCNT_IA_PSP_FREE),
        HandleType::Rsp => (DCNT_IA_RSP_CREATE, DCNT_IA_RSP_FREE),
        HandleType::Evd => (DCNT_IA_EVD_CREATE, DCNT_IA_EVD_FREE),
        HandleType::Ep => (DCNT_IA_EP_CREATE, DCNT_IA_EP_FREE),
        HandleType::Srq => (DCNT_IA_SRQ_CREATE, DCNT_IA_SRQ_FREE),
        _ => return None,
    })
}

/// The counter of an IA for an asynchronous error beside that of all errors.
pub fn of_async_event(number: DAT_EVENT_NUMBER) -> Option<DAT_IA_COUNTERS> {
    match number {
        DAT_ASYNC_ERROR_EVD_OVERFLOW => Some(DCNT_IA_ASYNC_CQ_ERROR),
        DAT_ASYNC_ERROR_EP_BROKEN => Some(DCNT_IA_ASYNC_QP_ERROR),
        _ => None,
    }
}
