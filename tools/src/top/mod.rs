//! The parts of `dat-top`.

pub mod objects;
pub mod processes;
pub mod screen;
pub mod view;
