//! The memory of a party: what it sends, what peers may write, where receives and reads end.

use super::EPS;

/// Bytes that both parties have from the beginning and never change. Sends and RDMA writes take
/// theirs from here.
pub const PATTERN: usize = 4096;
/// Bytes of the area that the peer of an endpoint may write and read.
pub const AREA: usize = 1024;
/// Bytes of a buffer for a receive or an RDMA read.
pub const BUFFER: usize = 1024;
/// Buffers of a party.
pub const BUFFERS: usize = 48;

/// What the model knows of the memory of a party.
pub struct Memory {
    /// What the area of each endpoint holds; nothing, if that cannot be known.
    pub areas: [Option<Vec<u8>>; EPS],
    /// Buffers that no request uses.
    free: Vec<usize>,
}

impl Memory {
    pub fn new() -> Memory {
        Memory {
            areas: [const { None }; EPS],
            free: (0..BUFFERS).collect(),
        }
    }

    /// A buffer for a request.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// The buffer is no request's any more.
    pub fn give_back(&mut self, buffer: usize) {
        assert!(!self.free.contains(&buffer), "a buffer had two users");
        // Those that were used long ago are used first, so that late writes show.
        self.free.insert(0, buffer);
    }
}

/// Byte `offset` of the pattern.
fn byte(offset: usize) -> u8 {
    (offset.wrapping_mul(2_654_435_761) >> 7) as u8 | 1
}

/// Bytes of the pattern.
pub fn pattern(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(byte).collect()
}

/// Where the area of an endpoint begins, in the memory of the party.
pub fn area_offset(slot: usize) -> usize {
    PATTERN + slot * AREA
}

/// Where a buffer begins, in the memory of the party.
pub fn buffer_offset(buffer: usize) -> usize {
    PATTERN + EPS * AREA + buffer * BUFFER
}
