//! The registered memory of an end: slots with known contents, and guards around them.

/// What memory holds in which nothing was placed.
const EMPTY: u8 = 0xee;
/// A word of it.
pub const EMPTY_WORD: u64 = u64::from_ne_bytes([EMPTY; 8]);
/// What guards hold.
const GUARD: u8 = 0x5a;
/// Length of a guard, in bytes.
const GUARD_LEN: usize = 32;

/// Eight bytes of the contents with that key; none of them is [`EMPTY`].
fn word(key: u64, number: usize) -> [u8; 8] {
    let mixed = (key.wrapping_add(number as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // No byte with the highest bit is left.
    ((mixed ^ (mixed >> 29)) & 0x7f7f_7f7f_7f7f_7f7f).to_le_bytes()
}

/// The byte at a place of the contents with that key.
pub fn byte(key: u64, at: usize) -> u8 {
    word(key, at / 8)[at % 8]
}

/// Number of bytes from the beginning on that are those of the contents.
fn matching(bytes: &[u8], key: u64) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let wrong = |number: usize, bytes: &[u8]| {
        let same = bytes.iter().zip(word(key, number));
        number * 8 + same.take_while(|(a, b)| **a == *b).count()
    };
    match (0..words.len()).find(|number| words[*number] != word(key, *number)) {
        Some(number) => wrong(number, &words[number]),
        None => wrong(words.len(), rest),
    }
}

/// A part of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Where the slot begins.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
    /// The key of the contents of a slot that is a source.
    pub source: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub struct Memory {
    bytes: Vec<u8>,
    pub slots: Vec<Slot>,
    len: usize,
}

impl Memory {
    /// Adds a slot: with contents, or empty.
    pub fn add(&mut self, len: usize, source: Option<u64>) -> usize {
        let offset = GUARD_LEN + self.len;
        self.len += len;
        self.slots.push(Slot {
            offset,
            len,
            source,
        });
        self.slots.len() - 1
    }

    /// Adds an empty slot for a word of 8 bytes, aligned as the memory is.
    pub fn add_word(&mut self) -> usize {
        self.len = self.len.next_multiple_of(8);
        self.add(8, None)
    }

    /// The word in the first 8 bytes of a slot.
    pub fn word(&self, slot: usize) -> u64 {
        let bytes = self.bytes_of(slot);
        bytes
            .first_chunk()
            .map_or(0, |word| u64::from_ne_bytes(*word))
    }

    /// Fills the memory, when all slots are there.
    pub fn fill(&mut self) {
        let mut bytes = vec![EMPTY; self.len + 2 * GUARD_LEN];
        let end = bytes.len() - GUARD_LEN;
        bytes[..GUARD_LEN].fill(GUARD);
        bytes[end..].fill(GUARD);
        for slot in &self.slots {
            if let Some(key) = slot.source {
                let bytes = &mut bytes[slot.offset..][..slot.len];
                for (number, chunk) in bytes.chunks_mut(8).enumerate() {
                    chunk.copy_from_slice(&word(key, number)[..chunk.len()]);
                }
            }
        }
        self.bytes = bytes;
    }

    /// Address and length of what is registered.
    pub fn region(&mut self) -> (u64, u64) {
        let at = self.bytes.as_mut_ptr() as u64;
        (at + GUARD_LEN as u64, self.len as u64)
    }

    /// The address of a slot.
    pub fn address(&self, slot: usize) -> u64 {
        self.bytes.as_ptr() as u64 + self.slots[slot].offset as u64
    }

    fn bytes_of(&self, slot: usize) -> &[u8] {
        let slot = &self.slots[slot];
        // What the library has written through pointers.
        let bytes = std::hint::black_box(&self.bytes);
        &bytes[slot.offset..][..slot.len]
    }

    /// How many bytes of the contents `key` the slot holds from its beginning on; everything behind
    /// them has to be empty.
    ///
    /// # Errors
    /// Where there is another byte.
    pub fn placed(&self, slot: usize, key: u64, len: usize) -> Result<usize, String> {
        let bytes = self.bytes_of(slot);
        let most = len.min(bytes.len());
        let n = matching(&bytes[..most], key);
        match bytes[n..].iter().position(|b| *b != EMPTY) {
            None => Ok(n),
            Some(at) => Err(format!("slot {slot}: another byte at {} of {len}", n + at)),
        }
    }

    /// Checks that sources and guards are as they were.
    ///
    /// # Errors
    /// What has changed.
    pub fn check(&self) -> Result<(), String> {
        let end = self.bytes.len() - GUARD_LEN;
        let guards = self.bytes[..GUARD_LEN].iter().chain(&self.bytes[end..]);
        if guards.copied().any(|b| b != GUARD) {
            return Err("memory outside of the region has changed".into());
        }
        for (number, slot) in self.slots.iter().enumerate() {
            let bytes = self.bytes_of(number);
            if let Some(key) = slot.source
                && matching(bytes, key) < slot.len
            {
                return Err(format!("source slot {number} has changed"));
            }
        }
        Ok(())
    }
}
