//! A system call, made by the instruction of the processor: no point at which the thread is cancelled, and `errno`
//! stays as it is. For processors without code here the C library makes the call, and sets `errno`.

/// The thread pointer, from which the C library and the kernel measure where memory of the thread is.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let thread;
    // SAFETY: the first word at the thread pointer is its own address.
    unsafe {
        std::arch::asm!(
            "mov {thread}, qword ptr fs:[0]",
            thread = out(reg) thread,
            options(nostack, readonly, preserves_flags),
        );
    }
    thread
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
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
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
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
#[cfg(all(target_arch = "powerpc64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the registers of arguments and of the result, and those that the kernel overwrites: it keeps no more than
    // a function does, but the link register. The caller's promise.
    unsafe {
        std::arch::asm!(
            // An error is a flag, and the result is `errno`.
            "sc",
            "bns+ 2f",
            "neg 3, 3",
            "2:",
            inlateout("r0") number => _,
            inlateout("r3") a => result,
            inlateout("r4") b => _,
            inlateout("r5") c => _,
            inlateout("r6") d => _,
            inlateout("r7") e => _,
            inlateout("r8") f => _,
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
            lateout("r12") _,
            lateout("cr0") _,
            lateout("cr1") _,
            lateout("cr5") _,
            lateout("cr6") _,
            lateout("cr7") _,
            lateout("ctr") _,
            lateout("xer") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "s390x", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the registers of arguments and of the result. The caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("r1") number,
            inlateout("r2") a => result,
            in("r3") b,
            in("r4") c,
            in("r5") d,
            in("r6") e,
            in("r7") f,
            options(nostack),
        );
    }
    result
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "riscv64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the registers of arguments and of the result. The kernel keeps all others but those of vectors, which no
    // function keeps. The caller's promise.
    unsafe {
        std::arch::asm!(
            "ecall",
            in("a7") number,
            inlateout("a0") a => result,
            in("a1") b,
            in("a2") c,
            in("a3") d,
            in("a4") e,
            in("a5") f,
            clobber_abi("C"),
            options(nostack),
        );
    }
    result
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(all(target_arch = "x86", target_env = "gnu", not(miri)))]
pub(crate) unsafe fn make(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // The registers of arguments are all that there are but two, so this is a function in assembly. The C library has
    // the address of the kernel's code for system calls at this distance from the thread pointer. A thread that is
    // cancelled in the call is unwound from there.
    #[unsafe(naked)]
    unsafe extern "C" fn make(number: libc::c_long, arguments: &[usize; 6]) -> isize {
        std::arch::naked_asm!(
            ".cfi_startproc",
            "push ebp",
            ".cfi_def_cfa_offset 8",
            ".cfi_offset ebp, -8",
            "push ebx",
            ".cfi_def_cfa_offset 12",
            ".cfi_offset ebx, -12",
            "push esi",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset esi, -16",
            "push edi",
            ".cfi_def_cfa_offset 20",
            ".cfi_offset edi, -20",
            "mov eax, dword ptr [esp + 20]",
            "mov ebp, dword ptr [esp + 24]",
            "mov ebx, dword ptr [ebp]",
            "mov ecx, dword ptr [ebp + 4]",
            "mov edx, dword ptr [ebp + 8]",
            "mov esi, dword ptr [ebp + 12]",
            "mov edi, dword ptr [ebp + 16]",
            "mov ebp, dword ptr [ebp + 20]",
            "call dword ptr gs:[0x10]",
            "pop edi",
            ".cfi_def_cfa_offset 16",
            "pop esi",
            ".cfi_def_cfa_offset 12",
            "pop ebx",
            ".cfi_def_cfa_offset 8",
            "pop ebp",
            ".cfi_def_cfa_offset 4",
            "ret",
            ".cfi_endproc",
        )
    }
    // SAFETY: the caller's promise.
    unsafe { make(number, &arguments) }
}

/// Makes a system call, and gives what the kernel returns: `-errno` for an error.
///
/// # Safety
/// Those of the system call.
#[cfg(not(any(
    all(
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "powerpc64",
            target_arch = "s390x",
            target_arch = "riscv64"
        ),
        target_pointer_width = "64",
        not(miri)
    ),
    all(target_arch = "x86", target_env = "gnu", not(miri))
)))]
pub(crate) unsafe fn make(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        -1 => -std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO) as isize,
        _ => result as isize,
    }
}
