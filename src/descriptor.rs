//! The descriptors of the library.
//!
//! A forked child has a copy of each. It must not keep them: a socket is closed for the peer, and a
//! port is free again, only when the last copy is closed. So the child closes them, which changes
//! nothing of the parent.
//!
//! Those of other libraries that serve this one are [noted](Foreign), and the child closes them as well.
//!
//! None has the number of a standard stream. A daemon may have closed those, and whatever writes to
//! them all the same would write into a connection: what the program prints, and the log. Those numbers are
//! [occupied](OccupiedStreams) while other libraries open descriptors.
//!
//! The close is no point at which a thread is cancelled, unlike `close(2)` of the C library.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::kernel::close;
use crate::lock::Mutex;
use crate::process::{self, AcrossEntry};

/// How many descriptors the child of a process finds; the rest of them stays open in the child.
const KNOWN: usize = 1 << 16;

/// A bit for each number of a descriptor that is open and the library's, or [`Foreign`]. A bit is set after the
/// descriptor was opened, and cleared before it is closed, so that the number of a descriptor of the
/// program never has its bit set. The kernel copies the descriptors for a child a little earlier than
/// the memory; so none is opened or closed meanwhile.
static OPEN: [AtomicU64; KNOWN / 64] = [const { AtomicU64::new(0) }; KNOWN / 64];

static CLOSE_ALL: fn() = close_all;

/// Held from before a descriptor is opened until it is noted, and during a fork: it would be open in the child, where
/// nothing knows of it. Not the lock of those that are closed, since a close may take long.
static OPENING: Mutex<()> = Mutex::new(());
static OPENING_ACROSS: AcrossEntry = AcrossEntry::innermost(&OPENING);

/// Held while a descriptor is closed, and during a fork.
static CLOSING: Mutex<()> = Mutex::new(());
static CLOSING_ACROSS: AcrossEntry = AcrossEntry::innermost(&CLOSING);

/// The word of [`OPEN`] and the bit in it.
fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// From now on children close their copies of a descriptor.
fn note(fd: RawFd) {
    process::across(&CLOSING_ACROSS);
    process::in_child(&CLOSE_ALL);
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Before a descriptor is closed: children close no descriptor of that number.
fn forget(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Opens descriptors by `open`, which gives them as [`OwnedFd`]s and waits for nothing: no child that another thread
/// forks keeps a copy of one that is not noted yet.
pub fn opening<R>(open: impl FnOnce() -> R) -> R {
    process::across(&OPENING_ACROSS);
    let _opening = OPENING.lock();
    open()
}

/// Opens a descriptor as [`opening`] does.
///
/// # Errors
/// Those of `open`.
pub fn open<F: Into<OwnedFd>, E>(open: impl FnOnce() -> Result<F, E>) -> Result<OwnedFd, E> {
    opening(|| open().map(Into::into))
}

/// In a forked child: closes the copies of the descriptors of its parent.
fn close_all() {
    for (index, word) in OPEN.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            close(fd as RawFd);
        }
    }
}

/// The descriptor in the place of one that has the number of a standard stream; the same if there is no other
/// number.
#[cold]
fn beyond_streams(fd: RawFd) -> RawFd {
    // SAFETY: makes another descriptor of the same file, if there is such a file.
    let other = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if other < 0 {
        return fd;
    }
    close(fd);
    other
}

/// A descriptor, which is closed by the drop.
#[derive(Debug)]
pub struct OwnedFd(RawFd);

impl OwnedFd {
    /// The program has closed it: from now on the number may be that of another file.
    pub fn was_closed(self) {
        forget(self.0);
        std::mem::forget(self);
    }
}

impl From<std::os::fd::OwnedFd> for OwnedFd {
    fn from(fd: std::os::fd::OwnedFd) -> OwnedFd {
        // SAFETY: open, and owned by nothing else now.
        unsafe { OwnedFd::from_raw_fd(fd.into_raw_fd()) }
    }
}

#[cfg(dat_sim)]
impl From<crate::kernel::NewFd> for OwnedFd {
    fn from(fd: crate::kernel::NewFd) -> OwnedFd {
        // SAFETY: open, and owned by nothing else now.
        unsafe { OwnedFd::from_raw_fd(fd.into_raw_fd()) }
    }
}

impl FromRawFd for OwnedFd {
    unsafe fn from_raw_fd(fd: RawFd) -> OwnedFd {
        let fd = match fd {
            ..=libc::STDERR_FILENO if !cfg!(dat_sim) => beyond_streams(fd),
            _ => fd,
        };
        note(fd);
        OwnedFd(fd)
    }
}

impl From<std::fs::File> for OwnedFd {
    fn from(file: std::fs::File) -> OwnedFd {
        std::os::fd::OwnedFd::from(file).into()
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        let _closing = CLOSING.lock();
        forget(self.0);
        close(self.0);
    }
}

