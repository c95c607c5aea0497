//! Memory of a measurement.

use std::ops::{Deref, DerefMut};

/// The smallest page, in bytes.
const PAGE: usize = 4096;

/// Memory that begins in the middle of a page. Some processors copy ten times slower where the target begins a
/// few bytes behind the source, whole pages apart from that, so what a limit takes must not depend on where the
/// allocator happens to put its memory; what the kernel keeps of a stream often begins with a page.
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// So many bytes with this value.
    pub fn new(value: u8, len: usize) -> Buffer {
        let memory = vec![value; len + PAGE];
        let start = (PAGE / 2).wrapping_sub(memory.as_ptr().addr()) % PAGE;
        Buffer { memory, start, len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}
