//! The memory of the ready bitmaps of this process, one for each device, and of its peers. A process
//! has two files: the sleep states of the owners, the mutex of the process and which of its pages move, which peers
//! read, and the bits, which they set.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use crate::descriptor::OwnedFd;
use crate::lock::Mutex;
use crate::process::PerProcess;
use rustix::io::Errno;

use super::cma::Mark;
use super::memfd::{SharedMemory, Writers};
use super::moving_pages::MovingPages;
use super::presence::PresenceMutex;
#[cfg(test)]
use crate::device::soft::engine::ready_bitmap::CAPACITY;
use crate::device::soft::engine::ready_bitmap::{
    BITMAPS, BitmapPlace, OwnerState, ReadyBitmap, ReadyBits,
};

/// Size of the file with the sleep states of the owners, behind which there are the [mutex](super::presence) of the
/// process and its [pages that move](super::moving_pages), in bytes.
const STATES_LEN: usize = (MOVING_AT + size_of::<MovingPages>()).next_multiple_of(4096);
/// Where the mutex is.
const PRESENCE_AT: usize = BITMAPS * size_of::<OwnerState>();
const _: () = assert!(PRESENCE_AT.is_multiple_of(size_of::<PresenceMutex>()));
/// Where the pages are that move.
const MOVING_AT: usize = PRESENCE_AT + size_of::<PresenceMutex>();
const _: () = assert!(MOVING_AT.is_multiple_of(size_of::<MovingPages>()));
/// Size of the file with the bits, in bytes.
const BITS_LEN: usize = (BITMAPS * size_of::<ReadyBits>()).next_multiple_of(4096);

/// All bitmaps of one process.
struct MappedBitmaps {
    /// An [`OwnerState`] for each bitmap.
    owner_state: SharedMemory,
    /// The [`ReadyBits`] of each bitmap.
    ready_bits: SharedMemory,
}

impl MappedBitmaps {
    fn owner_state(&self) -> &[OwnerState] {
        // SAFETY: atomics. Only the owner, whose mapping is writable, writes to them.
        unsafe { self.owner_state.as_slice() }
    }

    fn presence(&self) -> &PresenceMutex {
        // SAFETY: atomics. Only the owner, whose mapping is writable, writes to them.
        let all = unsafe { self.owner_state.as_slice::<PresenceMutex>() };
        &all[PRESENCE_AT / size_of::<PresenceMutex>()]
    }

    fn moving(&self) -> &MovingPages {
        // SAFETY: atomics. Only the owner, whose mapping is writable, writes to them.
        let all = unsafe { self.owner_state.as_slice::<MovingPages>() };
        &all[MOVING_AT / size_of::<MovingPages>()]
    }

    fn ready_bits(&self) -> &[ReadyBits] {
        // SAFETY: atomics, mapped to be written.
        unsafe { self.ready_bits.as_slice() }
    }
}

/// The file with the sleep states, and the file with the bits.
pub(super) type Files<Fd> = [Fd; 2];

/// The bitmaps of this process.
struct OwnBitmaps {
    mapped: MappedBitmaps,
    /// The files of the memory, to be sent to peers.
    files: Arc<Files<OwnedFd>>,
    /// A bit for each bitmap that is in use.
    used: Mutex<u32>,
}

/// The bitmaps, made when they are first needed, and there for ever, since engines refer to them.
/// The lock is held by the thread that makes them.
static OWN: PerProcess<(Mutex<()>, OnceLock<OwnBitmaps>)> = PerProcess::new(Default::default);

/// The bitmaps of this process, which are made at the first call.
fn own() -> Result<&'static OwnBitmaps, Errno> {
    let (making, own) = OWN.get();
    let _making = making.lock();
    if let Some(own) = own.get() {
        return Ok(own);
    }
    let (states_fd, owner_state) =
        SharedMemory::create(c"libdat-states", STATES_LEN, Writers::Maker)?;
    let (bits_fd, ready_bits) = SharedMemory::create(c"libdat-ready", BITS_LEN, Writers::All)?;
    let mapped = MappedBitmaps {
        owner_state,
        ready_bits,
    };
    mapped.presence().init();
    Ok(own.get_or_init(|| OwnBitmaps {
        mapped,
        files: Arc::new([states_fd, bits_fd]),
        used: Mutex::new(0),
    }))
}

/// The files to be sent to a peer.
///
/// # Errors
/// The error of the kernel.
pub(crate) fn files() -> Result<Arc<Files<OwnedFd>>, Errno> {
    own().map(|own| own.files.clone())
}

