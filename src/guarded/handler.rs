//! The handler of `SIGSEGV` and `SIGBUS`, and the handlers of the program behind it.
//!
//! Ours is installed in front of what the program has installed, with the mask and the flags of that
//! (`SA_ONSTACK`, `SA_NODEFER`), so that the program's handler runs as the kernel would have run it.
//! A program that installs a handler later loses ours, and [`install`] puts another one of ours in
//! front. That is another function with its own record of what is behind it: the handler of the
//! program may call the one of ours that it has replaced, and a single function would call the
//! program's again. Handlers of other copies of this library are no others: what is behind them
//! counts ([`entries`]).
//!
//! The handler stays when the library is not used any longer. The program may hold its address, and
//! the library is never unmapped (`-z nodelete`).

use std::mem::MaybeUninit;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

use super::entries::{self, GENERATIONS};
use crate::lock::Mutex;
use crate::process::PerProcess;

/// `BUS_MCEERR_AO`: the kernel reports a defect of memory that this thread has not accessed.
const BUS_MCEERR_AO: c_int = 5;

/// The signals, each with its chain.
static CHAINS: [Chain; 2] = [Chain::new(libc::SIGSEGV), Chain::new(libc::SIGBUS)];

/// Held while handlers are installed.
static INSTALLING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// What is called for one signal.
struct Chain {
    /// The signal.
    signal: c_int,
    /// What is behind each generation of our handler.
    behind: [Behind; GENERATIONS],
    /// How many of them were installed. Changed under [`INSTALLING`].
    used: AtomicUsize,
    /// Whether the log has that no generation is left.
    reported: AtomicBool,
}

/// An action that ours has replaced. Its mask is that of ours.
struct Behind {
    /// The function, or `SIG_DFL` or `SIG_IGN`.
    handler: AtomicUsize,
    /// The flags.
    flags: AtomicI32,
}

/// An entry of the table of instructions, which the linker collects: addresses, each as the
/// distance from its own place.
#[repr(C)]
struct TableEntry {
    /// The first guarded instruction.
    start: i32,
    /// Behind the last one.
    end: i32,
    /// Where execution goes on after a fault.
    resume: i32,
}

// The linker exports the two symbols otherwise.
std::arch::global_asm!(
    ".hidden __start_libdat_guarded",
    ".hidden __stop_libdat_guarded"
);

unsafe extern "C" {
    /// The first entry of the table.
    #[link_name = "__start_libdat_guarded"]
    static TABLE_START: TableEntry;
    /// Behind the last one.
    #[link_name = "__stop_libdat_guarded"]
    static TABLE_END: TableEntry;
}

/// See [`super::install_handlers`].
pub(super) fn install() {
    if CHAINS.iter().all(Chain::is_in_front) {
        return;
    }
    let _installing = INSTALLING.get().lock();
    CHAINS.iter().for_each(Chain::install);
}

impl Chain {
    const fn new(signal: c_int) -> Chain {
        Chain {
            signal,
            behind: [const {
                Behind {
                    handler: AtomicUsize::new(libc::SIG_DFL),
                    flags: AtomicI32::new(0),
                }
            }; GENERATIONS],
            used: AtomicUsize::new(0),
            reported: AtomicBool::new(false),
        }
    }

    /// The action that is installed, if the kernel returns one.
    fn current(&self) -> Option<sigaction> {
        let mut current = MaybeUninit::uninit();
        // SAFETY: reads the action.
        let done = unsafe { libc::sigaction(self.signal, null(), current.as_mut_ptr()) };
        // SAFETY: filled by a call that has succeeded.
        (done == 0).then(|| unsafe { current.assume_init() })
    }

    /// The handler that is called first, but for those of other copies of this library.
    fn front(&self) -> Option<usize> {
        let current = self.current()?;
        let action = (current.sa_sigaction, current.sa_flags);
        Some(entries::behind_others(self.signal, action).0)
    }

    /// What is called behind a generation of ours. A handler of the program that is in front again
    /// has called ours, and is not called once more: that of an older generation is.
    fn behind(&self, generation: usize) -> Option<&Behind> {
        let front = self.front();
        let mut all = self.behind.iter().take(generation + 1).rev();
        all.find(|behind| {
            let handler = behind.get().0;
            handler <= libc::SIG_IGN || Some(handler) != front
        })
    }