impl AsFd for OwnedFd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the reference lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for OwnedFd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl std::io::Read for &OwnedFd {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(self, to)?)
    }
}

/// The note, until the drop, of a descriptor that another library has opened for this one, and closes.
#[derive(Debug)]
pub struct Foreign(RawFd);

impl Foreign {
    /// Notes a descriptor, which may be none (-1).
    ///
    /// # Safety
    /// It is not closed before the note is dropped, and nothing uses it in a child of this process.
    pub unsafe fn note(fd: RawFd) -> Foreign {
        note(fd);
        Foreign(fd)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// The numbers of standard streams that are occupied.
#[derive(Default)]
struct Occupied {
    /// How many [`OccupiedStreams`] there are.
    users: u32,
    /// A bit for each number.
    numbers: u8,
}

static OCCUPIED: Mutex<Occupied> = Mutex::new(Occupied {
    users: 0,
    numbers: 0,
});

/// The flags of an open descriptor.
fn flags(fd: RawFd) -> Option<libc::c_int> {
    // SAFETY: asks for the flags of a descriptor, if there is one.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (flags >= 0).then_some(flags)
}

const STREAMS: RangeInclusive<RawFd> = libc::STDIN_FILENO..=libc::STDERR_FILENO;

/// Until the drop no descriptor that another library opens for this one gets the number of a standard stream which
/// the program has closed. Reads from such a number and writes to it fail as before. Who has one keeps the process
/// from being forked.
#[derive(Debug)]
pub struct OccupiedStreams(());

impl OccupiedStreams {
    /// Occupies the numbers of the standard streams that are closed.
    pub fn begin() -> OccupiedStreams {
        let mut occupied = OCCUPIED.lock();
        occupied.users += 1;
        while STREAMS.into_iter().any(|fd| flags(fd).is_none()) {
            // What names a file only can be neither read nor written.
            let path = rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            match path.map(IntoRawFd::into_raw_fd) {
                Ok(fd) if STREAMS.contains(&fd) => occupied.numbers |= 1 << fd,
                // Another thread was faster.
                Ok(fd) => close(fd),
                Err(_) => break,
            }
        }
        OccupiedStreams(())
    }
}

impl Drop for OccupiedStreams {
    fn drop(&mut self) {
        let mut occupied = OCCUPIED.lock();
        occupied.users -= 1;
        if occupied.users > 0 {
            return;
        }
        let numbers = std::mem::take(&mut occupied.numbers);
        for fd in STREAMS.filter(|fd| numbers & 1 << fd != 0) {
            // Unless the program has put a stream of its own there.
            if flags(fd).is_some_and(|flags| flags & libc::O_PATH != 0) {
                close(fd);
            }
        }
    }
}

#[cfg(all(test, not(loom), not(dat_sim)))]
mod tests {
    use super::*;
    use crate::process::tests::{WELL, status_of_child};

    fn is_open(fd: &impl AsRawFd) -> bool {
        // SAFETY: asks whether there is such a descriptor.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) >= 0 }
    }

    #[test]
    fn none_has_the_number_of_a_standard_stream() {
        let status = status_of_child(|| {
            (0..=libc::STDERR_FILENO).for_each(close);
            let Ok((first, second)) = std::io::pipe() else {
                return false;
            };
            let ends = [first.into(), second.into()]
                .map(|end: std::os::fd::OwnedFd| (end.as_raw_fd(), OwnedFd::from(end)));
            ends.iter().all(|(before, end)| {
                // SAFETY: asks for the flags of a descriptor.
                let flags = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETFD) };
                *before < 3 && end.as_raw_fd() > 2 && flags == libc::FD_CLOEXEC && !is_open(before)
            })
        });
        assert_eq!(status, WELL);
    }

    #[test]
    fn streams_that_are_closed_are_occupied() {
        let status = status_of_child(|| {
            let file =
                || rustix::fs::memfd_create(c"of the program", rustix::fs::MemfdFlags::CLOEXEC);
            let (Ok(program), Ok(output)) = (file(), file()) else {
                return false;
            };
            // SAFETY: only numbers, each of which is a descriptor or none.
            let dup2 = |from: RawFd, to| unsafe { libc::dup2(from, to) } == to;
            // SAFETY: the byte is valid.
            let is_written = |fd| unsafe { libc::write(fd, [0_u8; 1].as_ptr().cast(), 1) } == 1;
            let are_open = |want: [bool; 3]| [0, 1, 2].map(|fd| is_open(&fd)) == want;
            STREAMS.for_each(close);
            let opened = || file().is_ok_and(|file| file.as_raw_fd() > libc::STDERR_FILENO);
            let occupied = OccupiedStreams::begin();
            let mut well = opened() && !is_written(1) && !is_written(2);
            // A stream that the program opens, and one that it closes meanwhile.
            well &= dup2(program.as_raw_fd(), 0) && dup2(output.as_raw_fd(), 2) && is_written(2);
            close(2);
            let another = OccupiedStreams::begin();
            well &= opened() && !is_written(2);
            drop(occupied);
            well &= opened() && are_open([true; 3]);
            drop(another);
            well &= are_open([true, false, false]) && is_written(0);
            // None is closed, and none is touched.
            well &= dup2(program.as_raw_fd(), 1) && dup2(program.as_raw_fd(), 2);
            drop(OccupiedStreams::begin());
            well && are_open([true; 3]) && is_written(1)
        });
        assert_eq!(status, WELL);
    }

