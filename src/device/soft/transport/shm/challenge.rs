//! Random numbers by which two processes prove to each other that the kernel permits each of them
//! to access the memory of the other.
//!
//! For every connection that is being set up, each end keeps a random number in its memory and
//! sends the address of the number to the other end, but not the number. An end that can send the
//! number back has read it: the kernel has permitted that with the check (`ptrace_may_access`)
//! that permits writing as well. Such a process gains nothing from a descriptor of ours that it
//! could not take by itself.
//!
//! The record of a number names the process that may read it. A process reads a number only if
//! the record names the reading process, and only in the memory of the process that the kernel
//! names at the other end of the socket. So a third process cannot make a permitted process read
//! a number for it.
//!
//! The records are in a mapping of their own, at a random address: a process that learns such an
//! address, and then fails to prove itself, has learned nothing about where other memory is.

use std::ops::Range;
use std::ptr::NonNull;

use crate::kernel;
use crate::kernel::mm::{MapFlags, ProtFlags};
use crate::lock::Mutex;
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::handshake::MAGIC;
use crate::device::random::random;
use crate::process::PerProcess;

/// The record that the peer reads in our memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct ChallengeRecord {
    /// [`MAGIC`], which tells a record from anything else in memory.
    magic: [u8; 8],
    /// The random number of one connection. It is not 0.
    pub number: u64,
    /// A random number of the process that made the record. It tells that process from a later
    /// one with the same process identifier, and from a forked child.
    pub process: u64,
    /// The process identifier of the process that may read the record.
    reader: u32,
    /// Always 0.
    zero: u32,
}

/// Size of a record, in bytes.
pub(super) const RECORD_LEN: usize = size_of::<ChallengeRecord>();

impl ChallengeRecord {
    /// The record in bytes that were read from the memory of another process. `None` if the bytes
    /// are no record, or a record for another reader.
    pub fn parse(bytes: &[u8; RECORD_LEN]) -> Option<ChallengeRecord> {
        let record = ChallengeRecord::read_from_bytes(bytes).ok()?;
        let valid = record.magic == MAGIC && record.number != 0;
        (valid && record.reader == kernel::process_id()).then_some(record)
    }
}

/// A record in our memory. It can be read until the drop.
pub(crate) struct Challenge {
    /// Address of the record.
    record: NonNull<ChallengeRecord>,
    /// Index of the record in the mapping of all records.
    index: usize,
    /// The number in the record.
    number: u64,
}

// SAFETY: an address and numbers; the record is only written while there is no other reference
// to it.
unsafe impl Send for Challenge {}

/// Records that there can be at a time, each for a connection that is being set up.
const MAX_RECORDS: usize = 4096;
/// Where the records may be: above the first 4 GiB and inside the smallest user address space that Linux has; of 32
/// bits, above most programs and below what the kernel chooses.
const HINTS: Range<u64> = match size_of::<usize>() {
    4 => 1 << 29..1 << 30,
    _ => 1 << 32..1 << 38,
};
/// Size of the mapping of all records, in bytes.
const MAPPING_LEN: usize = MAX_RECORDS * RECORD_LEN;

/// The mapping of all records.
struct ChallengePage {
    /// Address of the first record.
    records: NonNull<ChallengeRecord>,
    /// The random number of that process: see [`ChallengeRecord::process`].
    process: u64,
    /// Indices of records that were used and are free.
    free: Vec<usize>,
    /// Index of the first record that was never used.
    unused: usize,
}

// SAFETY: as above.
unsafe impl Send for ChallengePage {}

static PAGE: PerProcess<Mutex<Option<ChallengePage>>> = PerProcess::new(Mutex::default);

/// An unpredictable random number that is not 0.
fn nonzero() -> Result<u64, Errno> {
    random().map(|number| number.max(1))
}

impl ChallengePage {
    fn new() -> Result<ChallengePage, Errno> {
        // The kernel uses the address of the hint if nothing is mapped there.
        let hint = HINTS.start + nonzero()? % (HINTS.end - HINTS.start);
        let hint = std::ptr::without_provenance_mut((hint & !0xffff) as usize);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that is free.
        let at = unsafe { kernel::mm::mmap_anonymous(hint, MAPPING_LEN, protection, flags) }?;
        Ok(ChallengePage {
            records: NonNull::new(at.cast()).ok_or(Errno::INVAL)?,
            process: nonzero()?,
            free: Vec::new(),
            unused: 0,
        })
    }

    /// The mapping of this process.
    fn own(page: &mut Option<ChallengePage>) -> Result<&mut ChallengePage, Errno> {
        let page = match page {
            Some(page) => page,
            None => page.insert(ChallengePage::new()?),
        };
        Ok(page)
    }

    fn allocate(&mut self) -> Option<usize> {
        self.free.pop().or_else(|| {
            let unused = self.unused;
            self.unused += usize::from(unused < MAX_RECORDS);
            (unused < MAX_RECORDS).then_some(unused)
        })
    }
}

impl Challenge {
    /// A record with a new number, for the process with that identifier to read.
    ///
    /// # Errors
    /// The error of the kernel, and `EAGAIN` while too many connections are being set up.
    pub fn new(reader: u32) -> Result<Challenge, Errno> {
        let number = nonzero()?;
        let mut page = PAGE.lock();
        let page = ChallengePage::own(&mut page)?;
        let index = page.allocate().ok_or(Errno::AGAIN)?;
        // SAFETY: inside the mapping.
        let at = unsafe { page.records.add(index) };
        let record = ChallengeRecord {
            magic: MAGIC,
            number,
            process: page.process,
            reader,
            zero: 0,
        };
        // SAFETY: this index is ours alone, and only the kernel reads the record.
        unsafe { at.write_volatile(record) };
        Ok(Challenge {
            record: at,
            index,
            number,
        })
    }

    /// Address of the record in this process.
    pub fn addr(&self) -> u64 {
        self.record.addr().get() as u64
    }

    /// Whether the answer of the peer is the number of the record.
    pub fn matches(&self, answer: u64) -> bool {
        self.number == answer
    }
}

impl Drop for Challenge {
    fn drop(&mut self) {
        let mut page = PAGE.lock();
        if let Some(page) = page.as_mut() {
            // SAFETY: as when it was written.
            unsafe { self.record.write_volatile(ChallengeRecord::new_zeroed()) };
            page.free.push(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(challenge: &Challenge) -> [u8; RECORD_LEN] {
        // SAFETY: written before, and not written at this time.
        let record = unsafe { challenge.record.read_volatile() };
        record.as_bytes().try_into().unwrap()
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
        let [x, y] = [&a, &b].map(|challenge| ChallengeRecord::parse(&bytes(challenge)).unwrap());
        assert!(x.number != y.number && x.process == y.process);
        assert!(a.matches(x.number) && !a.matches(y.number) && !a.matches(0));
        assert_ne!(a.addr(), b.addr());
        assert_eq!(ChallengeRecord::parse(&bytes(&other)), None);
        let mut wrong = bytes(&a);
        wrong[0] ^= 1;
        assert_eq!(ChallengeRecord::parse(&wrong), None);
        assert_eq!(ChallengeRecord::parse(&[0; RECORD_LEN]), None);
    }
}
