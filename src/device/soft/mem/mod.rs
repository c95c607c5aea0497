//! Registered memory: regions, windows, the table of their keys, and copies between buffers.

pub(crate) mod atomic;
pub(crate) mod copy;
mod directory;
pub(crate) mod export;
pub mod key_entry;
pub mod key_table;
mod probe;
pub(crate) mod ranges;
pub(crate) mod region;
pub mod scope;
pub(crate) mod segments;
pub(crate) mod window;
