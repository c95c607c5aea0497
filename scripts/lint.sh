#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# lint.sh: what a commit has to pass before any test: formats, lints, documentation, and that the
# configurations for loom, the simulation, the delays and the fuzz targets compile.
set -eu
. "${0%/*}/need.sh" cargo dirname sh

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

# checked CFG ARGUMENT...: cargo check with a flag that changes every crate.
checked() {
	RUSTFLAGS="${RUSTFLAGS:-} --cfg $1" CARGO_TARGET_DIR="$target/$1" \
		sh -c 'shift; exec cargo check --locked --quiet "$@"' sh "$@"
}

cargo fmt --all --check
scripts/c-format.sh
cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps --locked --document-private-items
checked loom --tests --package dat-loom
checked dat_sim --package dat-sim
checked dat_order --package libdat2
cargo check --locked --quiet --manifest-path fuzz/Cargo.toml
