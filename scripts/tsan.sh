#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tsan.sh [TEST-NAME]...: runs unit tests under ThreadSanitizer; without a name those of the
# handles. With cfg(dat_tsan) readers use fences, for it does not know of membarrier.
#
# The standard library that comes with the compiler is not instrumented. What it orders by a
# fence or by itself alone (the drop of the last Arc, Once, LazyLock, the channels of the test
# runner) looks like a race; where that happens in the tests of the handles it is suppressed.
# In other tests, look whether such a thing stands between the two accesses before you believe.
set -eu

cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/tsan
mkdir -p "$target"
suppressions=$(realpath "$target")/suppressions
cat >"$suppressions" <<'END'
race:std::sync::mpmc::
race:test::run_test
race:^<alloc::sync::Arc<core::sync::atomic::Atomic
race:^<alloc::sync::Arc<std::sync::
END

# -Z flags need a nightly compiler or this; the tests are no part of what is shipped.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg dat_tsan"
export CARGO_TARGET_DIR="$target"
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1
export TSAN_OPTIONS="suppressions=$suppressions ${TSAN_OPTIONS:-}"
exec cargo test --locked --lib --target "$host" -- "${@:-handle}"
