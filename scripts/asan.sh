#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# asan.sh [PROGRAM]...: runs the C test suite under AddressSanitizer, programs and libraries
# alike. Leaks are valgrind's business (make VALGRIND=1 ctest): what is reachable only through
# the arena of the handles, which is no heap, would look lost here.
set -eu
. "${0%/*}/need.sh" dirname make rustc sed

cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
# -Z flags need a nightly compiler or this; what is built here is not shipped. With a target that is
# named, build scripts are left without.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address" CARGO_BUILD_TARGET=$host \
	make --no-print-directory PROFILE=dev OUT=build/asan CARGO_TARGET_DIR="$PWD/build/asan/target" \
	CFLAGS='-O1 -g -fsanitize=address' libs ctest-bin
# A process with handlers for faults cannot tell a stop from a handler that ends a wait.
quiet=handle_segv=0:handle_sigbus=0:handle_sigfpe=0
ASAN_OPTIONS=detect_leaks=0:$quiet TAP_TIMEOUT=240 scripts/ctest.sh build/asan "$@"
