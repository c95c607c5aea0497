//! The core of libdat: the DAT (uDAPL) object model, its registry and its devices.
//!
//! `libdat.so.1` (DAT 1.2) and `libdat2.so.2` (DAT 2.0) are thin shells of exported symbols
//! over this crate. From the C symbol down:
//!
//! * [`registry`] finds the provider of an IA name (`dat.conf`, dynamic registration) and
//!   dispatches through the C provider table;
//! * [`dapl`] is our provider: the DAT objects and the rules of the man pages, once for both
//!   ABIs (a type parameter) and for every device;
//! * [`device`] is what a device can do, and the devices: `soft` needs no hardware;
//! * [`handle`] makes handles that can be checked and borrowed without a lock;
//! * [`abi`] holds the C types, constants and return codes of both versions.

// The documentation is for those who work on the crate, and is built with its private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod abi;
pub mod dapl;
pub mod device;
pub mod entry;
mod environment;
mod errno;
pub mod error;
pub mod handle;
pub mod log_sink;
pub mod registry;
pub mod settings;
pub mod setup;
mod signals;
pub mod strerror;
mod sync;
