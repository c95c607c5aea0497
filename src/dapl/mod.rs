//! The DAT objects and their rules: our provider.
//!
//! One file an object, named like the functions of the API: `dat_evd_wait` is in `evd`. Each
//! holds the object with its rules, and below them the C functions that fill the slots of the
//! provider table: they check handles and pointers, and call the object.
//!
//! Where the letter of the man pages and the programs that there are part ways, [`rules`] says
//! which of the two holds.
//!
//! The rules know neither the ABI version (a parameter of the C functions, [`abi::Abi`]) nor
//! the device (a parameter of every object, [`crate::device::Device`]).
//!
//! # Locks
//!
//! EP → EVD → CNO; devices call back with none of theirs held and are called with none of
//! these held, except for the completion queue of an EVD. Handles of objects are looked up
//! inside a section of [`crate::handle::pin`] where the call is short and frequent (posts,
//! dequeue), everything else takes a reference.

pub mod abi;
pub mod address;
pub mod boundary;
pub mod cno;
pub mod cr;
pub mod ep;
pub mod ep_attr;
pub mod evd;
pub mod generic;
pub mod ia;
pub mod ia_open;
pub mod lmr;
pub mod object;
pub mod provider;
pub mod psp;
pub mod pz;
pub mod rmr;
pub mod rsp;
pub mod rules;
pub mod service;
mod sleep;
pub mod srq;
pub mod table;
pub mod types;
pub mod unsupported;
mod work_request;
