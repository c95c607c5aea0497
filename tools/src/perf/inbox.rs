//! Where messages of a measurement lie, and which receives are posted for them.
//!
//! Both ends know how many messages will come on each endpoint. Exactly so many receives are
//! posted, and behind them, on the first endpoint, the one of the next note; so none is left
//! over from one measurement to the next.

use super::failure::{Result, error};
use super::order::Order;
use super::side::Side;

/// Places of messages inside an area.
#[derive(Clone, Copy)]
pub struct Slots {
    stride: usize,
    /// A power of two. Data that is checked has places of its own; otherwise all messages use
    /// the same, as other benchmarks do: what is measured is the transport and not the memory.
    per_ep: usize,
    one_for_all: bool,
}

impl Slots {
    /// The places for an order.
    pub fn new(order: &Order) -> Slots {
        let per_ep = match order.verifies() {
            true => (2 * order.window as usize).next_power_of_two(),
            false => 1,
        };
        Slots {
            stride: (order.size as usize).next_multiple_of(64).max(64),
            per_ep,
            one_for_all: !order.verifies(),
        }
    }

    /// Bytes of an area that holds them. Those of an order from elsewhere may be more than there are numbers
    /// for: no area is as large as the largest number.
    pub fn area(self, endpoints: usize) -> usize {
        match self.one_for_all {
            true => self.stride,
            false => self
                .stride
                .saturating_mul(self.per_ep)
                .saturating_mul(endpoints),
        }
    }

    /// Number of places of an endpoint.
    pub fn per_ep(self) -> usize {
        self.per_ep
    }

    /// The place of a message in its area.
    pub fn offset(self, ep: usize, number: u64) -> usize {
        self.offset_as::<false>(ep, number)
    }

    /// [`Slots::offset`], in the form for plain orders ([`Side::is_plain`]) or not.
    #[inline(always)]
    pub fn offset_as<const PLAIN: bool>(self, ep: usize, number: u64) -> usize {
        if PLAIN || self.one_for_all {
            return 0;
        }
        (ep * self.per_ep + (number as usize & (self.per_ep - 1))) * self.stride
    }
}

/// The receives of a measurement.
pub struct Inbox {
    slots: Slots,
    size: u32,
    expected: u64,
    posted: Vec<u64>,
    /// Messages that have arrived.
    pub arrived: Vec<u64>,
    note_posted: bool,
    /// The first endpoint whose receives are posted here.
    first: usize,
}

impl Inbox {
    /// Posts the first `depth` receives of each endpoint for `expected` messages of `size`.
    pub fn open(side: &Side, slots: Slots, size: u32, expected: u64, depth: u64) -> Result<Inbox> {
        let mut inbox = Inbox::empty(side, slots, size, expected)?;
        inbox.fill(side, depth)?;
        Ok(inbox)
    }

    /// The same for an end that has no control dialogue.
    pub fn data(side: &Side, slots: Slots, size: u32, expected: u64, depth: u64) -> Result<Inbox> {
        let mut inbox = Inbox::empty(side, slots, size, expected)?;
        inbox.note_posted = true;
        inbox.fill(side, depth)?;
        Ok(inbox)
    }

    /// The same for all endpoints but the first.
    pub fn beside(
        side: &Side,
        slots: Slots,
        size: u32,
        expected: u64,
        depth: u64,
    ) -> Result<Inbox> {
        let mut inbox = Inbox::empty(side, slots, size, expected)?;
        inbox.first = 1;
        inbox.fill(side, depth)?;
        Ok(inbox)
    }

    fn empty(side: &Side, slots: Slots, size: u32, expected: u64) -> Result<Inbox> {
        let endpoints = side.endpoints();
        if slots.area(endpoints) > side.map.area {
            return error("an order that does not fit into the memory of the session");
        }
        Ok(Inbox {
            slots,
            size,
            expected,
            posted: vec![0; endpoints],
            arrived: vec![0; endpoints],
            note_posted: false,
            first: 0,
        })
    }

