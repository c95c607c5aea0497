//! The bytes of a fuzzer as a list of decisions.

/// What is left of the input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; `None` at the end.
    pub fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A number from the next bytes.
    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// As many of the next bytes, or fewer at the end.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A field that is mostly `right`, or nearly so, or an extreme, or anything.
    pub fn field(&mut self, right: u64) -> u64 {
        match self.byte() {
            0xf0 => right.wrapping_add(1),
            0xf1 => right.wrapping_sub(1),
            0xf2 => 0,
            0xf3 => u64::MAX,
            0xf4 => u64::from(u32::MAX),
            0xf5 => right.wrapping_add(256),
            0xf6 => right.wrapping_sub(256),
            0xf7 => self.word(),
            0xf8 => u64::from(self.byte()),
            0xf9 => right ^ 1 << (self.byte() % 64),
            _ => right,
        }
    }

    /// The same for 32 bits.
    pub fn field32(&mut self, right: u32) -> u32 {
        self.field(right.into()) as u32
    }

    /// Cuts a stream. The lengths of the pieces are bytes of `cuts`, again and again.
    pub fn cut<'s>(stream: &'s [u8], cuts: &[u8]) -> Vec<&'s [u8]> {
        let mut pieces = Vec::new();
        let mut rest = stream;
        for cut in cuts.iter().cycle().take(40) {
            let (piece, left) = rest.split_at((usize::from(*cut) + 1).min(rest.len()));
            pieces.push(piece);
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
        pieces
    }
}
