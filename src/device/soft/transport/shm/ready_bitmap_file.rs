//! The boards of this process, one for each device, and those of peers. They are two files: what
//! the owner says, which peers read, and the marks, which they write.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::memfd::{Memory, Writers};
use super::ready_bitmap::{Marks, PLACES, Said};

/// Boards of a process.
const BOARDS: usize = 32;
/// Bytes of what owners say.
const SAID_LEN: usize = (BOARDS * size_of::<Said>()).next_multiple_of(4096);
/// Bytes of the marks.
const MARKS_LEN: usize = (BOARDS * size_of::<Marks>()).next_multiple_of(4096);

/// A place on a board of somebody, as peers are told it. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub u32);

impl Slot {
    pub const NONE: Slot = Slot(0);

    fn new(board: usize, place: u32) -> Slot {
        Slot(1 + board as u32 * PLACES + place)
    }

    /// Board and place, if there can be such ones.
    #[inline]
    fn split(self) -> Option<(usize, u32)> {
        let number = self.0.checked_sub(1)?;
        let board = (number / PLACES) as usize;
        (board < BOARDS).then_some((board, number % PLACES))
    }
}

/// Boards, mapped.
struct Mapped {
    said: Memory,
    marks: Memory,
}

impl Mapped {
    fn said(&self) -> &[Said] {
        // SAFETY: atomics. Only the owner, whose mapping is writable, writes.
        unsafe { self.said.as_slice() }
    }

    fn marks(&self) -> &[Marks] {
        // SAFETY: atomics, mapped to be written.
        unsafe { self.marks.as_slice() }
    }
}

/// The files with what owners say and with the marks.
pub(super) type Files<Fd> = [Fd; 2];

/// The boards of this process.
struct Own {
    mapped: Mapped,
    files: Arc<Files<OwnedFd>>,
    /// Whose it is: a child has none.
    pid: u32,
    /// A bit for each board that is in use.
    used: Mutex<u32>,
}

static OWN: Mutex<Option<Arc<Own>>> = Mutex::new(None);

/// Those of this process, made when they are first needed.
fn own() -> Result<Arc<Own>, Errno> {
    let mut own = OWN.lock();
    if let Some(own) = &*own {
        let ours = own.pid == std::process::id();
        return ours.then(|| own.clone()).ok_or(Errno::CHILD);
    }
    let (said_fd, said) = Memory::create(c"libdat-said", SAID_LEN, Writers::Maker)?;
    let (marks_fd, marks) = Memory::create(c"libdat-marks", MARKS_LEN, Writers::All)?;
    let new = Arc::new(Own {
        mapped: Mapped { said, marks },
        files: Arc::new([said_fd, marks_fd]),
        pid: std::process::id(),
        used: Mutex::new(0),
    });
    *own = Some(new.clone());
    Ok(new)
}

/// The files to be given to peers.
///
/// # Errors
/// Of the kernel, and `ECHILD` in a child that was forked.
pub(crate) fn files() -> Result<Arc<Files<OwnedFd>>, Errno> {
    own().map(|own| own.files.clone())
}

/// A board of ours. Its drop gives it back.
pub(crate) struct Board {
    own: Arc<Own>,
    number: usize,
}

impl Board {
    /// One that nobody uses.
    pub fn take() -> Option<Board> {
        let own = own().ok()?;
        let mut used = own.used.lock();
        let number = used.trailing_ones() as usize;
        if number == BOARDS {
            return None;
        }
        *used |= 1 << number;
        drop(used);
        let board = Board { own, number };
        board.said().wake();
        Some(board)
    }

    /// What we say.
    pub fn said(&self) -> &Said {
        &self.own.mapped.said()[self.number]
    }

    /// What peers have marked.
    #[inline]
    pub fn marks(&self) -> &Marks {
        &self.own.mapped.marks()[self.number]
    }

    /// What a peer is told.
    pub fn slot(&self, place: u32) -> Slot {
        Slot::new(self.number, place)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        *self.own.used.lock() &= !(1 << self.number);
    }
}

/// The boards of a peer.
pub(crate) struct Theirs(Mapped);

impl Theirs {
    /// Of the files that it has given.
    pub fn open([said, marks]: &Files<impl AsFd>) -> Result<Theirs, Errno> {
        Ok(Theirs(Mapped {
            said: Memory::open(said, SAID_LEN, false)?,
            marks: Memory::open(marks, MARKS_LEN, true)?,
        }))
    }

    /// Marks what the peer has asked for. Gives the number of its sleep, if it sleeps.
    #[inline]
    pub fn mark(&self, slot: Slot) -> Option<u32> {
        let (board, place) = slot.split()?;
        self.0.marks()[board].mark(place);
        self.0.said()[board].asleep()
    }
}

/// Held by the tests of which one changes all marks of the process and the other reads some.
#[cfg(test)]
static ALL_MARKS: Mutex<()> = Mutex::new(());

/// Does to all boards of this process what a bad peer could: sets all marks, or clears them.
#[cfg(test)]
pub(crate) fn spoil(set: bool) {
    let _all = ALL_MARKS.lock();
    let Ok(own) = own() else {
        return;
    };
    for marks in &own.mapped.marks()[..BOARDS] {
        for place in (0..PLACES).step_by(if set { 1 } else { 64 }) {
            match set {
                true => marks.mark(place),
                false => _ = marks.take((place / 64) as usize),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::transport::shm::ready_bitmap::WORDS;

    #[test]
    fn a_peer_marks_what_it_was_told_to() {
        let _all = ALL_MARKS.lock();
        let (a, b) = (Board::take().unwrap(), Board::take().unwrap());
        for word in 0..WORDS {
            a.marks().take(word);
            b.marks().take(word);
        }
        assert_ne!(a.number, b.number);
        let theirs = Theirs::open(&files().unwrap()).unwrap();
        for place in [0, 63, 64, PLACES - 1] {
            assert_eq!(theirs.mark(b.slot(place)), None);
            let word = (place / 64) as usize;
            assert_eq!(b.marks().take(word), 1 << (place % 64));
            assert_eq!((a.marks().take(word), b.marks().take(word)), (0, 0));
        }
        b.said().sleep();
        let first = theirs.mark(b.slot(5));
        assert!(first.is_some() && theirs.mark(b.slot(6)) == first);
        b.said().sleep();
        assert!(theirs.mark(b.slot(5)).is_some_and(|n| Some(n) != first));
        b.said().wake();
        assert_eq!(theirs.mark(b.slot(5)), None);
        assert_eq!(b.marks().take(0), 0b110_0000);
    }

    #[test]
    fn slots_that_cannot_be() {
        let theirs = Theirs::open(&files().unwrap()).unwrap();
        for slot in [0, 1 + BOARDS as u32 * PLACES, u32::MAX] {
            assert_eq!(theirs.mark(Slot(slot)), None);
            assert_eq!(Slot(slot).split(), None);
        }
    }
}
