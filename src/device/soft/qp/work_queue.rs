//! Work queues: rings of requests with their segments.

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
    pub flags: WrFlags,
    /// Bytes that fit.
    pub len: u64,
}

impl Receive {
    /// That of a work request.
    #[inline(always)]
    pub fn of(wr: &RecvWr<'_>) -> Receive {
        Receive {
            wr_id: wr.wr_id,
            flags: wr.flags,
            len: total(wr.sges),
        }
    }
}

/// A queue of entries, each with up to a fixed number of segments. Entries are named by a
/// number that counts up for ever.
///
/// Memory grows with use, up to the size asked for, and is then used over and over.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    entries: Vec<(T, u32)>,
    sges: Vec<Sge>,
    stride: usize,
    limit: usize,
    /// Number of the oldest entry.
    head: u64,
    /// Number of the next entry to be added.
    tail: u64,
}

impl<T: Copy> WorkQueue<T> {
    /// For `limit` entries of `stride` segments.
    pub fn new(limit: u32, stride: u32) -> Self {
        WorkQueue {
            entries: Vec::new(),
            sges: Vec::new(),
            stride: stride as usize,
            limit: limit as usize,
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

    fn index(&self, number: u64) -> usize {
        number as usize & (self.entries.len() - 1)
    }

    /// Adds an entry at the end.
    #[inline(always)]
    pub fn push(&mut self, entry: T, sges: &[Sge]) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        if sges.len() > self.stride {
            return Err(PostError::TooManySegments);
        }
        if self.len() == self.entries.len() {
            self.grow(entry)?;
        }
        let index = self.index(self.tail);
        self.entries[index] = (entry, sges.len() as u32);
        let first = index * self.stride;
        match sges {
            [only] => self.sges[first] = *only,
            _ => self.sges[first..][..sges.len()].copy_from_slice(sges),
        }
        self.tail += 1;
        Ok(())
    }

    /// Doubles the room; `filler` is any entry.
    #[cold]
    fn grow(&mut self, filler: T) -> Result<(), PostError> {
        let room = (self.entries.len() * 2).max(8);
        let (mut entries, mut sges) = (Vec::new(), Vec::new());
        let full = |_| PostError::QueueFull;
        entries.try_reserve_exact(room).map_err(full)?;
        sges.try_reserve_exact(room * self.stride).map_err(full)?;
        entries.resize(room, (filler, 0));
        sges.resize(room * self.stride, Sge::NONE);
        for number in self.head..self.tail {
            let (from, to) = (self.index(number), number as usize & (room - 1));
            entries[to] = self.entries[from];
            sges[to * self.stride..][..self.stride]
                .copy_from_slice(&self.sges[from * self.stride..][..self.stride]);
        }
        self.entries = entries;
        self.sges = sges;
        Ok(())
    }

    /// An entry that is in the queue.
    #[inline]
    pub fn get(&self, number: u64) -> Option<(&T, &[Sge])> {
        if !(self.head..self.tail).contains(&number) {
            return None;
        }
        let index = self.index(number);
        let (entry, n) = &self.entries[index];
        Some((entry, &self.sges[index * self.stride..][..*n as usize]))
    }

    /// An entry that is in the queue, to change.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        if !(self.head..self.tail).contains(&number) {
            return None;
        }
        let index = self.index(number);
        Some(&mut self.entries[index].0)
    }

    /// The oldest entry.
    #[inline(always)]
    pub fn front(&self) -> Option<(&T, &[Sge])> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        let (entry, n) = &self.entries[index];
        Some((entry, &self.sges[index * self.stride..][..*n as usize]))
    }

    /// Removes the oldest entry, of which the caller knows that it exists.
    #[inline]
    pub fn advance(&mut self) {
        self.head += u64::from(!self.is_empty());
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
