//! The list of the arguments of a variadic function, as the C ABI of the platform lays it out.

use std::ffi::c_void;

/// A `va_list` of this architecture.
#[cfg(target_arch = "x86_64")]
#[derive(Clone)]
#[repr(C)]
pub struct VaList {
    gp_offset: u32,
    fp_offset: u32,
    overflow_arg_area: *mut u8,
    reg_save_area: *mut u8,
}

#[cfg(target_arch = "x86_64")]
impl VaList {
    /// The place of the next argument, which is taken from the list.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer, a pointer, or a union of them.
    unsafe fn next(&mut self, _size: usize) -> *const u8 {
        const REGISTERS_END: u32 = 48;
        if self.gp_offset < REGISTERS_END {
            let offset = self.gp_offset as usize;
            self.gp_offset += 8;
            // SAFETY: in the save area, by the test above.
            unsafe { self.reg_save_area.add(offset) }
        } else {
            let place = self.overflow_arg_area;
            // SAFETY: the caller's stack continues above an argument.
            self.overflow_arg_area = unsafe { place.add(8) };
            place
        }
    }
}

/// A `va_list` of this architecture.
#[cfg(target_arch = "aarch64")]
#[derive(Clone)]
#[repr(C)]
pub struct VaList {
    stack: *mut u8,
    gr_top: *mut u8,
    vr_top: *mut u8,
    gr_offs: i32,
    vr_offs: i32,
}

#[cfg(target_arch = "aarch64")]
impl VaList {
    /// The place of the next argument, which is taken from the list.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer, a pointer, or a union of them.
    unsafe fn next(&mut self, _size: usize) -> *const u8 {
        if self.gr_offs < 0 {
            let offset = self.gr_offs as isize;
            self.gr_offs += 8;
            // SAFETY: in the save area, which ends at `gr_top`.
            unsafe { self.gr_top.offset(offset) }
        } else {
            let place = self.stack;
            // SAFETY: the caller's stack continues above an argument.
            self.stack = unsafe { place.add(8) };
            place
        }
    }
}

/// A `va_list` of this architecture.
#[cfg(target_arch = "s390x")]
#[derive(Clone)]
#[repr(C)]
pub struct VaList {
    gpr: u64,
    fpr: u64,
    overflow_arg_area: *mut u8,
    reg_save_area: *mut u8,
}

#[cfg(target_arch = "s390x")]
impl VaList {
    /// The place of the next argument, which is taken from the list.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer, a pointer, or a union of them, of so many bytes.
    unsafe fn next(&mut self, size: usize) -> *const u8 {
        // r2 to r6.
        const REGISTERS: u64 = 5;
        const R2: usize = 16;
        let place = if self.gpr < REGISTERS {
            let offset = R2 + 8 * self.gpr as usize;
            self.gpr += 1;
            // SAFETY: in the save area, by the test above.
            unsafe { self.reg_save_area.add(offset) }
        } else {
            let place = self.overflow_arg_area;
            // SAFETY: the caller's stack continues above an argument.
            self.overflow_arg_area = unsafe { place.add(8) };
            place
        };
        // SAFETY: in the place, whose last bytes are the low ones.
        unsafe { place.add(8 - size) }
    }
}

/// A `va_list` of this architecture: where the next argument is, on the stack of the caller or in memory that
/// continues there.
#[cfg(any(
    target_arch = "x86",
    target_arch = "powerpc64",
    target_arch = "riscv64"
))]
#[derive(Clone)]
#[repr(transparent)]
pub struct VaList(*mut u8);

#[cfg(any(
    target_arch = "x86",
    target_arch = "powerpc64",
    target_arch = "riscv64"
))]
impl VaList {
    /// The place of the next argument, which is taken from the list.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer, a pointer, or a union of them, of so many bytes.
    unsafe fn next(&mut self, size: usize) -> *const u8 {
        let place = self.0;
        // SAFETY: the caller's stack continues above an argument, which has places of the size of a pointer.
        self.0 = unsafe { place.add(size.next_multiple_of(size_of::<usize>())) };
        place
    }

    /// The list that a function got from C as an argument of type `va_list`. The caller's own list stays as it is.
    ///
    /// # Safety
    /// The argument is a valid `va_list`.
    pub unsafe fn received(argument: *mut c_void) -> VaList {
        VaList(argument.cast())
    }

    /// What a function of C gets as an argument of type `va_list`. The function takes arguments from the list.
    pub fn passed(&mut self) -> *mut c_void {
        self.0.cast()
    }
}

// An array of C, or a large structure, is passed as a pointer to it.
#[cfg(not(any(
    target_arch = "x86",
    target_arch = "powerpc64",
    target_arch = "riscv64"
)))]
impl VaList {
    /// The list that a function got from C as an argument of type `va_list`. The caller's own list stays as it is.
    ///
    /// # Safety
    /// The argument is a valid `va_list`.
    pub unsafe fn received(argument: *mut c_void) -> VaList {
        // SAFETY: the caller's promise.
        unsafe { (*argument.cast::<VaList>()).clone() }
    }

    /// What a function of C gets as an argument of type `va_list`. The function takes arguments from the list.
    pub fn passed(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "x86",
    target_arch = "s390x",
    target_arch = "riscv64",
    all(target_arch = "powerpc64", target_endian = "little")
)))]
compile_error!("VaList needs to know how this architecture lists variable arguments");

impl VaList {
    /// Takes the next argument, a pointer.
    ///
    /// # Safety
    /// The list is valid, and its next argument is a pointer.
    pub unsafe fn pointer<T>(&mut self) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { *self.next(size_of::<*mut T>()).cast() }
    }

    /// Takes the next argument, an integer of 64 bits.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer of that size, or a union of that and a
    /// pointer.
    pub unsafe fn word(&mut self) -> u64 {
        // SAFETY: the caller's promise. On a stack of 32 bits the place is aligned to four bytes.
        unsafe { self.next(size_of::<u64>()).cast::<u64>().read_unaligned() }
    }

    /// Takes the next argument, an integer of 32 bits, signed or not.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer of that size.
    pub unsafe fn int(&mut self) -> u32 {
        // SAFETY: the caller's promise. That is where the value is, wherever it is in a place of 64 bits.
        unsafe { *self.next(size_of::<u32>()).cast() }
    }
}
