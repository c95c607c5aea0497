//! In which order the endpoints are used.

use super::samples::Stopwatch;

/// The seed of the random orders: every run has the same ones.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// The endpoints of one round after the other. A round uses each endpoint once.
pub struct Turns {
    round: Vec<usize>,
    /// The state of the random numbers (xorshift); none if each round is in ascending order.
    random: Option<u64>,
}

impl Turns {
    /// Rounds over so many endpoints.
    pub fn new(endpoints: usize, random: bool) -> Turns {
        Turns {
            round: (0..endpoints).collect(),
            random: random.then_some(SEED),
        }
    }

    /// The next round. The time that the choice of its order takes does not count.
    pub fn next(&mut self, watch: &mut Stopwatch) -> &[usize] {
        if let Some(state) = &mut self.random {
            watch.without(|| shuffle(&mut self.round, state));
        }
        &self.round
    }
}

/// All orders are about equally probable (Fisher and Yates).
fn shuffle(round: &mut [usize], state: &mut u64) {
    for last in (1..round.len()).rev() {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        round.swap(last, (*state % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_each_endpoint_once() {
        let mut watch = Stopwatch::start(1, 0);
        let ascending: Vec<usize> = (0..100).collect();
        assert_eq!(Turns::new(100, false).next(&mut watch), ascending);

        let mut turns = Turns::new(100, true);
        let first = turns.next(&mut watch).to_vec();
        let mut second = turns.next(&mut watch).to_vec();
        assert_ne!(first, ascending);
        assert_ne!(first, second);
        second.sort_unstable();
        assert_eq!(second, ascending);
    }
}
