#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# loom.sh [TEST-ARGUMENT]...: checks the interleavings of the lock-free parts. LOOM_MAX_PREEMPTIONS
# widens the search (3 by default). In a target directory of its own: the flag changes every crate.
set -eu

cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
# Optimized, and with debug assertions.
export CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_PROFILE_DEV_OPT_LEVEL=2
exec cargo test --locked --test loom_handle --test loom_shm --test loom_ready_bitmap --test loom_leader \
	-- "$@"
