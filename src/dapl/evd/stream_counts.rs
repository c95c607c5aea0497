//! Which streams feed an EVD, and whether they may feed the same one.
//!
//! To the letter of `dat_ep_create`(3DAT) the completions of an EVD have the same flags, and flags by
//! which the consumer or the peer controls notification exclude other streams. Programs mix them
//! nevertheless, and nothing prevents it, because each completion states whether it notifies.

use super::stream::Stream;
use crate::abi::common::*;
use crate::dapl::rules::Rules;
use crate::error::{Kind, Result};

/// The flags that decide how completions are notified, in the order of the bits of a [`FlagSet`].
const NOTIFICATION: [DAT_COMPLETION_FLAGS; 3] = [
    DAT_COMPLETION_UNSIGNALLED_FLAG,
    DAT_COMPLETION_SOLICITED_WAIT_FLAG,
    DAT_COMPLETION_EVD_THRESHOLD_FLAG,
];

/// A set of the flags of [`NOTIFICATION`], as an index.
type FlagSet = usize;

/// The consumer controls which of its own operations notify.
const UNSIGNALLED: FlagSet = 1;
/// The peer controls which receives notify.
const SOLICITED: FlagSet = 2;
/// The threshold of a wait decides.
const THRESHOLD: FlagSet = 4;

/// The notification flags among these.
fn flag_set(flags: DAT_COMPLETION_FLAGS) -> FlagSet {
    let bits = NOTIFICATION.iter().enumerate();
    bits.filter(|(_, flag)| flags & **flag != 0)
        .map(|(bit, _)| 1 << bit)
        .sum()
}

/// The streams of an EVD, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct StreamCounts {
    /// Streams of receive completions, by their flags.
    recv: [usize; 1 << NOTIFICATION.len()],
    /// Streams of request completions, by their flags.
    send: [usize; 1 << NOTIFICATION.len()],
    /// Streams of asynchronous errors.
    asynchronous: usize,
    /// Streams of other events.
    other: usize,
}

impl StreamCounts {
    /// Whether no stream feeds the EVD.
    pub fn is_empty(&self) -> bool {
        *self == StreamCounts::default()
    }

    /// Whether the EVD is the async EVD of an instance.
    pub fn has_async(&self) -> bool {
        self.asynchronous > 0
    }

    /// Whether the consumer controls the notification of a stream.
    pub fn are_controlled(&self) -> bool {
        self.has(UNSIGNALLED) || self.has(SOLICITED)
    }

    /// `DAT_EVD_STATE_CONFIG_*`. The values overlap: programs compare under the mask of all
    /// three. If several apply it is the one under which the fewest events wake a waiter.
    pub fn config(&self) -> DAT_EVD_STATE {
        if self.has(THRESHOLD) {
            DAT_EVD_STATE_CONFIG_THRESHOLD
        } else if self.has(UNSIGNALLED) {
            DAT_EVD_STATE_CONFIG_NOTIFY
        } else if self.has(SOLICITED) {
            DAT_EVD_STATE_CONFIG_SOLICITED
        } else {
            0
        }
    }

    /// Replaces streams by others, all of them at once.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` if the rules of the man pages hold, and forbid that the streams share
    /// an EVD; nothing has changed then.
    pub fn replace(&mut self, from: &[Stream], to: &[Stream], rules: Rules) -> Result<()> {
        let mut after = *self;
        from.iter().for_each(|s| *after.count(*s) -= 1);
        to.iter().for_each(|s| *after.count(*s) += 1);
        if rules.are_pages() && !after.may_share() {
            return Err(Kind::InvalidParameter.into());
        }
        *self = after;
        Ok(())
    }

    /// Whether the streams may share an EVD to the letter of `dat_ep_create`(3DAT). Receives of which only solicited
    /// ones notify share none with requests, whose sets have no such flag.
    fn may_share(&self) -> bool {
        let mut found = (0..self.recv.len()).filter(|set| self.recv[*set] + self.send[*set] > 0);
        let flags = found.next().unwrap_or(0);
        let same = found.next().is_none();
        let others = self.asynchronous + self.other > 0;
        same && !(flags & (UNSIGNALLED | SOLICITED) != 0 && others)
    }

    /// Whether a stream of completions has these flags.
    fn has(&self, flags: FlagSet) -> bool {
        let mut counts = self.recv.iter().zip(&self.send).enumerate();
        counts.any(|(set, (recv, send))| set & flags != 0 && recv + send > 0)
    }

