//! The C ABI: types, constants and return codes of DAT 1.2 and DAT 2.0.
