//! What `dat-info` shows.

pub mod attributes;
pub mod host;
pub mod row;
