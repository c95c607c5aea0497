//! `userfaultfd(2)`: a thread that accesses memory while it moves waits, also inside the kernel.
//!
//! An access to a page that is missing, or write-protected, in a range that is registered with the
//! descriptor is a *fault*. The descriptor reports faults to its reader, but no thread reads it
//! here: a thread that has a fault waits until the range is woken, or the descriptor is closed, and
//! then repeats the access. The structures and numbers below are those of `linux/userfaultfd.h`.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::descriptor::{self, OwnedFd};
use crate::sync::relax;

/// `UFFDIO`, the group of the requests.
const GROUP: u8 = 0xaa;

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}
const API: Opcode = opcode::read_write::<UffdioApi>(GROUP, 0x3f);
/// `UFFD_API`, the version of the interface.
const VERSION: u64 = 0xaa;
/// The features that moves need: write protection, also of files in memory (Linux 5.19), and
/// `UFFDIO_MOVE` (Linux 6.8).
const FEATURES_OF_MOVES: u64 = 1 << 0 | 1 << 12 | 1 << 16;
/// The features that keep holes of files in memory empty: a fault ends with `SIGBUS` instead of a wait.
const FEATURES_OF_HOLES: u64 = 1 << 5 | 1 << 7;

/// `struct uffdio_range`.
#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}
const UNREGISTER: Opcode = opcode::read::<UffdioRange>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<UffdioRange>(GROUP, 0x02);

/// `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}
const REGISTER: Opcode = opcode::read_write::<UffdioRegister>(GROUP, 0x00);

/// `struct uffdio_move`.
#[repr(C)]
struct UffdioMove {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes that were moved, or a negative error number.
    moved: i64,
}
const MOVE: Opcode = opcode::read_write::<UffdioMove>(GROUP, 0x05);

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct UffdioWriteProtect {
    range: UffdioRange,
    mode: u64,
}
const WRITE_PROTECT: Opcode = opcode::read_write::<UffdioWriteProtect>(GROUP, 0x06);

/// The accesses that are faults: `UFFDIO_REGISTER_MODE_*`.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum FaultMode {
    /// Any access to a page that is missing.
    Missing = 1,
    /// A write to a page that is write-protected.
    WriteProtected = 2,
}

/// How often the move of a page that is in use is tried again.
const MOVE_RETRIES: u32 = 256;

/// The descriptor.
pub(in super::super) struct UserFaults(OwnedFd);

/// What asks the kernel by the descriptor: a value that holds its number. The memory of [`UserFaults`] may be in
/// pages that move, and is not there meanwhile.
#[derive(Clone, Copy)]
pub(in super::super) struct Requests<'a>(BorrowedFd<'a>);

impl UffdioRange {
    fn of(range: &Range<u64>) -> UffdioRange {
        UffdioRange {
            start: range.start,
            len: range.end - range.start,
        }
    }
}

impl UserFaults {
    /// Opens a descriptor that makes threads wait inside the kernel too, with all features that moves
    /// need.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn open() -> Result<UserFaults, Errno> {
        UserFaults::with(UserfaultfdFlags::empty(), FEATURES_OF_MOVES)
    }

    /// Opens a descriptor by which an access to a hole of a file in memory allocates nothing: it ends with `SIGBUS`,
    /// or inside the kernel with an error. No thread ever waits, so that any process may have it.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn for_holes() -> Result<UserFaults, Errno> {
        /// `UFFD_USER_MODE_ONLY`, Linux 5.11.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        UserFaults::with(USER_MODE_ONLY, FEATURES_OF_HOLES)
    }

    fn with(flags: UserfaultfdFlags, features: u64) -> Result<UserFaults, Errno> {
        let flags = flags | UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the descriptor does nothing by itself.
        let fd = match descriptor::open(|| unsafe { rustix::mm::userfaultfd(flags) }) {
            Err(Errno::PERM) => descriptor::opening(|| from_device(flags))?,
            fd => fd?,
        };
        let faults = UserFaults(fd);
        let mut api = UffdioApi {
            api: VERSION,
            features,
            ioctls: 0,
        };
        faults.requests().send::<API, _>(&mut api)?;
        Ok(faults)
    }

    /// See [`Requests`].
    pub fn requests(&self) -> Requests<'_> {
        Requests(self.0.as_fd())
    }
}

impl Requests<'_> {
    /// One request to the kernel.
    fn send<const OPCODE: Opcode, T>(self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the structure of that request, which the kernel checks. The callers below answer
        // for what the request does to memory.
        unsafe { rustix::ioctl::ioctl(self.0, Updater::<OPCODE, T>::new(argument)) }
    }

    /// Registers a range: from now on threads wait that have a fault there. The range must not be
    /// registered with another descriptor.
    pub fn register(self, range: &Range<u64>, mode: FaultMode) -> Result<(), Errno> {
        self.send::<REGISTER, _>(&mut UffdioRegister {
            range: UffdioRange::of(range),
            mode: mode as u64,
            ioctls: 0,
        })
    }

    /// Ends the registration of a range. It does not wake the threads that wait.
    pub fn unregister(self, range: &Range<u64>) {
        let _ = self.send::<UNREGISTER, _>(&mut UffdioRange::of(range));
    }

    /// Wakes the threads that wait, which repeat their accesses.
    pub fn wake(self, range: &Range<u64>) {
        let _ = self.send::<WAKE, _>(&mut UffdioRange::of(range));
    }

    /// Write-protects a registered range.
    pub fn write_protect(self, range: &Range<u64>) -> Result<(), Errno> {
        loop {
            let mut protect = UffdioWriteProtect {
                range: UffdioRange::of(range),
                mode: 1,
            };
            match self.send::<WRITE_PROTECT, _>(&mut protect) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    /// Moves the pages of a range of private memory to the address `to`, where there are none.
    /// Returns the number of bytes that were moved, and an error if that is not all.
    ///
    /// A page that the kernel has given to another user, such as a device that writes to it at this
    /// moment, or that is shared with a child, does not move.
    ///
    /// # Safety
    /// The pages may be missing in the range from now on.
    pub unsafe fn move_pages(self, from: &Range<u64>, to: u64) -> (u64, Result<(), Errno>) {
        let len = from.end - from.start;
        let (mut done, mut round) = (0, 0);
        while done < len {
            let mut request = UffdioMove {
                to: to + done,
                from: from.start + done,
                len: len - done,
                mode: 0,
                moved: 0,
            };
            let result = self.send::<MOVE, _>(&mut request);
            if let Ok(moved @ 1..) = u64::try_from(request.moved) {
                done += moved;
                continue;
            }
            match result {
                Err(Errno::AGAIN | Errno::BUSY) if round < MOVE_RETRIES => {
                    relax(round);
                    round += 1;
                }
                Err(error) => return (done, Err(error)),
                // The kernel has reported success, but has moved nothing.
                Ok(()) => return (done, Err(Errno::IO)),
            }
        }
        (len, Ok(()))
    }
}

/// Makes a descriptor by `/dev/userfaultfd`, which needs the right to open that device.
fn from_device(flags: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    let mode = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/userfaultfd", mode, rustix::fs::Mode::empty())?;
    let request = opcode::none(GROUP, 0x00);
    // SAFETY: the request makes a descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), request as _, flags.bits()) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: a new descriptor, which is ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
