//! The functions that the kernel calls for a fault, one for each generation, and those of other copies of this
//! library in the process.
//!
//! A program may have several copies: `libdat.so.1`, `libdat2.so.2`, the provider libraries. Each has a table of its
//! own instructions, so its handler has to be called, but it need not be the first, since all of them call what is
//! behind them. They recognise each other by a text in front of each entry; behind it is a function that says what
//! is behind the entry.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

use super::handler::{behind_generation, fault};
use crate::system_call;

/// How often ours can be put in front of a handler of the program.
pub(super) const GENERATIONS: usize = 8;

/// The most entries that are followed from one to the next.
const LONGEST: usize = 64;

/// What an entry begins with. A copy with another layout has another text.
macro_rules! mark {
    () => {
        "libdat: entry of faults, form 1."
    };
}

/// Bytes of it.
const MARK: usize = 32;

/// An entry, and what is around it.
#[repr(C, align(64))]
struct Entry {
    /// The text that it is known by.
    mark: [u8; MARK],
    /// The code that the kernel calls.
    handler: [u8; 16],
    /// The code of a [`BehindEntry`].
    behind: [u8; 16],
}

/// A function that gives what is behind an entry for a signal: the handler, and its flags by the pointer.
type BehindEntry = extern "C" fn(c_int, *mut c_int) -> usize;

// Both pieces of code add the generation to their arguments, and go on in Rust.
#[cfg(target_arch = "x86_64")]
macro_rules! code {
    () => {
        r#"
        endbr64
        mov ecx, \generation
        jmp {fault}
        .balign 16
        endbr64
        mov edx, \generation
        jmp {behind}
        "#
    };
}
// Arguments are on the stack, where there is no room for one more: so what the pieces go on with calls the functions,
// with the arguments once more. The program's own handler may call an entry, so the stack is aligned (any_stack.rs).
#[cfg(target_arch = "x86")]
macro_rules! code {
    () => {
        r#"
        endbr32
        mov eax, \generation
        jmp libdat_call_fault
        .balign 16
        endbr32
        mov eax, \generation
        jmp libdat_call_behind
        "#
    };
}
#[cfg(target_arch = "x86")]
macro_rules! calls {
    () => {
        r#"
        .macro libdat_call function, words
        .cfi_startproc
        push ebp
        .cfi_def_cfa_offset 8
        .cfi_offset ebp, -8
        mov ebp, esp
        .cfi_def_cfa_register ebp
        sub esp, 16
        and esp, -16
        mov dword ptr [esp + 4 * \words], eax
        .set libdat_argument, 0
        .rept \words
        mov eax, dword ptr [ebp + 8 + libdat_argument]
        mov dword ptr [esp + libdat_argument], eax
        .set libdat_argument, libdat_argument + 4
        .endr
        call \function
        leave
        .cfi_def_cfa esp, 4
        ret
        .cfi_endproc
        .endm
        libdat_call_fault:
        libdat_call {fault}, 3
        libdat_call_behind:
        libdat_call {behind}, 2
        .purgem libdat_call
        "#
    };
}
#[cfg(not(target_arch = "x86"))]
macro_rules! calls {
    () => {
        ""
    };
}
// The first instruction is `bti c`, which not each assembler knows.
#[cfg(target_arch = "aarch64")]
macro_rules! code {
    () => {
        r#"
        hint #34
        mov w3, \generation
        b {fault}
        .balign 16
        hint #34
        mov w2, \generation
        b {behind}
        "#
    };
}
// Who calls a function by its address has put that into r12, the kernel too: the TOC pointer is calculated from there,
// and the branches go to the functions' local entries.
#[cfg(target_arch = "powerpc64")]
macro_rules! code {
    () => {
        r#"
        2:
        addis 2, 12, .TOC. - 2b@ha
        addi 2, 2, .TOC. - 2b@l
        li 6, \generation
        b {fault}
        .balign 16
        3:
        addis 2, 12, .TOC. - 3b@ha
        addi 2, 2, .TOC. - 3b@l
        li 5, \generation
        b {behind}
        "#
    };
}
#[cfg(target_arch = "s390x")]
macro_rules! code {
    () => {
        r#"
        lghi %r5, \generation
        jg {fault}
        .balign 16
        lghi %r4, \generation
        jg {behind}
        "#
    };
}
// The linker must not make them shorter.
#[cfg(target_arch = "riscv64")]
macro_rules! code {
    () => {
        r#"
        .option push
        .option norelax
        li a3, \generation
        tail {fault}
        .balign 16
        li a2, \generation
        tail {behind}
        .option pop
        "#
    };
}

