//! A simulation of the soft device: two devices in one thread, over a network or on one host, with a
//! clock that moves only by steps of the simulation. Each run follows from a seed.
//!
//! `SIM_SEED=n` runs one seed and prints what happens; `SIM_RUNS=n` is how many seeds are run
//! otherwise, and `SIM_FIRST=n` the first of them; `SIM_JOBS=n` is how many processes share the
//! seeds. Each seed is run over TCP and through shared memory; `SIM_PATH=tcp` or `SIM_PATH=shm`
//! leaves out the other.

/// The simulation: the files of this folder, which need a soft device built with `--cfg dat_sim`.
#[cfg(dat_sim)]
#[path = "."]
mod sim {
    pub mod driver;
    mod end;
    mod faults;
    mod memory;
    mod net;
    mod plan;
    mod rng;
    mod run;
    mod world;
}

#[cfg(dat_sim)]
fn main() {
    sim::driver::main();
}

#[cfg(not(dat_sim))]
fn main() {
    eprintln!("dat-sim is built by scripts/sim.sh");
    std::process::exit(2);
}
