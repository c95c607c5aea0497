//! FPDUs that are collected for one call of the kernel: headers and trailers of our own, payload where
//! the consumer has it. With a checksum the payload is ours too: the consumer's memory may change
//! between the checksum and the kernel's copy, which is the program's right (a peer that reads a
//! counter, say) and must not be a damaged stream to the peer.

use std::collections::TryReserveError;

use rustix::io::Errno;

use crate::device::soft::engine::Watch;
use crate::device::soft::iwarp::crc::Crc;
use crate::device::soft::iwarp::fpdu;
use crate::device::soft::iwarp::wire::FPDU_TRAILER_MAX;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::guarded::{self, CopyFault};
use crate::kernel;
use crate::kernel::net::SendFlags;
use crate::kernel::page_place;

/// Payload up to this is copied next to its header, which is cheaper than to name it apart.
pub(super) const COPY_MAX: u32 = 1024;

/// The memory of a batch is doubled when it has to grow, up to this length, in bytes.
const DOUBLED_MAX: usize = 128 * 1024;

/// Why an FPDU could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameError {
    /// Its payload cannot be read.
    Unreadable,
    /// There is no memory for it.
    NoMemory,
}

impl From<CopyFault> for FrameError {
    fn from(_: CopyFault) -> FrameError {
        FrameError::Unreadable
    }
}

impl From<TryReserveError> for FrameError {
    fn from(_: TryReserveError) -> FrameError {
        FrameError::NoMemory
    }
}

enum Part {
    /// A range of [`SendBatch::bytes`].
    Own { start: usize, end: usize },
    /// Memory of the consumer.
    Consumer { at: *const u8, len: usize },
}

/// See the module. It is filled and sent in one read-side section, so that the memory it names
/// stays registered.
#[derive(Default)]
pub(crate) struct SendBatch {
    /// Our own bytes, behind [`SendBatch::before`] others.
    bytes: Vec<u8>,
    /// Bytes that are left out at the beginning of the memory, for its [place](page_place) in a page.
    before: usize,
    parts: Vec<Part>,
    total: usize,
    iov: Vec<libc::iovec>,
}

