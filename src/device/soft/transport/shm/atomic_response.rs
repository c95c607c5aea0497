//! The response to an atomic operation, in shared memory.

use super::ring::Violation;
use crate::device::WcStatus;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How operations end, as the process that has executed them reports. 0 is none.
const DONE: u32 = 1;
const NO_ACCESS: u32 = 2;
const MISALIGNED: u32 = 3;

/// The response to the atomic operation of one end, in shared memory. All of it is zero at the
/// beginning. One operation of an end is under way at a time.
#[repr(C, align(64))]
pub struct AtomicResponse {
    /// The low 32 bits of the number of the cell that had the request, above how the operation has
    /// ended.
    state: AtomicU64,
    /// What the word was before.
    before: AtomicU64,
}

impl AtomicResponse {
    /// There was no operation.
    #[allow(clippy::new_without_default)]
    pub fn new() -> AtomicResponse {
        AtomicResponse {
            state: AtomicU64::new(0),
            before: AtomicU64::new(0),
        }
    }

    /// Called by the initiator before it sends a request.
    pub fn clear(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// Called by the process that has executed the request in the cell of that number.
    pub fn set(&self, number: u64, result: Result<u64, WcStatus>) {
        let end = match result {
            Ok(before) => {
                self.before.store(before, Ordering::Relaxed);
                DONE
            }
            Err(WcStatus::RemoteOperation) => MISALIGNED,
            Err(_) => NO_ACCESS,
        };
        let state = number << 32 | u64::from(end);
        self.state.store(state, Ordering::Release);
    }

    /// The response to the request in the cell of that number: what the word was before, or the status of
    /// the request. `None` if it is not there yet.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn get(&self, number: u64) -> Result<Option<Result<u64, WcStatus>>, Violation> {
        let state = self.state.load(Ordering::Acquire);
        if state == 0 {
            return Ok(None);
        }
        if (state >> 32) as u32 != number as u32 {
            return Err(Violation);
        }
        Ok(Some(match state as u32 {
            DONE => Ok(self.before.load(Ordering::Relaxed)),
            NO_ACCESS => Err(WcStatus::RemoteAccess),
            MISALIGNED => Err(WcStatus::RemoteOperation),
            _ => return Err(Violation),
        }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_that_to_one_request() {
        let response = AtomicResponse::new();
        for (number, result) in [
            (0, Ok(u64::MAX)),
            (u64::from(u32::MAX), Err(WcStatus::RemoteAccess)),
            (1 << 32 | 5, Err(WcStatus::RemoteOperation)),
        ] {
            response.clear();
            assert_eq!(response.get(number), Ok(None));
            response.set(number, result);
            assert_eq!(response.get(number), Ok(Some(result)));
            assert_eq!(response.get(number + 1), Err(Violation));
        }
        response.state.store(9 << 32 | 4, Ordering::Relaxed);
        assert_eq!(response.get(9), Err(Violation));
    }
}
