//! A clock that costs less than a system call or the clock of the C library: the counter of the
//! processor.

/// So many ticks are a few milliseconds on most processors, and no less than some microseconds on any.
pub const SOME_MILLISECONDS: u64 = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    1 << 23
} else if cfg!(target_arch = "aarch64") {
    1 << 17
} else if cfg!(target_arch = "powerpc64") {
    1 << 21
} else if cfg!(target_arch = "s390x") {
    1 << 24
} else {
    4_000_000
};

/// So many ticks are 3 to 10 microseconds on most processors, and fewer on some; 0 where the counter is no
/// fine one.
pub const SOME_MICROSECONDS: u64 = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    1 << 14
} else if cfg!(target_arch = "aarch64") {
    1 << 8
} else if cfg!(target_arch = "powerpc64") {
    1 << 12
} else if cfg!(target_arch = "s390x") {
    1 << 15
} else if cfg!(target_arch = "riscv64") {
    1 << 13
} else {
    0
};

/// A number that grows with time. The counters of two processors may differ, and a counter may begin
/// anew when the machine was suspended, so that a later number can be the smaller one.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has the instruction.
    let ticks = unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(all(target_arch = "x86", not(miri)))]
    // SAFETY: as above.
    let ticks = unsafe { std::arch::x86::_rdtsc() };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    let ticks = {
        let ticks: u64;
        // SAFETY: reads a register that Linux permits programs to read.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
        }
        ticks
    };
    #[cfg(all(target_arch = "powerpc64", not(miri)))]
    let ticks = {
        let ticks: u64;
        // SAFETY: reads the time base, which programs may read.
        unsafe {
            std::arch::asm!("mfspr {}, 268", out(reg) ticks, options(nomem, nostack, preserves_flags));
        }
        ticks
    };
    #[cfg(all(target_arch = "s390x", not(miri)))]
    let ticks = {
        let mut ticks = 0u64;
        // SAFETY: stores the clock to a variable.
        unsafe {
            std::arch::asm!("stckf 0({})", in(reg_addr) &raw mut ticks, options(nostack));
        }
        ticks
    };
    #[cfg(not(all(
        any(
            target_arch = "x86_64",
            target_arch = "x86",
            target_arch = "aarch64",
            target_arch = "powerpc64",
            target_arch = "s390x"
        ),
        not(miri)
    )))]
    let ticks = {
        // The counter of a RISC-V processor counts once to a thousand times in a microsecond: the kernel's clock, which
        // reads it without a system call (`vdso(7)`), says how much time that is.
        let clock = match cfg!(target_arch = "riscv64") {
            true => rustix::time::ClockId::Monotonic,
            false => rustix::time::ClockId::MonotonicCoarse,
        };
        let now = rustix::time::clock_gettime(clock);
        (now.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(now.tv_nsec as u64)
    };
    ticks
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn some_milliseconds_pass() {
        let (first, begun) = (ticks(), Instant::now());
        let is_over = || ticks().wrapping_sub(first) >= SOME_MILLISECONDS;
        while !is_over() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(is_over());
    }
}
