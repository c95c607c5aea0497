//! iWARP over TCP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040, RFC 7306).
//!
//! This is the wire alone, without I/O, threads or allocation. From the socket up:
//!
//! 1. [`mpa`] builds and parses the two negotiation frames that precede everything else and
//!    says what was agreed ([`mpa::Agreed`]).
//! 2. [`fpdu`] frames: a header into a caller's array, a trailer behind the payload
//!    ([`fpdu::seal`]), and back ([`fpdu::decode`], or [`fpdu::peek`] to read payload
//!    directly into its destination). [`crc::Crc`] is the running CRC32C.
//! 3. [`rdmap`] gives a received segment its meaning ([`rdmap::Segment`]); [`sequence`] holds the
//!    sequence numbers of both directions.
//! 4. [`acknowledge`] is an extension of our own: which requests the peer has finished.
//! 5. [`extensions`] has the messages of RFC 7306: Atomic Operations and Immediate Data.
//! 6. [`terminate`] builds and reads the message that ends a connection in error.
//!
//! [`wire`] holds the structures and numbers of all of them. Errors are [`wire::WireError`]:
//! the triple that the Terminate message carries.

pub mod acknowledge;
pub mod crc;
pub mod extensions;
pub mod fpdu;
pub mod mpa;
pub mod rdmap;
pub mod sequence;
pub mod terminate;
pub mod wire;

#[cfg(test)]
mod tests;