    /// Whether one of ours is called before any handler of the program.
    fn is_in_front(&self) -> bool {
        let front = self.front();
        front.is_none_or(|handler| entries::generation(handler).is_some())
    }

    /// Puts ours in front.
    fn install(&self) {
        if self.is_in_front() {
            return;
        }
        let (Some(current), Some(front)) = (self.current(), self.front()) else {
            return;
        };
        let used = self.used.load(Ordering::Relaxed);
        let (Some(entry), Some(behind)) = (entries::of_generation(used), self.behind.get(used))
        else {
            if !self.reported.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "the program installs handlers of signal {} again and again: memory that is \
                     unmapped while it is registered may end the process",
                    self.signal
                );
            }
            return;
        };
        // A handler that was behind an older one of ours and is in front again may call that one.
        for (i, older) in self.behind.iter().enumerate().take(used) {
            if older.handler.load(Ordering::Relaxed) == front && front > libc::SIG_IGN {
                let oldest = i.checked_sub(1).and_then(|i| self.behind.get(i));
                let (handler, flags) = oldest.map_or((libc::SIG_DFL, 0), Behind::get);
                older.set(handler, flags);
            }
        }
        behind.set(current.sa_sigaction, current.sa_flags);
        let is_function = current.sa_sigaction > libc::SIG_IGN;
        let mut ours = current;
        ours.sa_sigaction = entry;
        ours.sa_flags = libc::SA_SIGINFO;
        if is_function {
            ours.sa_flags |=
                current.sa_flags & (libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART);
        }
        let mut replaced = MaybeUninit::uninit();
        // SAFETY: an action of a function that may be called at any time.
        if unsafe { libc::sigaction(self.signal, &ours, replaced.as_mut_ptr()) } != 0 {
            return;
        }
        // SAFETY: filled by a call that has succeeded.
        let replaced = unsafe { replaced.assume_init() };
        // Another thread of the program may have been faster.
        behind.set(replaced.sa_sigaction, replaced.sa_flags);
        self.used.store(used + 1, Ordering::Relaxed);
    }
}

/// A handler that is installed with `SA_SIGINFO`.
type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

impl Behind {
    fn get(&self) -> (usize, c_int) {
        let handler = self.handler.load(Ordering::Relaxed);
        (handler, self.flags.load(Ordering::Relaxed))
    }

    fn set(&self, handler: usize, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
        self.handler.store(handler, Ordering::Relaxed);
    }
}

/// A handler and its flags, or those of the program that are behind ours and those of other copies.
pub(super) fn of_program(signal: c_int, action: (usize, c_int)) -> (usize, c_int) {
    let (handler, flags) = entries::behind_others(signal, action);
    match entries::generation(handler) {
        Some(generation) => {
            let mut flags = 0;
            let handler = behind_generation(signal, &mut flags, generation);
            entries::behind_others(signal, (handler, flags))
        }
        None => (handler, flags),
    }
}

/// What is behind a generation of ours: the handler, and its flags by the reference. Other copies call it, by
/// [`entries`].
pub(super) extern "C" fn behind_generation(
    signal: c_int,
    flags: &mut c_int,
    generation: usize,
) -> usize {
    let chain = CHAINS.iter().find(|chain| chain.signal == signal);
    let behind = chain.and_then(|chain| chain.behind.get(generation));
    let handler;
    (handler, *flags) = behind.map_or((libc::SIG_DFL, 0), Behind::get);
    handler
}

/// What the kernel calls, by the entry of a generation. Only what is allowed in a signal handler is called
/// from here.
pub(super) extern "C" fn fault(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    generation: usize,
) {
    // SAFETY: the arguments of a handler that was installed with SA_SIGINFO.
    unsafe {
        let code = (*info).si_code;
        // Not a signal that was sent while a copy was made.
        let is_access = code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
        if is_access && resume(context.cast(), (*info).si_addr().addr()) {
            return;
        }
        let mut chains = CHAINS.iter().filter(|chain| chain.signal == signal);
        if let Some(chain) = chains.next() {
            match chain.behind(generation) {
                Some(behind) => behind.call(signal, info, context, is_access),
                None => end_process(signal, info, is_access),
            }
        }
    }
}

