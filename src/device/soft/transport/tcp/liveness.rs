//! Whether the host of the peer still answers what was sent to it.
//!
//! The kernel gives a sender up after a number of retransmissions, which takes a quarter of an
//! hour, and its keepalive is only for connections on which all data is acknowledged. The limit
//! that it offers (`TCP_USER_TIMEOUT`) also ends the connection to a peer that is well, but whose
//! window is closed because its program posts no receives.
//!
//! So while data may be unacknowledged a timer asks the kernel from time to time. The peer owes an
//! answer if something was sent after the last acknowledgement: data, a retransmission, or a probe
//! of the closed window, which a peer that is well answers although it can receive nothing. A
//! retransmission counts if the kernel has tried it: without a link it can send none. Any segment
//! that arrives is an answer, be it a keepalive probe of the peer. A peer that owes an answer for
//! the timeout is gone.
//!
//! Time counts in checks: what passes while this process is stopped is no silence of the peer.

use std::sync::Arc;
use std::time::Duration;

use super::conn::TcpTarget;
use crate::device::soft::engine::{Timer, Watch};
use crate::device::soft::socket::{self, SegmentCounters};
use crate::kernel::Instant;

/// Number of checks in the time of the timeout.
const CHECKS: u32 = 10;

/// See the module.
pub(super) struct Liveness {
    /// How long the peer may owe an answer.
    timeout: Duration,
    /// Runs the next check; `None` if all was acknowledged at the last one.
    check: Option<Timer>,
    /// Number of writes to the socket, when a check was last made sure of.
    writes: u64,
    /// Number of segments that had arrived at the last check; `None` before the first.
    segments_in: Option<u32>,
    /// Number of [timeouts](SegmentCounters::timeouts) at the last check.
    timeouts: u8,
    /// Whether the kernel has tried to send something again since the last segment arrived.
    sent_again: bool,
    /// When the last check was.
    checked: Instant,
    /// How long the peer has owed an answer.
    silence: Duration,
}

impl Liveness {
    pub fn new(timeout: Duration) -> Liveness {
        Liveness {
            timeout,
            check: None,
            writes: 0,
            segments_in: None,
            timeouts: 0,
            sent_again: false,
            checked: Instant::now(),
            silence: Duration::ZERO,
        }
    }

    /// How long the peer may owe an answer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// There were so many writes to the socket: makes sure that the peer is checked, if some are
    /// new.
    #[inline]
    pub fn written(&mut self, writes: u64, watch: &Watch, target: &Arc<dyn TcpTarget>) {
        if self.writes != writes {
            self.writes = writes;
            self.sent(watch, target);
        }
    }

    /// Something was sent that the peer has to acknowledge.
    #[inline]
    pub fn sent(&mut self, watch: &Watch, target: &Arc<dyn TcpTarget>) {
        if self.check.is_none() {
            self.segments_in = None;
            self.silence = Duration::ZERO;
            self.schedule(watch, target);
        }
    }

    fn schedule(&mut self, watch: &Watch, target: &Arc<dyn TcpTarget>) {
        self.checked = Instant::now();
        let target = target.clone();
        let check = watch.timer(self.interval(), move |up| target.check_peer(up));
        self.check = Some(check);
    }

    fn interval(&self) -> Duration {
        self.timeout / CHECKS
    }

    /// A check is due. Returns whether the peer is gone.
    pub fn is_gone(&mut self, watch: &Watch, target: &Arc<dyn TcpTarget>) -> bool {
        self.check = None;
        let Some(counters) = socket::segment_counters(watch) else {
            return false;
        };
        if !counters.is_outstanding() {
            return false;
        }
        self.count(counters, self.checked.elapsed());
        // The silence began before the check that has found it.
        if self.silence + self.interval() >= self.timeout {
            return true;
        }
        self.schedule(watch, target);
        false
    }

    /// Takes in what a check has found, `elapsed` after the one before.
    fn count(&mut self, counters: SegmentCounters, elapsed: Duration) {
        let nothing_arrived = self.segments_in == Some(counters.segments_in);
        self.segments_in = Some(counters.segments_in);
        let tried = counters.timeouts > self.timeouts;
        self.timeouts = counters.timeouts;
        self.sent_again = nothing_arrived && (self.sent_again || tried);
        self.silence = match nothing_arrived && (self.sent_again || counters.owes_answer()) {
            true => self.silence + elapsed.min(2 * self.interval()),
            false => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWES: SegmentCounters = SegmentCounters {
        unacknowledged: 1,
        unsent: 0,
        probes: 0,
        last_data_sent: 100,
        last_ack_received: 200,
        timeouts: 0,
        segments_in: 5,
    };

    /// How long the peer has been silent after checks that have found this.
    fn silence(found: &[(SegmentCounters, u64)]) -> u64 {
        let mut liveness = Liveness::new(Duration::from_secs(100));
        for &(counters, seconds) in found {
            liveness.count(counters, Duration::from_secs(seconds));
        }
        liveness.silence.as_secs()
    }

    #[test]
    fn only_unanswered_segments_are_silence() {
        assert_eq!(silence(&[(OWES, 10)]), 0);
        assert_eq!(silence(&[(OWES, 10), (OWES, 10), (OWES, 11)]), 21);
        let keepalive = SegmentCounters {
            segments_in: 6,
            ..OWES
        };
        assert_eq!(silence(&[(OWES, 10), (OWES, 10), (keepalive, 10)]), 0);
        let answered = SegmentCounters {
            last_data_sent: 300,
            ..OWES
        };
        assert_eq!(silence(&[(OWES, 10), (OWES, 10), (answered, 10)]), 0);
        assert_eq!(silence(&[(answered, 10); 9]), 0);
        let probed = SegmentCounters {
            unacknowledged: 0,
            unsent: 1,
            probes: 1,
            ..answered
        };
        assert_eq!(silence(&[(probed, 10); 3]), 20);
    }

    #[test]
    fn what_the_kernel_tries_to_send_again_is_unanswered() {
        let after = |timeouts, segments_in| SegmentCounters {
            // As the last acknowledgement, or the end of the stream.
            last_data_sent: OWES.last_ack_received,
            timeouts,
            segments_in,
            ..OWES
        };
        assert_eq!(silence(&[(after(0, 5), 10), (after(1, 5), 10)]), 10);
        let tried = [0, 1, 1, 2].map(|timeouts| (after(timeouts, 5), 10));
        assert_eq!(silence(&tried), 30);
        // Each attempt is answered: the peer's window is closed.
        let answered = [(1, 5), (2, 6), (2, 6), (2, 6)].map(|(n, m)| (after(n, m), 10));
        assert_eq!(silence(&answered), 0);
    }

    #[test]
    fn a_stop_of_this_process_is_no_silence() {
        assert_eq!(silence(&[(OWES, 10), (OWES, 3600)]), 20);
    }
}
