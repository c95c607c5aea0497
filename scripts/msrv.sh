#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# msrv.sh: that the oldest Rust of Cargo.toml (rust-version) compiles the libraries and programs.
# rustup adds that compiler if it is missing; where it cannot, this is a SKIP with the reason. (clippy
# notices newer functions of the standard library everywhere, by the same number, but not newer
# syntax.) Prints TAP.
set -u
. "${0%/*}/need.sh" cargo dirname grep mktemp rm sed tail timeout

cd "$(dirname "$0")/.." || exit 1
version=$(sed -n 's/^rust-version = "\([0-9.]*\)"/\1/p' Cargo.toml)
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
echo 'TAP version 13'
if ! cargo "+$version" --version 2>/dev/null | grep -q "^cargo $version\."; then
	if ! command -v rustup >/dev/null; then
		echo "1..0 # SKIP no Rust $version, and no rustup that could add it"
		exit
	fi
	if ! timeout 300 rustup toolchain install "$version" --profile minimal >"$log" 2>&1; then
		echo "1..0 # SKIP rustup cannot add Rust $version: $(tail -1 "$log")"
		exit
	fi
fi
echo 1..1
if CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/msrv" cargo "+$version" check --quiet --locked --workspace \
	>"$log" 2>&1; then
	echo "ok 1 - msrv.rust_$version"
else
	sed 's/^/# /' "$log"
	echo "not ok 1 - msrv.rust_$version"
	exit 1
fi
