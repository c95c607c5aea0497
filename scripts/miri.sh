#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# miri.sh [TEST-NAME]...: runs unit tests under Miri, which finds undefined behaviour; without a name
# those of handles and sections, of Terminate messages and of the lines of dat.conf. Needs a nightly
# compiler with the component miri. With cfg(dat_tsan) readers use fences, for Miri does not know of
# membarrier.
set -eu
. "${0%/*}/need.sh" cargo dirname mkdir

if ! cargo +nightly miri --version >/dev/null 2>&1; then
	echo 'miri.sh: no nightly compiler with miri (rustup toolchain install nightly --component miri)' >&2
	exit 1
fi
cd "$(dirname "$0")/.."
# Without the tests that repeat until threads meet, which the loom models stand for, and without one
# that takes hours.
[ $# -gt 0 ] || set -- handle::tests handle::pin iwarp::tests::terminate registry::parse \
	--skip freed_while_in_use --skip readers_never_see_freed_memory --skip one_of_two_frees_wins \
	--skip random_values --skip well_formed_lines_round_trip
# The arena of the handles and the reserve of memory live as long as the process.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-permissive-provenance -Zmiri-disable-isolation \
	-Zmiri-ignore-leaks"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg dat_tsan"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
# Each case takes as long as thousands do without Miri.
export PROPTEST_CASES="${PROPTEST_CASES:-4}"
exec cargo +nightly miri test --locked --lib -- "$@"
