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
use std::sync::Once;

use rustix::io::Errno;

use super::moves::{Mapping, size};
use super::proc_maps::Vma;
use super::registry::{FileState, MEMORY_FILE, MemoryFile};

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
    /// Whether this thread holds the lock of the file's state because it forks.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Installs the handlers of `fork`, once in the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the three handlers may be called whenever a process may fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    });
}

extern "C" fn prepare() {
    let Some(memory) = MEMORY_FILE.get().filter(|memory| memory.is_ours()) else {
        return;
    };
    let mut state = memory.state.lock();
    if !state.in_file.is_empty() {
        state.copies = Copies(copy(memory));
    }
    FORKING.set(true);
    // `parent` unlocks it.
    std::mem::forget(state);
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

/// The state of the file, if [`prepare`] has locked it in this thread.
fn locked() -> Option<(&'static MemoryFile, *mut FileState)> {
    let memory = MEMORY_FILE.get().filter(|_| FORKING.replace(false))?;
    Some((memory, memory.state.data_ptr()))
}

extern "C" fn parent() {
    if let Some((memory, state)) = locked() {
        // SAFETY: this thread has the lock since `prepare`.
        let copies = unsafe {
            let copies = std::mem::take(&mut (*state).copies);
            memory.state.force_unlock();
            copies
        };
        drop(copies);
    }
}

extern "C" fn child() {
    let Some((_, state)) = locked() else {
        return;
    };
    // SAFETY: this is the only thread, and it has the lock since `prepare`. The lock is never
    // released: the file belongs to the parent, and the child does not use it.
    let copies = unsafe { std::mem::take(&mut (*state).copies) };
    for Copied { mapping, to } in copies.0 {
        // SAFETY: nothing is mapped there in the child, and the copy has the contents of the original.
        let _ = unsafe { mapping.move_to(to) };
    }
}
