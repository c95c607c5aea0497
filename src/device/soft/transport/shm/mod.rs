//! Two processes of one host: rings in memory that both have mapped, and the kernel's copy
//! between them.
//!
//! # Finding each other
//!
//! Whoever listens on a port also listens on a name in the abstract socket namespace that says
//! the port ([`socket`]). The initiator tries the name first. Over the local socket the two prove
//! to each other that the kernel lets them reach each other's memory ([`handshake`]), and only then
//! pass the files of what they share, with no more rights than the other side needs. Then come
//! the request and the reply that TCP has as well, so private data, rejects, timeouts and
//! qualifiers are what they are there. Where one of these steps fails (another user, another
//! container, an older kernel, a limit) there is TCP. What goes over TCP is plain iWARP in any
//! case.
//!
//! # Messages
//!
//! Each direction has a ring of cells and one of bytes ([`ring`]). A short message is one cache
//! line; a long one is cut into chunks that the receiver takes while the sender copies the next.
//! The receiver copies straight into the posted buffer, and takes nothing while there is none:
//! then the rings fill up and the sender waits, which is all the flow control there is. A send
//! is complete when it is in the rings, as over TCP, where it is in the socket.
//!
//! # One-sided operations
//!
//! The initiator has the kernel move the data ([`cma`]); the target's program need not run.
//! The target publishes its keys in shared
//! memory ([`exported_keys`], the same slots as in its own table), and the initiator judges by them.
//! How a key is taken away while somebody may be copying is the matter of [`remote_keys`]. If the
//! target keeps its registered memory in a file ([`mapped`]), the initiator has that mapped
//! ([`peer_map`]), and copies by itself.
//!
//! # Waiting
//!
//! A side that sleeps says so in its bell ([`doorbell`]) and looks once more; whoever has
//! something for it sees that and writes a byte to the local socket, which wakes the engine of
//! the device. While a consumer polls there are no bells: it looks at the rings itself
//! ([`poll_set`](crate::device::soft::engine::poll_set)). Who has many connections has them marked on a [`ready_bitmap`](crate::device::soft::engine::ready_bitmap) and looks
//! at that.
//!
//! # Ends
//!
//! A side says in its half of the shared memory how it ends the connection. After a graceful end
//! it sends nothing more, wakes the peer and keeps the local socket, until the peer has received
//! what is left in the ring, sees the word and closes the socket. After an abrupt end, or a
//! failure, it closes the socket, and the peer receives what has a receive. A process that dies
//! closes the socket without a word: the connection is broken.
//!
//! # What is not trusted
//!
//! Everything in shared memory is the other side's to change. It is read once and judged; the
//! worst that a wrong value does is to end the connection. The files are sealed, so that memory
//! does not vanish under us, and those that a peer need not write against its writing. A peer that may be reached is one of the same user that could
//! write to our memory anyway: the keys keep it from mistakes, as those of a device do.

pub(super) mod challenge;
pub(super) mod close_reason;
pub(crate) mod cma;
pub(crate) mod conn;
pub(crate) mod data;
pub mod doorbell;
pub(crate) mod exported_keys;
mod exporter;
pub(crate) mod grant;
pub(crate) mod handshake;
pub(crate) mod mapped;
pub(crate) mod memfd;
pub(crate) mod peer;
pub(super) mod peer_map;
pub(super) mod poll_target;
pub(super) mod ready_bitmap_file;
pub mod remote_keys;
pub mod ring;
pub(crate) mod segment;
pub(crate) mod socket;
pub(super) mod verifier;

pub(crate) use self::conn::{
    ShmConn, execute, fail, posted_recv, posted_send, start_receiving, tear,
};
pub(crate) use self::exporter::ShmExporter;
pub(crate) use self::grant::AccessGrant;
pub(crate) use self::handshake::{
    ActiveHandshake, EndAddresses, Incomplete, PassiveHandshake, ShmRefusal,
};
#[cfg(test)]
pub(crate) use self::ready_bitmap_file::spoil;
pub(crate) use self::ready_bitmap_file::take as take_bitmap;
#[cfg(test)]
pub(crate) use self::segment::EndPhase;
pub(crate) use self::segment::SharedSegment;
pub(crate) use self::socket::{call, is_same_user, listen};
