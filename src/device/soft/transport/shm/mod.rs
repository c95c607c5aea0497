//! The shared-memory transport, between two processes of one host: rings in memory that both have
//! mapped, and copies by the kernel from one process to the other.
//!
//! # Setup of a connection
//!
//! A process that listens on a port also listens on a local socket with the name of the port
//! ([`socket`]). An initiator tries that socket first. Over the local socket the two processes
//! verify that the kernel permits each of them to access the memory of the other, and only then
//! send each other the files of the memory that they share, with no more rights than necessary
//! ([`handshake`]). The request and reply follow that TCP has as well, so private data, rejects,
//! timeouts and connection qualifiers are the same. If one of these steps fails (the peer is of
//! another user or in another container, the kernel is too old, a limit is reached), the
//! connection is made over TCP. Over TCP the protocol is plain iWARP in any case.
//!
//! # Messages
//!
//! Each direction has a ring of cells and one of data bytes ([`ring`]). A short message is one
//! cache line; a long one is cut into chunks, and the receiver copies one chunk while the sender
//! copies the next. The receiver copies straight into the posted buffers, and consumes nothing
//! while no receive is posted: then the rings fill up and the sender waits, which is all the flow
//! control there is. A send of less than 16 KiB is complete when it is in the rings, a longer one when it is
//! in its receive.
//!
//! A message of 16 KiB or more need not be copied into the ring: which way is faster is measured
//! ([`choice`]). It may be offered instead ([`bulk`]): its cell says where the message is in the memory of
//! the sender, and the receiver copies it from there as an RDMA read does, by the keys of the sender. The
//! receiver names the place of the second half, which a sender that polls copies there meanwhile
//! ([`offer`]).
//!
//! # Atomic operations and immediate data
//!
//! The process that has the memory executes an atomic operation, which it finds in a cell; the number
//! of an RDMA write with immediate data follows the data in a cell, and takes a receive ([`atomics`]).
//!
//! # One-sided operations
//!
//! The kernel copies the data for the initiator ([`one_sided`], [`cma`], [`process_file`]); the program of the target
//! need not run.
//! Short writes that are posted one right after the other share a system call ([`coalesced_writes`]). To a peer
//! that polls short writes go through the ring, and the peer executes them ([`ring_writes`], [`write_claim`]).
//! The target publishes its keys in shared memory ([`exported_keys`], with the same entries as its
//! own table), and the initiator checks them. [`remote_keys`] has the protocol by which a key is
//! revoked while an initiator may be copying. If the target keeps its registered memory in a file
//! ([`mod@mapped`]), the initiator maps the file ([`peer_map`]), and copies by itself. A region that
//! initiators use much may move to that file meanwhile: they count what the kernel copies
//! ([`kernel_copies`]), and ask the target to move the region ([`mapped::promotion`]). Copies by the kernel wait
//! for pages that move ([`moving_pages`]).
//!
//! # Notification
//!
//! An end that sleeps arms its doorbell ([`doorbell`]) and polls once more; a peer that has done
//! something finds the doorbell armed and writes a byte to the local socket, which wakes the engine
//! of the device. While a consumer polls there are no doorbells: it polls the rings itself
//! ([`poll_set`](crate::device::soft::engine::poll_set)). A process with many connections has its
//! peers set bits in a [`ready_bitmap`](crate::device::soft::engine::ready_bitmap), and polls that.
//!
//! # End of a connection
//!
//! An end reports in its [`EndState`](segment::EndState) how it ends the connection. After a
//! graceful end it sends nothing more, wakes the peer and keeps the local socket open, until the
//! peer has received what is left in the ring, has read the state and has closed the socket. After
//! an abrupt end, or an error, the end closes the socket, and the peer delivers the messages for
//! which it has receives. A process that dies closes the socket without a state: the connection is
//! broken.
//!
//! # What is not trusted
//!
//! The peer can change everything in shared memory at any time. A value is read once and checked; a
//! wrong one can end the connection, and no more. The files are sealed against shrinking, so that
//! mapped memory does not vanish, and those that a peer need not write are sealed against writing.
//! A peer that may access memory is a process of the same user that could write to our memory
//! anyway: the keys keep it from mistakes, as those of a hardware device do.

pub mod atomic_response;
mod atomics;
mod bulk;
pub(super) mod challenge;
mod choice;
pub(super) mod close_reason;
pub(crate) mod cma;
mod coalesced_writes;
pub(crate) mod conn;
mod copy_waits;
pub(crate) mod data;
pub mod doorbell;
pub(crate) mod exported_keys;
mod exporter;
pub(crate) mod grant;
pub(crate) mod handshake;
mod kernel_copies;
pub mod mapped;
pub(crate) mod memfd;
pub mod moving_pages;
pub(crate) mod notify;
pub mod offer;
mod one_sided;
pub(crate) mod peer;
pub(super) mod peer_map;
mod presence;
mod process_file;
pub(super) mod ready_bitmap_file;
pub mod remote_keys;
pub mod ring;
mod ring_writes;
pub(crate) mod segment;
pub(crate) mod socket;
pub(super) mod verifier;
pub mod write_claim;
mod yama;

pub(super) use self::close_reason::CloseReason;
pub(super) use self::conn::{Budget, ShmConn, ShmTarget};
#[cfg(test)]
pub(in crate::device::soft) use self::copy_waits::abandoned;
pub(crate) use self::exporter::ShmExporter;
pub(crate) use self::grant::AccessGrant;
pub(crate) use self::handshake::{
    ActiveHandshake, EndAddresses, Incomplete, NO_ANSWER, PEER_GONE, PassiveHandshake, Purpose,
    ShmRefusal,
};
pub(crate) use self::presence::PRESENCE;
#[cfg(test)]
pub(crate) use self::ready_bitmap_file::corrupt_bitmaps;
#[cfg(test)]
pub(in crate::device::soft) use self::ready_bitmap_file::own_moving;
pub(crate) use self::ready_bitmap_file::take as take_bitmap;
#[cfg(test)]
pub(crate) use self::segment::layout as segment_layout;
pub(crate) use self::segment::{EndPhase, NO_CELL, SharedSegment};
pub(crate) use self::socket::{BUSY, connect, is_same_user, listen, send_now};
pub(crate) use self::yama::permit_peers;
