//! System calls of the data path, made without the C library.
//!
//! A function of the C library may be a point at which the thread is cancelled, and overwrites `errno` of the
//! program. Its code is in pages and cache lines of its own, which the kernel's work since the last call has
//! displaced: of a copy of 8 bytes by the kernel that is 20 ns.

use rustix::io::Errno;

use crate::system_call;

/// Makes a system call with up to six arguments, those it does not have being 0.
///
/// # Errors
/// Of the kernel.
///
/// # Safety
/// Those of the call with these arguments.
#[inline(always)]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { system_call::make(number, arguments) };
    // The highest 4095 values are errors.
    match i32::try_from(result) {
        Ok(error @ -4095..0) => Err(Errno::from_raw_os_error(-error)),
        _ => Ok(result as usize),
    }
}

#[cfg(test)]
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
