//! Which connections a poll set has, and at which places.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{CAPACITY, CHUNK, Chunk, Entry, FEW, NotifyMode, PollSet};
use crate::handle::{Guard, pin::pin};

/// The first bit of a chunk, which may have no connection at all, for which `f` is true.
fn position(chunk: Option<&Chunk>, f: impl Fn(&Option<Entry>) -> bool) -> Option<usize> {
    match chunk {
        Some(chunk) => chunk.iter().position(f),
        None => f(&None).then_some(0),
    }
}

impl PollSet {
    /// Adds a connection. Returns how its peer is to notify us: any later change of that reaches
    /// the connection through [`PollEntry::set_notify_mode`](super::PollEntry). `None` if the set
    /// has no room.
    pub fn add(&self, entry: Entry) -> Option<NotifyMode> {
        let _members = self.members.lock();
        let len = self.len.load(Ordering::Relaxed);
        if len >= CAPACITY || len >= FEW && self.bitmap().is_none() {
            return None;
        }
        let (word, bit) = self.find(Option::is_none)?;
        self.put(word, bit, Some(entry));
        self.set_len(len + 1);
        let notify_mode = self.notify_mode(word * CHUNK + bit);
        self.set_bit(notify_mode);
        Some(notify_mode)
    }

    /// Removes a connection, if the set has it.
    pub fn remove(&self, entry: &Entry) {
        let _members = self.members.lock();
        let found = self.find(|other| {
            other
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, entry))
        });
        if let Some((word, bit)) = found {
            self.put(word, bit, None);
            self.set_len(self.len.load(Ordering::Relaxed) - 1);
        }
    }

    /// Calls `f` with every connection and its place, in no section.
    pub(super) fn for_each(&self, mut f: impl FnMut(usize, &Entry)) {
        for (word, chunk) in self.chunks.iter().enumerate() {
            let chunk = chunk.get_shared();
            let entries = chunk.iter().flat_map(|chunk| chunk.iter().enumerate());
            for (bit, entry) in entries {
                if let Some(entry) = entry {
                    f(word * CHUNK + bit, entry);
                }
            }
        }
    }

    /// The chunks with their words; `None` for one without a connection.
    fn chunks<'a>(
        &'a self,
        guard: &'a Guard,
    ) -> impl DoubleEndedIterator<Item = (usize, Option<&'a Chunk>)> + ExactSizeIterator {
        let chunks = self.chunks.iter().map(|chunk| chunk.get(guard));
        chunks.enumerate()
    }

    /// The first place, as word and bit, for whose connection, or none, `f` is true.
    fn find(&self, f: impl Fn(&Option<Entry>) -> bool) -> Option<(usize, usize)> {
        let guard = pin();
        self.chunks(&guard)
            .find_map(|(word, chunk)| Some((word, position(chunk, &f)?)))
    }

    /// Puts a connection, or none, at a place.
    fn put(&self, word: usize, bit: usize, entry: Option<Entry>) {
        let old = self.chunks[word].get_shared();
        let mut chunk = old.map_or_else(|| [const { None }; CHUNK], |old| (*old).clone());
        chunk[bit] = entry;
        let used = chunk.iter().any(Option::is_some);
        self.chunks[word].set(used.then(|| Arc::new(chunk)));
    }

    /// Sets the number of connections, and what follows from the connections there are.
    fn set_len(&self, len: usize) {
        let guard = pin();
        let last = self.chunks(&guard).rfind(|(_, chunk)| chunk.is_some());
        let words = last.map_or(0, |(word, _)| word + 1);
        drop(guard);
        self.chunks_used.store(words, Ordering::SeqCst);
        let few = (len <= FEW).then(|| {
            let mut few = Vec::with_capacity(len);
            self.for_each(|_, entry| few.push(entry.clone()));
            Arc::new(few)
        });
        self.few.set(few);
        self.len.store(len, Ordering::SeqCst);
    }
}
