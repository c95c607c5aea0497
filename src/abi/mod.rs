//! The C ABI: types, constants and return codes of DAT 1.2 and DAT 2.0.
//!
//! The items mirror the C headers in `include/`, name by name; `tests/abi.rs` proves both equal
//! to the fact tables in `abi/`. C enums are `u32` aliases with constants rather than Rust enums,
//! because any integer may arrive from C.

pub mod common;
pub mod v1;
pub mod v2;
pub mod va_list;
