//! The phase of a queue pair's connection, and the number of the attempt to make one.
//!
//! Threads that drive an attempt keep its number. What they find out afterwards counts only if
//! the queue pair is still at that attempt: it may have been given up, and another one begun.

use super::DeviceError;

/// The phase of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// There was no connection since the queue pair was created or reset.
    Idle,
    /// A connection is being made, by either end.
    Connecting,
    /// Data can flow.
    Connected,
    /// A graceful disconnect waits for the requests that are queued.
    Closing,
    /// The connection is being torn down: outstanding requests are being flushed.
    Ending,
    /// The connection, or the attempt to make one, has ended.
    Ended,
    /// The queue pair was destroyed.
    Destroyed,
}

impl Phase {
    /// Whether there is a connection, or an attempt to make one, that can still end.
    pub fn is_live(self) -> bool {
        matches!(self, Phase::Connecting | Phase::Connected | Phase::Closing)
    }
}

/// The state of a queue pair's connection.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The phase of the connection.
    pub phase: Phase,
    /// Number of the last attempt that was begun.
    number: u64,
}

impl Attempt {
    /// The state after creation.
    pub fn new() -> Attempt {
        Attempt {
            phase: Phase::Idle,
            number: 0,
        }
    }

    /// Begins an attempt and gives its number.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if there is a connection or an attempt, or the queue pair was
    /// destroyed.
    pub fn begin(&mut self) -> Result<u64, DeviceError> {
        if !matches!(self.phase, Phase::Idle | Phase::Ended) {
            return Err(DeviceError::Unsupported);
        }
        self.phase = Phase::Connecting;
        self.number += 1;
        Ok(self.number)
    }

    /// Number of the last attempt that was begun.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether this attempt, or what became of it, is the last one.
    pub fn is_current(&self, number: u64) -> bool {
        self.number == number
    }

    /// Whether this attempt is still being made.
    pub fn is_connecting(&self, number: u64) -> bool {
        self.phase == Phase::Connecting && self.is_current(number)
    }

    /// Takes back an attempt of which neither the consumer nor the peer knows, and gives whether
    /// it was still being made.
    pub fn withdraw(&mut self, number: u64) -> bool {
        let connecting = self.is_connecting(number);
        if connecting {
            self.phase = Phase::Idle;
        }
        connecting
    }

    /// Back to the state after creation. Threads that drive the last attempt find it over.
    pub fn reset(&mut self) {
        self.phase = Phase::Idle;
        self.number += 1;
    }

    /// The queue pair is being destroyed. Gives the phase that it was in.
    pub fn destroy(&mut self) -> Phase {
        self.number += 1;
        std::mem::replace(&mut self.phase, Phase::Destroyed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_follow_each_other() {
        let mut attempt = Attempt::new();
        let first = attempt.begin().unwrap();
        assert!(attempt.is_connecting(first) && attempt.phase.is_live());
        assert_eq!(attempt.begin(), Err(DeviceError::Unsupported));
        attempt.phase = Phase::Connected;
        assert!(attempt.is_current(first) && !attempt.is_connecting(first));
        assert_eq!(attempt.begin(), Err(DeviceError::Unsupported));
        attempt.phase = Phase::Ended;
        let second = attempt.begin().unwrap();
        assert!(attempt.is_connecting(second));
        assert!(!attempt.is_current(first) && !attempt.is_connecting(first));
    }

    #[test]
    fn only_the_current_attempt_can_be_withdrawn() {
        let mut attempt = Attempt::new();
        let first = attempt.begin().unwrap();
        attempt.phase = Phase::Ended;
        let second = attempt.begin().unwrap();
        assert!(!attempt.withdraw(first));
        assert_eq!(attempt.phase, Phase::Connecting);
        assert!(attempt.withdraw(second));
        assert_eq!(attempt.phase, Phase::Idle);
        assert!(!attempt.withdraw(second));
    }

    #[test]
    fn nothing_is_left_of_an_attempt_after_a_reset() {
        let mut attempt = Attempt::new();
        let number = attempt.begin().unwrap();
        attempt.phase = Phase::Ended;
        attempt.reset();
        assert!(!attempt.is_current(number));
        assert_eq!(attempt.phase, Phase::Idle);
        let number = attempt.begin().unwrap();
        assert_eq!(attempt.destroy(), Phase::Connecting);
        assert!(!attempt.is_current(number) && !attempt.phase.is_live());
        assert_eq!(attempt.begin(), Err(DeviceError::Unsupported));
        assert_eq!(attempt.destroy(), Phase::Destroyed);
    }
}
