//! Work queues: rings of requests with their segments.

use std::mem::MaybeUninit;

use super::state::total;
use crate::device::{DeviceError, PostError, RecvWr, SendOp, SendWr, Sge, WrFlags};

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Moves data.
    Transfer(SendOp),
    /// Binds the memory window that is next in [`QpState::binds`](super::state::QpState::binds).
    Bind {
        /// As given with the bind.
        context: u64,
    },
}

/// A request, without its segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub wr_id: u64,
    pub op: Op,
    pub flags: WrFlags,
    /// Bytes that are sent or written, or that a read brings.
    pub len: u32,
    /// Executed; waits for those before it to complete.
    pub done: bool,
}

/// What the execution of a transfer takes of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    pub op: SendOp,
    pub sges: &'a [Sge],
    pub flags: WrFlags,
    /// Bytes that are sent or written, or that a read brings.
    pub len: u32,
}

impl<'a> Transfer<'a> {
    /// Of a request that is posted. `len` are its bytes.
    #[inline(always)]
    pub fn of(wr: &SendWr<'a>, len: u32) -> Transfer<'a> {
        Transfer {
            op: wr.op,
            sges: wr.sges,
            flags: wr.flags,
            len,
        }
    }
}

impl Request {
    /// Of a transfer that has to be queued.
    pub fn of(wr_id: u64, transfer: &Transfer<'_>) -> Request {
        Request {
            wr_id,
            op: Op::Transfer(transfer.op),
            flags: transfer.flags,
            len: transfer.len,
            done: false,
        }
    }

    /// Of a request that was queued: `op` is its own.
    pub fn transfer<'a>(&self, op: SendOp, sges: &'a [Sge]) -> Transfer<'a> {
        Transfer {
            op,
            sges,
            flags: self.flags,
            len: self.len,
        }
    }
}

/// A receive, without its segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub wr_id: u64,
    /// [`revocations`](crate::device::soft::mem::key_table::revocations) when its segments were checked, or
    /// [`NEVER`].
    pub checked_at: u64,
    pub flags: WrFlags,
    /// Bytes that fit; `u32::MAX` if it is more than that, which no message has.
    pub len: u32,
}

/// No number of revocations.
pub(crate) const NEVER: u64 = 0;

impl Receive {
    /// That of a work request, whose segments are to be checked when there is a message.
    #[inline(always)]
    pub fn of(wr: &RecvWr<'_>) -> Receive {
        Receive {
            wr_id: wr.wr_id,
            checked_at: NEVER,
            flags: wr.flags,
            len: u32::try_from(total(wr.sges)).unwrap_or(u32::MAX),
        }
    }
}

/// A queue of entries, each with up to a fixed number of segments. Entries are named by a
/// number that counts up for ever.
///
/// Memory grows with use, up to the size asked for, and is then used over and over.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    /// By the lower bits of their numbers. The length is 0 or a power of two.
    slots: Vec<MaybeUninit<Slot<T>>>,
    /// The segments of entries that have several: `stride` for each slot, none if that is 1.
    several: Vec<Sge>,
    /// Segments that an entry may have.
    stride: usize,
    /// Entries that fit.
    limit: usize,
    /// Those of them that there are slots for.
    room: usize,
    /// Number of the oldest entry.
    head: u64,
    /// Number of the next entry to be added.
    tail: u64,
}

/// An entry.
#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    entry: T,
    /// Number of its segments.
    count: u32,
    /// Its segment, if there is one: nearly always, and then in the cache with the rest.
    only: Sge,
}

impl<T: Copy> WorkQueue<T> {
    /// For `limit` entries of `stride` segments.
    pub fn new(limit: u32, stride: u32) -> Self {
        WorkQueue {
            slots: Vec::new(),
            several: Vec::new(),
            stride: stride as usize,
            limit: limit as usize,
            room: 0,
            head: 0,
            tail: 0,
        }
    }

    pub fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Entries that fit.
    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Changes how many entries fit, and how many segments each may have. Entries keep their
    /// numbers.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if those that are queued do not fit; nothing has changed then.
    pub fn reshape(&mut self, limit: u32, stride: u32) -> Result<(), DeviceError> {
        let mut new = WorkQueue::new(limit, stride);
        (new.head, new.tail) = (self.head, self.head);
        for number in self.head..self.tail {
            if let Some((entry, sges)) = self.get(number) {
                new.push(*entry, sges).map_err(|_| DeviceError::Limit)?;
            }
        }
        *self = new;
        Ok(())
    }

    #[inline(always)]
    fn index(&self, number: u64) -> usize {
        number as usize & self.slots.len().wrapping_sub(1)
    }

    /// Adds an entry at the end.
    #[inline(always)]
    pub fn push(&mut self, entry: T, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.stride && !self.is_full() {
            return Err(PostError::TooManySegments);
        }
        self.make_room()?;
        // SAFETY: just made.
        unsafe { self.append(entry, sges) };
        Ok(())
    }

