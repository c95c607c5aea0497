//! How the registered memory of an end is divided.

/// Bytes behind the areas, for what is not measured.
const EXTRA: usize = 4096;

/// The parts of the registered memory, as offsets. Both ends have the same.
#[derive(Clone, Copy)]
pub struct Map {
    /// Bytes of each of the three areas.
    pub area: usize,
}

impl Map {
    /// What is sent and written, and what the peer reads.
    pub fn source(self) -> usize {
        0
    }

    /// What the peer writes, and what is read.
    pub fn landing(self) -> usize {
        self.area
    }

    /// What is received.
    pub fn inbox(self) -> usize {
        2 * self.area
    }

    /// Where a note to the peer is made.
    pub fn note_out(self) -> usize {
        3 * self.area
    }

    /// Where a note of the peer arrives.
    pub fn note_in(self) -> usize {
        self.note_out() + 128
    }

    /// The word that the client writes to a passive server at the end.
    pub fn bell(self) -> usize {
        self.note_out() + 256
    }

    /// A word that may be read and overwritten at any time.
    pub fn scratch(self) -> usize {
        self.note_out() + 384
    }

    /// What the messages to and fro of [`super::fairness`] have.
    pub fn ping_out(self) -> usize {
        self.note_out() + 512
    }

    /// Where the messages to and fro of [`super::fairness`] arrive.
    pub fn ping_in(self) -> usize {
        self.note_out() + 640
    }

    /// Bytes of all of it.
    pub fn len(self) -> usize {
        3 * self.area + EXTRA
    }
}
