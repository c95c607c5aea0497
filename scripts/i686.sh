#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# i686.sh [PROGRAM]...: builds the libraries for 32-bit x86, optimized and with assertions, and runs on this kernel:
# the unit tests of the core (UNIT has words in the names of some), the test of the layouts of rdma-core's structures,
# the C suite (RUNS as for ctest.sh), and the demo between programs of 32 and 64 bits. The programs align their stacks
# to four bytes, as the ABI has it and as many old ones do. Prints TAP. Needs Debian's cross compiler (I686_CC) and
# libraries (I686_ROOT); rustup adds the standard library of Rust. Where it cannot, or where the kernel runs no 32-bit
# programs, this is a SKIP with the reason.
set -u
. "${0%/*}/need.sh" "${I686_CC:-i686-linux-gnu-gcc}" awk cargo dirname env make nproc rustc sed tail timeout tr
. "${0%/*}/side-by-side.sh"
. "${0%/*}/cross.sh"

cd "$(dirname "$0")/.." || exit 1
target=i686-unknown-linux-gnu
out=$PWD/build/i686
root=${I686_ROOT:-/usr/i686-linux-gnu}
cc=${I686_CC:-i686-linux-gnu-gcc}
loader=-Wl,--dynamic-linker=$root/lib/ld-linux.so.2
mkdir -p "$out/log"
programs=("$@")

"$root/lib/ld-linux.so.2" --version >"$out/loader.log" 2>&1 ||
	skip_all "this kernel runs no 32-bit programs: $(tail -1 "$out/loader.log")"
need_target $target "$out/rustup.log"

runner="env LD_LIBRARY_PATH=$root/lib"

# i686 COMMAND...: runs it with what it takes to build for 32 bits.
i686() {
	RUSTFLAGS="${RUSTFLAGS:-} -C link-arg=$loader" elsewhere "$@"
}
{
	i686 cargo test --locked --package dat-core --lib --no-run &&
		i686 make --no-print-directory -j"$(nproc)" PROFILE=sim "OUT=$out" "CC=$cc" PACKAGES='libdat libdat2' \
			"CFLAGS=-O2 -g -D_FILE_OFFSET_BITS=64 -mpreferred-stack-boundary=2 $loader" libs ctest-bin "$out/dat_demo" &&
		make --no-print-directory PROFILE=release libs build/release/dat_demo
} >&2 || {
	echo 'Bail out! the build for 32 bits has failed'
	exit 1
}

# layout: that the structures of rdma-core are laid out as its headers have them
layout() {
	i686 env "CC=$cc" DAT_CHECK_VERBS=1 cargo test --locked --test verbs_layout 2>&1 | unit_tap | complete i686 layout
}

# run NAME: prints what is run under this name as TAP.
run() {
	case $1 in
	unit) core_tests i686 ;;
	suite) LIBRARIES=$root/lib c_suite i686 "$out" "${programs[@]}" ;;
	# shellcheck disable=SC2086 # two words
	demo*) LIBRARIES=$root/lib demo ${1#demo } "$out/log/${1// /-}" | complete i686 demo ;;
	*) "$1" ;;
	esac
}

JOBS=1 side_by_side "$out/log" run unit layout suite 'demo i686 release' 'demo release i686' 'demo i686 i686' | one_stream
