//! The running CRC32C of an FPDU (RFC 5044 section 4.4).

use crc_fast::{CrcAlgorithm, Digest};

use crate::guarded::{self, CopyFault};

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
        if len >= wide::MIN && wide::is_there() {
            // SAFETY: the caller's promise.
            let (folded, done) = unsafe { wide::copy(from, to, len, self.0) }?;
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

/// Few bytes, by the instruction that sums a word.
#[cfg(target_arch = "x86_64")]
mod short {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    /// With more bytes it takes longer than folding.
    pub(super) const MOST: usize = 256;

    #[inline]
    pub(super) fn is_there() -> bool {
        is_x86_feature_detected!("sse4.2")
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    pub(super) fn update(state: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks();
        let add = |state, word: &[u8; 8]| _mm_crc32_u64(state, u64::from_le_bytes(*word));
        let state = words.iter().fold(u64::from(state), add) as u32;
        let add = |state, byte: &u8| _mm_crc32_u8(state, *byte);
        rest.iter().fold(state, add)
    }
}

/// Copying and summing in one pass, in registers of 512 bits.
///
/// A block that is multiplied with a power of x, modulo the polynomial, may be added to one that
/// many bits behind it: the CRC stays what it was ("Fast CRC Computation for Generic Polynomials
/// Using PCLMULQDQ Instruction", Intel 2009). So a message is folded to a block of the same CRC.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::naked_asm;

    use crate::guarded::table_entry;

    /// Bytes of a block: four registers.
    pub(crate) const BLOCK: usize = 256;
    /// Less is not worth it.
    pub(super) const MIN: usize = 4 * BLOCK;

    /// x to the power of `n` modulo the polynomial, with its bits reversed as everything here,
    /// and in the place where a product of two reversed factors comes out right.
    const fn power(n: u32) -> i64 {
        let (mut value, mut i) = (1u32, 0);
        while i < n {
            let carry = value >> 31;
            value = (value << 1) ^ (carry * 0x1edc_6f41);
            i += 1;
        }
        (value.reverse_bits() as i64) << 1
    }

    /// For the two halves of 128 bits that move by a block.
    const NEAR: i64 = power(BLOCK as u32 * 8 + 32);
    const FAR: i64 = power(BLOCK as u32 * 8 - 32);

    pub(crate) fn is_there() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies whole blocks; returns what they fold to, `state` included, and how many bytes that
    /// were. `None` if one of the sides is not there.
    ///
    /// # Safety
    /// As [`Crc::copy`](super::Crc::copy); `len` is [`MIN`] or more, and the processor has the
    /// instructions.
    pub(crate) unsafe fn copy(
        from: *const u8,
        to: *mut u8,
        len: usize,
        state: u32,
    ) -> Option<([u8; BLOCK], usize)> {
        let keys = [NEAR, FAR];
        let mut folded = [0; BLOCK];
        let done = len / BLOCK * BLOCK;
        // SAFETY: the caller's promise.
        match unsafe { fold(to, from, done, state, &keys, &mut folded) } {
            0 => Some((folded, done)),
            _ => None,
        }
    }

    /// Copies and folds `len` bytes, which are blocks, at least two. The registers zmm0 to zmm3
    /// have what the blocks fold to. Returns 0, or the address of a fault.
    ///
    /// # Safety
    /// As [`copy`].
    #[unsafe(naked)]
    unsafe extern "sysv64" fn fold(
        to: *mut u8,
        from: *const u8,
        len: usize,
        state: u32,
        keys: &[i64; 2],
        folded: &mut [u8; BLOCK],
    ) -> usize {
        naked_asm!(
            "xor eax, eax",
            "vbroadcasti32x4 zmm16, xmmword ptr [r8]",
            "vmovd xmm17, ecx",
            "lea r10, [rsi + rdx]",
            "2:",
            "vmovdqu64 zmm0, [rsi]",
            "vmovdqu64 zmm1, [rsi + 64]",
            "vmovdqu64 zmm2, [rsi + 128]",
            "vmovdqu64 zmm3, [rsi + 192]",
            "vmovdqu64 [rdi], zmm0",
            "vmovdqu64 [rdi + 64], zmm1",
            "vmovdqu64 [rdi + 128], zmm2",
            "vmovdqu64 [rdi + 192], zmm3",
            "vpxorq zmm0, zmm0, zmm17",
            ".p2align 5",
            "20:",
            "add rsi, 256",
            "add rdi, 256",
            "vmovdqu64 zmm20, [rsi]",
            "vmovdqu64 zmm21, [rsi + 64]",
            "vmovdqu64 zmm22, [rsi + 128]",
            "vmovdqu64 zmm23, [rsi + 192]",
            "vpclmulqdq zmm24, zmm0, zmm16, 0x00",
            "vpclmulqdq zmm25, zmm1, zmm16, 0x00",
            "vpclmulqdq zmm26, zmm2, zmm16, 0x00",
            "vpclmulqdq zmm27, zmm3, zmm16, 0x00",
            "vpclmulqdq zmm0, zmm0, zmm16, 0x11",
            "vpclmulqdq zmm1, zmm1, zmm16, 0x11",
            "vpclmulqdq zmm2, zmm2, zmm16, 0x11",
            "vpclmulqdq zmm3, zmm3, zmm16, 0x11",
            "vmovdqu64 [rdi], zmm20",
            "vmovdqu64 [rdi + 64], zmm21",
            "vmovdqu64 [rdi + 128], zmm22",
            "vmovdqu64 [rdi + 192], zmm23",
            // The sum of the three.
            "vpternlogq zmm0, zmm24, zmm20, 0x96",
            "vpternlogq zmm1, zmm25, zmm21, 0x96",
            "vpternlogq zmm2, zmm26, zmm22, 0x96",
            "vpternlogq zmm3, zmm27, zmm23, 0x96",
            "lea rcx, [rsi + 256]",
            "cmp rcx, r10",
            "jb 20b",
            "3:",
            "vmovdqu64 [r9], zmm0",
            "vmovdqu64 [r9 + 64], zmm1",
            "vmovdqu64 [r9 + 128], zmm2",
            "vmovdqu64 [r9 + 192], zmm3",
            "4:",
            "vzeroupper",
            "ret",
            table_entry!(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let page = rustix::param::page_size();
        let flags = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let private = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a new mapping, of which only the second half is unmapped.
        let at = unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4 * page, flags, private);
            let at = at.unwrap();
            rustix::mm::munmap(at.byte_add(2 * page), 2 * page).unwrap();
            at.cast::<u8>()
        };
        let mut to = vec![0; 3 * page];
        for (there, len) in [(0, 1), (1, 1000), (600, 1024), (2 * page, 2 * page + 1)] {
            let from = at.wrapping_add(2 * page - there);
            // SAFETY: there is room for all.
            let done = unsafe { Crc::new().copy(from, to.as_mut_ptr(), len) };
            assert_eq!(done, Err(CopyFault::Source), "{there} {len}");
            // SAFETY: memory of the test, as far as it is there.
            let done = unsafe { Crc::new().place(&to[..len], from) };
            assert_eq!(done, Err(CopyFault::Target), "{there} {len}");
        }
        // SAFETY: the rest of the mapping.
        unsafe { rustix::mm::munmap(at.cast(), 2 * page) }.unwrap();
    }
}
