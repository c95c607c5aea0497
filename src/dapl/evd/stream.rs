//! The streams that feed an EVD, and their uses of it.

use std::sync::Arc;

use super::Evd;
use crate::abi::common::*;
use crate::dapl::ia::Ia;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};

/// A source of events that feeds an EVD.
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
    /// The flag that an EVD must have for the stream, and the subtype of the error if it has not.
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
    pub(super) fn flags(self) -> Option<DAT_COMPLETION_FLAGS> {
        match self {
            // What a sender solicits notifies the peer: see `REQUEST_ATTR_FLAGS`.
            Stream::Send(flags) => Some(flags & !DAT_COMPLETION_SOLICITED_WAIT_FLAG),
            Stream::Recv(flags) => Some(flags),
            _ => None,
        }
    }
}

/// A stream into an EVD. Dropping it ends the stream.
pub(in crate::dapl) struct EvdUse<D: Device> {
    evd: Arc<Evd<D>>,
    stream: Stream,
}

impl<D: Device> EvdUse<D> {
    /// Begins a stream of an object of this IA.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` for an EVD of another IA, and those of [`Evd::attach`].
    pub fn begin(ia: &Arc<Ia<D>>, evd: Arc<Evd<D>>, stream: Stream) -> Result<Self> {
        // Completions come from a queue of the device instance. Connection events are ours: no
        // man page binds their EVD to the same open of the IA, and programs with several share
        // one.
        if stream != Stream::Connection && !evd.is_of(ia) {
            return Err(Error::handle(stream.invalid()));
        }
        evd.attach(stream)?;
        Ok(EvdUse { evd, stream })
    }

    /// The EVD.
    pub fn evd(&self) -> &Arc<Evd<D>> {
        &self.evd
    }
}

impl<D: Device> Drop for EvdUse<D> {
    fn drop(&mut self) {
        self.evd.detach(self.stream);
    }
}

/// Other completion flags for a stream into an EVD. Dropping it before [`Exchange::commit`]
/// restores the flags of before.
pub(in crate::dapl) struct Exchange<D: Device> {
    evd: Arc<Evd<D>>,
    from: Stream,
    to: Stream,
    done: bool,
}

impl<D: Device> Exchange<D> {
    /// Begins the exchange, if there is an EVD and its stream is another.
    ///
    /// # Errors
    /// As [`Evd::exchange`].
    pub fn begin(evd: Option<&EvdUse<D>>, to: Stream) -> Result<Option<Self>> {
        let Some(evd) = evd.filter(|u| u.stream != to) else {
            return Ok(None);
        };
        evd.evd.exchange(evd.stream, to)?;
        Ok(Some(Exchange {
            evd: evd.evd.clone(),
            from: evd.stream,
            to,
            done: false,
        }))
    }

    /// Makes the exchange permanent in `evd`, the use that it was begun with.
    pub fn commit(mut self, evd: &mut Option<EvdUse<D>>) {
        self.done = true;
        if let Some(evd) = evd {
            evd.stream = self.to;
        }
    }
}

impl<D: Device> Drop for Exchange<D> {
    fn drop(&mut self) {
        if !self.done {
            // The flags of before agreed with the other streams.
            let _ = self.evd.exchange(self.to, self.from);
        }
    }
}
