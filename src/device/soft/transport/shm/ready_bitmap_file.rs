//! The boards of this process, one for each device, and those of peers. They are two files: what
//! the owner says, which peers read, and the marks, which they write.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::memfd::{SharedMemory, Writers};
#[cfg(test)]
use crate::device::soft::engine::ready_bitmap::PLACES;
use crate::device::soft::engine::ready_bitmap::{
    BITMAPS, BitmapPlace, OwnerState, ReadyBitmap, ReadyBits,
};

/// Bytes of what owners say.
const SAID_LEN: usize = (BITMAPS * size_of::<OwnerState>()).next_multiple_of(4096);
/// Bytes of the marks.
const MARKS_LEN: usize = (BITMAPS * size_of::<ReadyBits>()).next_multiple_of(4096);

/// Boards, mapped.
struct MappedBitmaps {
    owner_state: SharedMemory,
    ready_bits: SharedMemory,
}

impl MappedBitmaps {
    fn owner_state(&self) -> &[OwnerState] {
        // SAFETY: atomics. Only the owner, whose mapping is writable, writes.
        unsafe { self.owner_state.as_slice() }
    }

    fn ready_bits(&self) -> &[ReadyBits] {
        // SAFETY: atomics, mapped to be written.
        unsafe { self.ready_bits.as_slice() }
    }
}

/// The files with what owners say and with the marks.
pub(super) type Files<Fd> = [Fd; 2];

/// The boards of this process.
struct OwnBitmaps {
    mapped: MappedBitmaps,
    files: Arc<Files<OwnedFd>>,
    /// Whose it is: a child has none.
    pid: u32,
    /// A bit for each board that is in use.
    used: Mutex<u32>,
}

/// Made when they are first needed, and there for ever, since engines refer to them.
static OWN: Mutex<Option<&OwnBitmaps>> = Mutex::new(None);

/// Those of this process, made when they are first needed.
fn own() -> Result<&'static OwnBitmaps, Errno> {
    let mut own = OWN.lock();
    if let Some(own) = *own {
        let ours = own.pid == std::process::id();
        return ours.then_some(own).ok_or(Errno::CHILD);
    }
    let (said_fd, owner_state) = SharedMemory::create(c"libdat-said", SAID_LEN, Writers::Maker)?;
    let (marks_fd, ready_bits) = SharedMemory::create(c"libdat-marks", MARKS_LEN, Writers::All)?;
    let new: &_ = Box::leak(Box::new(OwnBitmaps {
        mapped: MappedBitmaps {
            owner_state,
            ready_bits,
        },
        files: Arc::new([said_fd, marks_fd]),
        pid: std::process::id(),
        used: Mutex::new(0),
    }));
    *own = Some(new);
    Ok(new)
}

/// The files to be given to peers.
///
/// # Errors
/// Of the kernel, and `ECHILD` in a child that was forked.
pub(crate) fn files() -> Result<Arc<Files<OwnedFd>>, Errno> {
    own().map(|own| own.files.clone())
}

/// Takes a bitmap of this process that no engine uses.
pub(crate) fn take() -> Option<ReadyBitmap> {
    let own = own().ok()?;
    let mut used = own.used.lock();
    let number = used.trailing_ones() as usize;
    if number == BITMAPS {
        return None;
    }
    *used |= 1 << number;
    drop(used);
    let bitmap = ReadyBitmap {
        owner_state: &own.mapped.owner_state()[number],
        ready_bits: &own.mapped.ready_bits()[number],
        number,
        release,
    };
    bitmap.owner_state.wake();
    Some(bitmap)
}

/// Gives a bitmap back that [`take`] has returned.
fn release(number: usize) {
    if let Some(own) = *OWN.lock() {
        *own.used.lock() &= !(1 << number);
    }
}

/// The boards of a peer.
pub(crate) struct PeerBitmaps(MappedBitmaps);

impl PeerBitmaps {
    /// Of the files that it has given.
    pub fn open([owner_state, ready_bits]: &Files<impl AsFd>) -> Result<PeerBitmaps, Errno> {
        Ok(PeerBitmaps(MappedBitmaps {
            owner_state: SharedMemory::open(owner_state, SAID_LEN, false)?,
            ready_bits: SharedMemory::open(ready_bits, MARKS_LEN, true)?,
        }))
    }

    /// Marks what the peer has asked for. Gives the number of its sleep, if it sleeps.
    #[inline]
    pub fn mark(&self, slot: BitmapPlace) -> Option<u32> {
        let (bitmap, place) = slot.split()?;
        self.0.ready_bits()[bitmap].mark(place);
        self.0.owner_state()[bitmap].asleep()
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
    for ready_bits in &own.mapped.ready_bits()[..BITMAPS] {
        for place in (0..PLACES).step_by(if set { 1 } else { 64 }) {
            match set {
                true => ready_bits.mark(place),
                false => _ = ready_bits.take((place / 64) as usize),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::engine::ready_bitmap::WORDS;

    #[test]
    fn a_peer_marks_what_it_was_told_to() {
        let _all = ALL_MARKS.lock();
        let (a, b) = (take().unwrap(), take().unwrap());
        for word in 0..WORDS {
            a.ready_bits.take(word);
            b.ready_bits.take(word);
        }
        assert_ne!(a.number, b.number);
        let theirs = PeerBitmaps::open(&files().unwrap()).unwrap();
        for place in [0, 63, 64, PLACES - 1] {
            assert_eq!(theirs.mark(b.place(place)), None);
            let word = (place / 64) as usize;
            assert_eq!(b.ready_bits.take(word), 1 << (place % 64));
            assert_eq!((a.ready_bits.take(word), b.ready_bits.take(word)), (0, 0));
        }
        b.owner_state.sleep();
        let first = theirs.mark(b.place(5));
        assert!(first.is_some() && theirs.mark(b.place(6)) == first);
        b.owner_state.sleep();
        assert!(theirs.mark(b.place(5)).is_some_and(|n| Some(n) != first));
        b.owner_state.wake();
        assert_eq!(theirs.mark(b.place(5)), None);
        assert_eq!(b.ready_bits.take(0), 0b110_0000);
    }

    #[test]
    fn slots_that_cannot_be() {
        let theirs = PeerBitmaps::open(&files().unwrap()).unwrap();
        for slot in [0, 1 + BITMAPS as u32 * PLACES, u32::MAX] {
            assert_eq!(theirs.mark(BitmapPlace(slot)), None);
            assert_eq!(BitmapPlace(slot).split(), None);
        }
    }
}
