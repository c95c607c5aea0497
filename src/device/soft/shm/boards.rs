//! The file with the boards of this process, one for each device, and those of peers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::board::{Marks, PLACES, Said};
use super::memory::Memory;

/// Boards of a process.
const BOARDS: usize = 32;
/// What owners say comes first, in pages of its own: peers cannot write there.
const SAID_LEN: usize = (BOARDS * size_of::<Said>()).next_multiple_of(4096);
const LEN: usize = SAID_LEN + (BOARDS * size_of::<Marks>()).next_multiple_of(4096);

/// A place on a board of somebody, as peers are told it. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::device::soft) struct Slot(pub u32);

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

/// A file of boards, mapped.
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

/// The file of this process.
struct Own {
    mapped: Mapped,
    fd: Arc<OwnedFd>,
    /// Whose it is: a child has none.
    pid: u32,
    /// A bit for each board that is in use.
    used: Mutex<u32>,
}

static OWN: Mutex<Option<Arc<Own>>> = Mutex::new(None);

/// The file of this process, made when it is first needed.
fn own() -> Option<Arc<Own>> {
    let mut own = OWN.lock();
    if let Some(own) = &*own {
        return (own.pid == std::process::id()).then(|| own.clone());
    }
    let (fd, said) = Memory::create(c"libdat-marks", LEN, true).ok()?;
    let marks = Memory::open_part(&fd, LEN, SAID_LEN..LEN, true).ok()?;
    let new = Arc::new(Own {
        mapped: Mapped { said, marks },
        fd: Arc::new(fd),
        pid: std::process::id(),
        used: Mutex::new(0),
    });
    *own = Some(new.clone());
    Some(new)
}

/// The file to be given to peers.
pub(super) fn file() -> Option<Arc<OwnedFd>> {
    own().map(|own| own.fd.clone())
}

/// A board of ours. Its drop gives it back.
pub(in crate::device::soft) struct Board {
    own: Arc<Own>,
    number: usize,
}

impl Board {
    /// One that nobody uses.
    pub fn take() -> Option<Board> {
        let own = own()?;
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
pub(super) struct Theirs(Mapped);

impl Theirs {
    /// Of the file that it has given.
    pub fn open(fd: impl AsFd) -> Result<Theirs, Errno> {
        Ok(Theirs(Mapped {
            said: Memory::open_part(&fd, LEN, 0..SAID_LEN, false)?,
            marks: Memory::open_part(&fd, LEN, SAID_LEN..LEN, true)?,
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

/// Does to all boards of this process what a bad peer could: sets all marks, or clears them.
#[cfg(test)]
pub(in crate::device::soft) fn spoil(set: bool) {
    let Some(own) = own() else {
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

    #[test]
    fn a_peer_marks_what_it_was_told_to() {
        let (a, b) = (Board::take().unwrap(), Board::take().unwrap());
        assert_ne!(a.number, b.number);
        let theirs = Theirs::open(file().unwrap()).unwrap();
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
        let theirs = Theirs::open(file().unwrap()).unwrap();
        for slot in [0, 1 + BOARDS as u32 * PLACES, u32::MAX] {
            assert_eq!(theirs.mark(Slot(slot)), None);
            assert_eq!(Slot(slot).split(), None);
        }
    }
}