    /// The count of the streams of this kind.
    fn count(&mut self, stream: Stream) -> &mut usize {
        match stream {
            Stream::Recv(flags) => &mut self.recv[flag_set(flags)],
            // What a sender solicits notifies the peer: see `REQUEST_ATTR_FLAGS`.
            Stream::Send(flags) => {
                &mut self.send[flag_set(flags & !DAT_COMPLETION_SOLICITED_WAIT_FLAG)]
            }
            Stream::Async => &mut self.asynchronous,
            Stream::Request | Stream::Connection => &mut self.other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: DAT_COMPLETION_FLAGS = DAT_COMPLETION_DEFAULT_FLAG;
    const UNSIGNALLED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_UNSIGNALLED_FLAG;
    const SOLICITED: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    const THRESHOLD: DAT_COMPLETION_FLAGS = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
    const FENCE: DAT_COMPLETION_FLAGS = DAT_COMPLETION_BARRIER_FENCE_FLAG;

    /// Whether these streams may feed one EVD, one after the other and all at once.
    fn may(streams: &[Stream], rules: Rules) -> bool {
        let mut counts = StreamCounts::default();
        let one_by_one = streams
            .iter()
            .all(|s| counts.replace(&[], &[*s], rules).is_ok());
        let mut at_once = StreamCounts::default();
        assert_eq!(at_once.replace(&[], streams, rules).is_ok(), one_by_one);
        if one_by_one {
            assert_eq!(counts, at_once);
            counts.replace(streams, &[], rules).unwrap();
            assert!(counts.is_empty());
        }
        one_by_one
    }

    #[test]
    fn what_the_pages_refuse() {
        for streams in [
            [Stream::Send(UNSIGNALLED), Stream::Recv(DEFAULT)],
            [Stream::Recv(DEFAULT), Stream::Send(UNSIGNALLED)],
            [Stream::Send(UNSIGNALLED), Stream::Recv(SOLICITED)],
            [Stream::Recv(SOLICITED), Stream::Send(DEFAULT)],
            [Stream::Recv(SOLICITED), Stream::Send(SOLICITED)],
            [Stream::Recv(SOLICITED), Stream::Recv(SOLICITED | THRESHOLD)],
            [Stream::Recv(THRESHOLD), Stream::Recv(DEFAULT)],
            [Stream::Recv(DEFAULT), Stream::Send(THRESHOLD)],
            [Stream::Recv(SOLICITED), Stream::Connection],
            [Stream::Connection, Stream::Send(UNSIGNALLED)],
            [Stream::Request, Stream::Recv(UNSIGNALLED)],
            [Stream::Recv(UNSIGNALLED | THRESHOLD), Stream::Async],
        ] {
            assert!(!may(&streams, Rules::Pages), "{streams:?}");
            assert!(may(&streams, Rules::Programs), "{streams:?}");
        }
    }

    #[test]
    fn what_is_always_accepted() {
        for streams in [
            [Stream::Send(UNSIGNALLED), Stream::Recv(UNSIGNALLED)],
            [Stream::Recv(SOLICITED), Stream::Recv(SOLICITED)],
            [Stream::Send(THRESHOLD), Stream::Connection],
            [Stream::Send(THRESHOLD | FENCE), Stream::Recv(THRESHOLD)],
            [Stream::Send(SOLICITED), Stream::Recv(DEFAULT)],
            [Stream::Async, Stream::Request],
        ] {
            assert!(may(&streams, Rules::Pages), "{streams:?}");
            assert!(may(&streams, Rules::Programs), "{streams:?}");
        }
    }

    #[test]
    fn a_replacement_changes_all_or_nothing() {
        let (recv, send) = (Stream::Recv(DEFAULT), Stream::Send(DEFAULT));
        let mut streams = StreamCounts::default();
        streams.replace(&[], &[recv, send], Rules::Pages).unwrap();
        let before = streams;
        let unsignalled = [Stream::Recv(UNSIGNALLED), Stream::Send(UNSIGNALLED)];
        let one = streams.replace(&[send], &unsignalled[1..], Rules::Pages);
        assert!(one.is_err());
        assert_eq!(streams, before);
        assert_eq!(streams.config(), 0);
        let mut programs = before;
        programs
            .replace(&[send], &unsignalled[1..], Rules::Programs)
            .unwrap();
        assert_eq!(programs.config(), DAT_EVD_STATE_CONFIG_NOTIFY);
        assert!(programs.are_controlled());
        streams
            .replace(&[recv, send], &unsignalled, Rules::Pages)
            .unwrap();
        assert_eq!(streams.config(), DAT_EVD_STATE_CONFIG_NOTIFY);
    }
}
