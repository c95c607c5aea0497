//! What is in a message: a pattern that depends on its number and on who sent it, so that a
//! message that is lost, doubled, cut or torn is noticed.

/// Eight bytes of a pattern. Odd factors keep words of one message, and of two, apart.
fn word(seed: u64, index: usize) -> [u8; 8] {
    let x = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
    (x ^ x >> 29).to_le_bytes()
}

/// The seed of a message: its sender, its endpoint and its number there.
pub fn seed(server: bool, ep: usize, number: u64) -> u64 {
    (u64::from(server) << 63 | (ep as u64) << 40).wrapping_add(number) + 1
}

/// Fills a message.
pub fn fill(bytes: &mut [u8], seed: u64) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
    }
}

/// Writes a message, as fast as memory takes it.
pub fn write(bytes: &mut [u8], number: u64) {
    bytes.fill(number as u8);
}

/// Reads a message, as fast as memory gives it.
pub fn read(bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| {
        sum.wrapping_add(u64::from_le_bytes(*word))
    });
    std::hint::black_box((sum, rest.first()));
}

/// Whether a message is what [`fill`] made.
pub fn intact(bytes: &[u8], seed: u64) -> bool {
    bytes
        .chunks(8)
        .enumerate()
        .all(|(index, chunk)| chunk == &word(seed, index)[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_is_noticed() {
        let mut bytes = vec![0; 37];
        fill(&mut bytes, seed(false, 3, 7));
        assert!(intact(&bytes, seed(false, 3, 7)));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!intact(&bytes, seed(false, 3, 7)), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn messages_differ() {
        let mut bytes = [0; 8];
        fill(&mut bytes, seed(false, 0, 1));
        for other in [seed(true, 0, 1), seed(false, 1, 1), seed(false, 0, 2)] {
            assert!(!intact(&bytes, other));
        }
    }
}
