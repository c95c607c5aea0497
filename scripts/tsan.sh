#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tsan.sh [TEST-NAME]...: runs unit tests under ThreadSanitizer; without a name those of the
# handles, and tests/stress.rs. With cfg(dat_tsan) readers use fences, for it does not know of
# membarrier.
#
# The standard library that comes with the compiler is not instrumented. What it orders by a
# fence or by itself alone (the drop of the last Arc, the ends of threads, Once, LazyLock, the
# channels of the test runner) looks like a race; where that happens in the tests of the handles it is suppressed.
# In other tests, look whether such a thing stands between the two accesses before you believe.
set -eu
. "${0%/*}/need.sh" cargo cat dirname mkdir realpath rustc sed

cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/tsan
mkdir -p "$target"
target=$(realpath "$target")
cat >"$target/suppressions" <<'END'
race:std::sync::mpmc::
race:test::run_test
race:^<alloc::sync::Arc<core::sync::atomic::Atomic
race:^<alloc::sync::Arc<std::sync::
race:std::thread::lifecycle::
race:std::thread::current::drop_current
END

# In the stress test also: memory that the last of several Arcs gives back, and what a OnceLock or
# LazyLock was initialised with.
{
	cat "$target/suppressions"
	cat <<'END'
race:^<alloc::sync::Weak<*, &alloc::alloc::Global> as core::ops::drop::Drop>::drop
race:^<alloc::sync::Weak<dat_core::dapl::psp::Psp<*>>::upgrade
race:^<alloc::sync::Weak<dyn dat_core::*>>::upgrade
race:std::sync::once_lock::OnceLock
race:std::sync::lazy_lock::LazyLock
END
} >"$target/suppressions-stress"

# -Z flags need a nightly compiler or this; the tests are no part of what is shipped.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg dat_tsan"
export CARGO_TARGET_DIR="$target"
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1
options=${TSAN_OPTIONS:-}

# tests SUPPRESSIONS ARGUMENTS...
tests() {
	TSAN_OPTIONS="suppressions=$target/$1 $options"
	export TSAN_OPTIONS
	shift
	cargo test --locked --target "$host" "$@"
}

tests suppressions --lib -- "${@:-handle}"
[ $# -gt 0 ] || tests suppressions-stress --test stress
