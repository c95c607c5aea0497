#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# aarch64-vm.sh [PROGRAM]...: builds the libraries for AArch64 and runs them in a virtual machine with that processor
# (vm/README.md), which qemu emulates: the unit tests that need a kernel (UNIT has words in the names of others), the C
# suite or these programs of it (RUNS as for ctest.sh), and the C suite on the kernel's rxe (ONLY as for
# vm/check.sh). Prints TAP. Needs what emulated.sh needs, and Debian's packages, which it downloads.
set -u
. "${0%/*}/cross.sh"
for_processor aarch64
. "${0%/*}/need.sh" "$cc" awk cargo dirname dpkg env make mkdir nproc rustc tail tr
. "${0%/*}/side-by-side.sh"

cd "$(dirname "$0")/.." || exit 1
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || skip_all 'the machine is made on Debian for amd64'
out=$PWD/build/aarch64
mkdir -p "$out/log"
need_target "$target" "$out/rustup.log"
export VM_ARCH=arm64 CC=$cc
programs=("$@")
runs=${RUNS:-dat2:soft dat:soft-shm dat2:soft-shm dat2:soft-tcp}
# Emulation takes some twenty times as long as the processor itself.
limit=${VM_TIMEOUT:-7200}
slow=(--timeout "$limit" --env TAP_TIMEOUT=300)
export TAP_TIMEOUT=300 VM_TIMEOUT=$limit

{
	# As the runner of tests, echo prints where their program is.
	unit_tests=$(runner=echo elsewhere cargo test --locked --lib) &&
		elsewhere make --no-print-directory -j"$(nproc)" PROFILE=dev "OUT=$out" "CC=$cc" PACKAGES='libdat libdat2' \
			libs ctest-bin
} >&2 || {
	echo 'Bail out! the build for AArch64 has failed'
	exit 1
}

# unit: the unit tests
unit() {
	vm/run.sh "${slow[@]}" --env RUST_TEST_THREADS=4 \
		-c "$unit_tests ${UNIT:-guarded errno marked_call transport::shm}" 2>&1 |
		unit_tap | complete aarch64-vm unit
}

# suite: the C suite on the soft provider
suite() {
	{
		vm/run.sh "${slow[@]}" --env "RUNS=$runs" --env LIMIT=1800 --env JOBS=2 \
			scripts/ctest.sh "$out" ${programs[@]+"${programs[@]}"}
		echo "exit status $?"
	} | complete aarch64-vm suite
}

# rxe: the C suite on a device of the kernel
rxe() {
	{
		vm/check.sh "$out" suite:rxe
		echo "exit status $?"
	} | complete aarch64-vm rxe
}

JOBS=1 side_by_side "$out/log" eval unit suite rxe | one_stream
