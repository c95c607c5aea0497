//! Which streams feed an EVD, and whether several of them may feed the same one.
//!
//! To the letter of `dat_ep_create`(3DAT) they may not if the consumer controls the notification
//! of one of them and not of all in the same way. Programs mix them nevertheless, and nothing
//! prevents it, because each completion states whether it notifies.

use super::stream::Stream;
use crate::abi::common::*;
use crate::dapl::rules::Rules;
use crate::error::{Kind, Result};

/// The streams of an EVD, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct StreamCounts {
    /// All streams.
    all: usize,
    /// Streams of completions.
    completions: usize,
    /// Streams of completions with `DAT_COMPLETION_UNSIGNALLED_FLAG`, by which the consumer
    /// controls notification.
    unsignalled: usize,
    /// Streams of completions with `DAT_COMPLETION_SOLICITED_WAIT_FLAG`, by which the peer does.
    solicited: usize,
    /// Streams of completions made for waits with thresholds.
    threshold: usize,
}

impl StreamCounts {
    /// Whether no stream feeds the EVD.
    pub fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// Whether the consumer controls the notification of a stream.
    pub fn are_controlled(&self) -> bool {
        self.control() != 0
    }

    /// The union of the flags by which the consumer controls the notification of the streams.
    fn control(&self) -> DAT_COMPLETION_FLAGS {
        let flag = |count, flag| if count > 0 { flag } else { 0 };
        flag(self.unsignalled, DAT_COMPLETION_UNSIGNALLED_FLAG)
            | flag(self.solicited, DAT_COMPLETION_SOLICITED_WAIT_FLAG)
    }

    /// `DAT_EVD_STATE_CONFIG_*`. The values overlap: programs compare under the mask of all
    /// three. If several apply it is the one under which the fewest events wake a waiter.
    pub fn config(&self) -> DAT_EVD_STATE {
        if self.threshold > 0 {
            DAT_EVD_STATE_CONFIG_THRESHOLD
        } else if self.unsignalled > 0 {
            DAT_EVD_STATE_CONFIG_NOTIFY
        } else if self.solicited > 0 {
            DAT_EVD_STATE_CONFIG_SOLICITED
        } else {
            0
        }
    }

    /// Counts a stream.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` if the rules of the man pages hold, and the notification control of
    /// the streams would differ; nothing has changed then.
    pub fn add(&mut self, stream: Stream, rules: Rules) -> Result<()> {
        if rules.are_pages() && !self.agree(stream) {
            return Err(Kind::InvalidParameter.into());
        }
        self.count(stream, |count| *count += 1);
        Ok(())
    }

    /// Removes a stream from the counts.
    pub fn remove(&mut self, stream: Stream) {
        self.count(stream, |count| *count -= 1);
    }

    /// Replaces a stream by another.
    ///
    /// # Errors
    /// As [`StreamCounts::add`].
    pub fn exchange(&mut self, from: Stream, to: Stream, rules: Rules) -> Result<()> {
        let mut others = *self;
        others.remove(from);
        others.add(to, rules)?;
        *self = others;
        Ok(())
    }

    /// Whether the stream may be added to the letter of `dat_ep_create`(3DAT).
    fn agree(&self, stream: Stream) -> bool {
        const CONTROL: DAT_COMPLETION_FLAGS =
            DAT_COMPLETION_UNSIGNALLED_FLAG | DAT_COMPLETION_SOLICITED_WAIT_FLAG;
        match stream.flags().map(|flags| flags & CONTROL) {
            Some(control) => {
                let same = self.completions == 0 || control == self.control();
                same && (control == 0 || self.all == self.completions)
            }
            None => !self.are_controlled(),
        }
    }

    fn count(&mut self, stream: Stream, mut change: impl FnMut(&mut usize)) {
        change(&mut self.all);
        let Some(flags) = stream.flags() else { return };
        change(&mut self.completions);
        for (count, flag) in [
            (&mut self.unsignalled, DAT_COMPLETION_UNSIGNALLED_FLAG),
            (&mut self.solicited, DAT_COMPLETION_SOLICITED_WAIT_FLAG),
            (&mut self.threshold, DAT_COMPLETION_EVD_THRESHOLD_FLAG),
        ] {
            if flags & flag != 0 {
                change(count);
            }
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

    /// Whether all these streams may feed one EVD.
    fn may(streams: &[Stream], rules: Rules) -> bool {
        let mut counts = StreamCounts::default();
        let all = streams.iter().all(|s| counts.add(*s, rules).is_ok());
        if all {
            streams.iter().for_each(|s| counts.remove(*s));
            assert_eq!(counts, StreamCounts::default());
        }
        all
    }

    #[test]
    fn what_the_pages_refuse() {
        for streams in [
            [Stream::Send(UNSIGNALLED), Stream::Recv(DEFAULT)],
            [Stream::Recv(DEFAULT), Stream::Send(UNSIGNALLED)],
            [Stream::Send(UNSIGNALLED), Stream::Recv(SOLICITED)],
            [Stream::Recv(SOLICITED), Stream::Send(DEFAULT)],
            [Stream::Recv(SOLICITED), Stream::Connection],
            [Stream::Connection, Stream::Send(UNSIGNALLED)],
            [Stream::Request, Stream::Recv(UNSIGNALLED)],
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
            [Stream::Send(SOLICITED), Stream::Recv(DEFAULT)],
            [Stream::Async, Stream::Request],
        ] {
            assert!(may(&streams, Rules::Pages), "{streams:?}");
            assert!(may(&streams, Rules::Programs), "{streams:?}");
        }
    }

    #[test]
    fn an_exchange_changes_all_or_nothing() {
        let mut streams = StreamCounts::default();
        streams.add(Stream::Recv(DEFAULT), Rules::Pages).unwrap();
        streams.add(Stream::Send(DEFAULT), Rules::Pages).unwrap();
        let before = streams;
        let (from, to) = (Stream::Send(DEFAULT), Stream::Send(UNSIGNALLED));
        assert!(streams.exchange(from, to, Rules::Pages).is_err());
        assert_eq!(streams, before);
        assert_eq!(streams.config(), 0);
        streams.exchange(from, to, Rules::Programs).unwrap();
        assert_eq!(streams.config(), DAT_EVD_STATE_CONFIG_NOTIFY);
        assert!(streams.are_controlled());
    }
}
