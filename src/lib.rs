//! The core of libdat: the DAT (uDAPL) object model, its registry and its devices.
//!
//! `libdat.so.1` (DAT 1.2) and `libdat2.so.2` (DAT 2.0) are thin shells of exported symbols
//! over this crate. Its layers, each of which imports only those below it:
//!
//! * [`setup`] puts the registry and the providers of each library together; [`settings`] lists
//!   what users can set;
//! * [`mod@entry`] makes the C symbols, which dispatch through the C provider table;
//! * [`trace`] writes the calls of the program (`DAT_TRACE`);
//! * [`registry`] finds the provider of an IA name (`dat.conf`, dynamic registration);
//! * [`dapl`] is the built-in provider: the DAT objects and the rules of the man pages, once for
//!   both ABIs (a type parameter) and for every device;
//! * [`device`] has the trait of a device, and the devices: `soft` needs no hardware;
//! * [`handle`] makes handles that can be checked and borrowed without a lock;
//! * [`error`] has the errors, [`strerror`] their names;
//! * [`abi`] has the C types, constants and return codes of both versions.
//!
//! Every layer may import the leaves: `any_stack`, `delay`, `environment`, `errno`, `guarded`, [`log_sink`],
//! `reserve`, `signals`, `sync`, `thread_destructors`, `thread_sanitizer`.

// The documentation is for developers of the crate, and is built with its private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod abi;
mod any_stack;
mod cancel;
mod dapl;
mod delay;
mod descriptor;
mod device;
pub mod entry;
mod environment;
mod errno;
pub mod error;
mod figures;
mod guarded;
mod handle;
mod kernel;
mod lock;
mod log_sink;
#[cfg_attr(
    dat_sim,
    allow(dead_code, reason = "the kernel of the simulation copies itself")
)]
mod marked_call;
mod process;
pub mod registry;
mod reserve;
pub mod settings;
pub mod setup;
mod signals;
pub mod strerror;
mod sync;
mod system_call;
#[cfg(test)]
mod test_pages;
#[doc(hidden)]
pub mod testing;
#[cfg(all(
    target_env = "musl",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod thread_destructors;
mod thread_sanitizer;
pub mod trace;
