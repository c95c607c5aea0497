//! The functions of a device's driver on the fast path.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use super::sys;
use crate::cancel::Disabled;

/// Drivers (the files of rdma-core's that have them, without version) that go into the kernel for what others do in
/// the queues that a process shares with its device: those of devices that are software, and of the adapters
/// that have no such queues.
const KERNEL_CALLERS: [&[u8]; 4] = [b"librxe-", b"libsiw-", b"libhfi1verbs-", b"libipathverbs-"];

/// A post.
type Post<Queue, Request> =
    unsafe extern "C" fn(*mut Queue, *mut Request, *mut *mut Request) -> c_int;

/// A bind of a window of type 1.
type Bind = unsafe extern "C" fn(*mut sys::Qp, *mut sys::Mw, *mut sys::MwBind) -> c_int;

/// The functions.
#[derive(Clone, Copy)]
pub(super) struct Ops {
    pub poll_cq: unsafe extern "C" fn(*mut sys::Cq, c_int, *mut sys::Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut sys::Cq, c_int) -> c_int,
    pub post_send: Post<sys::Qp, sys::SendWr>,
    pub post_recv: Post<sys::Qp, sys::RecvWr>,
    /// `None` for a driver without windows of type 1.
    pub bind_mw: Option<Bind>,
}

impl Ops {
    /// The functions of an open context, if the driver has them all.
    pub fn of(ops: &sys::ContextOps) -> Option<Ops> {
        let of_driver = Ops {
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            bind_mw: ops.bind_mw,
        };
        let file = file_of(of_driver.post_send as *const c_void);
        Some(match file.is_some_and(calls_the_kernel) {
            false => of_driver,
            true => Ops {
                poll_cq,
                req_notify_cq,
                post_send,
                post_recv,
                bind_mw: of_driver.bind_mw.and(Some(bind_mw)),
            },
        })
    }
}

/// The shared library that has a function.
fn file_of(function: *const c_void) -> Option<&'static [u8]> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the place for the answer is valid; zero is a valid answer.
    let (known, found) = unsafe {
        let known = libc::dladdr(function, found.as_mut_ptr());
        (known != 0, found.assume_init())
    };
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of a library that is loaded; drivers are never unloaded.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes())
}

/// Whether the driver in a file makes system calls for posts, polls or notifications.
fn calls_the_kernel(file: &[u8]) -> bool {
    let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or(file);
    KERNEL_CALLERS.iter().any(|driver| name.starts_with(driver))
}

// The system calls of such a driver are those of the C library, which are points of cancellation: a cancellation
// would unwind our functions.

/// A function of this name that calls that of the driver with cancellation disabled.
macro_rules! undisturbed {
    ($($name:ident($queue:ident: $type:ty $(, $arg:ident: $arg_type:ty)*);)*) => {$(
        unsafe extern "C" fn $name($queue: $type $(, $arg: $arg_type)*) -> c_int {
            let _disabled = Disabled::begin();
            // SAFETY: the caller's promise; a queue is of an open context, whose driver has the function.
            unsafe {
                match (*(*$queue).context).ops.$name {
                    Some(function) => function($queue $(, $arg)*),
                    None => -libc::ENOSYS,
                }
            }
        }
    )*};
}

undisturbed! {
    poll_cq(cq: *mut sys::Cq, count: c_int, wc: *mut sys::Wc);
    req_notify_cq(cq: *mut sys::Cq, solicited: c_int);
    post_recv(qp: *mut sys::Qp, wr: *mut sys::RecvWr, bad: *mut *mut sys::RecvWr);
    bind_mw(qp: *mut sys::Qp, mw: *mut sys::Mw, bind: *mut sys::MwBind);
}

/// The same of the post of one request. Where the driver has it in the queue and only the call fails that makes the
/// kernel look there, as it does at the end of a connection, the request was posted: it completes, or is flushed
/// with the queue pair.
unsafe extern "C" fn post_send(
    qp: *mut sys::Qp,
    wr: *mut sys::SendWr,
    bad: *mut *mut sys::SendWr,
) -> c_int {
    let _disabled = Disabled::begin();
    // SAFETY: the caller's promise; a queue pair is of an open context, whose driver has the function.
    unsafe {
        *bad = wr;
        let error = match (*(*qp).context).ops.post_send {
            Some(function) => function(qp, wr, bad),
            None => -libc::ENOSYS,
        };
        match (*bad).is_null() {
            true => 0,
            false => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that takes a request whose number is 0; the call after that fails as well, the way that siw's does.
    unsafe extern "C" fn takes_the_first(
        _qp: *mut sys::Qp,
        wr: *mut sys::SendWr,
        bad: *mut *mut sys::SendWr,
    ) -> c_int {
        // SAFETY: of the test.
        unsafe {
            if (*wr).wr_id == 0 {
                *bad = std::ptr::null_mut();
            }
        }
        -1
    }

    #[test]
    fn a_request_that_is_in_the_queue_was_posted() {
        // SAFETY: all zero is valid for these.
        let (mut context, mut qp, mut wr): (sys::Context, sys::Qp, sys::SendWr) =
            unsafe { std::mem::zeroed() };
        let mut bad = std::ptr::null_mut();
        let mut post = |wr_id, context: &mut sys::Context| {
            wr.wr_id = wr_id;
            qp.context = context;
            // SAFETY: made above.
            unsafe { post_send(&mut qp, &mut wr, &mut bad) }
        };
        assert_eq!(post(0, &mut context), -libc::ENOSYS);
        context.ops.post_send = Some(takes_the_first);
        assert_eq!(post(0, &mut context), 0);
        assert_eq!(post(1, &mut context), -1);
    }

    #[test]
    fn drivers_are_known_by_their_files() {
        for (file, calls) in [
            (
                "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
                true,
            ),
            ("libsiw-rdmav57.so", true),
            ("/opt/librxe-lib/libmlx5-rdmav34.so", false),
            ("/usr/lib/x86_64-linux-gnu/libmlx5.so.1", false),
            ("", false),
        ] {
            assert_eq!(calls_the_kernel(file.as_bytes()), calls, "{file}");
        }
    }

    #[test]
    fn functions_are_in_files() {
        let name = file_of(libc::getpid as *const c_void).unwrap();
        let name = name.rsplit(|byte| *byte == b'/').next().unwrap();
        let expected: &[u8] = match cfg!(target_env = "musl") {
            true => b"ld-musl-",
            false => b"libc.so",
        };
        assert!(name.starts_with(expected));
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
