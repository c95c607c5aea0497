//! Which rules hold where existing libraries accept more than the man pages, and programs rely on
//! that. The table in dat.conf(5) lists the differences between `rules=pages` and the default; the
//! methods of [`Rules`] and their callers implement them.

use crate::device::Access;

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

    /// The access to a region that was registered for `access`. By the rules of programs local write
    /// includes local read: no adapter distinguishes them, and programs send from memory that they
    /// registered for local write alone.
    pub fn local_access(self, mut access: Access) -> Access {
        if self == Rules::Programs && access.contains(Access::LOCAL_WRITE) {
            access |= Access::LOCAL_READ;
        }
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_write_and_local_read() {
        let both = Access::LOCAL_WRITE | Access::LOCAL_READ;
        assert_eq!(Rules::Programs.local_access(Access::LOCAL_WRITE), both);
        let write = Access::LOCAL_WRITE;
        assert_eq!(Rules::Pages.local_access(write), write);
        let remote = Access::REMOTE_READ;
        assert_eq!(Rules::Programs.local_access(remote), remote);
    }
}
