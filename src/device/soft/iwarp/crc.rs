//! The running CRC32C of an FPDU (RFC 5044 section 4.4).

use crc_fast::{CrcAlgorithm, Digest};

use crate::guarded::{self, CopyFault};

#[cfg(target_arch = "x86_64")]
mod short;
#[cfg(target_arch = "x86_64")]
mod wide;

/// What is copied and then summed at a time: the sum finds it in the nearest cache.
const STEP: usize = 16 * 1024;

/// CRC32C over the slices of one FPDU in order: header, payload, padding.
///
/// Four bytes, free to copy: the state can be kept in a receive context between reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crc(u32);

impl Crc {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Adds `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if bytes.len() <= short::MOST && short::is_there() {
            // SAFETY: the processor has the instruction.
            self.0 = unsafe { short::update(self.0, bytes) };
            return;
        }
        if bytes.is_empty() {
            return;
        }
        // "ISCSI" is the catalogue's name of the Castagnoli polynomial. A digest carries its
        // tables along (300 bytes), so only the state is kept here, and the first slice, often
        // the only one, goes without a digest.
        self.0 = if self.0 == u32::MAX {
            !crc_fast::crc32_iscsi(bytes)
        } else {
            let state = u64::from(self.0);
            let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
            digest.update(bytes);
            digest.get_state() as u32
        };
    }

    /// Copies, and adds what was copied. The source may change meanwhile: the sum is that of
    /// the copy.
    ///
    /// # Errors
    /// The source cannot be read. The state is useless then.
    ///
    /// # Safety
    /// `len` bytes may be written at `to`; they do not overlap those at `from`, and nothing else
    /// uses them.
    #[inline]
    pub unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), CopyFault> {
        // SAFETY: the caller's promise. What was copied is initialized and ours alone.
        unsafe {
            let mut done = self.copy_wide(from, to, len).ok_or(CopyFault::Source)?;
            while done < len {
                let n = STEP.min(len - done);
                let to = to.add(done);
                guarded::copy(from.wrapping_add(done), to, n)?;
                self.update(std::slice::from_raw_parts(to, n));
                done += n;
            }
        }
        Ok(())
    }

    /// Adds `bytes`, and copies them to `to`.
    ///
    /// # Errors
    /// The target cannot be written. The state is useless then.
    ///
    /// # Safety
    /// So many bytes may be written at `to`; they do not overlap `bytes`.
    #[inline]
    pub unsafe fn place(&mut self, bytes: &[u8], to: *mut u8) -> Result<(), CopyFault> {
        // SAFETY: the caller's promise.
        unsafe {
            let copied = self.copy_wide(bytes.as_ptr(), to, bytes.len());
            let mut done = copied.ok_or(CopyFault::Target)?;
            for step in bytes[done..].chunks(STEP) {
                self.update(step);
                guarded::copy(step.as_ptr(), to.wrapping_add(done), step.len())?;
                done += step.len();
            }
        }
        Ok(())
    }

    /// Copies and adds as many of `len` bytes as one pass for both takes; returns how many. `None` if one
    /// of the sides is not there.
    ///
    /// # Safety
    /// As [`Crc::copy`].
    #[inline]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    unsafe fn copy_wide(&mut self, from: *const u8, to: *mut u8, len: usize) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if len >= wide::MIN
            && let Some(fold) = wide::fold()
        {
            // SAFETY: the caller's promise, and the processor has the instructions.
            let (folded, done) = unsafe { wide::copy(fold, from, to, len, self.0) }?;
            // It stands for all that was added so far.
            self.0 = 0;
            self.update(&folded);
            return Some(done);
        }
        Some(0)
    }

    /// The CRC field as it goes on the wire.
    ///
    /// RFC 5044 takes over the bit order of iSCSI, which makes the bytes of the field those
    /// of the usual CRC32C value from the least significant one on; siw does the same.
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pages::TestPages;

    fn crc(slices: &[&[u8]]) -> u32 {
        let mut crc = Crc::new();
        slices.iter().for_each(|slice| crc.update(slice));
        u32::from_le_bytes(crc.finish())
    }

    #[test]
    fn check_value() {
        assert_eq!(crc(&[b"123456789"]), 0xe306_9283);
    }

    /// RFC 3720 appendix B.4, the bytes in the order in which they are sent.
    #[test]
    fn iscsi_examples() {
        let ascending: [u8; 32] = std::array::from_fn(|i| i as u8);
        for (input, sent) in [
            ([0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            ([0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (ascending, [0x4e, 0x79, 0xdd, 0x46]),
        ] {
            let mut crc = Crc::new();
            crc.update(&input);
            assert_eq!(crc.finish(), sent);
        }
    }

    #[test]
    fn slices_make_no_difference() {
        let data: Vec<u8> = (0..1500u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let whole = crc(&[&data]);
        for cut in [0, 1, 3, 15, 16, 17, 127, 128, 129, 1024, 1499, 1500] {
            let (a, b) = data.split_at(cut);
            assert_eq!(crc(&[a, b]), whole, "cut at {cut}");
            assert_eq!(crc(&[a, &[], b]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_copied_on_the_way_has_the_same_sum() {
        let data: Vec<u8> = (0..70_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let lens = (0..300)
            .chain(1020..1300)
            .chain([4095, 4096, 65_000, 69_990]);
        for len in lens {
            let from = &data[len % 9..][..len];
            for state in [&[][..], b"header"] {
                let (mut copied, mut read) = (Crc::new(), Crc::new());
                copied.update(state);
                read.update(state);
                read.update(from);
                let mut to = vec![0xee; len + 2];
                // SAFETY: there is room for all behind the first byte.
                let done = unsafe { copied.copy(from.as_ptr(), to.as_mut_ptr().add(1), len) };
                assert_eq!(done, Ok(()));
                assert_eq!(copied, read, "{len}");
                assert_eq!(&to[1..=len], from);
                assert_eq!((to[0], to[len + 1]), (0xee, 0xee));

                let mut placed = Crc::new();
                placed.update(state);
                to.fill(0xee);
                // SAFETY: the same.
                let done = unsafe { placed.place(from, to.as_mut_ptr().add(1)) };
                assert_eq!(done, Ok(()));
                assert_eq!(placed, read, "{len}");
                assert_eq!(&to[1..=len], from);
                assert_eq!((to[0], to[len + 1]), (0xee, 0xee));
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        guarded::install_handlers();
        let page = TestPages::page();
        let pages = TestPages::new(4);
        pages.unmap(2..4);
        let mut to = vec![0; 3 * page];
        for (there, len) in [(0, 1), (1, 1000), (600, 1024), (2 * page, 2 * page + 1)] {
            let from = pages.at(2 * page - there);
            // SAFETY: there is room for all.
            let done = unsafe { Crc::new().copy(from, to.as_mut_ptr(), len) };
            assert_eq!(done, Err(CopyFault::Source), "{there} {len}");
            // SAFETY: memory of the test, as far as it is there.
            let done = unsafe { Crc::new().place(&to[..len], from) };
            assert_eq!(done, Err(CopyFault::Target), "{there} {len}");
        }
    }
}
