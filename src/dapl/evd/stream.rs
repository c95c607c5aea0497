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
}

/// A stream into an EVD. Dropping it ends the stream.
pub(in crate::dapl) struct EvdUse<D: Device> {
    evd: Arc<Evd<D>>,
    stream: Stream,
    /// Whether the EVD still counts the stream.
    counted: bool,
}

impl<D: Device> EvdUse<D> {
    /// Begins a stream of an object of this IA.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` for an EVD of another IA, and those of [`Evd::attach`].
    pub fn begin(ia: &Arc<Ia<D>>, evd: Arc<Evd<D>>, stream: Stream) -> Result<Self> {
        check_ia(ia, &evd, stream)?;
        evd.attach(stream)?;
        Ok(EvdUse {
            evd,
            stream,
            counted: true,
        })
    }

    /// The EVD.
    pub fn evd(&self) -> &Arc<Evd<D>> {
        &self.evd
    }
}

impl<D: Device> Drop for EvdUse<D> {
    fn drop(&mut self) {
        if self.counted {
            self.evd.detach(self.stream);
        }
    }
}

/// Refuses an EVD that is of another IA than the stream. Completions are in a queue of the device
/// instance. Connection events are ours: no man page binds their EVD to the same open of the IA, and
/// programs with several share one.
fn check_ia<D: Device>(ia: &Arc<Ia<D>>, evd: &Evd<D>, stream: Stream) -> Result<()> {
    if stream != Stream::Connection && !evd.is_of(ia) {
        return Err(Error::handle(stream.invalid()));
    }
    Ok(())
}

/// A stream and the EVD that it feeds; `None` if it feeds none.
pub(in crate::dapl) type Feed<D> = Option<(Arc<Evd<D>>, Stream)>;

/// An EVD that streams have left, and others feed in their place.
struct ChangedEvd<D: Device> {
    evd: Arc<Evd<D>>,
    left: Vec<Stream>,
    began: Vec<Stream>,
}

/// A change of streams of an endpoint into other EVDs, with other completion flags, or both. What
/// counts is whether the streams may share their EVDs after the change. Dropping it before
/// [`StreamChange::commit`] restores the streams of before.
pub(in crate::dapl) struct StreamChange<'a, D: Device> {
    /// The uses before the change, and the streams after it.
    feeds: Vec<(&'a mut Option<EvdUse<D>>, Feed<D>)>,
    /// The EVDs that have the change.
    changed: Vec<ChangedEvd<D>>,
}

impl<'a, D: Device> StreamChange<'a, D> {
    /// Begins the change of the streams of an object of this IA.
    ///
    /// # Errors
    /// As [`EvdUse::begin`], for the streams after the change; nothing has changed then.
    pub fn begin(
        ia: &Arc<Ia<D>>,
        feeds: Vec<(&'a mut Option<EvdUse<D>>, Feed<D>)>,
    ) -> Result<Self> {
        let mut evds: Vec<Arc<Evd<D>>> = Vec::new();
        for (before, after) in &feeds {
            if let Some((evd, stream)) = after {
                check_ia(ia, evd, *stream)?;
            }
            let before = before.as_ref().map(|u| &u.evd);
            for evd in before.into_iter().chain(after.as_ref().map(|(evd, _)| evd)) {
                if !evds.iter().any(|known| Arc::ptr_eq(known, evd)) {
                    evds.push(evd.clone());
                }
            }
        }
        let mut change = StreamChange {
            feeds,
            changed: Vec::new(),
        };
        for evd in evds {
            let (mut left, mut began) = (Vec::new(), Vec::new());
            for (before, after) in &change.feeds {
                let before = before.as_ref().filter(|u| Arc::ptr_eq(&u.evd, &evd));
                let after = after.as_ref().filter(|(other, _)| Arc::ptr_eq(other, &evd));
                left.extend(before.map(|u| u.stream));
                began.extend(after.map(|(_, stream)| *stream));
            }
            evd.replace(&left, &began)?;
            change.changed.push(ChangedEvd { evd, left, began });
        }
        Ok(change)
    }

    /// Makes the change permanent.
    pub fn commit(mut self) {
        self.changed.clear();
        for (place, after) in self.feeds.drain(..) {
            if let Some(before) = place {
                before.counted = false;
            }
            *place = after.map(|(evd, stream)| EvdUse {
                evd,
                stream,
                counted: true,
            });
        }
    }
}

impl<D: Device> Drop for StreamChange<'_, D> {
    fn drop(&mut self) {
        for ChangedEvd { evd, left, began } in self.changed.drain(..) {
            evd.restore(&began, &left);
        }
    }
}
