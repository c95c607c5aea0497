//! Models of the handles where readers execute fences.
#![cfg(loom)]

#[path = "handle/models.rs"]
mod models;

fn prepare() {}
