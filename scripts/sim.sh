#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# sim.sh: runs the simulation of the soft device (tests/sim), SIM_RUNS seeds (1000000 by default),
# or SIM_SEED alone with all that happens; each over TCP and through shared memory, or in one of these
# ways (SIM_PATH=tcp or shm). In a target directory of its own: the flag changes every
# crate.
set -eu
. "${0%/*}/need.sh" cargo dirname nproc

cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg dat_sim"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sim"
export SIM_JOBS="${SIM_JOBS:-$(nproc)}"
exec cargo run --locked --quiet --profile sim --package dat-sim
