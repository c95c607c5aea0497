#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# miri.sh [TEST-NAME]...: runs unit tests under Miri, which finds undefined behaviour; without a name
# those of handles and sections, and of the parsers of the wire and of dat.conf. Needs a nightly
# compiler with the component miri. With cfg(dat_tsan) readers use fences, for Miri does not know of
# membarrier.
set -eu
. "${0%/*}/need.sh" cargo dirname mkdir

cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- handle::arena handle::tests handle::pin iwarp::tests::mpa iwarp::tests::terminate registry::parse
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-permissive-provenance -Zmiri-disable-isolation"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg dat_tsan"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
# Each case takes as long as thousands do without Miri.
export PROPTEST_CASES="${PROPTEST_CASES:-4}"
exec cargo +nightly miri test --locked --lib -- "$@"
