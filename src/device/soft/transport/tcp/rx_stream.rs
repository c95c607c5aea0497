//! Whether a peer sends a stream: much, to which this end answers nothing.
//!
//! Each read of a socket takes the lock of the connection in the kernel, for which the sender waits to
//! append to the stream. An end that polls and has read all that there is in the midst of a long message leaves
//! the socket alone for some microseconds, and finds more when it reads again: fewer reads, each of more bytes.
//! Messages to which this end answers are not delayed: their sender waits for that.

/// So many bytes without an answer are a stream. In simulations, whose messages are short, all limits are
/// lower.
const STREAM: u64 = if cfg!(dat_sim) { 512 } else { 2 * 1024 * 1024 };

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StreamWatch {
    /// Bytes of payloads that have arrived since this end last posted a request.
    bytes: u64,
    /// The number of the next request of this end at that time.
    next_request: u64,
}

impl StreamWatch {
    /// A payload of so many bytes has arrived; the next request of this end has that number.
    #[inline]
    pub fn arrived(&mut self, len: usize, next_request: u64) {
        if self.next_request != next_request {
            self.next_request = next_request;
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(len as u64);
    }

    /// Whether the peer sends a stream.
    pub fn runs(&self) -> bool {
        self.bytes >= STREAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_a_stream() {
        let mut watch = StreamWatch::default();
        let part = STREAM as usize / 4;
        for _ in 0..3 {
            watch.arrived(part, 7);
            assert!(!watch.runs());
        }
        watch.arrived(part, 7);
        assert!(watch.runs());
        watch.arrived(part, 7);
        assert!(watch.runs());
        watch.arrived(part, 8);
        assert!(!watch.runs());
    }
}
