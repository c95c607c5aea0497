//! A system call that is not made once another process has set a bit: not even by a thread that was interrupted between
//! the look at the bit and the call.
//!
//! On x86-64 the look and the instruction of the call are a restartable sequence (`rseq(2)`), of which the call is
//! the last instruction: a thread that the kernel interrupts in it begins the sequence again. The C library registers
//! the memory for that (since 2.35). Elsewhere, and without it, the call is made shortly after the look.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::system_call;

/// Asks the C library for what later calls need, so that no call of the data path has to.
pub(crate) fn prepare() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    let _ = restartable::area();
}

/// Makes a system call, unless one of the bits of `mask` is set in `word`, and gives what the kernel returns: `-errno` for an
/// error. `None` if a bit is set, without a call.
///
/// # Safety
/// Those of the system call.
#[inline]
pub(crate) unsafe fn make_unless(
    word: &AtomicU32,
    mask: u32,
    number: libc::c_long,
    arguments: [usize; 6],
) -> Option<isize> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    if let Some(area) = restartable::area() {
        // SAFETY: the caller's promise; the area is that of this thread.
        return unsafe { restartable::make_unless(area, word, mask, number, arguments) };
    }
    if word.load(Ordering::Acquire) & mask != 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { system_call::make(number, arguments) })
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod restartable {
    use std::arch::asm;
    use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

    use crate::system_call::thread_pointer;

    /// The distance of the area of a thread from its thread pointer, as the C library says; [`NONE`] if it has
    /// none, [`UNKNOWN`] before it was asked.
    static DISTANCE: AtomicIsize = AtomicIsize::new(UNKNOWN);
    const UNKNOWN: isize = isize::MIN;
    const NONE: isize = isize::MAX;
    /// Where the area has the address of the descriptor of a sequence.
    const SEQUENCE: usize = 8;

    /// The area of this thread (`struct rseq`), if the C library has registered one.
    #[inline]
    pub(super) fn area() -> Option<usize> {
        let distance = match DISTANCE.load(Ordering::Relaxed) {
            UNKNOWN => ask(),
            distance => distance,
        };
        if distance == NONE {
            return None;
        }
        Some(thread_pointer().wrapping_add_signed(distance))
    }

    #[cold]
    fn ask() -> isize {
        // SAFETY: names of variables of the C library.
        let (distance, size) = unsafe {
            (
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>(),
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>(),
            )
        };
        // SAFETY: null, or variables of these types, which never change.
        let known = unsafe { size.as_ref().is_some_and(|size| *size > 0) };
        // SAFETY: as above.
        let distance = unsafe { distance.as_ref() }.filter(|_| known);
        let distance = distance.copied().unwrap_or(NONE);
        DISTANCE.store(distance, Ordering::Relaxed);
        distance
    }

    /// See [`super::make_unless`].
    ///
    /// # Safety
    /// Those of the system call, and `area` is that of this thread.
    #[inline(never)]
    pub(super) unsafe fn make_unless(
        area: usize,
        word: &AtomicU32,
        mask: u32,
        number: libc::c_long,
        [a, b, c, d, e, f]: [usize; 6],
    ) -> Option<isize> {
        let mut result = number as isize;
        let made: u64;
        // SAFETY: the registers of arguments and of the result, and those that the kernel overwrites. The sequence is
        // from 71 up to 72; a thread that is interrupted in it goes on at 74, in front of which there is the
        // signature that the C library has registered. The rest is the caller's promise.
        unsafe {
            asm!(
                ".pushsection .data.rel.ro.libdat_sequence,\"aw\",@progbits",
                ".p2align 5",
                "77:",
                ".long 0, 0",
                ".quad 71f, 72f - 71f, 74f",
                ".popsection",
                "70:",
                "lea {made}, [rip + 77b]",
                "mov qword ptr [{area} + {sequence}], {made}",
                "71:",
                "xor {made:e}, {made:e}",
                "test dword ptr [{word}], {mask:e}",
                "jnz 75f",
                "mov rax, {number}",
                "inc {made:e}",
                "syscall",
                "72:",
                "jmp 75f",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "74:",
                "jmp 70b",
                "75:",
                "mov qword ptr [{area} + {sequence}], 0",
                made = out(reg) made,
                area = in(reg) area,
                word = in(reg) word.as_ptr(),
                mask = in(reg) mask,
                number = in(reg) number,
                sequence = const SEQUENCE,
                inlateout("rax") result,
                in("rdi") a,
                in("rsi") b,
                in("rdx") c,
                in("r10") d,
                in("r8") e,
                in("r9") f,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        (made != 0).then_some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `getppid(2)`.
    fn ask(word: &AtomicU32, mask: u32) -> Option<isize> {
        // SAFETY: any thread may ask.
        unsafe { make_unless(word, mask, libc::SYS_getppid, [0; 6]) }
    }

    #[test]
    fn a_bit_keeps_the_call_from_being_made() {
        // SAFETY: as above.
        let parent = unsafe { libc::getppid() } as isize;
        let word = AtomicU32::new(0b100);
        assert_eq!(ask(&word, 0b1011), Some(parent));
        assert_eq!(ask(&word, 0b100), None);
        assert_eq!(ask(&word, u32::MAX), None);
        word.store(0, Ordering::Relaxed);
        assert_eq!(ask(&word, u32::MAX), Some(parent));
    }

    #[test]
    fn the_arguments_arrive() {
        let word = AtomicU32::new(0);
        let bytes = [7u8; 3];
        let mut found = [0u8; 3];
        let (from, to) = (bytes.as_ptr(), found.as_mut_ptr());
        let local = [libc::iovec {
            iov_base: to.cast(),
            iov_len: 3,
        }];
        let remote = [libc::iovec {
            iov_base: from.cast_mut().cast(),
            iov_len: 3,
        }];
        let arguments = [
            std::process::id() as usize,
            local.as_ptr().addr(),
            1,
            remote.as_ptr().addr(),
            1,
            0,
        ];
        // SAFETY: memory of this test.
        let result = unsafe { make_unless(&word, 1, libc::SYS_process_vm_readv, arguments) };
        assert_eq!(result, Some(3));
        assert_eq!(found, bytes);
    }
}
