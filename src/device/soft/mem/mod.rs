//! Registered memory: regions, windows, the table of their keys, and the copies that obey it.

pub(crate) mod copy;
pub mod key_entry;
pub mod key_table;
pub(crate) mod region;
pub(crate) mod window;
