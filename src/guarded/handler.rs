//! The handler of `SIGSEGV` and `SIGBUS`, and the handlers of the program behind it.
//!
//! Ours is installed in front of what the program has installed, with the mask and the flags of that
//! (`SA_ONSTACK`, `SA_NODEFER`), so that the program's handler runs as the kernel would have run it.
//! A program that installs a handler later loses ours, and [`install`] puts another one of ours in
//! front. That is another function with its own record of what is behind it: the handler of the
//! program may call the one of ours that it has replaced, and a single function would call the
//! program's again.
//!
//! The handler stays when the library is not used any longer. The program may hold its address, and
//! the library is never unmapped (`-z nodelete`).

use std::mem::MaybeUninit;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

use crate::lock::Mutex;
use crate::process::PerProcess;

/// How often ours can be put in front of a handler of the program.
const GENERATIONS: usize = 8;

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

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Our functions, a generation each.
static ENTRIES: [Handler; GENERATIONS] = [
    entry::<0>, entry::<1>, entry::<2>, entry::<3>, entry::<4>, entry::<5>, entry::<6>, entry::<7>,
];

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

    /// What is called behind a generation of ours. A handler of the program that is in front again
    /// has called ours, and is not called once more: that of an older generation is.
    fn behind(&self, generation: usize) -> Option<&Behind> {
        let front = self.current().map(|action| action.sa_sigaction);
        let mut all = self.behind.iter().take(generation + 1).rev();
        all.find(|behind| {
            let handler = behind.get().0;
            handler <= libc::SIG_IGN || Some(handler) != front
        })
    }

    /// Whether one of ours is called first.
    fn is_in_front(&self) -> bool {
        self.current().is_none_or(|action| is_ours(&action))
    }

    /// Puts ours in front.
    fn install(&self) {
        let Some(current) = self.current().filter(|action| !is_ours(action)) else {
            return;
        };
        let used = self.used.load(Ordering::Relaxed);
        let (Some(entry), Some(behind)) = (ENTRIES.get(used), self.behind.get(used)) else {
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
            if older.handler.load(Ordering::Relaxed) == current.sa_sigaction
                && current.sa_sigaction > libc::SIG_IGN
            {
                let oldest = i.checked_sub(1).and_then(|i| self.behind.get(i));
                let (handler, flags) = oldest.map_or((libc::SIG_DFL, 0), Behind::get);
                older.set(handler, flags);
            }
        }
        behind.set(current.sa_sigaction, current.sa_flags);
        let is_function = current.sa_sigaction > libc::SIG_IGN;
        let mut ours = current;
        ours.sa_sigaction = *entry as usize;
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

/// The generation of ours that is the function of an action.
fn generation(action: &sigaction) -> Option<usize> {
    let is_function = |entry: &Handler| *entry as usize == action.sa_sigaction;
    ENTRIES.iter().position(is_function)
}

/// Whether the function of an action is one of ours.
fn is_ours(action: &sigaction) -> bool {
    generation(action).is_some()
}

/// What is behind ours, if that is the function of an action: handler and flags.
pub(super) fn behind_ours(signal: c_int, action: &sigaction) -> Option<(usize, c_int)> {
    let chain = CHAINS.iter().find(|chain| chain.signal == signal)?;
    let behind = chain.behind.get(generation(action)?)?;
    Some(behind.get())
}

/// What the kernel calls. Only what is allowed in a signal handler is called from here.
extern "C" fn entry<const GENERATION: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
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
            match chain.behind(GENERATION) {
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
#[cfg(target_arch = "aarch64")]
unsafe fn registers<'a>(context: *mut ucontext_t) -> (&'a mut u64, &'a mut u64) {
    // SAFETY: the caller's promise; two different fields.
    unsafe {
        let all = &raw mut (*context).uc_mcontext;
        (&mut (*all).pc, &mut (*all).regs[0])
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
            let (process, thread) = (libc::getpid(), libc::gettid());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
        }
    }
}
