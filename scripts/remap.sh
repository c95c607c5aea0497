#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# remap.sh CARGO ARGUMENT...: runs cargo so that what it builds has the same bytes in whatever
# directory the sources and cargo's own files are. Panic messages and debug information name them
# below /usr/src instead, where debuggers find them with "set substitute-path".
#
# Everything that builds the release profile of the libraries does it through this script: with
# other flags cargo would keep a second build of the same things.
set -eu
. "${0%/*}/need.sh" dirname head sed
top=$(cd "$(dirname "$0")/.." && pwd -P)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -1)
home=${CARGO_HOME:-${HOME:-/}/.cargo}
target=${CARGO_TARGET_DIR:-$top/target}
# The last that fits is taken.
flags=(
	"--remap-path-prefix=$home=/usr/src/cargo"
	"--remap-path-prefix=$top=/usr/src/libdat-$version"
	"--remap-path-prefix=$target=/usr/src/libdat-$version/target"
)

# Variables for flags replace all flags of configuration files, which those of --config do not.
if [ -n "${CARGO_ENCODED_RUSTFLAGS-}" ]; then
	for flag in "${flags[@]}"; do
		CARGO_ENCODED_RUSTFLAGS+=$'\x1f'$flag
	done
	export CARGO_ENCODED_RUSTFLAGS
elif [ -n "${RUSTFLAGS-}" ]; then
	export RUSTFLAGS="$RUSTFLAGS ${flags[*]}"
fi
list="[$(printf "'''%s''', " "${flags[@]}")]"
cargo=$1
shift
# Where .cargo/config.toml has flags for a target, those for all targets do not count.
exec "$cargo" --config "build.rustflags = $list" \
	--config "target.'cfg(target_env = \"musl\")'.rustflags = $list" "$@"