/// Lets a guarded copy fail, if the fault is one of its instructions.
///
/// # Safety
/// The context of a handler.
unsafe fn resume(context: *mut ucontext_t, fault: usize) -> bool {
    // SAFETY: the caller's promise.
    let (pc, result) = unsafe { registers(context) };
    let Some(to) = lookup(*pc as usize) else {
        return false;
    };
    *pc = to as _;
    // Never 0, which is success.
    *result = fault.max(1) as _;
    true
}

/// Where execution goes on after a fault of the instruction at this address.
fn lookup(pc: usize) -> Option<usize> {
    let (mut at, end) = (&raw const TABLE_START, &raw const TABLE_END);
    while at < end {
        // SAFETY: an entry of the table.
        let entry = unsafe { &*at };
        let place = |distance: &i32| {
            from_ref(distance)
                .addr()
                .wrapping_add_signed(*distance as isize)
        };
        if (place(&entry.start)..place(&entry.end)).contains(&pc) {
            return Some(place(&entry.resume));
        }
        at = at.wrapping_add(1);
    }
    None
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "x86_64")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut i64, &'a mut i64) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext.gregs;
        (
            &mut (*all)[libc::REG_RIP as usize],
            &mut (*all)[libc::REG_RAX as usize],
        )
    }
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "x86")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut i32, &'a mut i32) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext.gregs;
        (
            &mut (*all)[libc::REG_EIP as usize],
            &mut (*all)[libc::REG_EAX as usize],
        )
    }
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "aarch64")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut u64, &'a mut u64) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext;
        (&mut (*all).pc, &mut (*all).regs[0])
    }
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "powerpc64")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut u64, &'a mut u64) {
    /// `PT_NIP` of `asm/ptrace.h`.
    const NEXT_INSTRUCTION: usize = 32;
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext.gp_regs;
        (&mut (*all)[NEXT_INSTRUCTION], &mut (*all)[3])
    }
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "s390x")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut u64, &'a mut u64) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext;
        (&mut (*all).psw.addr, &mut (*all).gregs[2])
    }
}

/// The program counter, and the register in which a copy returns its result.
///
/// # Safety
/// The context of a handler, which nothing else uses.
#[cfg(target_arch = "riscv64")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut u64, &'a mut u64) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext.__gregs;
        (&mut (*all)[libc::REG_PC], &mut (*all)[libc::REG_A0])
    }
}

impl Behind {
    /// Does what would have been done without our handler.
    ///
    /// # Safety
    /// The arguments of the handler.
    unsafe fn call(
        &self,
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
        is_access: bool,
    ) {
        let (handler, flags) = self.get();
        match handler {
            // A fault cannot be ignored.
            libc::SIG_IGN if !is_access => {}
            // SAFETY: the caller's promise.
            libc::SIG_DFL | libc::SIG_IGN => unsafe { end_process(signal, info, is_access) },
            _ => {
                if flags & libc::SA_RESETHAND != 0 {
                    self.set(libc::SIG_DFL, 0);
                }
                // SAFETY: the program has installed the function for the signal, in the form that
                // the flag describes; the caller's promise.
                unsafe {
                    if flags & libc::SA_SIGINFO != 0 {
                        let function: Handler = std::mem::transmute(handler);
                        function(signal, info, context);
                    } else {
                        let function: extern "C" fn(c_int) = std::mem::transmute(handler);
                        function(signal);
                    }
                }
            }
        }
    }
}

/// Lets the kernel end the process as if there were no handler: with the same signal, at the same
/// instruction.
///
/// # Safety
/// The arguments of the handler.
unsafe fn end_process(signal: c_int, info: *mut siginfo_t, is_access: bool) {
    // SAFETY: the default action; `info` is that of the signal.
    unsafe {
        let mut default: sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, null_mut());
        // An instruction that has faulted is executed again, and faults. A signal that was sent is
        // sent again.
        if !is_access {
            let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        }
    }
}
