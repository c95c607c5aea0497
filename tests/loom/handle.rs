//! Models of the handles where readers execute fences.
#![cfg(loom)]

mod model;
#[path = "handle/models.rs"]
mod models;

fn prepare() {}
