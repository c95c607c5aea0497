//! A child that is forked has its own copy of memory that is in the file, as of all other.
//!
//! The mappings of the file are not inherited. Before the fork their contents are copied to
//! private memory, which the child then puts in their place. Nothing moves to or from the file
//! meanwhile. A child that is made past these handlers (by the system call itself) has nothing
//! there; one that runs in the memory of its parent until it executes another program
//! (`vfork`, `posix_spawn`, `system`) has no need for copies.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Once;

use rustix::io::Errno;

use super::moves::{Space, size};
use super::proc_maps::Vma;
use super::registry::{ARENA, Arena, State};

/// A copy, and where the child needs it.
struct Copied {
    space: Space,
    to: u64,
}

/// The copies for a fork that goes on.
#[derive(Default)]
pub(crate) struct Copies(Vec<Copied>);

// SAFETY: addresses of mappings, used by the thread that forks.
unsafe impl Send for Copies {}

thread_local! {
    /// This thread has locked the state in order to fork.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

/// Once for the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the three work at any time at which a process may fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    });
}

extern "C" fn prepare() {
    let Some(arena) = ARENA.get().filter(|arena| arena.is_ours()) else {
        return;
    };
    let mut state = arena.state.lock();
    if !state.runs.is_empty() {
        state.copies = Copies(copy(arena));
    }
    FORKS.set(true);
    // Held until the fork is done.
    std::mem::forget(state);
}

fn copy(arena: &Arena) -> Vec<Copied> {
    let mappings = match arena.mappings() {
        Ok(mappings) => mappings,
        Err(error) => {
            log::error!("a forked child will miss registered memory: {error}");
            return Vec::new();
        }
    };
    let copies = mappings
        .iter()
        .filter_map(|vma| match copy_one(arena, vma) {
            Ok(space) => Some(Copied {
                space,
                to: vma.at.start,
            }),
            Err(error) => {
                log::error!("a forked child will miss registered memory: {error}");
                None
            }
        });
    copies.collect()
}

fn copy_one(arena: &Arena, vma: &Vma) -> Result<Space, Errno> {
    let mut space = Space::private(size(&vma.at))?;
    space.read(arena.file.as_fd(), vma.offset)?;
    space.permit(vma)?;
    Ok(space)
}

/// The state, if [`prepare`] has locked it in this thread.
fn locked() -> Option<(&'static Arena, *mut State)> {
    let arena = ARENA.get().filter(|_| FORKS.replace(false))?;
    Some((arena, arena.state.data_ptr()))
}

extern "C" fn parent() {
    if let Some((arena, state)) = locked() {
        // SAFETY: this thread has the lock since `prepare`.
        let copies = unsafe {
            let copies = std::mem::take(&mut (*state).copies);
            arena.state.force_unlock();
            copies
        };
        drop(copies);
    }
}

extern "C" fn child() {
    let Some((_, state)) = locked() else {
        return;
    };
    // SAFETY: this is the only thread, and it has the lock since `prepare`. It keeps it: the
    // arena is the parent's, and nobody asks it here.
    let copies = unsafe { std::mem::take(&mut (*state).copies) };
    for Copied { space, to } in copies.0 {
        // SAFETY: the child has nothing there, and the copy is what it should have.
        let _ = unsafe { space.place(to) };
    }
}
