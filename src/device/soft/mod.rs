//! The soft device: RDMA semantics without an RDMA card.

pub mod iwarp;
