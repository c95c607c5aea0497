//! Models of the handles where the barrier that the kernel runs in all threads takes the place of
//! the readers' fences.
#![cfg(loom)]

mod model;
#[path = "handle/models.rs"]
mod models;

use dat_core::testing::sync::barrier::MODELLED;

fn prepare() {
    MODELLED.store(true, std::sync::atomic::Ordering::Relaxed);
}
