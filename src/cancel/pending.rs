//! What [`super::sleep`] does on processors for which no assembly is written.

use super::{Call, Cancelled};

/// Makes the call, if there is one. A cancellation stays pending.
///
/// # Safety
/// As for the system call.
pub unsafe fn run(call: Option<&mut Call>) -> Result<(), Cancelled> {
    if let Some(call) = call {
        // SAFETY: the caller's promise.
        unsafe { call.make() };
    }
    Ok(())
}
