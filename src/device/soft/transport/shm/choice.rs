//! Messages for which two ways are open: copied into the ring, or offered.
//!
//! Two copies through the ring, by both ends at a time, take less time than the copy of the kernel, or more:
//! that depends on how near the two processors are to each other, on their caches, and on whether the receiver
//! polls or has to be woken for the offer. So each connection measures both ways for each class of
//! lengths, with a few messages at first and with one now and then later, and takes the one that is
//! faster.

use super::bulk::OFFER_MIN;
use crate::kernel::Instant;

/// The longest message for which there is a choice, in bytes. Longer ones are offered. The simulation, whose
/// longest messages have 100,000 bytes, is to have such ones as well.
const CHOICE_MAX: u32 = if cfg!(dat_sim) { 64 << 10 } else { 4 << 20 };
/// Classes of lengths: each reaches up to twice the length of the one before.
const CLASSES: usize = (CHOICE_MAX / OFFER_MIN).ilog2() as usize;

/// So many messages take one way and the other in turn, in pairs, before either is preferred.
const FIRST: u32 = 8;
/// Two messages of so many take the way that is not preferred. The second is measured: the first finds the caches
/// as the preferred way leaves them.
const OTHER: u32 = 128;
/// The same if that way takes [`MUCH`] times as long or more.
const OTHER_SLOW: u32 = 1024;
const MUCH: u32 = 2;
/// One message of so many is measured.
const MEASURED: u32 = 16;

/// How a message gets to its receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Both ends copy it, through the ring.
    Ring,
    /// Its memory is offered, and the kernel copies it.
    Offer,
}

/// What is known of the messages of a class of lengths.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Messages for which a way was chosen.
    chosen: u32,
    /// Nanoseconds that a message takes through the ring. 0 if that is unknown.
    ring: u32,
    /// Nanoseconds that a message takes if it is offered. 0 if that is unknown.
    offer: u32,
}

impl Class {
    /// The way of the next message, and whether it is to be measured.
    fn choose(&mut self) -> (Way, bool) {
        let number = self.chosen;
        // After the last number the first ones, of which both ways are tried, do not come again.
        self.chosen = number.checked_add(1).unwrap_or(OTHER);
        if number < FIRST {
            let way = match number % 4 {
                0 | 1 => Way::Offer,
                _ => Way::Ring,
            };
            return (way, number % 2 == 1);
        }
        let (better, other) = match self.ring != 0 && self.ring < self.offer {
            true => (Way::Ring, Way::Offer),
            false => (Way::Offer, Way::Ring),
        };
        let (short, long) = (self.ring.min(self.offer), self.ring.max(self.offer));
        let others = match long / MUCH >= short {
            true => OTHER_SLOW,
            false => OTHER,
        };
        match number % others {
            n @ (0 | 1) => (other, n == 1),
            n => (better, n % MEASURED == 0),
        }
    }

    /// Notes for how many nanoseconds the sender was busy with a message, until it was in its receive.
    fn note(&mut self, way: Way, took: u32) {
        let estimate = match way {
            Way::Ring => &mut self.ring,
            Way::Offer => &mut self.offer,
        };
        // Whatever interrupts a message makes it longer: a shorter time counts at once.
        *estimate = match *estimate {
            before if before != 0 && took > before => before + (took - before) / 8,
            _ => took.max(1),
        };
    }
}

/// A message that is being sent.
#[derive(Clone, Copy, Debug)]
struct Current {
    way: Way,
    /// When it was begun, if it is measured.
    begun: Option<Instant>,
}

/// The choice for a connection, in one direction.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    classes: [Class; CLASSES],
    current: Option<Current>,
}

/// The class of messages of so many bytes, if they have a choice.
fn class(len: u32) -> Option<usize> {
    let has_choice = (OFFER_MIN..=CHOICE_MAX).contains(&len);
    has_choice.then(|| ((len - 1) / OFFER_MIN).max(1).ilog2() as usize)
}

impl Choice {
    /// The way that was chosen for the message that is being sent, if it was.
    pub fn way(&self) -> Option<Way> {
        self.current.map(|current| current.way)
    }