/// The mutex of this process.
///
/// # Errors
/// The error of the kernel.
pub(super) fn own_presence() -> Result<&'static PresenceMutex, Errno> {
    own().map(|own| own.mapped.presence())
}

/// The pages of this process that move.
///
/// # Errors
/// The error of the kernel.
pub(in crate::device::soft) fn own_moving() -> Result<&'static MovingPages, Errno> {
    own().map(|own| own.mapped.moving())
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
    if let Some(own) = OWN.get().1.get() {
        *own.used.lock() &= !(1 << number);
    }
}

/// The bitmaps of a peer.
pub(crate) struct PeerBitmaps(MappedBitmaps);

impl PeerBitmaps {
    /// Maps the files that the peer has sent.
    pub fn open([owner_state, ready_bits]: &Files<impl AsFd>) -> Result<PeerBitmaps, Errno> {
        Ok(PeerBitmaps(MappedBitmaps {
            owner_state: SharedMemory::open(owner_state, STATES_LEN, false)?,
            ready_bits: SharedMemory::open(ready_bits, BITS_LEN, true)?,
        }))
    }

    /// The mark that the program of the peer is gone.
    ///
    /// # Safety
    /// These bitmaps stay as long as the mark is used.
    pub unsafe fn mark(&self) -> Mark {
        // SAFETY: the caller's promise.
        unsafe { self.0.presence().mark() }
    }

    /// Whether the program of the peer is gone: see [`super::presence`].
    #[inline(always)]
    pub fn is_owner_gone(&self) -> bool {
        self.0.presence().is_marked()
    }

    /// The pages of the peer that move.
    #[inline]
    pub fn moving(&self) -> &MovingPages {
        self.0.moving()
    }

    /// Sets a bit that the peer has advertised. Returns the number of the peer's sleep, if it
    /// sleeps.
    #[inline]
    pub fn set(&self, place: BitmapPlace) -> Option<u32> {
        let (bitmap, index) = place.split()?;
        self.0.ready_bits()[bitmap].set(index);
        self.0.owner_state()[bitmap].sleep_number()
    }
}

/// Held by the tests of which one changes all bits of the process and the other reads some.
#[cfg(test)]
static ALL_BITS: Mutex<()> = Mutex::new(());

/// Does to all bitmaps of this process what a bad peer could do: sets all bits, or clears them.
#[cfg(test)]
pub(crate) fn corrupt_bitmaps(set: bool) {
    let _all = ALL_BITS.lock();
    let Ok(own) = own() else {
        return;
    };
    for ready_bits in &own.mapped.ready_bits()[..BITMAPS] {
        for index in (0..CAPACITY).step_by(if set { 1 } else { 64 }) {
            match set {
                true => ready_bits.set(index),
                false => _ = ready_bits.take((index / 64) as usize),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::engine::ready_bitmap::WORDS;

    #[test]
    fn a_peer_sets_the_bit_that_was_advertised() {
        let _all = ALL_BITS.lock();
        let (a, b) = (take().unwrap(), take().unwrap());
        for word in 0..WORDS {
            a.ready_bits.take(word);
            b.ready_bits.take(word);
        }
        assert_ne!(a.number, b.number);
        let theirs = PeerBitmaps::open(&files().unwrap()).unwrap();
        for index in [0, 63, 64, CAPACITY - 1] {
            assert_eq!(theirs.set(b.place(index)), None);
            let word = (index / 64) as usize;
            assert_eq!(b.ready_bits.take(word), 1 << (index % 64));
            assert_eq!((a.ready_bits.take(word), b.ready_bits.take(word)), (0, 0));
        }
        b.owner_state.sleep();
        let first = theirs.set(b.place(5));
        assert!(first.is_some() && theirs.set(b.place(6)) == first);
        b.owner_state.sleep();
        assert!(theirs.set(b.place(5)).is_some_and(|n| Some(n) != first));
        b.owner_state.wake();
        assert_eq!(theirs.set(b.place(5)), None);
        assert_eq!(b.ready_bits.take(0), 0b110_0000);
    }

    /// A process may open any number of devices, one after the other.
    #[test]
    fn a_bitmap_that_is_dropped_is_taken_again() {
        for _ in 0..2 * BITMAPS {
            // Other tests have some.
            assert!(take().is_some());
        }
    }

    #[test]
    fn places_that_do_not_exist() {
        let theirs = PeerBitmaps::open(&files().unwrap()).unwrap();
        for place in [0, 1 + BITMAPS as u32 * CAPACITY, u32::MAX] {
            assert_eq!(theirs.set(BitmapPlace(place)), None);
            assert_eq!(BitmapPlace(place).split(), None);
        }
    }
}
