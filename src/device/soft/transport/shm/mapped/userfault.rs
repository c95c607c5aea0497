//! `userfaultfd(2)`: threads that touch memory while it moves wait, in the kernel as well.
//!
//! Nobody reads from the descriptor. The threads wait until they are woken, or until it is
//! closed, whatever comes first; then they look again.

use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::sync::relax;

const GROUP: u8 = 0xaa;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
const API: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const VERSION: u64 = 0xaa;
/// Write protection, also of files in memory (Linux 5.19), and `UFFDIO_MOVE` (6.8).
const FEATURES: u64 = 1 << 0 | 1 << 12 | 1 << 16;

#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}
const UNREGISTER: Opcode = opcode::read::<Span>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<Span>(GROUP, 0x02);

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);

#[repr(C)]
struct Move {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes that were moved, or why not.
    moved: i64,
}
const MOVE: Opcode = opcode::read_write::<Move>(GROUP, 0x05);

#[repr(C)]
struct Protect {
    span: Span,
    mode: u64,
}
const PROTECT: Opcode = opcode::read_write::<Protect>(GROUP, 0x06);

/// What threads wait for.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Mode {
    /// Whoever touches a page that is not there.
    Missing = 1,
    /// Whoever writes to a protected one.
    Protected = 2,
}

/// How often a page that is in use is asked for again.
const ROUNDS: u32 = 256;

/// See the module.
pub(super) struct Faults(OwnedFd);

impl Span {
    fn of(range: &Range<u64>) -> Span {
        Span {
            start: range.start,
            len: range.end - range.start,
        }
    }
}

impl Faults {
    /// Opens the descriptor, if the kernel lets threads wait that are inside of it, too, and has
    /// all that we need.
    pub fn open() -> Result<Faults, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the descriptor does nothing by itself.
        let fd = match unsafe { rustix::mm::userfaultfd(flags) } {
            Err(Errno::PERM) => from_device(flags)?,
            fd => fd?,
        };
        let faults = Faults(fd);
        let mut api = Api {
            api: VERSION,
            features: FEATURES,
            ioctls: 0,
        };
        faults.call::<API, _>(&mut api)?;
        Ok(faults)
    }

    fn call<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the structure of that operation, all of which the kernel checks. What the
        // operations do to memory is up to the callers below.
        unsafe { rustix::ioctl::ioctl(&self.0, Updater::<OPCODE, T>::new(argument)) }
    }

    /// Threads wait from now on. Nothing else may have a hold on the range.
    pub fn watch(&self, range: &Range<u64>, mode: Mode) -> Result<(), Errno> {
        self.call::<REGISTER, _>(&mut Register {
            span: Span::of(range),
            mode: mode as u64,
            ioctls: 0,
        })
    }

    /// Nobody waits any more.
    pub fn release(&self, range: &Range<u64>) {
        let _ = self.call::<UNREGISTER, _>(&mut Span::of(range));
    }

    /// Those who wait look again.
    pub fn wake(&self, range: &Range<u64>) {
        let _ = self.call::<WAKE, _>(&mut Span::of(range));
    }

    /// Nobody writes to the range from now on; those who do wait.
    pub fn protect(&self, range: &Range<u64>) -> Result<(), Errno> {
        loop {
            let mut protect = Protect {
                span: Span::of(range),
                mode: 1,
            };
            match self.call::<PROTECT, _>(&mut protect) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    /// Moves pages from a range of private memory to another place, where none are. Gives the
    /// bytes that were moved, and why not all.
    ///
    /// A page that the kernel has given to somebody, such as a device that writes to it at this
    /// moment, or that a child has as well, does not move.
    ///
    /// # Safety
    /// The memory is to be missing there from now on.
    pub unsafe fn take(&self, from: &Range<u64>, to: u64) -> (u64, Result<(), Errno>) {
        let len = from.end - from.start;
        let (mut done, mut round) = (0, 0);
        while done < len {
            let mut order = Move {
                to: to + done,
                from: from.start + done,
                len: len - done,
                mode: 0,
                moved: 0,
            };
            let result = self.call::<MOVE, _>(&mut order);
            if let Ok(moved @ 1..) = u64::try_from(order.moved) {
                done += moved;
                continue;
            }
            match result {
                Err(Errno::AGAIN | Errno::BUSY) if round < ROUNDS => {
                    relax(round);
                    round += 1;
                }
                Err(error) => return (done, Err(error)),
                // It says that all is done, and that it has done nothing.
                Ok(()) => return (done, Err(Errno::IO)),
            }
        }
        (len, Ok(()))
    }
}

/// Whoever may open the device may have descriptors.
fn from_device(flags: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    let mode = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", mode, rustix::fs::Mode::empty())?;
    let request = opcode::none(GROUP, 0x00);
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), request as _, flags.bits()) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: it was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
