//! What a table shows of an object: sums of its counters, as rates between two readings or as totals.

use serde_json::Value;

/// The counters that a column adds up.
pub type Counters = &'static [&'static str];

/// Sends that were posted.
pub const SENDS: Counters = &["DCNT_EP_POST_SEND", "DCNT_EP_POST_SEND_UD"];
/// RDMA writes that were posted.
pub const WRITES: Counters = &["DCNT_EP_POST_WRITE", "DCNT_EP_POST_WRITE_IMM"];
/// RDMA reads that were posted.
pub const READS: Counters = &["DCNT_EP_POST_READ"];
/// Atomic operations that were posted.
pub const ATOMICS: Counters = &["DCNT_EP_POST_CMP_SWAP", "DCNT_EP_POST_FETCH_ADD"];
/// Messages that were received.
pub const RECEIVES: Counters = &[
    "DCNT_EP_RECV",
    "DCNT_EP_RECV_UD",
    "DCNT_EP_RECV_IMM",
    "DCNT_EP_RECV_RDMA_IMM",
];
/// Bytes that go to the peer.
pub const OUT: Counters = &[
    "DCNT_EP_POST_SEND_DATA",
    "DCNT_EP_POST_SEND_UD_DATA",
    "DCNT_EP_POST_WRITE_DATA",
    "DCNT_EP_POST_WRITE_IMM_DATA",
];
/// Bytes that come from the peer.
pub const IN: Counters = &[
    "DCNT_EP_POST_READ_DATA",
    "DCNT_EP_RECV_DATA",
    "DCNT_EP_RECV_UD_DATA",
    "DCNT_EP_RECV_IMM_DATA",
    "DCNT_EP_RECV_RDMA_IMM_DATA",
];
/// Calls of `dat_evd_wait`.
pub const WAITS: Counters = &["DCNT_EVD_WAIT"];
/// Calls of `dat_evd_wait` that have slept.
pub const BLOCKED: Counters = &["DCNT_EVD_WAIT_BLOCKED"];
/// Calls of `dat_evd_dequeue` that have found an event.
pub const FOUND: Counters = &["DCNT_EVD_DEQUEUE_FOUND"];
/// Calls of `dat_evd_dequeue` that have found none.
pub const EMPTY: Counters = &["DCNT_EVD_DEQUEUE_NOT_FOUND"];

/// An object now, and as it was before.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    /// The figures of the object.
    pub now: &'a Value,
    /// Those before, if the object was there.
    pub before: Option<&'a Value>,
    /// What its counters are compared with.
    pub since: Since,
}

/// What counters are compared with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Since {
    /// Nothing: totals.
    Beginning,
    /// The reading before, which was so many seconds ago.
    Before(f64),
    /// There is no reading before: nothing is known of rates.
    Unknown,
}

impl Object<'_> {
    /// The sum of counters, per second or in all; `None` if that is not known.
    pub fn sum(&self, counters: Counters) -> Option<f64> {
        let now = self.now["counters"].as_object()?;
        let count = |counters: Option<&serde_json::Map<String, Value>>, name: &str| {
            counters
                .and_then(|counters| counters.get(name)?.as_u64())
                .unwrap_or(0)
        };
        let before = self
            .before
            .and_then(|before| before["counters"].as_object());
        let sum = counters.iter().map(|name| {
            let (now, before) = (count(Some(now), name), count(before, name));
            match self.since {
                Since::Beginning => now,
                // A counter that the program has set to 0 has counted from there.
                _ => now.checked_sub(before).unwrap_or(now),
            }
        });
        let sum = sum.sum::<u64>() as f64;
        match self.since {
            Since::Beginning => Some(sum),
            Since::Before(seconds) => Some(sum / seconds.max(1e-3)),
            Since::Unknown => None,
        }
    }

    /// How much there is to say of an endpoint, for the order of the rows.
    pub fn weight(&self) -> f64 {
        let all = [SENDS, WRITES, READS, ATOMICS, RECEIVES, OUT, IN];
        all.iter().filter_map(|counters| self.sum(counters)).sum()
    }
}

/// A number for people, in at most six characters.
pub fn scaled(value: f64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if value < 99_999.5 {
        return match value > 0.0 && value < 9.95 && value.fract() != 0.0 {
            true => format!("{value:.1}"),
            false => format!("{value:.0}"),
        };
    }
    let (mut value, mut unit) = (value / 1e3, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoint(sends: u64, unreliable: u64) -> Value {
        json!({"counters": {"DCNT_EP_POST_SEND": sends, "DCNT_EP_POST_SEND_UD": unreliable}})
    }

    #[test]
    fn rates_and_totals() {
        let (now, before) = (endpoint(300, 4), endpoint(100, 0));
        let sum = |before, since| {
            let object = Object {
                now: &now,
                before,
                since,
            };
            object.sum(SENDS)
        };
        assert_eq!(sum(Some(&before), Since::Before(2.0)), Some(102.0));
        assert_eq!(sum(None, Since::Before(2.0)), Some(152.0));
        assert_eq!(sum(None, Since::Beginning), Some(304.0));
        assert_eq!(sum(None, Since::Unknown), None);
    }

    #[test]
    fn a_counter_that_was_reset_has_no_negative_rate() {
        let (now, before) = (endpoint(30, 5), endpoint(1000, 5));
        let object = Object {
            now: &now,
            before: Some(&before),
            since: Since::Before(1.0),
        };
        assert_eq!(object.sum(SENDS), Some(30.0));
    }

    #[test]
    fn without_counters_nothing_is_known() {
        let now = json!({"counters": null});
        let object = Object {
            now: &now,
            before: None,
            since: Since::Beginning,
        };
        assert_eq!(object.sum(SENDS), None);
    }

    #[test]
    fn numbers_for_people() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (12.4, "12"),
            (99_999.0, "99999"),
            (123_456.0, "123.5k"),
            (999_960.0, "1.0M"),
            (1.5e10, "15.0G"),
        ];
        for (value, text) in cases {
            assert_eq!(scaled(value), text);
        }
    }
}
