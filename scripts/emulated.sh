#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# emulated.sh [PROCESSOR [PROGRAM]...]: builds the libraries for another processor, AArch64 unless named, and runs them
# there, in qemu's emulation of user programs: the unit tests of what is written for this processor or depends on its
# order of bytes or of memory accesses; the programs of the C suite, or a part of them, within one process and over TCP;
# and the demo between programs of that processor and of this one. For AArch64, which is a part of `make check`, these
# are few programs and no demo. Prints TAP. Needs Debian's cross compiler (CROSS_CC) and libraries (CROSS_ROOT); rustup
# adds the standard library of Rust, and where it cannot, this is a SKIP with the reason.
#
# Left out is what the emulation does not have: process_vm_readv and process_vm_writev, and with them
# shared memory between processes; and programs that start themselves again. scripts/aarch64-vm.sh runs those of AArch64
# in a virtual machine.
set -u

. "${0%/*}/cross.sh"

processor=${1:-aarch64}
for_processor "$processor" || { echo "usage: $0 [aarch64|ppc64le|s390x|riscv64 [PROGRAM]...]" >&2 && exit 2; }
shift $(($# > 0))
. "${0%/*}/need.sh" "$cc" awk cargo chmod dirname env make nproc "${emulator[0]}" rustc sed tail timeout tr
. "${0%/*}/side-by-side.sh"

cd "$(dirname "$0")/.." || exit 1
out=$PWD/build/$processor
mkdir -p "$out/log"

need_target "$target" "$out/rustup.log"

# The unit tests are those of the library: cargo builds them first, since it uses all processors for that.
unit_tests=(--locked --lib)
runs=(unit)
programs=("$@")
demos=()
# Elsewhere no call is a point of cancellation.
cancellation=()
case $processor in aarch64 | riscv64) cancellation=(t_cancel t_cancel_close) ;; esac
if [ "$processor" = aarch64 ]; then
	[ $# != 0 ] || programs=("${cancellation[@]}" t_{atomics,ep,post,rdma})
	runs+=("${programs[@]/#/dat2/soft/}" dat/soft/t_rdma dat2/soft-tcp/t_rdma)
else
	[ $# != 0 ] || programs=(${cancellation[0]+"${cancellation[@]}"} t_{atomics,ep,extensions,post,rdma,send})
	runs+=("${programs[@]/#/dat2/soft/}" "${programs[@]/#/dat2/soft-tcp/}" dat/soft/t_rdma)
	demos=("demo $processor dev" "demo dev $processor")
fi

{
	elsewhere cargo test "${unit_tests[@]}" --no-run &&
		elsewhere make --no-print-directory PROFILE=dev "OUT=$out" "CC=$cc" PACKAGES='libdat libdat2' \
			"${programs[@]/#/$out/dat2/}" "$out/dat/t_rdma" ${demos[0]+"$out/dat_demo"} &&
		{ [ ${#demos[@]} = 0 ] || make --no-print-directory PROFILE=dev libs build/dev/dat_demo; }
} >&2 || {
	echo "Bail out! the build for $processor has failed"
	exit 1
}

# What scripts/demo.sh starts a program with: as env, it takes variables of the program and then the program.
cat >"$out/env" <<END
#!/bin/sh
options=
while [ "\$1" != "\${1#*=}" ]; do
	options="\$options -E \$1"
	shift
done
exec ${emulator[*]} \$options "\$@"
END
chmod +x "$out/env"

# program ABI/IA/NAME: a program of the C suite. One that has died says less than it planned.
program() {
	local abi=${1%%/*} ia=${1#*/}
	DAT_OVERRIDE=$PWD/tests-c/dat.conf TAP_TIMEOUT=240 timeout -k 5 900 "$out/env" \
		"LD_LIBRARY_PATH=$out/lib" "$out/$abi/${ia#*/}" "${ia%/*}" </dev/null 2>&1
	echo "exit status $?"
}

# unit: the unit tests. Emulation has no way to the memory of processes, mincore, SIOCOUTQ or lists of robust futexes.
unit() {
	local chosen=() test left_out=(
		device::soft::tests # all paths, of which shared memory is one
		device::soft::transport::shm::{cma,mapped::fork,presence}
		kernel::call::tests::calls marked_call::tests::the_arguments_arrive
		guarded::entries::tests::marks_are_read_by_the_kernel
		device::soft::mem::{probe,region::tests::memory_must_be_there}
		device::soft::socket::tests::the_kernel_counts_what_is_unacknowledged
		key_table::tests::{keys_of_one_entry,successive_keys}_have_no_relation # start themselves
		library_use::tests::a_child_is_not_in_the_middle_of_a_call # limits of time that emulation does not keep
	)
	[ "$processor" != aarch64 ] || chosen=(guarded handle:: iwarp::crc iwarp::tests)
	for test in "${left_out[@]}"; do
		chosen+=(--skip "$test")
	done
	elsewhere cargo test "${unit_tests[@]}" -- "${chosen[@]}" 2>&1 | unit_tap
}

# run NAME: prints what is run under this name as TAP, with the name before that of each test.
run() {
	case $1 in
	unit) unit ;;
	# shellcheck disable=SC2086 # two words
	demo*) LIMIT=600 demo ${1#demo } "$out/log/${1// /-}" ;;
	*) program "$1" ;;
	esac | complete "$processor" "${1%% *}"
}

# Emulation keeps a processor busy, so there is one run for each.
JOBS=$(nproc) side_by_side "$out/log" run "${runs[@]}" ${demos[@]+"${demos[@]}"} | one_stream
