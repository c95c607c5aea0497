//! A simulation of the soft device: two devices in one thread, over a network and a clock that move
//! only by steps of the simulation. Each run follows from a seed.
//!
//! `SIM_SEED=n` runs one seed and prints what happens; `SIM_RUNS=n` is how many seeds are run
//! otherwise, and `SIM_FIRST=n` the first of them; `SIM_JOBS=n` is how many processes share the
//! seeds.

#![cfg_attr(not(dat_sim), allow(dead_code))]

#[cfg(dat_sim)]
mod end;
#[cfg(dat_sim)]
mod faults;
#[cfg(dat_sim)]
mod memory;
#[cfg(dat_sim)]
mod net;
#[cfg(dat_sim)]
mod plan;
#[cfg(dat_sim)]
mod rng;
#[cfg(dat_sim)]
mod run;
#[cfg(dat_sim)]
mod world;

#[cfg(not(dat_sim))]
fn main() {
    eprintln!("dat-sim is built by scripts/sim.sh");
    std::process::exit(2);
}

#[cfg(dat_sim)]
fn main() {
    driver::main();
}

#[cfg(dat_sim)]
mod driver;
