//! The local segments of requests and receives that are posted.

use super::key_table::{self, Fault, resolve, revocations};
use super::scope::Scope;
use crate::device::{Access, RecvWr, Sge, WrFlags};
use crate::handle::Guard;

/// Number of segments of a work request at most.
pub(crate) const MAX_SGE: u32 = 64;

/// The region in which a queue has last found a segment that was posted, for one kind of access and one
/// protection domain. It holds until any key becomes invalid.
#[derive(Default)]
pub(crate) struct LastRegion {
    /// The key.
    key: u32,
    /// [`revocations`] before the region was found.
    checked_at: u64,
    /// Address of the first byte.
    start: u64,
    /// Number of bytes.
    len: u64,
}

impl LastRegion {
    /// Whether every segment of a request that is posted is open for `need`, and its address is one of memory.
    /// Otherwise [`MemorySegments`] finds what they are. `pd` and `need` are always the same.
    #[inline(always)]
    pub fn has_all(&mut self, sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> bool {
        match sges {
            [only] => self.has(only, pd, need, guard),
            sges => are_in_memory(sges, pd, need, guard),
        }
    }

    #[inline(always)]
    fn has(&mut self, segment: &Sge, pd: u32, need: Access, guard: &Guard) -> bool {
        self.still_has(segment, guard).is_some() || self.find(segment, pd, need, guard)
    }

    /// The present number of [`revocations`] if the segment is in the region, and that is valid still.
    #[inline(always)]
    pub fn still_has(&self, segment: &Sge, guard: &Guard) -> Option<u64> {
        let now = revocations(guard);
        // One test for both.
        let other = self.checked_at ^ now | u64::from(self.key ^ segment.lkey);
        let offset = segment.addr.wrapping_sub(self.start);
        let room = self.len.checked_sub(offset)?;
        if other != 0 || u64::from(segment.len) > room {
            return None;
        }
        Some(now)
    }

    #[inline(never)]
    fn find(&mut self, segment: &Sge, pd: u32, need: Access, guard: &Guard) -> bool {
        // Before the check, so that what becomes invalid meanwhile is noticed later.
        let checked_at = revocations(guard);
        if !is_in_memory(segment, pd, need, guard) {
            return false;
        }
        // A window is not kept, which may have the number of the queue pair in place of that of the domain, nor
        // is what no key was needed for.
        if let Some(entry) = key_table::entry(segment.lkey, guard)
            && entry.is_region()
            && entry.contains(segment.addr, segment.len.into())
            && segment.len > 0
        {
            *self = LastRegion {
                key: segment.lkey,
                checked_at,
                start: entry.start(),
                len: entry.size(),
            };
        }
        true
    }
}

/// [`LastRegion::has_all`] for a queue that keeps none.
pub(crate) fn are_in_memory(sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> bool {
    sges.iter().all(|s| is_in_memory(s, pd, need, guard))
}

/// Whether a segment that is posted is open for `need`, and its address is one of memory.
#[inline(always)]
fn is_in_memory(segment: &Sge, pd: u32, need: Access, guard: &Guard) -> bool {
    let Sge { addr, len, lkey } = *segment;
    let at = resolve(lkey, Scope::of_pd(pd), addr, len.into(), need, guard);
    at == Ok(addr)
}

/// The segments of a request with addresses of memory.
pub(crate) struct MemorySegments {
    segments: [Sge; MAX_SGE as usize],
    count: usize,
}

impl MemorySegments {
    /// Those of a receive with these flags, which has at most [`MAX_SGE`].
    ///
    /// # Errors
    /// As [`MemorySegments::of`].
    pub fn of_receive(wr: &RecvWr<'_>, pd: u32, guard: &Guard) -> Result<Self, Fault> {
        let any_key = wr.flags.contains(WrFlags::ANY_KEY);
        MemorySegments::find(wr.sges, pd, Access::LOCAL_WRITE, any_key, guard)
    }

    /// Those of a request that is posted, which has at most [`MAX_SGE`].
    ///
    /// # Errors
    /// Why the first is not open for `need` that is not.
    pub fn of(sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> Result<Self, Fault> {
        MemorySegments::find(sges, pd, need, false, guard)
    }

    /// The same; with `any_key` a segment whose key is of no region stays as it is.
    fn find(
        sges: &[Sge],
        pd: u32,
        need: Access,
        any_key: bool,
        guard: &Guard,
    ) -> Result<Self, Fault> {
        let scope = Scope::of_pd(pd);
        let mut segments = [Sge::NONE; MAX_SGE as usize];
        for (own, posted) in segments.iter_mut().zip(sges) {
            let Sge { addr, len, lkey } = *posted;
            let addr = match resolve(lkey, scope, addr, len.into(), need, guard) {
                Err(Fault::Key) if any_key => addr,
                resolved => resolved?,
            };
            *own = Sge { addr, len, lkey };
        }
        let count = sges.len();
        Ok(MemorySegments { segments, count })
    }

    /// The segments.
    pub fn all(&self) -> &[Sge] {
        &self.segments[..self.count]
    }
}
