//! A system call in which a cancellation is acted upon, and the end of the unwinding. The buffer of the cleanup
//! handler is in the frame of `libdat_cancel_catch`, at its stack pointer: the C library calls the handler when it
//! has unwound `body` and is about to unwind the caller of `libdat_cancel_catch`. The handler gets the stack pointer
//! and returns from there; the registers that a function preserves are above the buffer. These two functions are in
//! assembly, in a file for each processor.

use std::ffi::{c_int, c_void};

use super::{
    Call, Cancelled, DEFERRED, DISABLE, ENABLE, pthread_setcancelstate, pthread_setcanceltype,
};

const ASYNCHRONOUS: c_int = 1;

/// `struct _pthread_cleanup_buffer` of the C library.
#[repr(C)]
pub(super) struct CleanupBuffer {
    routine: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    canceltype: c_int,
    previous: *mut CleanupBuffer,
}

// These may unwind, since a cancellation may be acted upon in them.
unsafe extern "C-unwind" {
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    pub(super) fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
    fn pthread_testcancel();
    fn msync(address: *mut c_void, length: usize, flags: c_int) -> c_int;
}

unsafe extern "C" {
    /// Calls `body(call, buffer, stack)`. Returns 0 after that, or 1 if `libdat_cancel_landed` was
    /// called with `stack`.
    fn libdat_cancel_catch(
        body: unsafe extern "C-unwind" fn(Option<&mut Call>, *mut CleanupBuffer, *mut c_void),
        call: Option<&mut Call>,
    ) -> c_int;
    /// The cleanup handler.
    fn libdat_cancel_landed(stack: *mut c_void);
}

/// Has nothing to be destroyed: a cancellation unwinds it.
unsafe extern "C-unwind" fn body(
    call: Option<&mut Call>,
    buffer: *mut CleanupBuffer,
    stack: *mut c_void,
) {
    let sleeps = call.is_some();
    let (mut before, mut old) = (DEFERRED, 0);
    // SAFETY: the buffer lives until it is popped; the call is that of the caller.
    unsafe {
        _pthread_cleanup_push(buffer, libdat_cancel_landed, stack);
        pthread_setcancelstate(ENABLE, &mut old);
        // From here on a cancellation of a thread that sleeps is acted upon at any instruction. One that is pending is
        // acted upon in this call, where some C libraries do that in the one before and some do not.
        pthread_setcanceltype(if sleeps { ASYNCHRONOUS } else { DEFERRED }, &mut before);
        match call {
            Some(call) => call.make(),
            None => pthread_testcancel(),
        }
        pthread_setcancelstate(DISABLE, &mut old);
        pthread_setcanceltype(DEFERRED, &mut old);
        if sleeps || before == ASYNCHRONOUS {
            // A point of cancellation without another effect. If this thread was marked as
            // cancelled with the asynchronous type, it waits for the signal.
            msync(std::ptr::null_mut(), 0, libc::MS_ASYNC);
        }
        pthread_setcanceltype(before, &mut old);
        _pthread_cleanup_pop(buffer, 0);
    }
}

/// Makes the call, if there is one, and acts on a cancellation.
///
/// # Safety
/// As for the system call.
#[inline(never)]
pub unsafe fn run(call: Option<&mut Call>) -> Result<(), Cancelled> {
    // SAFETY: the caller's promise.
    match unsafe { libdat_cancel_catch(body, call) } {
        0 => Ok(()),
        _ => Err(Cancelled),
    }
}
