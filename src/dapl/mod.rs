//! The DAT objects and their rules: our provider.
//!
//! There is one file for each kind of object, named like the functions of the API:
//! `dat_evd_wait` is in `evd`. It has the object with its rules, followed by the C functions that
//! fill the slots of the provider table: they check handles and pointers, and call the object.
//!
//! Where existing programs depart from the letter of the man pages, [`rules`] defines which of the
//! two holds.
//!
//! The rules depend neither on the ABI version (a parameter of the C functions, [`abi::Abi`]) nor
//! on the device (a parameter of every object, [`crate::device::Device`]).
//!
//! # Layers
//!
//! The imports of these modules have no circle. From the bottom up: [`types`], [`ep_attr`] and
//! [`address`] (values in no ABI's layout), `function_table` (how one is filled), [`counters`], [`abi`]
//! (conversions), [`boundary`] (to C), [`async_events`], [`ia`], [`object`] (what the other objects share);
//! the objects, each above those that it uses; and [`table`] with the function tables, above all. Where an
//! object has to reach one above it, as an IA its objects, it does so through a trait object or a function
//! that it was handed.
//!
//! # Locks
//!
//! The order is EP, EVD, CNO. Devices call back with none of their locks held, and are called with
//! none of these held, except for the completion queue of an EVD. Handles of objects are looked up
//! inside a section of [`crate::handle::pin`] where the call is short and frequent (posts,
//! dequeue); all other calls take a reference.

pub mod abi;
pub mod address;
pub mod async_events;
pub mod boundary;
pub mod cno;
pub mod counted_calls;
pub mod counter_operations;
pub mod counters;
pub mod cr;
pub mod csp;
pub mod ep;
pub mod ep_attr;
pub mod evd;
pub mod extension;
mod figures;
mod function_table;
pub mod generic;
pub mod ia;
pub mod ia_open;
pub mod ia_query;
pub mod lmr;
pub mod named_attributes;
pub mod object;
pub mod ordered_calls;
mod outstanding;
pub mod parameters;
mod private_data;
pub mod provider;
pub mod psp;
pub mod pz;
pub mod resolution;
pub mod rmr;
pub mod rsp;
pub mod rules;
pub mod service;
pub mod srq;
pub mod table;
pub mod types;
pub mod unsupported;
mod wait_queue;
mod work_request;
