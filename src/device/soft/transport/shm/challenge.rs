//! Numbers by which two processes prove to each other that the kernel lets them in.
//!
//! Each side of a connection that comes up keeps a number for it in its memory, and tells the
//! other side where it is, but not what it is. Whoever knows the number has read our memory: the
//! kernel has found that it may, by the check (`ptrace_may_access`) by which it may write there
//! as well. Such a process gets nothing with a descriptor of ours that it could not take.
//!
//! A number says whom it is for. A process reads it out only if that is itself, and only out of
//! the memory of the very process that the kernel names at the other end of its socket. So
//! nobody can have it read by a process that is let in, and be told.
//!
//! The numbers are in memory of their own, at an address that was chosen at random: who is told
//! one and turns out to be a stranger has learned nothing of where the rest of our memory is.

use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::handshake::MAGIC;
use crate::device::soft::mem::key_table;

/// What the other side reads.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct ChallengeRecord {
    /// Tells it from all else that may be in memory.
    tag: [u8; 8],
    /// The number, of this connection alone. Not 0.
    pub number: u64,
    /// Tells this process from all others: from one that has its identifier later, and from a
    /// child that is forked.
    pub process: u64,
    /// What the table of its keys is addressed with.
    pub salt: u32,
    /// The process that it is for.
    reader: u32,
}

/// Bytes of it.
pub(super) const WORD: usize = size_of::<ChallengeRecord>();

impl ChallengeRecord {
    /// Out of the memory of another process, if it is one, and for us.
    pub fn parse(bytes: &[u8; WORD]) -> Option<ChallengeRecord> {
        let word = ChallengeRecord::read_from_bytes(bytes).ok()?;
        let valid = word.tag == MAGIC && word.number != 0;
        (valid && word.reader == std::process::id()).then_some(word)
    }
}

/// A number of ours, which can be read as long as this exists.
pub(crate) struct Challenge {
    at: NonNull<ChallengeRecord>,
    place: usize,
    number: u64,
    /// Whose it is: a child has a copy of its parent's.
    pid: u32,
}

// SAFETY: an address and numbers; the word is written where there is no other reference to it.
unsafe impl Send for Challenge {}

/// Numbers at a time. Each is a connection that is coming up.
const PLACES: usize = 4096;
/// Bytes of them.
const LEN: usize = PLACES * WORD;

/// Where the numbers are.
struct ChallengePage {
    at: NonNull<ChallengeRecord>,
    pid: u32,
    process: u64,
    /// Places that were used and are free.
    free: Vec<usize>,
    /// Places from here on were never used.
    fresh: usize,
}

// SAFETY: as above.
unsafe impl Send for ChallengePage {}

static BOARD: Mutex<Option<ChallengePage>> = Mutex::new(None);

/// A number that nobody can guess.
fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // SAFETY: so many bytes may be written.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        8 => Ok(u64::from_ne_bytes(bytes).max(1)),
        _ => Err(Errno::IO),
    }
}

impl ChallengePage {
    fn new() -> Result<ChallengePage, Errno> {
        // The kernel takes the address if it is free. All programs can have it: not among the
        // first 4 GiB, nor beyond the smallest address space there is.
        let hint = (1 << 32) + random()? % ((1 << 38) - (1 << 32));
        let hint = std::ptr::without_provenance_mut((hint & !0xffff) as usize);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping where nothing is.
        let at = unsafe { rustix::mm::mmap_anonymous(hint, LEN, protection, flags) }?;
        Ok(ChallengePage {
            at: NonNull::new(at.cast()).ok_or(Errno::INVAL)?,
            pid: std::process::id(),
            process: random()?,
            free: Vec::new(),
            fresh: 0,
        })
    }

    /// That of this process. A child begins anew, where its parent's were.
    fn own(bitmap: &mut Option<ChallengePage>) -> Result<&mut ChallengePage, Errno> {
        let bitmap = match bitmap {
            Some(bitmap) => bitmap,
            None => bitmap.insert(ChallengePage::new()?),
        };
        if bitmap.pid != std::process::id() {
            bitmap.process = random()?;
            bitmap.pid = std::process::id();
            bitmap.free.clear();
            bitmap.fresh = 0;
        }
        Ok(bitmap)
    }

    fn place(&mut self) -> Option<usize> {
        self.free.pop().or_else(|| {
            let fresh = self.fresh;
            self.fresh += usize::from(fresh < PLACES);
            (fresh < PLACES).then_some(fresh)
        })
    }
}

impl Challenge {
    /// A new number, for that process to read.
    ///
    /// # Errors
    /// Of the kernel, and `EAGAIN` while too many connections are coming up.
    pub fn new(reader: u32) -> Result<Challenge, Errno> {
        let salt = key_table::salt();
        let number = random()?;
        let mut bitmap = BOARD.lock();
        let bitmap = ChallengePage::own(&mut bitmap)?;
        let place = bitmap.place().ok_or(Errno::AGAIN)?;
        // SAFETY: inside the mapping.
        let at = unsafe { bitmap.at.add(place) };
        let word = ChallengeRecord {
            tag: MAGIC,
            number,
            process: bitmap.process,
            salt,
            reader,
        };
        // SAFETY: the place is ours alone, and only the kernel reads it.
        unsafe { at.write_volatile(word) };
        Ok(Challenge {
            at,
            place,
            number,
            pid: bitmap.pid,
        })
    }

    /// Where it is.
    pub fn at(&self) -> u64 {
        self.at.addr().get() as u64
    }

    /// Whether that is the number.
    pub fn is(&self, answer: u64) -> bool {
        self.number == answer
    }
}

impl Drop for Challenge {
    fn drop(&mut self) {
        let mut bitmap = BOARD.lock();
        if let Some(bitmap) = bitmap.as_mut().filter(|bitmap| bitmap.pid == self.pid)
            && self.pid == std::process::id()
        {
            // SAFETY: as when it was written.
            unsafe { self.at.write_volatile(ChallengeRecord::new_zeroed()) };
            bitmap.free.push(self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(probe: &Challenge) -> [u8; WORD] {
        // SAFETY: written, and nobody writes to it now.
        let word = unsafe { probe.at.read_volatile() };
        word.as_bytes().try_into().unwrap()
    }

    #[test]
    fn a_number_is_for_one_reader_and_one_connection() {
        let us = std::process::id();
        let (a, b, other) = (
            Challenge::new(us),
            Challenge::new(us),
            Challenge::new(us + 1),
        );
        let (a, b, other) = (a.unwrap(), b.unwrap(), other.unwrap());
        let [x, y] = [&a, &b].map(|probe| ChallengeRecord::parse(&bytes(probe)).unwrap());
        assert!(x.number != y.number && x.process == y.process);
        assert!(a.is(x.number) && !a.is(y.number) && !a.is(0) && a.at() != b.at());
        assert_eq!(ChallengeRecord::parse(&bytes(&other)), None);
        let mut wrong = bytes(&a);
        wrong[0] ^= 1;
        assert_eq!(ChallengeRecord::parse(&wrong), None);
        assert_eq!(ChallengeRecord::parse(&[0; WORD]), None);
    }
}