impl SendBatch {
    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.total
    }

    /// Pieces of memory in it.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Empties it; the memory stays.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.truncate(self.before);
        if page_place::bytes_before(self.bytes.as_ptr()) != self.before {
            self.place();
        }
        self.parts.clear();
        self.total = 0;
    }

    /// Has the memory, which is empty, begin where the kernel copies well from. Without memory it begins
    /// anywhere.
    #[cold]
    #[inline(never)]
    fn place(&mut self) {
        self.before = 0;
        self.bytes.clear();
        if self.bytes.try_reserve(2 * page_place::PAGE).is_ok() {
            self.before = page_place::bytes_before(self.bytes.as_ptr());
            self.bytes.resize(self.before, 0);
        }
    }

    /// Adds an FPDU whose payload was checked to be registered in this read-side section.
    ///
    /// # Errors
    /// Then the batch is as before.
    pub fn frame(
        &mut self,
        header: &[u8],
        mut payload: Cursor<'_>,
        len: u32,
        crc: bool,
    ) -> Result<(), FrameError> {
        let (start, parts) = (self.bytes.len(), self.parts.len());
        let own = if crc || len <= COPY_MAX { len } else { 0 };
        self.reserve(header.len() + own as usize + FPDU_TRAILER_MAX)?;
        // Of our own: the header of a payload that is not copied, and the trailer.
        self.parts.try_reserve(2)?;
        self.bytes.extend_from_slice(header);
        let mut left = u64::from(len);
        let mut running = crc.then(Crc::new);
        let mut body = start;
        let mut added: Result<(), FrameError> = Ok(());
        if let Some(crc) = &mut running {
            crc.update(header);
            while added.is_ok()
                && let Some((at, n)) = payload.take(left)
            {
                left -= n;
                added = self
                    .grow(n, |to, n| {
                        // SAFETY: from registered memory, which it is for as long as the read-side
                        // section lasts, into room of ours.
                        unsafe { crc.copy(at, to, n) }
                    })
                    .map_err(FrameError::from);
            }
        } else if len > COPY_MAX {
            self.own(start);
            while added.is_ok()
                && let Some((at, n)) = payload.take(left)
            {
                left -= n;
                let len = n as usize;
                added = self.name(at, len);
            }
            body = self.bytes.len();
        } else {
            while added.is_ok()
                && let Some((at, n)) = payload.take(left)
            {
                left -= n;
                added = self.copy(at, n).map_err(FrameError::from);
            }
        }
        if added.is_err() {
            self.bytes.truncate(start);
            self.parts.truncate(parts);
            // The header may have become a part of the one before it.
            if let Some(Part::Own { end, .. }) = self.parts.last_mut() {
                *end = (*end).min(start);
            }
            return added;
        }
        let mut trailer = [0; FPDU_TRAILER_MAX];
        let trailer = fpdu::trailer(header.len() + len as usize, running, &mut trailer);
        self.bytes.extend_from_slice(trailer);
        self.own(body);
        self.total += header.len() + len as usize + trailer.len();
        Ok(())
    }

    /// Makes room for `n` more bytes of our own. A long batch grows by what it needs: the threads that
    /// send keep their batches, and doubled, the memory of each would be up to twice the longest call.
    fn reserve(&mut self, n: usize) -> Result<(), TryReserveError> {
        match self.bytes.len() + n > DOUBLED_MAX {
            true => self.bytes.try_reserve_exact(n),
            false => self.bytes.try_reserve(n),
        }
    }

    /// Names memory of the consumer.
    fn name(&mut self, at: *const u8, len: usize) -> Result<(), FrameError> {
        // And that for the trailer.
        self.parts.try_reserve(2)?;
        self.parts.push(Part::Consumer { at, len });
        // What the kernel cannot read later leaves half an FPDU in the stream, after which the peer
        // cannot be notified of the reason.
        Ok(guarded::is_readable(at, len)?)
    }

    /// Makes registered memory our own, as it is now.
    fn copy(&mut self, at: *const u8, n: u64) -> Result<(), CopyFault> {
        self.grow(n, |to, n| {
            // SAFETY: from registered memory, which it is for as long as the read-side section
            // lasts, into room of ours.
            unsafe { copy::plain(at, to, n) }
        })
    }

    /// Adds bytes of our own, all of which `fill` writes. There is room for them.
    fn grow(
        &mut self,
        n: u64,
        fill: impl FnOnce(*mut u8, usize) -> Result<(), CopyFault>,
    ) -> Result<(), CopyFault> {
        let (len, n) = (self.bytes.len(), n as usize);
        assert!(self.bytes.capacity() - len >= n);
        // SAFETY: there is room, and all of it is initialized when it counts.
        unsafe {
            fill(self.bytes.as_mut_ptr().add(len), n)?;
            self.bytes.set_len(len + n);
        }
        Ok(())
    }

    /// Names our own bytes from `start` on.
    fn own(&mut self, start: usize) {
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some(Part::Own { end: last, .. }) if *last == start => *last = end,
            _ => self.parts.push(Part::Own { start, end }),
        }
    }

    fn part(&self, part: &Part) -> (*const u8, usize) {
        match *part {
            Part::Own { start, end } => (self.bytes[start..end].as_ptr(), end - start),
            Part::Consumer { at, len } => (at, len),
        }
    }

    /// One call to the kernel: how many bytes it took.
    ///
    /// # Errors
    /// `ENOMEM` also if there is no memory for the list of the parts.
    #[inline]
    pub fn send(&mut self, watch: &Watch) -> Result<usize, Errno> {
        match self.parts[..] {
            [Part::Own { start, end }] => {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                kernel::net::send(watch, &self.bytes[start..end], flags)
            }
            _ => self.send_parts(watch),
        }
    }

    /// [`SendBatch::send`] of more parts than one.
    fn send_parts(&mut self, watch: &Watch) -> Result<usize, Errno> {
        let mut iov = std::mem::take(&mut self.iov);
        iov.clear();
        if iov.try_reserve(self.parts.len()).is_err() {
            return Err(Errno::NOMEM);
        }
        iov.extend(self.parts.iter().map(|part| {
            let (at, iov_len) = self.part(part);
            let iov_base = at.cast_mut().cast();
            libc::iovec { iov_base, iov_len }
        }));
        // SAFETY: all zero is an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov.as_mut_ptr();
        message.msg_iovlen = iov.len() as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message names memory that is alive for the call: our own, or registered.
        let sent = unsafe { kernel::send_message(watch, &message, flags) };
        self.iov = iov;
        sent
    }

    /// Copies a range of the batch.
    ///
    /// # Errors
    /// Memory of the consumer cannot be read any longer, or there is no memory for the copy.
    pub fn copy_range(&self, from: usize, to: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let mut at = 0;
        for part in &self.parts {
            let (start, len) = self.part(part);
            let (lo, hi) = (from.max(at), to.min(at + len));
            if lo < hi {
                let (n, done) = (hi - lo, out.len());
                out.try_reserve(n)?;
                // SAFETY: inside the part, which is our own memory or registered, into room that
                // was just made; all of it is initialized when it counts.
                unsafe {
                    copy::plain(start.add(lo - at), out.as_mut_ptr().add(done), n)?;
                    out.set_len(done + n);
                }
            }
            at += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Sge;

    /// The kernel copies range by range, and takes no more than `IOV_MAX` of them.
    #[test]
    fn what_is_copied_is_one_range_of_the_message() {
        let (mut short, mut long) = ([1u8; 20], [2u8; 5000]);
        let sge = |memory: &mut [u8]| Sge {
            addr: memory.as_mut_ptr() as u64,
            len: memory.len() as u32,
            lkey: 0,
        };
        let (short, long) = (sge(&mut short), sge(&mut long));
        let mut batch = SendBatch::default();
        let mut add = |sge: Sge| {
            let payload = Cursor::new(std::slice::from_ref(&sge));
            batch.frame(&[0x5a; 14], payload, sge.len, false).unwrap();
            batch.parts.len()
        };
        assert_eq!([(); 3].map(|()| add(short)), [1; 3]);
        // The trailer and the next header are ours again.
        assert_eq!([long, short, long].map(add), [3, 3, 5]);
    }

    /// Each thread that sends keeps as much.
    #[test]
    fn the_memory_of_a_long_batch_is_little_more_than_what_is_in_it() {
        const FPDU: usize = 63 * 1024;
        let memory = vec![1u8; FPDU];
        let sge = Sge {
            addr: memory.as_ptr() as u64,
            len: FPDU as u32,
            lkey: 0,
        };
        let mut batch = SendBatch::default();
        while batch.len() < 512 * 1024 {
            batch
                .frame(&[0x5a; 14], Cursor::new(&[sge]), sge.len, true)
                .unwrap();
        }
        let kept = batch.bytes.capacity();
        assert!(kept < batch.len() + 1024, "{kept} for {}", batch.len());
    }

    /// From the second time on that a thread uses its batch, whatever its memory has become.
    #[test]
    fn a_batch_begins_where_the_kernel_copies_well_from() {
        let memory = vec![1u8; 60_000];
        let mut batch = SendBatch::default();
        for len in [10, 1000, 60_000, 60_000, 10] {
            batch.clear();
            let sge = Sge {
                addr: memory.as_ptr() as u64,
                len,
                lkey: 0,
            };
            let payload = Cursor::new(std::slice::from_ref(&sge));
            batch.frame(&[0x5a; 14], payload, len, true).unwrap();
            let Some(&Part::Own { start, end }) = batch.parts.first() else {
                panic!("the payload is not copied");
            };
            assert_eq!(end - start, batch.len());
            batch.clear();
            assert_eq!(page_place::bytes_before(batch.bytes.as_ptr()), batch.before);
            let mut sent = Vec::new();
            batch.frame(&[0x5a; 14], payload, len, true).unwrap();
            batch.copy_range(0, batch.len(), &mut sent).unwrap();
            assert_eq!(sent.len(), batch.len());
            assert!(sent.starts_with(&[0x5a; 14]));
        }
    }

    #[test]
    fn what_was_summed_is_sent_whatever_the_memory_does_next() {
        for len in [100, COPY_MAX as usize + 1, 50_000] {
            let mut memory = vec![1u8; len];
            let sge = Sge {
                addr: memory.as_mut_ptr() as u64,
                len: len as u32,
                lkey: 0,
            };
            let header = [0x5a; 14];
            let mut batch = SendBatch::default();
            batch
                .frame(&header, Cursor::new(&[sge]), len as u32, true)
                .unwrap();
            memory.fill(2);
            let mut sent = Vec::new();
            batch.copy_range(0, batch.len(), &mut sent).unwrap();
            assert!(sent[14..14 + len].iter().all(|&byte| byte == 1), "{len}");

            let mut crc = Crc::new();
            crc.update(&sent[..14 + len]);
            let mut trailer = [0; FPDU_TRAILER_MAX];
            let trailer = fpdu::trailer(14 + len, Some(crc), &mut trailer);
            assert_eq!(&sent[14 + len..], trailer, "{len}");
        }
    }

    #[test]
    fn an_fpdu_whose_payload_is_not_there_leaves_the_batch_as_before() {
        guarded::install_handlers();
        let mut there = vec![1u8; 5000];
        let sge = |addr: u64, len: usize| Sge {
            addr,
            len: len as u32,
            lkey: 0,
        };
        for len in [100, 5000] {
            for crc in [false, true] {
                let good = [sge(there.as_mut_ptr() as u64, len)];
                let bad = [good[0], sge(64, 20)];
                let mut batch = SendBatch::default();
                let mut frame = |sges: &[Sge], len: usize| {
                    batch.frame(&[0x5a; 14], Cursor::new(sges), len as u32, crc)
                };
                frame(&good, len).unwrap();
                assert_eq!(frame(&bad, len + 20), Err(FrameError::Unreadable));
                frame(&good, len).unwrap();
                let mut sent = Vec::new();
                batch.copy_range(0, batch.len(), &mut sent).unwrap();
                assert_eq!(sent.len(), batch.len());
                let (first, second) = sent.split_at(sent.len() / 2);
                assert_eq!(first, second, "{len} {crc}");
                assert_eq!(first[..14], [0x5a; 14]);
            }
        }
    }
}
