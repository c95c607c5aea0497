//! The limit of locked memory, which registered memory, queues and their buffers count for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernel::limit_of;
use crate::kernel::process::Resource;

/// Logs an error of a call that locks memory, if the limit of locked memory may be the reason: the
/// user has to raise the limit. Once per process, since programs try again.
#[cold]
pub(super) fn report(what: &str, error: &io::Error) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let limit = limit_of(Resource::Memlock);
    if let Some(text) = message(what, error, limit)
        && !REPORTED.swap(true, Ordering::Relaxed)
    {
        log::error!("{text}");
    }
}

/// What the log says of an error, with the limit in bytes; `None` if the limit is not the reason.
fn message(what: &str, error: &io::Error, limit: Option<u64>) -> Option<String> {
    let limit = limit?;
    let refused = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
    refused.then(|| {
        format!(
            "{what} failed: {error}; this process may lock {limit} bytes of memory \
             (RLIMIT_MEMLOCK, ulimit -l)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_is_reported() {
        let error = io::Error::from_raw_os_error;
        let refused = error(libc::ENOMEM);
        let text = message("a registration", &refused, Some(65536));
        assert_eq!(
            text,
            Some(format!(
                "a registration failed: {refused}; this process may lock 65536 bytes of memory \
                 (RLIMIT_MEMLOCK, ulimit -l)"
            ))
        );
        assert_eq!(message("x", &error(libc::ENOMEM), None), None);
        assert_eq!(message("x", &error(libc::EINVAL), Some(65536)), None);
    }
}
