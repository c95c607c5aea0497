//! What feeds an EVD, and whether several streams may feed the same one.
//!
//! To the letter of `dat_ep_create`(3DAT) they may not if the consumer controls the notification
//! of one of them and not of all in the same way. Programs mix them all the same. Nothing stands
//! against it: each completion knows whether it notifies.

use crate::abi::common::*;
use crate::dapl::rules::Rules;
use crate::error::{Kind, Result, Subtype};

/// Something that feeds an EVD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Requests that arrive at a service point.
    Request,
    /// Connection events of an endpoint.
    Connection,
    /// Receive completions of an endpoint with these completion flags.
    Recv(DAT_COMPLETION_FLAGS),
    /// Request completions of an endpoint with these completion flags.
    Send(DAT_COMPLETION_FLAGS),
    /// Asynchronous errors of an IA.
    Async,
}

impl Stream {
    /// The flag an EVD needs for it, and the subtype of the error when it lacks it.
    pub(super) fn needs(self) -> (DAT_EVD_FLAGS, Subtype) {
        match self {
            Stream::Request => (DAT_EVD_CR_FLAG, Subtype::HandleEvdCr),
            Stream::Connection => (DAT_EVD_CONNECTION_FLAG, Subtype::HandleEvdConn),
            Stream::Recv(_) => (DAT_EVD_DTO_FLAG, Subtype::HandleEvdRecv),
            Stream::Send(_) => (DAT_EVD_DTO_FLAG, Subtype::HandleEvdRequest),
            Stream::Async => (DAT_EVD_ASYNC_FLAG, Subtype::HandleEvdAsync),
        }
    }

    /// Subtype of `DAT_INVALID_HANDLE` for an EVD that cannot take the stream.
    pub(in crate::dapl) fn invalid(self) -> Subtype {
        self.needs().1
    }

    /// The completion flags of an endpoint's completions; `None` for other streams.
    fn flags(self) -> Option<DAT_COMPLETION_FLAGS> {
        match self {
            // What a sender solicits is told at the other end: see `EpAttr::check`.
            Stream::Send(flags) => Some(flags & !DAT_COMPLETION_SOLICITED_WAIT_FLAG),
            Stream::Recv(flags) => Some(flags),
            _ => None,
        }
    }
}

/// The streams of an EVD, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Feeds {
    all: usize,
    /// Those that are completions.
    completions: usize,
    /// Those of them whose flags let the consumer control notification.
    unsignalled: usize,
    solicited: usize,
    /// Those of them that were made for waits with thresholds.
    threshold: usize,
}

impl Feeds {
    /// Nothing feeds the EVD.
    pub fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// The consumer controls notification of some stream.
    pub fn are_controlled(&self) -> bool {
        self.control() != 0
    }

    /// The flags by which the consumer controls notification, of all streams.
    fn control(&self) -> DAT_COMPLETION_FLAGS {
        let flag = |count, flag| if count > 0 { flag } else { 0 };
        flag(self.unsignalled, DAT_COMPLETION_UNSIGNALLED_FLAG)
            | flag(self.solicited, DAT_COMPLETION_SOLICITED_WAIT_FLAG)
    }

    /// `DAT_EVD_STATE_CONFIG_*`. The values overlap: programs compare under the mask of all
    /// three. Of several the one counts of which the consumer has to know most, since fewer
    /// events wake it than it may think.
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
    /// `DAT_INVALID_PARAMETER` where the man pages hold, and the notification control of the
    /// streams would not agree; nothing has changed then.
    pub fn add(&mut self, stream: Stream, rules: Rules) -> Result<()> {
        if rules.are_pages() && !self.agree(stream) {
            return Err(Kind::InvalidParameter.into());
        }
        self.count(stream, |count| *count += 1);
        Ok(())
    }

    /// Ceases to count a stream.
    pub fn remove(&mut self, stream: Stream) {
        self.count(stream, |count| *count -= 1);
    }

    /// Puts a stream in the place of another.
    ///
    /// # Errors
    /// As [`Feeds::add`].
    pub fn exchange(&mut self, from: Stream, to: Stream, rules: Rules) -> Result<()> {
        let mut others = *self;
        others.remove(from);
        others.add(to, rules)?;
        *self = others;
        Ok(())
    }

    /// The letter of `dat_ep_create`(3DAT).
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

    /// Whether all of them may feed one EVD.
    fn may(streams: &[Stream], rules: Rules) -> bool {
        let mut feeds = Feeds::default();
        let all = streams.iter().all(|s| feeds.add(*s, rules).is_ok());
        if all {
            streams.iter().for_each(|s| feeds.remove(*s));
            assert_eq!(feeds, Feeds::default());
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
    fn what_nobody_refuses() {
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
        let mut feeds = Feeds::default();
        feeds.add(Stream::Recv(DEFAULT), Rules::Pages).unwrap();
        feeds.add(Stream::Send(DEFAULT), Rules::Pages).unwrap();
        let before = feeds;
        let (from, to) = (Stream::Send(DEFAULT), Stream::Send(UNSIGNALLED));
        assert!(feeds.exchange(from, to, Rules::Pages).is_err());
        assert_eq!(feeds, before);
        assert_eq!(feeds.config(), 0);
        feeds.exchange(from, to, Rules::Programs).unwrap();
        assert_eq!(feeds.config(), DAT_EVD_STATE_CONFIG_NOTIFY);
        assert!(feeds.are_controlled());
    }
}
