//! How a connected queue pair reaches its peer: within the process ([`loopback`]), through memory
//! that both processes map ([`shm`]), or as iWARP over a TCP socket ([`tcp`]).

pub(super) mod close_timers;
pub(crate) mod loopback;
pub mod shm;
pub(crate) mod tcp;
