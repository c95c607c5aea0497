//! Memory that is open to a device and to peers: regions, and windows in them.

use std::sync::Arc;

use super::{Device, WrFlags};

bitflags::bitflags! {
    /// What a memory region or window allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        /// Source of sends and RDMA writes.
        const LOCAL_READ = 0x01;
        /// Target of RDMA reads of peers.
        const REMOTE_READ = 0x02;
        /// Target of receives and of data that RDMA reads fetch.
        const LOCAL_WRITE = 0x10;
        /// Target of RDMA writes of peers.
        const REMOTE_WRITE = 0x20;
        /// Target of atomic operations of peers.
        const REMOTE_ATOMIC = 0x40;
    }
}

impl Access {
    /// All that peers may be allowed to do.
    pub const REMOTE: Access = Access::REMOTE_READ
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_ATOMIC);
}

/// What the addresses of a memory region or window are, by which local segments and peers name its
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Addressing {
    /// Those of the memory; of a window: those of its region.
    #[default]
    Virtual,
    /// They count from the first byte, which is at 0.
    ZeroBased,
}

/// A registered memory region. Dropping it deregisters: when the drop has returned no access,
/// local or remote, reaches the memory.
pub trait MemoryRegion: Send + Sync {
    /// Key for local segments.
    fn lkey(&self) -> u32;
    /// Key for peers; 0 if the region permits no remote access.
    fn rkey(&self) -> u32;
}

/// A memory window: a part of a memory region, open to peers under a key of its own, which
/// changes with every bind. Dropping it closes it.
pub trait MemoryWindow: Send + Sync {
    /// Closes it for good, whatever still refers to it: when this returns no peer reaches
    /// memory through it.
    fn close(&self);

    /// What peers reach through it.
    fn opening(&self) -> WindowOpening {
        WindowOpening::Unknown
    }
}

/// What peers reach through a memory window, as far as its device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowOpening {
    /// The device does not know.
    Unknown,
    /// So many binds are neither executed nor given up.
    Binding(u32),
    /// What it was bound to, under this key; 0 for nothing: it was never bound, was bound to nothing, or a peer has
    /// invalidated its key.
    Open(u32),
}

/// Who may use a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowScope {
    /// The peers of all queue pairs of its protection domain.
    Domain,
    /// The peer of the queue pair on which the window is bound.
    QueuePair,
}

/// A bind of a memory window.
pub struct BindWr<'a, D: Device> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Returned in the completion, in [`WcOp::Bind`](super::WcOp::Bind).
    pub context: u64,
    /// The window.
    pub window: &'a Arc<D::Mw>,
    /// The region that holds the range; `None` closes the window.
    pub region: Option<&'a D::Mr>,
    /// Start of the range, in the [`Addressing`] of the region.
    pub addr: u64,
    /// Bytes of the range.
    pub len: u64,
    /// How peers name the bytes of the range.
    pub addressing: Addressing,
    /// What peers may do; only the remote bits count.
    pub access: Access,
    /// Behaviour.
    pub flags: WrFlags,
}
