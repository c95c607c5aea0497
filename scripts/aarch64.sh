#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# aarch64.sh: builds the libraries for AArch64 and runs them there, in qemu's emulation of user
# programs: the unit tests of what is written for this processor or depends on its order of memory
# accesses, and a part of the C suite within one process and over TCP. Prints TAP. Needs Debian's cross
# compiler (AARCH64_CC) and libraries (AARCH64_ROOT); rustup adds the standard library of Rust, and where
# it cannot, this is a SKIP with the reason.
#
# Left out is what the emulation does not have: process_vm_readv and process_vm_writev, and with them
# shared memory and the copies of processors without code of their own; programs that start themselves
# again; and t_cancel and t_cancel_close, since waits are points of cancellation on x86 alone.
set -u
. "${0%/*}/need.sh" "${AARCH64_CC:-aarch64-linux-gnu-gcc}" awk cargo dirname make nproc qemu-aarch64 rustc tail timeout
. "${0%/*}/side-by-side.sh"
. "${0%/*}/cross.sh"

cd "$(dirname "$0")/.." || exit 1
target=aarch64-unknown-linux-gnu
out=$PWD/build/aarch64
root=${AARCH64_ROOT:-/usr/aarch64-linux-gnu}
cc=${AARCH64_CC:-aarch64-linux-gnu-gcc}
mkdir -p "$out"

need_target $target "$out/rustup.log"

export CARGO_BUILD_TARGET=$target CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$cc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root"
# The crates that only tests of this machine and benchmarks need are not built (Cargo.toml).
export RUSTFLAGS="${RUSTFLAGS:-} --cfg dat_emulated"
# The unit tests are those of the library: cargo builds them first, since it uses all processors for that.
runs=(unit dat2/soft/t_{atomics,ep,post,rdma} dat/soft/t_rdma dat2/soft-tcp/t_rdma)
unit_tests=(--locked --lib)
{
	cargo test "${unit_tests[@]}" --no-run &&
		make --no-print-directory PROFILE=dev "OUT=$out" "CC=$cc" PACKAGES='libdat libdat2' \
			"$out"/dat2/t_{atomics,ep,post,rdma} "$out/dat/t_rdma"
} >&2 || {
	echo 'Bail out! the build for AArch64 has failed'
	exit 1
}

# program ABI/IA/NAME: a program of the C suite. One that has died says less than it planned.
program() {
	local abi=${1%%/*} ia=${1#*/}
	DAT_OVERRIDE=$PWD/tests-c/dat.conf TAP_TIMEOUT=240 timeout -k 5 900 qemu-aarch64 -L "$root" \
		-E "LD_LIBRARY_PATH=$out/lib" "$out/$abi/${ia#*/}" "${ia%/*}" </dev/null 2>&1
	echo "exit status $?"
}

# unit: the unit tests
unit() {
	cargo test "${unit_tests[@]}" -- guarded abi::va_list handle:: iwarp::crc iwarp::tests \
		--skip guarded::entries::tests::marks_are_read_by_the_kernel 2>&1 | unit_tap
}

# run NAME: prints what is run under this name as TAP, with the name before that of each test.
run() {
	if [ "$1" = unit ]; then unit; else program "$1"; fi | complete aarch64 "$1"
}

# Emulation keeps a processor busy, so there is one run for each.
JOBS=$(nproc) side_by_side "$out" run "${runs[@]}" | one_stream
