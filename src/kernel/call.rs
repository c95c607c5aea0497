//! System calls of the data path, made without the C library.
//!
//! A function of the C library may be a point at which the thread is cancelled, and overwrites `errno` of the
//! program. Its code is in pages and cache lines of its own, which the kernel's work since the last call has
//! displaced: of a copy of 8 bytes by the kernel that is 20 ns.

#[cfg(not(dat_sim))]
use rustix::io::Errno;

/// Makes a system call with up to six arguments, those it does not have being 0.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// Those of the call with these arguments.
#[cfg(not(dat_sim))]
#[inline(always)]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { raw_call(number, arguments) };
    // The highest 4095 values are errors.
    match i32::try_from(result) {
        Ok(error @ -4095..0) => Err(Errno::from_raw_os_error(-error)),
        _ => Ok(result as usize),
    }
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
pub unsafe fn raw_call(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the registers of arguments and of the result, and those that the kernel overwrites. The caller's
    // promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "aarch64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
pub unsafe fn raw_call(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the registers of arguments and of the result. The caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    not(miri)
)))]
pub unsafe fn raw_call(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        -1 => -std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO) as isize,
        _ => result as isize,
    }
}

#[cfg(all(test, not(dat_sim)))]
mod tests {
    use super::*;

    /// All six arguments arrive, and results and errors come back; `errno` stays as it is.
    #[test]
    fn calls() {
        let number = [7u8; 8];
        let mut copy = [0u8; 8];
        let local = libc::iovec {
            iov_base: copy.as_mut_ptr().cast(),
            iov_len: 8,
        };
        let remote = libc::iovec {
            iov_base: number.as_ptr().cast_mut().cast(),
            iov_len: 8,
        };
        let (local, remote) = (&raw const local, &raw const remote);
        let read = |flags| {
            let own = std::process::id() as usize;
            let (local, remote) = (local.expose_provenance(), remote.expose_provenance());
            // SAFETY: eight bytes that may be read, and eight that may be changed.
            unsafe {
                call(
                    libc::SYS_process_vm_readv,
                    [own, local, 1, remote, 1, flags],
                )
            }
        };
        assert_eq!(read(0), Ok(8));
        // SAFETY: the place is that of this thread.
        unsafe { *libc::__errno_location() = 12345 };
        assert_eq!(read(1), Err(Errno::INVAL));
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 12345);
        assert_eq!(copy, number);
    }
}