    /// The kernel copies the memory of a large process for some milliseconds, after it has copied the descriptors.
    #[test]
    fn a_child_has_no_copy_of_what_is_closed_during_the_fork() {
        const BEFORE: usize = match size_of::<usize>() {
            4 => 0x1000_0000,
            _ => 0x1000_0000_0000u64 as usize,
        };
        const SIZE: usize = 256 << 20;
        const NAME: &str = "closed during the fork";
        // SAFETY: new memory, below that of the library, where there is room in any process.
        let memory = unsafe {
            let (prot, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let at = libc::mmap(BEFORE as *mut libc::c_void, SIZE, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, SIZE, libc::MADV_NOHUGEPAGE);
            at
        };
        for offset in (0..SIZE).step_by(4096) {
            // SAFETY: in the memory.
            unsafe { memory.cast::<u8>().add(offset).write_volatile(1) };
        }
        let create = || {
            let file = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC);
            OwnedFd::from(file.unwrap())
        };
        let is_one = |fd: RawFd| {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            link.is_ok_and(|link| link.to_string_lossy().contains(NAME))
        };
        for _ in 0..5 {
            let files: Vec<OwnedFd> = (0..400).map(|_| create()).collect();
            let last = files.iter().map(|fd| fd.as_raw_fd()).max().unwrap();
            let begun = AtomicU64::new(0);
            std::thread::scope(|s| {
                s.spawn(|| {
                    for file in files {
                        drop(file);
                        begun.store(1, Ordering::Relaxed);
                        let closed = std::time::Instant::now();
                        while closed.elapsed() < std::time::Duration::from_micros(20) {}
                    }
                });
                while begun.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
                assert_eq!(status_of_child(|| !(3..=last).any(is_one)), WELL);
            });
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(memory, SIZE) };
    }

    #[test]
    fn a_child_has_no_copy_of_what_is_opened_during_the_fork() {
        let number = AtomicU64::new(0);
        let forked = AtomicU64::new(0);
        std::thread::scope(|s| {
            let opener = s.spawn(|| {
                open(|| {
                    let end = std::io::pipe().map(|(end, _)| std::os::fd::OwnedFd::from(end))?;
                    number.store(end.as_raw_fd() as u64, Ordering::Release);
                    // A fork that does not wait is over by then.
                    let opened = std::time::Instant::now();
                    while forked.load(Ordering::Relaxed) == 0
                        && opened.elapsed() < std::time::Duration::from_millis(100)
                    {
                        std::thread::yield_now();
                    }
                    std::io::Result::Ok(end)
                })
            });
            while number.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
            let fd = number.load(Ordering::Acquire) as RawFd;
            assert_eq!(status_of_child(|| !is_open(&fd)), WELL);
            forked.store(1, Ordering::Relaxed);
            assert!(opener.join().unwrap().is_ok_and(|end| is_open(&end)));
        });
    }

    #[test]
    fn a_child_has_no_copy_of_what_is_owned_or_noted() {
        let program = std::io::pipe().unwrap();
        let [ours, others] = [(); 2].map(|()| std::io::pipe().unwrap());
        let ours = OwnedFd::from(std::os::fd::OwnedFd::from(ours.1));
        // SAFETY: dropped below, while the pipe is open; the child only asks whether there is a copy.
        let note = unsafe { Foreign::note(others.1.as_raw_fd()) };
        let status = status_of_child(|| {
            !is_open(&ours) && !is_open(&others.1) && is_open(&others.0) && is_open(&program.1)
        });
        assert_eq!(status, WELL);
        assert!(is_open(&ours) && is_open(&others.1));
        // Neither the note nor its end closes anything, and the number may be another descriptor's from now on.
        drop(note);
        assert_eq!(status_of_child(|| is_open(&others.1)), WELL);
        assert!(is_open(&others.1));
        // SAFETY: no descriptor has that number.
        drop(unsafe { Foreign::note(-1) });
    }
}
