//! How a connection over TCP ends: which request failed, what the peer is sent of that, and the end of
//! the stream.

use super::close_reason::CloseReason;
use super::conn::TcpConn;
use super::linger::{self, End};
use crate::device::WcStatus;
use crate::device::soft::iwarp::fpdu::Header;
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX, Terminate};
use crate::device::soft::iwarp::wire::{
    LAYER_DDP, LAYER_RDMAP, OP_ATOMIC_REQUEST, OP_ATOMIC_RESPONSE, OP_READ_REQUEST,
    OP_READ_RESPONSE, WireError,
};
use crate::device::soft::qp::state::QpState;
use crate::device::soft::transport::lifecycle::{Connection, Lifecycle, Overdue};

impl TcpConn {
    /// Which of our requests a Terminate of the peer is about.
    fn blame(&self, terminate: &Terminate) -> Option<(u64, WcStatus)> {
        let error = terminate.error;
        let protection = matches!(error.layer, LAYER_RDMAP | LAYER_DDP) && error.etype == 1;
        let status = if protection {
            WcStatus::RemoteAccess
        } else {
            WcStatus::RemoteOperation
        };
        let reads = &self.tx.reads;
        let number = match &terminate.header {
            Some(Header::Untagged(header))
                if matches!(header.control.opcode(), OP_READ_REQUEST | OP_ATOMIC_REQUEST) =>
            {
                let named = reads.iter().find(|(_, msn)| *msn == header.msn);
                named.or(reads.front()).map(|(number, _)| *number)
            }
            Some(header)
                if matches!(
                    header.control().opcode(),
                    OP_READ_RESPONSE | OP_ATOMIC_RESPONSE
                ) =>
            {
                None
            }
            _ if self.acks.agreed => self.acks.refused,
            Some(_) => self.tx.current(),
            None if protection && error.layer == LAYER_RDMAP => {
                reads.front().map(|(number, _)| *number)
            }
            None => None,
        };
        number.map(|number| (number, status))
    }
}

impl Connection for TcpConn {
    type Reason = CloseReason;

    fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    fn overdue(what: Overdue) -> CloseReason {
        match what {
            Overdue::FirstMessage => CloseReason::Silent,
            Overdue::Receives => CloseReason::Late,
        }
    }

    fn failed_request(&self, _me: &QpState, reason: &CloseReason) -> Option<(u64, WcStatus)> {
        match reason {
            CloseReason::Request(number, status) => Some((*number, *status)),
            CloseReason::Response(number, ..) => Some((*number, WcStatus::BadResponse)),
            CloseReason::Terminated(terminate) => self.blame(terminate),
            _ => None,
        }
    }

    fn close(mut self, reason: &CloseReason) {
        if reason.is_bad_key()
            && let Some((address, bad_keys)) = &self.bad_keys
        {
            bad_keys.report(*address);
        }
        let (error, offending) = match reason {
            CloseReason::Late | CloseReason::NoMemory | CloseReason::Request(..) => {
                (WireError::RDMAP_CATASTROPHIC, None)
            }
            CloseReason::Protocol(error, offending)
            | CloseReason::Response(_, error, offending) => (*error, *offending),
            CloseReason::Closed
            | CloseReason::Lost
            | CloseReason::Socket(_)
            | CloseReason::Silent
            | CloseReason::Unresponsive(_)
            | CloseReason::Terminated(_) => return,
        };
        if !self.tx.closed {
            self.acks.put_last(self.crc, &mut self.tx);
            self.terminate(error, offending.as_ref().map_or(&[][..], |o| o));
        }
        let how = match reason {
            CloseReason::Late => End::Aborted,
            _ => End::Graceful,
        };
        self.end(how);
    }
}

impl TcpConn {
    /// The consumer has ended the connection at once.
    pub fn abort(mut self) {
        // A responder sends nothing before the first message of the initiator (RFC 5044 section 7.1.2), which is on its
        // way. Without the Terminate that peer would believe this process dead.
        let unheard = !self.tx.open && self.acks.agreed && !self.tx.has_pending();
        if (self.tx.open || unheard) && !self.tx.closed {
            self.count_finished();
            self.acks.put_last(self.crc, &mut self.tx);
            self.terminate(WireError::RDMAP_ABORTED, &[]);
        }
        let how = if self.lifecycle.is_closed() && self.tx.closed {
            End::Reset
        } else if unheard {
            End::Unheard
        } else {
            End::Aborted
        };
        self.end(how);
    }

    /// Queues a Terminate message (RFC 5040 section 4.8); `offending` is the header that it is
    /// about.
    fn terminate(&mut self, error: WireError, offending: &[u8]) {
        let mut bytes = [0; TERMINATE_FPDU_MAX];
        let bytes = terminate::encode(error, offending, self.crc, &mut bytes);
        self.tx.put(bytes);
    }

    /// Ends the stream, after what is begun has gone out whole.
    fn end(mut self, how: End) {
        let rest = if self.tx.closed {
            Vec::new()
        } else {
            self.tx.take_pending()
        };
        self.watch.set_owes_acknowledgement(false);
        linger::linger(self.watch, rest, how);
    }
}
