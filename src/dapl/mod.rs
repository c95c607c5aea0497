//! The DAT objects and their rules.
