#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# musl.sh [PROGRAM]...: builds the libraries for the C library musl, and runs on this kernel: the unit tests of the core
# (UNIT has words in the names of some), the C suite (RUNS as for ctest.sh), and the demo between programs of musl and of
# the C library of GNU, which share memory. Prints TAP. Needs Debian's musl-tools (MUSL_CC); rustup adds the standard
# library of Rust, and where it cannot, this is a SKIP with the reason.
set -u
. "${0%/*}/need.sh" "${MUSL_CC:-musl-gcc}" awk cargo dirname env grep ln make nproc rustc sed tail timeout tr uname
. "${0%/*}/side-by-side.sh"
. "${0%/*}/cross.sh"

cd "$(dirname "$0")/.." || exit 1
machine=$(uname -m)
target=$machine-unknown-linux-musl
out=$PWD/build/musl
cc=${MUSL_CC:-musl-gcc}
runner=env
mkdir -p "$out"/{headers,log,unwinder}
programs=("$@")

need_target "$target" "$out/rustup.log"

# musl has no headers of the kernel, and Debian no unwinder for musl that is shared: Rust brings one to be linked.
for name in linux asm-generic "$machine-linux-gnu/asm"; do
	ln -sfn "/usr/include/$name" "$out/headers/${name##*/}"
done
ln -sfn "$(rustc --print sysroot)/lib/rustlib/$target/lib/self-contained/libunwind.a" "$out/unwinder/libgcc_s.a"

# musl COMMAND...: runs it with what it takes to build for musl.
musl() {
	RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=-crt-static -L native=$out/unwinder" elsewhere "$@"
}
{
	musl cargo test --locked --package dat-core --lib --no-run &&
		musl make --no-print-directory -j"$(nproc)" PROFILE=dev "OUT=$out" "CC=$cc" PACKAGES='libdat libdat2' \
			"CFLAGS=-O2 -g -isystem $out/headers" libs ctest-bin "$out/dat_demo" &&
		make --no-print-directory PROFILE=dev libs build/dev/dat_demo
} >&2 || {
	echo 'Bail out! the build for musl has failed'
	exit 1
}

# run NAME: prints what is run under this name as TAP.
run() {
	case $1 in
	# The names are those of rdma-core, which is not there for musl.
	unit) core_tests musl --skip device::verbs::cm_event::tests::events_and_statuses_have_their_names ;;
	suite) c_suite musl "$out" "${programs[@]}" ;;
	# shellcheck disable=SC2086 # two words
	demo*) demo ${1#demo } "$out/log/${1// /-}" | complete musl demo ;;
	esac
}

JOBS=1 side_by_side "$out/log" run unit suite 'demo musl dev' 'demo dev musl' 'demo musl musl' | one_stream
