//! The list of the arguments of a variadic function, as the C ABI of the platform lays it out.

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
    unsafe fn next(&mut self) -> *const u8 {
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
    unsafe fn next(&mut self) -> *const u8 {
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

impl VaList {
    /// Takes the next argument, a pointer.
    ///
    /// # Safety
    /// The list is valid, and its next argument is a pointer.
    pub unsafe fn pointer<T>(&mut self) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { *self.next().cast() }
    }

    /// Takes the next argument, an integer of 64 bits.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer of that size, or a union of that and a
    /// pointer.
    pub unsafe fn word(&mut self) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { *self.next().cast() }
    }

    /// Takes the next argument, an integer of 32 bits, signed or not.
    ///
    /// # Safety
    /// The list is valid, and its next argument is an integer of that size.
    pub unsafe fn int(&mut self) -> u32 {
        // SAFETY: the caller's promise. The low half of the place has the value.
        unsafe { *self.next().cast() }
    }
}
