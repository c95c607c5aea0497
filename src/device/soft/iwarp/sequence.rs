//! The sequence numbers of untagged messages (RFC 5041 section 5), and what follows what.

use super::rdmap::Segment;
use super::wire::WireError;

/// What must arrive next on the untagged queues of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxSequence {
    send_msn: u32,
    send_mo: u32,
    /// Solicited and invalidate of the Send whose segments are arriving.
    open_send: Option<(bool, Option<u32>)>,
    /// Of Read Requests and Atomic Requests.
    read_msn: u32,
    atomic_response_msn: u32,
    acknowledge_msn: u32,
    /// Bytes of the RDMA Write whose Immediate Data follows, and whether its last segment was there.
    open_write: Option<(u32, bool)>,
}

/// The first sequence number of each queue (RFC 5041 section 5.1).
const FIRST_MSN: u32 = 1;

impl RxSequence {
    /// At the start of a connection.
    pub const fn new() -> Self {
        Self {
            send_msn: FIRST_MSN,
            send_mo: 0,
            open_send: None,
            read_msn: FIRST_MSN,
            atomic_response_msn: FIRST_MSN,
            acknowledge_msn: FIRST_MSN,
            open_write: None,
        }
    }

    /// Whether the next Send segment starts a message, that is, takes a receive buffer.
    pub const fn at_message_start(&self) -> bool {
        self.open_send.is_none()
    }

    /// Checks that `segment` is the next of its queue, and moves on. TCP delivers in order,
    /// and segments of one queue are not interleaved (RFC 5041 section 5), so anything else
    /// is a violation. Tagged segments have no sequence, but for the RDMA Write that Immediate Data
    /// belongs to.
    ///
    /// # Errors
    /// [`WireError::DDP_MSN`], [`WireError::DDP_MO`]; [`WireError::RDMAP_OPCODE`] if segments
    /// of one Send differ in kind, or another request comes between an RDMA Write and its Immediate
    /// Data.
    #[inline]
    pub fn accept(&mut self, segment: &Segment, payload_len: usize) -> Result<(), WireError> {
        if self.open_write.is_some() && segment.is_request() {
            self.check_open_write(segment)?;
        }
        match *segment {
            Segment::Write {
                immediate: true,
                last,
                ..
            } => {
                let (before, _) = self.open_write.unwrap_or_default();
                let written = u32::try_from(payload_len)
                    .ok()
                    .and_then(|len| before.checked_add(len));
                self.open_write = Some((written.ok_or(WireError::RDMAP_STREAM)?, last));
            }
            Segment::Write { .. } | Segment::ReadResponse { .. } => {}
            Segment::Send {
                msn,
                mo,
                last,
                solicited,
                invalidate,
            } => {
                let kind = (solicited, invalidate);
                if msn != self.send_msn {
                    return Err(WireError::DDP_MSN);
                }
                if mo != self.send_mo {
                    return Err(WireError::DDP_MO);
                }
                if self.open_send.is_some_and(|open| open != kind) {
                    return Err(WireError::RDMAP_OPCODE);
                }
                if last {
                    self.open_send = None;
                    self.send_msn = msn.wrapping_add(1);
                    self.send_mo = 0;
                } else {
                    self.open_send = Some(kind);
                    self.send_mo = mo.wrapping_add(payload_len as u32);
                }
            }
            Segment::Immediate { msn, .. } => {
                if msn != self.send_msn {
                    return Err(WireError::DDP_MSN);
                }
                if self.open_send.is_some() {
                    return Err(WireError::RDMAP_OPCODE);
                }
                self.send_msn = msn.wrapping_add(1);
            }
            Segment::ReadRequest { msn } | Segment::AtomicRequest { msn } => {
                if msn != self.read_msn {
                    return Err(WireError::DDP_MSN);
                }
                self.read_msn = self.read_msn.wrapping_add(1);
            }
            Segment::AtomicResponse { msn } => {
                if msn != self.atomic_response_msn {
                    return Err(WireError::DDP_MSN);
                }
                self.atomic_response_msn = msn.wrapping_add(1);
            }
            Segment::Terminate { msn } => {
                if msn != FIRST_MSN {
                    return Err(WireError::DDP_MSN);
                }
            }
            Segment::Acknowledge { msn } => {
                if msn != self.acknowledge_msn {
                    return Err(WireError::DDP_MSN);
                }
                self.acknowledge_msn = self.acknowledge_msn.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Only the rest of the RDMA Write, or its Immediate Data when that is complete, may follow.
    #[cold]
    fn check_open_write(&self, segment: &Segment) -> Result<(), WireError> {
        let is_complete = self.open_write.is_some_and(|(_, last)| last);
        match segment {
            Segment::Write { immediate, .. } if *immediate && !is_complete => Ok(()),
            Segment::Immediate { .. } if is_complete => Ok(()),
            _ => Err(WireError::RDMAP_OPCODE),
        }
    }

    /// Ends the request of an RDMA Write with Immediate Data, which was accepted and says how many bytes
    /// the RDMA Write has.
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it has another number of bytes.
    pub fn end_write(&mut self, written: u32) -> Result<(), WireError> {
        let (found, _) = self.open_write.take().unwrap_or_default();
        if found == written {
            Ok(())
        } else {
            Err(WireError::RDMAP_STREAM)
        }
    }
}

impl Default for RxSequence {
    fn default() -> Self {
        Self::new()
    }
}

/// The sequence numbers to give out on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxSequence {
    send_msn: u32,
    /// Of Read Requests and Atomic Requests.
    read_msn: u32,
    atomic_response_msn: u32,
    acknowledge_msn: u32,
}

impl TxSequence {
    /// At the start of a connection.
    pub const fn new() -> Self {
        Self {
            send_msn: FIRST_MSN,
            read_msn: FIRST_MSN,
            atomic_response_msn: FIRST_MSN,
            acknowledge_msn: FIRST_MSN,
        }
    }

    /// The number of the next acknowledgement.
    pub const fn next_acknowledgement(&mut self) -> u32 {
        let msn = self.acknowledge_msn;
        self.acknowledge_msn = msn.wrapping_add(1);
        msn
    }

    /// The number of the next Send, whose segments all carry it, or Immediate Data.
    pub const fn next_send(&mut self) -> u32 {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        msn
    }

    /// The number of the next Read Request or Atomic Request.
    pub const fn next_read(&mut self) -> u32 {
        let msn = self.read_msn;
        self.read_msn = msn.wrapping_add(1);
        msn
    }

    /// The number of the next Atomic Response.
    pub const fn next_atomic_response(&mut self) -> u32 {
        let msn = self.atomic_response_msn;
        self.atomic_response_msn = msn.wrapping_add(1);
        msn
    }
}

impl Default for TxSequence {
    fn default() -> Self {
        Self::new()
    }
}
