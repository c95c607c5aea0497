//! A forked child gets its own copy of the memory that is in the memory file, as of all other
//! memory.
//!
//! The mappings of the file are not inherited (`MADV_DONTFORK`). The handlers of `fork`
//! (`pthread_atfork(3)`) copy their contents to private memory before the fork, and the child maps
//! the copies at the addresses of the originals. Nothing moves to or from the file meanwhile. A
//! child that is made without the handlers (by the system call itself) has nothing mapped there. A
//! child that runs in the memory of its parent until it executes another program (`vfork`,
//! `posix_spawn`, `system`) needs no copies.

use std::cell::Cell;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::moves::{Mapping, size};
use super::proc_maps::Vma;
use super::registry::{self, MemoryFile};
use crate::process::{self, Across, AcrossEntry};

/// A copy for the child.
struct Copied {
    /// Where the copy is.
    mapping: Mapping,
    /// The address that it gets in the child.
    to: u64,
}

/// The copies for a fork that is under way.
#[derive(Default)]
pub(crate) struct Copies(Vec<Copied>);

// SAFETY: addresses of mappings, used by the thread that forks.
unsafe impl Send for Copies {}

thread_local! {
    /// The memory file whose state this thread has locked because it forks.
    static FORKING: Cell<Option<&'static MemoryFile>> = const { Cell::new(None) };
}

/// The memory of the program that is in the file of this process, which a child gets copies of.
struct Memory;

static MEMORY: AcrossEntry = AcrossEntry::new(&Memory);

/// Has every child get its copies from now on.
pub(crate) fn install() {
    process::across(&MEMORY);
}

impl Across for Memory {
    fn try_lock(&self) -> bool {
        let Some(memory) = registry::current() else {
            return true;
        };
        let Some(mut state) = memory.state.try_lock() else {
            return false;
        };
        if !state.in_file.is_empty() {
            state.copies = Copies(copy(memory));
        }
        FORKING.set(Some(memory));
        // `unlock` releases it.
        std::mem::forget(state);
        true
    }

    unsafe fn unlock(&self) {
        if let Some(memory) = FORKING.take() {
            // SAFETY: this thread has the lock since `try_lock`.
            let copies = unsafe {
                let copies = std::mem::take(&mut (*memory.state.data_ptr()).copies);
                memory.state.force_unlock();
                copies
            };
            drop(copies);
        }
    }

    unsafe fn unlock_in_child(&self) {
        let Some(memory) = FORKING.take() else {
            return;
        };
        // SAFETY: this is the only thread, and it has the lock since `try_lock`. The lock is never
        // released: the file belongs to the parent, and the child does not use it.
        let copies = unsafe { std::mem::take(&mut (*memory.state.data_ptr()).copies) };
        for Copied { mapping, to } in copies.0 {
            // SAFETY: nothing is mapped there in the child, and the copy has the contents of the
            // original.
            let _ = unsafe { mapping.move_to(to) };
        }
    }

    unsafe fn reset(&self) {}

    /// Without the copies the child would not have the memory. A signal handler that forks, and has interrupted the
    /// move of memory in its own thread, would wait for ever.
    fn is_essential(&self) -> bool {
        !registry::is_moving()
    }
}

/// Copies all that the program has of the file.
fn copy(memory: &MemoryFile) -> Vec<Copied> {
    let mappings = match memory.mappings() {
        Ok(mappings) => mappings,
        Err(error) => {
            log::error!("registered memory will not be mapped in a forked child: {error}");
            return Vec::new();
        }
    };
    let copies = mappings
        .iter()
        .filter_map(|vma| match copy_one(memory, vma) {
            Ok(mapping) => Some(Copied {
                mapping,
                to: vma.at.start,
            }),
            Err(error) => {
                log::error!("registered memory will not be mapped in a forked child: {error}");
                None
            }
        });
    copies.collect()
}

fn copy_one(memory: &MemoryFile, vma: &Vma) -> Result<Mapping, Errno> {
    let mut mapping = Mapping::populated(size(&vma.at))?;
    mapping.read(memory.file.as_fd(), vma.offset)?;
    mapping.protect_like(vma)?;
    Ok(mapping)
}

#[cfg(all(test, not(dat_sim)))]
mod tests {
    use super::*;
    use crate::device::soft::tests::alone_in;
    use crate::process::tests::{WELL, status_of_child};

    /// A handler of a signal that arrives while its thread moves memory may fork, for instance to have a debugger
    /// print where the program is.
    #[test]
    fn a_thread_that_moves_memory_forks() {
        // A thread that waits for itself ends with its process alone.
        alone_in(
            module_path!(),
            &[],
            "a_thread_that_moves_memory_forks",
            forks,
        );
    }

    fn forks() {
        if let Err(why) = registry::enable() {
            eprintln!("\nskipped: a_thread_that_moves_memory_forks: {why}");
            return;
        }
        // SAFETY: ends this process, which is for this test alone.
        unsafe { libc::alarm(20) };
        let memory = vec![1_u8; 1 << 20];
        let (addr, len) = (
            memory.as_ptr().expose_provenance() as u64,
            memory.len() as u64,
        );
        let status = registry::register(addr, len, |_| Some(status_of_child(|| true)));
        assert_eq!(status, Some(WELL));
        // What follows is as before.
        assert_eq!(
            status_of_child(|| memory.iter().all(|byte| *byte == 1)),
            WELL
        );
        registry::release(addr, len);
    }
}
