//! The registry.
pub mod parse;
