//! Which process made something: what a forked child has of its parent is a copy, without the
//! threads and without the mappings and locks that were not inherited.

/// The process that made what this is kept with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Creator(u32);

impl Creator {
    /// This process.
    pub fn current() -> Creator {
        Creator(std::process::id())
    }

    /// Whether that is this process; otherwise this is a forked child.
    pub fn is_current(self) -> bool {
        self == Creator::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_process() {
        let creator = Creator::current();
        assert!(creator.is_current());
        // SAFETY: the child makes two system calls and uses nothing of the other threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(creator.is_current())) };
        }
        let mut status = -1;
        // SAFETY: a valid place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
}
