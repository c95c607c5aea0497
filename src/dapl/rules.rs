//! Which rules hold where existing libraries accept more than the man pages, and programs rely on
//! that. The table in dat.conf(5) lists the differences between `rules=pages` and the default; the
//! methods of [`Rules`] and their callers implement them.

use crate::abi::common::{DAT_EP_STATE, DAT_EP_STATE_UNCONNECTED};
use crate::device::{Access, PostError, RecvWr, Sought, WrFlags};

/// Whose rules hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rules {
    /// Whatever existing libraries accept is accepted.
    #[default]
    Programs,
    /// The letter of the man pages.
    Pages,
}

impl Rules {
    /// Whether the letter of the man pages holds.
    #[inline]
    pub fn are_pages(self) -> bool {
        self == Rules::Pages
    }

    /// The access to a region that was registered for `access`. By the rules of programs that includes
    /// local read: no adapter has a right of its own for it, and programs send from memory that they
    /// registered for local write alone, or for what peers do.
    pub fn local_access(self, mut access: Access) -> Access {
        if self == Rules::Programs {
            access |= Access::LOCAL_READ;
        }
        access
    }

    /// Whether what an EVD has of an endpoint stays there when that is reset. The pages allow that completions are
    /// lost. Existing libraries leave all there, and there are programs that reset an endpoint first and then
    /// take what was flushed, to know which receives have to be posted again.
    pub fn keep_events_of_reset(self) -> bool {
        self == Rules::Programs
    }

    /// The state that the refusal of a request names, on an endpoint in this one that takes no requests. By the rules
    /// of programs it is that of an endpoint without a connection, as existing libraries have it.
    pub fn refused_state(self, state: DAT_EP_STATE) -> DAT_EP_STATE {
        match self {
            Rules::Programs => DAT_EP_STATE_UNCONNECTED,
            Rules::Pages => state,
        }
    }

    /// Posts a receive again that was refused because of `error`, by `post`, if it may have keys of no
    /// region. By the rules of programs it may: existing libraries leave keys to the adapter, which looks at
    /// those of the memory that a message comes to, and there are programs that leave segments of an earlier
    /// receive behind what they use.
    ///
    /// # Errors
    /// That of `post`, or `error`.
    pub fn receive_again(
        self,
        wr: RecvWr<'_>,
        error: PostError,
        post: impl FnOnce(&RecvWr<'_>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        if error != PostError::Key || self == Rules::Pages {
            return Err(error);
        }
        let flags = wr.flags | WrFlags::ANY_KEY;
        post(&RecvWr { flags, ..wr })
    }

    /// Where a connection to a qualifier leads. By the rules of programs one of more than 32 bits is for
    /// its lower half if nobody listens for the whole: existing libraries look at the lower bits alone, and
    /// there are programs that keep a qualifier of 32 bits in half of a variable and never set the other.
    /// A listener for more than 32 bits gets what is for it and nothing else, by either rules.
    pub fn sought(self, qual: u64) -> Sought {
        let lower = u64::from(qual as u32);
        let is_wide = self == Rules::Programs && lower != qual && lower != 0;
        Sought {
            qual,
            otherwise: is_wide.then_some(lower),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_can_be_read_locally() {
        for access in [Access::LOCAL_WRITE, Access::REMOTE_READ, Access::empty()] {
            let readable = access | Access::LOCAL_READ;
            assert_eq!(Rules::Programs.local_access(access), readable);
            assert_eq!(Rules::Pages.local_access(access), access);
        }
    }

    #[test]
    fn the_lower_half_of_a_qualifier() {
        let otherwise = |rules: Rules, qual| rules.sought(qual).otherwise;
        assert_eq!(otherwise(Rules::Programs, 0x5596_0000_771c), Some(0x771c));
        assert_eq!(otherwise(Rules::Programs, 0x5596_0001_771c), Some(0x1_771c));
        // What has no other half, or nothing in the lower one.
        for qual in [0x771c, 0x1_771c, u32::MAX.into(), 0x5596_0000_0000] {
            assert_eq!(otherwise(Rules::Programs, qual), None, "{qual:#x}");
        }
        assert_eq!(otherwise(Rules::Pages, 0x5596_0000_771c), None);
    }
}
