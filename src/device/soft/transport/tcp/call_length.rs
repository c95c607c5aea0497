//! How much one call to the kernel is given of long FPDUs.
//!
//! The first call has one long FPDU, on which the peer works while the next call is made ready. Each
//! later one has twice as much as the one before. Over the loopback interface, where the sender is what
//! limits a stream, long calls make it faster by a fifth to a half: the kernel copies the same bytes in
//! two thirds of the time. Probably that is because acknowledgements of TCP that arrive during a call wait
//! for its end, so that the memory it copies to is not that which the peer has just read.

use std::time::Duration;

use crate::kernel::Instant;

/// A call ends behind an FPDU of so many bytes, if it has its length: the peer works on it while the next
/// one is built, and the kernel, which cuts what it sends at 64 KiB, does not hold the rest of the next
/// one back. In simulations, whose messages are short, all lengths are lower.
pub(super) const LONG_FRAME: usize = if cfg!(dat_sim) { 256 } else { 32 * 1024 };
/// The longest call.
const MOST: usize = 32 * LONG_FRAME;
/// The longest call with checksums: so much is copied before the kernel has any of it, to memory that
/// should stay in the cache.
const MOST_SUMMED: usize = 16 * LONG_FRAME;
/// What is sent within this time after the last call continues a stream.
const STEADY: Duration = Duration::from_micros(200);

/// Bytes that the next call is to have, if there are as many.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLength {
    next: usize,
    /// When the last call was made, and how many requests of the peer had arrived then, if the next one
    /// is to be longer than the first.
    last: Option<(Instant, u32)>,
}

impl CallLength {
    /// Before the first call.
    pub fn new() -> CallLength {
        CallLength {
            next: LONG_FRAME,
            last: None,
        }
    }

    /// Bytes of the next call.
    pub fn get(&self) -> usize {
        self.next
    }

    /// Whether the next call is a first one.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// Something is to be sent, when so many requests of the peer have arrived. It begins with a short call
    /// unless it continues a stream: a peer that has sent something probably waits for the first bytes.
    #[inline]
    pub fn begin(&mut self, arrived: u32, clock: impl FnOnce() -> Instant) {
        if let Some((last, before)) = self.last
            && (arrived != before || clock() - last > STEADY)
        {
            *self = CallLength::new();
        }
    }

    /// A call with `given` bytes was made, of which the socket has taken so many. What it does not take is
    /// built again: a socket that was full will have room for about as much as it had now.
    #[inline]
    pub fn called(
        &mut self,
        (given, taken): (usize, usize),
        crc: bool,
        arrived: u32,
        clock: impl FnOnce() -> Instant,
    ) {
        let most = if crc { MOST_SUMMED } else { MOST };
        let next = match taken < given {
            true => taken,
            // The rest of a message may be short.
            false => self.next.max(2 * given),
        };
        self.next = next.clamp(LONG_FRAME, most);
        self.last = (self.next > LONG_FRAME).then(|| (clock(), arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length, and the time.
    struct Case {
        call: CallLength,
        now: Instant,
    }

    impl Case {
        /// Behind the first call of a stream.
        fn new() -> Case {
            let (call, now) = (CallLength::new(), Instant::now());
            let mut case = Case { call, now };
            assert_eq!(case.call.get(), LONG_FRAME);
            case.called(LONG_FRAME, LONG_FRAME);
            case
        }

        fn called(&mut self, given: usize, taken: usize) -> usize {
            let now = self.now;
            self.call.called((given, taken), true, 7, || now);
            self.call.get()
        }

        fn begin(&mut self, arrived: u32) -> usize {
            let now = self.now;
            self.call.begin(arrived, || now);
            self.call.get()
        }
    }

    #[test]
    fn calls_that_are_taken_grow_and_a_full_socket_gets_what_it_took() {
        let mut case = Case::new();
        let mut given = case.call.get();
        for expected in [4, 8, 16, 16] {
            given = case.called(given, given);
            assert_eq!(given, expected * LONG_FRAME);
        }
        assert_eq!(case.called(100, 100), given);
        assert_eq!(case.called(given, 3 * LONG_FRAME), 3 * LONG_FRAME);
        assert_eq!(case.called(3 * LONG_FRAME, 1), LONG_FRAME);

        let now = case.now;
        case.call.called((MOST, MOST), false, 7, || now);
        assert_eq!(case.call.get(), MOST);
    }

    #[test]
    fn a_stream_goes_on_and_an_answer_begins_anew() {
        let mut case = Case::new();
        case.now += STEADY;
        assert_eq!(case.begin(7), 2 * LONG_FRAME);
        assert_eq!(case.begin(8), LONG_FRAME);
    }

    #[test]
    fn what_comes_later_begins_anew() {
        let mut case = Case::new();
        case.now += 2 * STEADY;
        assert_eq!(case.begin(7), LONG_FRAME);
    }

    #[test]
    fn short_calls_need_no_clock() {
        let mut call = CallLength::new();
        let clock = || -> Instant { unreachable!("the time does not matter") };
        call.called((100, 100), false, 0, clock);
        call.begin(1, clock);
        assert_eq!(call.get(), LONG_FRAME);
    }
}
