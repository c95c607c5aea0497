//! Thread cancellation (`pthread_cancel(3)`).
//!
//! The C library acts on a cancellation by unwinding the thread. That must not go through functions
//! of Rust, which have destructors and catch panics: it would end the process. So no call of the
//! library is a point of cancellation but the two that wait:
//!
//! - Posts and dequeues make their system calls by instructions of their own, which are no points of
//!   cancellation. What they do rarely is done with cancellation [disabled](Disabled).
//! - All other calls run with cancellation disabled.
//! - A call that waits ([`Waiting`]) sleeps in [`sleep`]. There a cancellation is acted upon at once,
//!   and the unwinding is stopped in the same function. The call releases everything on its way back
//!   to its outermost function, which has nothing to be destroyed and goes on with the unwinding
//!   ([`exit`]).
//!
//! The unwinding is stopped where it would call the cleanup handler of that function, before it
//! reaches its caller: the handler continues after the sleep instead of returning, as C programs do
//! that leave a handler by `longjmp(3)`. This is written in assembly for x86; elsewhere a
//! cancellation of a thread that waits stays pending.
//!
//! A cancellation of a thread that sleeps comes by a signal, and the thread may be awake by then. glibc before
//! 2.41 acts on the signal in any point of cancellation, even with cancellation disabled, and a point of
//! cancellation waits for the signal, so that it must not be blocked. The sleep ends with such a point, where
//! the unwinding is still stopped: after that no signal is on its way, and with cancellation disabled none is sent.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use crate::system_call;

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;

// These may unwind, since a cancellation may be acted upon in them.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_exit(value: *mut c_void) -> !;
}

/// Drops a reference. What is destroyed with the last one may call points of cancellation.
#[inline]
pub(crate) fn drop_reference<T>(reference: Arc<T>) {
    if let Some(last) = Arc::into_inner(reference) {
        let _disabled = Disabled::begin();
        drop(last);
    }
}

/// Cancellation is disabled in this thread until the drop.
pub(crate) struct Disabled {
    /// The state before.
    before: c_int,
}

impl Disabled {
    /// Disables cancellation.
    pub fn begin() -> Disabled {
        let mut before = DISABLE;
        // Miri has threads that cannot be cancelled.
        if !cfg!(miri) {
            // SAFETY: a place for the state.
            unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        }
        Disabled { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        if self.before == DISABLE {
            return;
        }
        let mut old = 0;
        // With the asynchronous type a cancellation would be acted upon here. A thread of that type
        // has the deferred type from now on.
        // SAFETY: places for what there was before.
        unsafe {
            pthread_setcanceltype(DEFERRED, &mut old);
            pthread_setcancelstate(self.before, &mut old);
        }
    }
}

thread_local! {
    /// This thread is in a call that waits, and the program has cancellation enabled.
    static CANCELLABLE: Cell<bool> = const { Cell::new(false) };
}

/// A call that waits: cancellation is disabled but for [`sleep`].
pub(crate) struct Waiting(Disabled);

impl Waiting {
    /// Begins the call, unless the thread was cancelled.
    ///
    /// # Errors
    /// The thread was cancelled.
    pub fn begin() -> Result<Waiting, Cancelled> {
        let waiting = Waiting(Disabled::begin());
        CANCELLABLE.set(waiting.0.before == ENABLE);
        if CANCELLABLE.get() {
            // SAFETY: nothing is called.
            unsafe { catching::run(None) }?;
        }
        Ok(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        CANCELLABLE.set(false);
    }
}

/// The thread was cancelled: everything is to be released, and [`exit`] to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelled;

/// Goes on with the cancellation of this thread.
///
/// # Safety
/// The thread was [`Cancelled`]. No caller up to the program's own functions has anything to be
/// destroyed, and all may be unwound (`extern "C-unwind"`).
#[cold]
pub(crate) unsafe extern "C-unwind" fn exit() -> ! {
    /// What `pthread_join` gives of a thread that was cancelled.
    const PTHREAD_CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
    // SAFETY: the caller's promise.
    unsafe { pthread_exit(PTHREAD_CANCELED) }
}

/// A system call with its number and arguments. Gives what the kernel returns: `-errno` for an error.
/// A cancellation of a thread that is [`Waiting`] is acted upon before, while the thread sleeps, or
/// right after; the system call may have had its effect then.
///
/// # Errors
/// The thread was cancelled.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn sleep(number: c_long, arguments: [usize; 6]) -> Result<isize, Cancelled> {
    let mut call = Call {
        number,
        arguments,
        result: 0,
    };
    if CANCELLABLE.get() {
        // SAFETY: the caller's promise.
        unsafe { catching::run(Some(&mut call)) }?;
    } else {
        // SAFETY: the caller's promise.
        unsafe { call.make() };
    }
    Ok(call.result)
}

/// A system call.
#[repr(C)]
struct Call {
    number: c_long,
    arguments: [usize; 6],
    /// What the kernel has returned.
    result: isize,
}

impl Call {
    /// Makes the system call in this thread.
    ///
    /// # Safety
    /// As for the system call.
    #[inline(always)]
    unsafe fn make(&mut self) {
        // SAFETY: the caller's promise.
        self.result = unsafe { system_call::make(self.number, self.arguments) };
    }
}

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "x86"),
    target_os = "linux",
    not(miri)
))]
mod catching {
    use std::arch::global_asm;
    use std::ffi::{c_int, c_void};

