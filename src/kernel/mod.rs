//! The system calls of the soft device, and the clock: the one place where another kernel can take
//! the place of the real one.
//!
//! Built as usual, this module is nothing but names: the functions of `rustix` and of the C library,
//! and [`std::time::Instant`]. Built with `--cfg dat_sim`, the same names are functions that ask the
//! `simulated::Kernel` of the thread: a clock, sockets and an epoll instance that one thread of a
//! test moves step by step (`tests/sim`). No library is built so.

pub(crate) mod page_place;

#[cfg(not(dat_sim))]
mod call;
#[cfg(not(dat_sim))]
pub mod event;
#[cfg(not(dat_sim))]
mod readable;
#[cfg(not(dat_sim))]
mod system;
#[cfg(not(dat_sim))]
mod ticks;
#[cfg(not(dat_sim))]
pub use readable::is_readable;
#[cfg(not(dat_sim))]
pub use system::*;
#[cfg(not(dat_sim))]
pub use ticks::{SOME_MICROSECONDS, SOME_MILLISECONDS, ticks};

#[cfg(dat_sim)]
pub mod simulated;
#[cfg(dat_sim)]
pub use simulated::*;
