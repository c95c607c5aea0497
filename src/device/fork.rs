//! Which process an object in memory belongs to: a forked child has a copy of everything that its
//! parent had, but neither the parent's threads nor its connections.

/// The process that made something, by its identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnerPid(u32);

impl OwnerPid {
    /// No process: for what nothing has made yet.
    pub const NONE: OwnerPid = OwnerPid(0);

    /// The calling process.
    pub fn current() -> OwnerPid {
        OwnerPid(std::process::id())
    }

    /// Whether the calling process is the owner. False in a child that was forked since.
    pub fn is_current(self) -> bool {
        self == OwnerPid::current()
    }
}