    /// Chooses the way of the message that is being sent, once for each message. One that the peer reaches
    /// without the kernel, because it `is_mapped`, is offered.
    pub fn choose(&mut self, len: u32, is_mapped: bool) -> Way {
        let (way, measured) = match class(len) {
            Some(class) if !is_mapped => self.classes[class].choose(),
            _ => (Way::Offer, false),
        };
        let begun = measured.then(Instant::now);
        self.current = Some(Current { way, begun });
        way
    }

    /// The message, of `len` bytes, is in its receive.
    pub fn sent(&mut self, len: u32) {
        let Some(current) = self.current.take() else {
            return;
        };
        if let (Some(begun), Some(class)) = (current.begun, class(len)) {
            let took = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
            self.classes[class].note(current.way, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many messages take the ring, which take so long there and if offered.
    fn by_ring(class: &mut Class, count: u32, ring: u32, offer: u32) -> usize {
        let mut send = || {
            let (way, measured) = class.choose();
            let took = match way {
                Way::Ring => ring,
                Way::Offer => offer,
            };
            if measured {
                class.note(way, took);
            }
            way
        };
        (0..count).filter(|_| send() == Way::Ring).count()
    }

    #[test]
    fn the_faster_way_is_taken() {
        let mut near = Class::default();
        assert_eq!(by_ring(&mut near, FIRST, 1200, 2000), 4);
        assert_eq!(by_ring(&mut near, 1280, 1200, 2000), 1260);
        let mut far = Class::default();
        by_ring(&mut far, FIRST, 3000, 2000);
        assert_eq!(by_ring(&mut far, 1280, 3000, 2000), 20);
    }

    #[test]
    fn a_way_that_takes_much_longer_is_taken_less() {
        let mut class = Class::default();
        by_ring(&mut class, FIRST, 4000, 2000);
        assert_eq!(by_ring(&mut class, 10_240, 4000, 2000), 20);
    }

    #[test]
    fn processors_that_move_are_noticed() {
        let mut class = Class::default();
        by_ring(&mut class, 1000, 1200, 2000);
        by_ring(&mut class, 1000, 3000, 2000);
        assert_eq!(by_ring(&mut class, 1280, 3000, 2000), 20);
        by_ring(&mut class, 1000, 1200, 2000);
        assert_eq!(by_ring(&mut class, 1280, 1200, 2000), 1260);
        // Where one takes much longer than the other this takes more messages.
        by_ring(&mut class, 3000, 9000, 2000);
        by_ring(&mut class, 2048, 1200, 2000);
        assert_eq!(by_ring(&mut class, 1280, 1200, 2000), 1260);
    }

    #[test]
    fn the_numbers_of_messages_end() {
        let mut class = Class {
            chosen: u32::MAX,
            ring: 1,
            offer: 2,
        };
        assert_eq!(class.choose().0, Way::Ring);
        assert_eq!(class.chosen, OTHER);
    }

    #[test]
    fn classes_of_lengths() {
        let reached = [
            (OFFER_MIN - 1, None),
            (OFFER_MIN, Some(0)),
            (2 * OFFER_MIN, Some(0)),
            (2 * OFFER_MIN + 1, Some(1)),
            (4 * OFFER_MIN, Some(1)),
            (4 * OFFER_MIN + 1, Some(2)),
            (CHOICE_MAX, Some(CLASSES - 1)),
            (CHOICE_MAX + 1, None),
        ];
        for (len, expected) in reached {
            assert_eq!(class(len), expected, "{len}");
        }
    }

    #[test]
    fn a_way_is_chosen_once_for_each_message() {
        let mut choice = Choice::default();
        let mut send = |len, is_mapped| {
            assert_eq!(choice.way(), None);
            let way = choice.choose(len, is_mapped);
            assert_eq!(choice.way(), Some(way));
            choice.sent(len);
            way
        };
        // What is mapped is offered, and counts for nothing.
        assert_eq!([(); 8].map(|()| send(20_000, true)), [Way::Offer; 8]);
        let ways = [(); 4].map(|()| send(20_000, false));
        assert_eq!(ways, [Way::Offer, Way::Offer, Way::Ring, Way::Ring]);
        assert_eq!(send(CHOICE_MAX + 1, false), Way::Offer);
        assert!(choice.classes[0].ring > 0 && choice.classes[0].offer > 0);
    }
}
