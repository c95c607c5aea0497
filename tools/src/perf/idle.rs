//! What is done while nothing arrives.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use dat_core::abi::common::DAT_SUCCESS;
use dat_core::abi::v2;

use super::failure::{Result, check_interrupted, error};
use super::ia::event_name;
use super::side::Side;

/// So many empty looks at an EVD are between two looks at the rest of the world.
const IDLE_POLLS: u32 = 1 << 14;
/// A peer that is silent for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks now and then, while nothing arrives, whether something has happened to the rest of the
/// world.
#[derive(Default)]
pub struct Idle {
    polls: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Nothing has arrived.
    #[inline(always)]
    pub fn look_around(&mut self, side: &Side) -> Result<()> {
        self.polls += 1;
        if self.polls < IDLE_POLLS {
            return Ok(());
        }
        self.polls = 0;
        self.check(side)
    }

    /// Nothing has arrived for a long time.
    #[cold]
    #[inline(never)]
    pub fn check(&mut self, side: &Side) -> Result<()> {
        check_interrupted()?;
        let now = Instant::now();
        if now - *self.since.get_or_insert(now) > PATIENCE {
            return error(format!("nothing has arrived for {} s", PATIENCE.as_secs()));
        }
        let mut event = MaybeUninit::<v2::DAT_EVENT>::uninit();
        let (evd, to) = (side.connect_evd, event.as_mut_ptr());
        // SAFETY: an EVD of ours, and a local to fill.
        if unsafe { (side.api.evd_dequeue)(evd, to) } == DAT_SUCCESS {
            // SAFETY: filled by the call.
            let number = unsafe { event.assume_init_ref() }.event_number;
            return error(format!("connection lost: {}", event_name(number)));
        }
        Ok(())
    }
}
