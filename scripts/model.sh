#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# model.sh OUT: random walks through the API beside a reference model of its rules (tests/model), on
# the libraries and agents in OUT: MODEL_STEPS steps together (1000000 by default), from MODEL_SEED
# on, on MODEL_RUNS ("dat:soft dat2:soft-tcp").
set -eu
. "${0%/*}/need.sh" cargo dirname realpath

root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "${1:?usage: model.sh OUT}")
export LD_LIBRARY_PATH="$out/lib" DAT_OVERRIDE="$root/tests-c/dat.conf"
cd "$root"
exec scripts/remap.sh cargo run --locked --quiet --release --package dat-model -- "$out"