    use super::{
        Call, Cancelled, DEFERRED, DISABLE, ENABLE, pthread_setcancelstate, pthread_setcanceltype,
    };

    const ASYNCHRONOUS: c_int = 1;

    /// `struct _pthread_cleanup_buffer` of the C library.
    #[repr(C)]
    struct CleanupBuffer {
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
        fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
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

    // The buffer is in the frame of `libdat_cancel_catch`, at its stack pointer: the C library calls
    // the handler when it has unwound `body` and is about to unwind `libdat_cancel_catch`'s caller. The
    // handler gets the stack pointer and returns from there; the registers that a function preserves
    // are above the buffer.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".pushsection .text.libdat_cancel,\"ax\",@progbits",
        ".p2align 4",
        ".globl libdat_cancel_catch",
        ".hidden libdat_cancel_catch",
        ".type libdat_cancel_catch,@function",
        "libdat_cancel_catch:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        ".cfi_offset rbx, -24",
        "push r12",
        ".cfi_offset r12, -32",
        "push r13",
        ".cfi_offset r13, -40",
        "push r14",
        ".cfi_offset r14, -48",
        "push r15",
        ".cfi_offset r15, -56",
        "sub rsp, 40",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rsp",
        "mov rdx, rsp",
        "call rax",
        "xor eax, eax",
        "jmp 2f",
        // After a landing the C library still has the buffer in its list.
        "3:",
        "mov rdi, rsp",
        "xor esi, esi",
        "call _pthread_cleanup_pop@PLT",
        "mov eax, 1",
        "2:",
        "add rsp, 40",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".size libdat_cancel_catch, . - libdat_cancel_catch",
        ".p2align 4",
        ".globl libdat_cancel_landed",
        ".hidden libdat_cancel_landed",
        ".type libdat_cancel_landed,@function",
        "libdat_cancel_landed:",
        ".cfi_startproc",
        "mov rsp, rdi",
        "lea rbp, [rsp + 80]",
        "jmp 3b",
        ".cfi_endproc",
        ".size libdat_cancel_landed, . - libdat_cancel_landed",
        ".popsection",
    );

    // The same for 32 bits. The arguments of `body` are below the buffer, so that the C library calls the handler a
    // frame later, when it is about to unwind the caller's caller. What was in the registers is where it was.
    #[cfg(target_arch = "x86")]
    global_asm!(
        ".pushsection .text.libdat_cancel,\"ax\",@progbits",
        ".p2align 4",
        ".globl libdat_cancel_catch",
        ".hidden libdat_cancel_catch",
        ".type libdat_cancel_catch,@function",
        "libdat_cancel_catch:",
        ".cfi_startproc",
        "push ebp",
        ".cfi_def_cfa_offset 8",
        ".cfi_offset ebp, -8",
        "mov ebp, esp",
        ".cfi_def_cfa_register ebp",
        "push ebx",
        ".cfi_offset ebx, -12",
        "push esi",
        ".cfi_offset esi, -16",
        "push edi",
        ".cfi_offset edi, -20",
        "sub esp, 16",
        "mov eax, esp",
        "push eax",
        "push eax",
        "push dword ptr [ebp + 12]",
        "call dword ptr [ebp + 8]",
        "add esp, 12",
        "xor eax, eax",
        "jmp 2f",
        // After a landing the C library still has the buffer in its list.
        "3:",
        "mov eax, esp",
        "sub esp, 8",
        "push eax",
        "call {forget}",
        "add esp, 12",
        "mov eax, 1",
        "2:",
        "add esp, 16",
        "pop edi",
        "pop esi",
        "pop ebx",
        "pop ebp",
        ".cfi_def_cfa esp, 4",
        "ret",
        ".cfi_endproc",
        ".size libdat_cancel_catch, . - libdat_cancel_catch",
        ".p2align 4",
        ".globl libdat_cancel_landed",
        ".hidden libdat_cancel_landed",
        ".type libdat_cancel_landed,@function",
        "libdat_cancel_landed:",
        ".cfi_startproc",
        "mov esp, dword ptr [esp + 4]",
        "lea ebp, [esp + 28]",
        "jmp 3b",
        ".cfi_endproc",
        ".size libdat_cancel_landed, . - libdat_cancel_landed",
        ".popsection",
        forget = sym forget,
    );

    /// Takes a buffer out of the list of the C library. The functions of a shared library are called by way of a register
    /// for its address, which the assembly does not have.
    #[cfg(target_arch = "x86")]
    unsafe extern "C-unwind" fn forget(buffer: *mut CleanupBuffer) {
        // SAFETY: the newest buffer of this thread.
        unsafe { _pthread_cleanup_pop(buffer, 0) };
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
            pthread_setcanceltype(if sleeps { ASYNCHRONOUS } else { DEFERRED }, &mut before);
            // From here on a cancellation of a thread that sleeps is acted upon at any instruction.
            pthread_setcancelstate(ENABLE, &mut old);
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
}

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "x86"),
    target_os = "linux",
    not(miri)
)))]
mod catching {
    use super::{Call, Cancelled};

    /// Makes the call, if there is one. A cancellation stays pending.
    ///
    /// # Safety
    /// As for the system call.
    pub unsafe fn run(call: Option<&mut Call>) -> Result<(), Cancelled> {
        if let Some(call) = call {
            // SAFETY: the caller's promise.
            unsafe { call.make() };
        }
        Ok(())
    }
}
