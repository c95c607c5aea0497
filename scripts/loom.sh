#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# loom.sh [TEST-ARGUMENT]...: checks the interleavings of the lock-free parts. LOOM_MAX_PREEMPTIONS
# widens the search (3 by default, 2 for a model that then takes minutes). In a target directory of its
# own: the flag changes every crate.
set -eu
. "${0%/*}/need.sh" cargo dirname

cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
exec cargo test --locked --profile loom --package dat-loom -- "$@"
