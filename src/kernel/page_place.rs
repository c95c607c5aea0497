//! Where in a page buffers of ours begin that the kernel copies to and from.
//!
//! The kernel copies by `rep movsb` on processors that say it is fast. On some of them (AMD Zen 3: 3 instead of
//! 90 bytes a nanosecond) it is not where the target begins up to 31 bytes behind the source, whole pages
//! apart from that: the processor takes a load of the source for one that depends on the stores. The C
//! library's long allocations begin at byte 16 of a page, and what the kernel keeps of a stream often begins
//! with a page, so that each read of a socket would be one of those. Nothing that is copied to
//! or from a buffer which begins in the middle of a page is likely to begin there as well.

/// The smallest page, in bytes. What matters is the low bits of addresses, whatever the size of pages is.
pub const PAGE: usize = 4096;

/// How many bytes of memory at `at` to leave out, so that a buffer behind them begins in the middle of a page.
/// Less than [`PAGE`].
#[inline]
pub fn bytes_before(at: *const u8) -> usize {
    (PAGE / 2).wrapping_sub(at.addr()) % PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_in_the_middle_of_a_page() {
        for at in [0, 1, 16, 2047, 2048, 2049, 4095, usize::MAX] {
            let before = bytes_before(std::ptr::without_provenance(at));
            assert!(before < PAGE);
            assert_eq!(at.wrapping_add(before) % PAGE, PAGE / 2, "{at}");
        }
    }
}