std::arch::global_asm!(
    ".pushsection .text.libdat_fault_entries, \"ax\", %progbits",
    ".balign 64",
    ".globl libdat_fault_entries",
    ".hidden libdat_fault_entries",
    "libdat_fault_entries:",
    ".irp generation, 0, 1, 2, 3, 4, 5, 6, 7",
    ".balign 64",
    concat!(".ascii \"", mark!(), "\""),
    code!(),
    ".endr",
    ".balign 64",
    calls!(),
    ".popsection",
    fault = sym fault,
    behind = sym behind_generation,
);

unsafe extern "C" {
    /// The entries of this copy.
    #[link_name = "libdat_fault_entries"]
    static ENTRIES: [Entry; GENERATIONS];
}

/// The first of our entries.
fn first() -> usize {
    (&raw const ENTRIES).addr() + std::mem::offset_of!(Entry, handler)
}

/// The entry of a generation.
pub(super) fn of_generation(generation: usize) -> Option<usize> {
    (generation < GENERATIONS).then(|| first() + generation * size_of::<Entry>())
}

/// The generation of ours that a handler is.
pub(super) fn generation(handler: usize) -> Option<usize> {
    let distance = handler.checked_sub(first())?;
    let generation = distance / size_of::<Entry>();
    (distance.is_multiple_of(size_of::<Entry>()) && generation < GENERATIONS).then_some(generation)
}

/// A handler and its flags, or what is behind it if it is an entry of other copies. Of ours it is the first that is
/// come upon.
pub(super) fn behind_others(signal: c_int, action: (usize, c_int)) -> (usize, c_int) {
    let (mut handler, mut flags) = action;
    for _ in 0..LONGEST {
        let Some(behind) = of_other_copy(handler) else {
            break;
        };
        handler = behind(signal, &mut flags);
    }
    (handler, flags)
}

/// The function that says what is behind a handler, if that is an entry of another copy.
fn of_other_copy(handler: usize) -> Option<BehindEntry> {
    /// The last one that was found. No copy is ever unmapped.
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    let at = handler.checked_sub(std::mem::offset_of!(Entry, handler))?;
    // Aligned, so it is in the page of the handler.
    if !at.is_multiple_of(align_of::<Entry>()) || generation(handler).is_some() {
        return None;
    }
    if KNOWN.load(Ordering::Relaxed) != handler {
        if read(at)?.as_slice() != mark!().as_bytes() {
            return None;
        }
        KNOWN.store(handler, Ordering::Relaxed);
    }
    let behind = at + std::mem::offset_of!(Entry, behind);
    // SAFETY: what the mark stands for: an entry, and behind it a function of this type.
    Some(unsafe { std::mem::transmute::<usize, BehindEntry>(behind) })
}

/// Reads the mark of an entry, if there is memory: the program may have left a handler behind whose code is
/// unmapped. By the kernel, since a fault here could be in a handler. Where it refuses, other copies are not known.
fn read(at: usize) -> Option<[u8; MARK]> {
    let mut mark = [0; MARK];
    let to = libc::iovec {
        iov_base: mark.as_mut_ptr().cast(),
        iov_len: mark.len(),
    };
    let from = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: mark.len(),
    };
    // SAFETY: the kernel writes to `mark` alone, and checks what it reads.
    let len = unsafe {
        let this = system_call::make(libc::SYS_getpid, [0; 6]);
        let [to, from] = [&raw const to, &raw const from].map(|part| part.expose_provenance());
        let arguments = [this as usize, to, 1, from, 1, 0];
        system_call::make(libc::SYS_process_vm_readv, arguments)
    };
    (len == mark.len() as isize).then_some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_numbers() {
        for number in 0..GENERATIONS {
            let entry = of_generation(number).unwrap();
            assert_eq!(generation(entry), Some(number));
            // Ours are none of another copy.
            assert!(of_other_copy(entry).is_none());
            assert!(generation(entry + 16).is_none());
        }
        assert_eq!(of_generation(GENERATIONS), None);
        for nothing in [0, 32, 96, usize::MAX, first() - size_of::<Entry>()] {
            assert!(generation(nothing).is_none(), "{nothing:#x}");
            assert!(of_other_copy(nothing).is_none(), "{nothing:#x}");
        }
    }

    #[test]
    fn marks_are_read_by_the_kernel() {
        for number in 0..GENERATIONS {
            let at = of_generation(number).unwrap() - std::mem::offset_of!(Entry, handler);
            assert_eq!(read(at).unwrap().as_slice(), mark!().as_bytes());
        }
        assert_eq!(read(64), None);
    }

    /// What another copy is asked is what this one answers.
    #[test]
    fn what_is_behind_an_entry() {
        let behind = of_generation(GENERATIONS - 1).unwrap() + 16;
        // SAFETY: the function behind the entry.
        let behind = unsafe { std::mem::transmute::<usize, BehindEntry>(behind) };
        let mut flags = 5;
        // No test installs so many.
        assert_eq!(behind(libc::SIGSEGV, &mut flags), libc::SIG_DFL);
        assert_eq!(flags, 0);
    }
}
