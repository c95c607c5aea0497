//! The conformance matrix, and the manual pages of the functions, which are made of it.
//!
//! `UPDATE_DOCS=1 cargo test --test conformance` writes both anew; without it a document that is not
//! up to date is a fault.

#[path = "../common/skip.rs"]
mod skip;

mod manual;
mod matrix;
mod rows;
