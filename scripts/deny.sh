#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# deny.sh: checks the dependencies of the libraries, of the fuzz targets and of the comparison with
# rdma-sys: no known weakness, no version that was withdrawn, no licence but those of deny.toml.
# Needs cargo-deny (`cargo install cargo-deny`) and the network.
set -eu
. "${0%/*}/need.sh" cargo cargo-deny dirname

cd "$(dirname "$0")/.."
for manifest in Cargo.toml fuzz/Cargo.toml tests/rdma_sys/Cargo.toml; do
	echo "# $manifest"
	cargo deny --manifest-path "$manifest" --config "$PWD/deny.toml" --locked check "$@"
done