    /// Sees to it that the next entry has a slot.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] when the queue is full, or when there is no memory.
    #[inline(always)]
    pub fn make_room(&mut self) -> Result<(), PostError> {
        match self.has_room() {
            true => Ok(()),
            false => self.grow(),
        }
    }

    /// Whether the next entry has a slot already.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.len() < self.room
    }

    /// [`WorkQueue::append`] with one segment.
    ///
    /// # Safety
    /// The queue [has room](WorkQueue::has_room).
    #[inline(always)]
    pub unsafe fn append_one(&mut self, entry: T, segment: Sge) {
        debug_assert!(self.has_room() && self.stride >= 1);
        let index = self.index(self.tail);
        // SAFETY: the caller's promise.
        unsafe { self.fill(index, entry, 1, segment) };
    }

    /// Fills the slot of the next entry.
    ///
    /// # Safety
    /// There is room, and the index is that of the next entry.
    #[inline(always)]
    unsafe fn fill(&mut self, index: usize, entry: T, count: u32, only: Sge) {
        // Member by member, so that none is made elsewhere and moved.
        // SAFETY: there is a slot that no entry has, so their number is a power of two, and the index below.
        unsafe {
            let slot = self.slots.get_unchecked_mut(index).as_mut_ptr();
            (&raw mut (*slot).entry).write(entry);
            (&raw mut (*slot).count).write(count);
            (&raw mut (*slot).only).write(only);
        }
        self.tail += 1;
    }

    /// [`WorkQueue::push`] for a caller that knows that the segments are not too many.
    ///
    /// # Safety
    /// [`WorkQueue::make_room`] has made room, and nothing was added since.
    #[inline(always)]
    pub unsafe fn append(&mut self, entry: T, sges: &[Sge]) {
        debug_assert!(self.has_room() && sges.len() <= self.stride);
        let index = self.index(self.tail);
        let only = match sges {
            [only] => only.by_members(),
            _ => self.keep_several(index, sges),
        };
        // SAFETY: the caller has made room.
        unsafe { self.fill(index, entry, sges.len() as u32, only) };
    }

    /// Keeps the segments of an entry that does not have exactly one; gives what its slot has in place of
    /// that.
    #[inline(never)]
    fn keep_several(&mut self, index: usize, sges: &[Sge]) -> Sge {
        if !sges.is_empty() {
            self.several[index * self.stride..][..sges.len()].copy_from_slice(sges);
        }
        Sge::NONE
    }

    /// Doubles the room, if the limit permits it.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        let room = (self.slots.len() * 2).max(8);
        let (mut slots, mut several) = (Vec::new(), Vec::new());
        let stride = if self.stride > 1 { self.stride } else { 0 };
        let full = |_| PostError::QueueFull;
        slots.try_reserve_exact(room).map_err(full)?;
        several.try_reserve_exact(room * stride).map_err(full)?;
        slots.resize(room, MaybeUninit::uninit());
        several.resize(room * stride, Sge::NONE);
        for number in self.head..self.tail {
            let (from, to) = (self.index(number), number as usize & (room - 1));
            slots[to] = self.slots[from];
            several[to * stride..][..stride]
                .copy_from_slice(&self.several[from * stride..][..stride]);
        }
        self.slots = slots;
        self.several = several;
        self.room = room.min(self.limit);
        Ok(())
    }

    /// An entry that is in the queue, and its segments.
    ///
    /// # Safety
    /// The number is that of such an entry.
    #[inline(always)]
    unsafe fn at(&self, number: u64) -> (&T, &[Sge]) {
        let index = self.index(number);
        // SAFETY: there are slots, as one has the entry. So their number is a power of two, and the index below;
        // the entry was written.
        let slot = unsafe { self.slots.get_unchecked(index).assume_init_ref() };
        let sges = match slot.count {
            1 => std::slice::from_ref(&slot.only),
            0 => &[],
            count => &self.several[index * self.stride..][..count as usize],
        };
        (&slot.entry, sges)
    }

    /// An entry that is in the queue.
    #[inline]
    pub fn get(&self, number: u64) -> Option<(&T, &[Sge])> {
        if !(self.head..self.tail).contains(&number) {
            return None;
        }
        // SAFETY: just tested.
        Some(unsafe { self.at(number) })
    }

    /// An entry that is in the queue, to change.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        if !(self.head..self.tail).contains(&number) {
            return None;
        }
        let index = self.index(number);
        // SAFETY: the entry was written.
        Some(unsafe { &mut self.slots[index].assume_init_mut().entry })
    }

    /// The oldest entry.
    #[inline(always)]
    pub fn front(&self) -> Option<(&T, &[Sge])> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: there is an oldest entry.
        Some(unsafe { self.at(self.head) })
    }

    /// The oldest entry and its segment, if it has exactly one.
    #[inline(always)]
    pub fn front_of_one(&self) -> Option<(&T, &Sge)> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: there is an oldest entry, and so slots: their number is a power of two, and the index below.
        let slot = unsafe {
            let index = self.index(self.head);
            self.slots.get_unchecked(index).assume_init_ref()
        };
        (slot.count == 1).then_some((&slot.entry, &slot.only))
    }

    /// Removes the oldest entry, of which the caller knows that it exists.
    #[inline(always)]
    pub fn advance(&mut self) {
        debug_assert!(!self.is_empty(), "there is an oldest entry");
        self.head += 1;
    }

    /// Takes the oldest entry out.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = *self.front()?.0;
        self.head += 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sges(n: u64, count: usize) -> Vec<Sge> {
        (0..count as u64)
            .map(|i| Sge {
                addr: n * 10 + i,
                len: 1,
                lkey: 2,
            })
            .collect()
    }

    #[test]
    fn entries_keep_their_order_and_segments_while_it_grows() {
        let mut ring = WorkQueue::new(100, 3);
        let (mut pushed, mut popped) = (0u64, 0u64);
        let mut was_full = false;
        for round in 0..90 {
            for _ in 0..(round % 7) + 3 {
                if ring
                    .push(pushed, &sges(pushed, pushed as usize % 4))
                    .is_ok()
                {
                    pushed += 1;
                } else {
                    assert!(ring.is_full());
                    was_full = true;
                }
            }
            for _ in 0..(round % 4) {
                let (entry, segs) = ring.front().unwrap();
                assert_eq!(
                    (*entry, segs),
                    (popped, &sges(popped, popped as usize % 4)[..])
                );
                assert_eq!(ring.pop(), Some(popped));
                popped += 1;
            }
            assert_eq!(ring.len() as u64, pushed - popped);
            assert_eq!((ring.head(), ring.tail()), (popped, pushed));
        }
        assert!(was_full);
    }

    #[test]
    fn limits() {
        let mut ring = WorkQueue::new(2, 1);
        assert_eq!(ring.push(0u8, &sges(0, 2)), Err(PostError::TooManySegments));
        assert_eq!(ring.push(0, &[]), Ok(()));
        assert_eq!(ring.push(1, &sges(0, 1)), Ok(()));
        assert_eq!(ring.push(2, &[]), Err(PostError::QueueFull));
        assert_eq!(ring.pop(), Some(0));
        assert_eq!(ring.push(2, &[]), Ok(()));
        *ring.get_mut(1).unwrap() = 9;
        assert_eq!(ring.get(1).unwrap().0, &9);
        assert!(ring.get(0).is_none() && ring.get(3).is_none() && ring.get_mut(3).is_none());
        let mut none = WorkQueue::new(0, 1);
        assert_eq!(none.push(0u8, &[]), Err(PostError::QueueFull));
        assert!(none.front().is_none() && none.pop().is_none());
    }

    #[test]
    fn room_is_made_up_to_the_limit() {
        let mut ring = WorkQueue::new(9, 1);
        for n in 0..9u64 {
            assert_eq!(ring.make_room(), Ok(()));
            assert!(ring.len() < ring.room && ring.room <= 9);
            // SAFETY: just made.
            unsafe { ring.append(n, &sges(n, 1)) };
        }
        assert_eq!(ring.make_room(), Err(PostError::QueueFull));
        assert_eq!(ring.pop(), Some(0));
        assert_eq!(ring.make_room(), Ok(()));
    }

    #[test]
    fn the_front_of_one_segment() {
        let mut ring = WorkQueue::new(9, 2);
        assert!(ring.front_of_one().is_none() && !ring.has_room());
        for count in [1, 0, 2] {
            ring.push(count, &sges(7, count)).unwrap();
        }
        assert!(ring.has_room());
        // SAFETY: there is room.
        unsafe { ring.append_one(3, sges(8, 1)[0]) };
        assert_eq!(ring.front_of_one(), Some((&1, &sges(7, 1)[0])));
        ring.pop();
        assert!(ring.front_of_one().is_none());
        ring.pop();
        assert!(ring.front_of_one().is_none());
        ring.pop();
        assert_eq!(ring.front_of_one(), Some((&3, &sges(8, 1)[0])));
        assert_eq!(ring.front(), Some((&3, &sges(8, 1)[..])));
    }

    #[test]
    fn reshaping_keeps_the_entries() {
        let mut ring = WorkQueue::new(20, 3);
        for n in 0..15u64 {
            ring.push(n, &sges(n, 2)).unwrap();
        }
        for n in 0..5 {
            assert_eq!(ring.pop(), Some(n));
        }
        assert_eq!(ring.reshape(9, 3), Err(DeviceError::Limit));
        assert_eq!(ring.reshape(20, 1), Err(DeviceError::Limit));
        assert_eq!(ring.reshape(10, 2), Ok(()));
        assert_eq!((ring.head(), ring.tail()), (5, 15));
        assert_eq!(ring.push(15, &[]), Err(PostError::QueueFull));
        for n in 5..15 {
            assert_eq!(ring.front().unwrap(), (&n, &sges(n, 2)[..]));
            ring.pop();
        }
    }
}
