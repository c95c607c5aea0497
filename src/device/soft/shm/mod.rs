//! Two processes of one host: rings in memory that both have mapped, and the kernel's copy
//! between them.
//!
//! # Finding each other
//!
//! Whoever listens on a port also listens on a name in the abstract socket namespace that says
//! the port ([`door`]). The initiator tries the name first. Over the local socket the two prove
//! to each other that the kernel lets them reach each other's memory ([`greet`]), and only then
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
//! The initiator has the kernel move the data ([`foreign`]); the target's program need not run.
//! The target publishes its keys in shared
//! memory ([`published`], the same slots as in its own table), and the initiator judges by them.
//! How a key is taken away while somebody may be copying is the matter of [`table`]. If the
//! target keeps its registered memory in a file ([`share`]), the initiator has that mapped
//! ([`mirror`]), and copies by itself.
//!
//! # Waiting
//!
//! A side that sleeps says so in its bell ([`bell`]) and looks once more; whoever has
//! something for it sees that and writes a byte to the local socket, which wakes the engine of
//! the device. While a consumer polls there are no bells: it looks at the rings itself
//! ([`polled`](super::polled)). Who has many connections has them marked on a [`board`] and looks
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

pub mod bell;
pub mod board;
mod boards;
mod data;
mod door;
mod down;
mod foreign;
mod greet;
mod line;
mod memory;
mod mirror;
mod opened;
mod peer;
mod pipe;
mod probe;
pub(in crate::device::soft) mod published;
pub mod ring;
mod scout;
pub(in crate::device::soft) mod share;
pub mod table;
mod wire;

#[cfg(test)]
pub(in crate::device::soft) use boards::spoil;
pub(in crate::device::soft) use boards::{Board, Slot};
pub(in crate::device::soft) use door::{call, is_kin, listen};
pub(in crate::device::soft) use greet::{Answer, Ends, Halt, Offer, Why};
pub(in crate::device::soft) use opened::Opened;
pub(in crate::device::soft) use pipe::{
    Pipe, execute, fail, posted_recv, posted_send, start_receiving, tear,
};
#[cfg(test)]
pub(in crate::device::soft) use wire::State;
pub(in crate::device::soft) use wire::Wire;