    fn fill(&mut self, side: &Side, depth: u64) -> Result<()> {
        for ep in self.first..side.endpoints() {
            for _ in 0..depth.min(self.expected + 1) {
                self.repost(side, ep)?;
            }
        }
        Ok(())
    }

    /// Posts the next receive of an endpoint, if there is to be another.
    pub fn repost(&mut self, side: &Side, ep: usize) -> Result<()> {
        self.repost_as::<false>(side, ep)
    }

    /// [`Inbox::repost`], in the form for plain orders or not.
    #[inline(always)]
    pub fn repost_as<const PLAIN: bool>(&mut self, side: &Side, ep: usize) -> Result<()> {
        let posted = &mut self.posted[ep];
        let number = *posted;
        if number < self.expected {
            *posted = number + 1;
            let at = side.map.inbox() + self.slots.offset_as::<PLAIN>(ep, number);
            side.recv_as::<PLAIN>(ep, at, self.size, ep as u64)?;
            return Ok(());
        }
        self.complete(side, ep)
    }

    /// All receives of an endpoint are posted.
    #[cold]
    #[inline(never)]
    fn complete(&mut self, side: &Side, ep: usize) -> Result<()> {
        if ep == 0 && !self.note_posted {
            self.note_posted = true;
            return side.expect_note();
        }
        Ok(())
    }

    /// The receives that are left to be posted on the first endpoint, by whoever asks.
    pub fn take_over(&mut self) -> u64 {
        let left = self.expected - self.posted[0];
        self.posted[0] = self.expected;
        left
    }

    /// Notes that a message of an endpoint has arrived; returns its place in the registered
    /// memory and its number.
    pub fn arrival(&mut self, side: &Side, ep: usize) -> Result<(usize, u64)> {
        self.arrival_as::<false>(side, ep)
    }

    /// [`Inbox::arrival`], in the form for plain orders or not.
    #[inline(always)]
    pub fn arrival_as<const PLAIN: bool>(
        &mut self,
        side: &Side,
        ep: usize,
    ) -> Result<(usize, u64)> {
        let Some(arrived) = self.arrived.get_mut(ep) else {
            return too_early();
        };
        let number = *arrived;
        *arrived += 1;
        Ok((
            side.map.inbox() + self.slots.offset_as::<PLAIN>(ep, number),
            number,
        ))
    }
}

#[cold]
#[inline(never)]
fn too_early<T>() -> Result<T> {
    error("a message of the control dialogue came too early")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::order::{Data, Op, Test};

    fn order(data: Data) -> Order {
        Order {
            test: Test::Latency,
            op: Op::Send,
            data,
            passive: false,
            wait: false,
            size: 100,
            window: 3,
            count: 1,
        }
    }

    #[test]
    fn data_that_is_checked_has_places_of_its_own() {
        let slots = Slots::new(&order(Data::Verified));
        assert_eq!(slots.per_ep(), 8);
        assert_eq!(slots.area(2), 2 * 8 * 128);
        assert_eq!(slots.offset(0, 0), 0);
        assert_eq!(slots.offset(0, 9), 128);
        assert_eq!(slots.offset(1, 0), 8 * 128);
    }

    #[test]
    fn an_area_that_is_too_large_is_no_small_one() {
        // 2^31 bytes for each of 2^33 places.
        let huge = Order {
            size: 1 << 31,
            window: u32::MAX,
            ..order(Data::Verified)
        };
        assert_eq!(Slots::new(&huge).area(1), usize::MAX);
        assert_eq!(
            Slots::new(&order(Data::Verified)).area(usize::MAX),
            usize::MAX
        );
    }

    #[test]
    fn other_data_shares_one() {
        let slots = Slots::new(&order(Data::Left));
        assert_eq!(slots.area(1000), 128);
        assert_eq!(slots.offset(7, 9), 0);
    }
}
