#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# oom.sh OUT [PROGRAM]...: the C test programs in OUT without memory. First t_memory, in which each
# allocation of the library fails in turn. Then the other programs, or those named, in which every
# third and every seventh allocation of the library fails: there calls fail that a test needs, so
# tests may fail; but no process may end by itself, no call may give DAT_INTERNAL_ERROR, and none
# may hang. RUNS is on which version of the API and which IA, as for ctest.sh.
set -u

. "${0%/*}/need.sh" dirname grep ls mkdir realpath timeout
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${CTEST_ALONE-}" ]; then
	CTEST_ALONE=1 exec "$root/scripts/alone.sh" "$0" "$@"
fi

out=$(realpath "${1:?usage: oom.sh OUT [PROGRAM]...}")
shift
bad=0
number=0
if [ $# = 0 ]; then
	MEMORY_STEP=${MEMORY_STEP:-1} LIMIT=7200 RUNS=${RUNS-} "$root/scripts/ctest.sh" "$out" t_memory || bad=1
fi

logs=$out/log
mkdir -p "$logs"
export LD_LIBRARY_PATH=$out/lib DAT_OVERRIDE=$root/tests-c/dat.conf TAP_TIMEOUT=60 RUST_BACKTRACE=0
for run in ${RUNS:-dat:soft dat2:soft-shm dat2:soft-shared dat2:soft-tcp}; do
	abi=${run%%:*}
	device=${run#*:}
	programs=("$@")
	# Left out are those that are about ends of processes and memory themselves, or take long.
	[ $# -gt 0 ] || mapfile -t programs < <(cd "$out/$abi" && ls t_* |
		grep -vxE 't_(memory(_calls|_many)?|kill|stress|faults|unmapped|moved|limits)')
	for program in "${programs[@]}"; do
		for every in 3 7; do
			log=$logs/oom-$abi-$device-$program-$every.log
			FAILING_MALLOC_EVERY=$every LD_PRELOAD=$out/failing_malloc.so \
				timeout -k 5 1200 "$out/$abi/$program" "$device" >"$log" 2>&1 </dev/null
			status=$?
			number=$((number + 1))
			what=$(grep -E 'killed by signal|still running|DAT_INTERNAL_ERROR|memory allocation of|panicked' "$log")
			verdict=ok
			if [ -n "$what" ] || [ $status -gt 1 ]; then
				verdict='not ok'
				bad=1
				echo "# $what (exit status $status)"
			fi
			echo "$verdict $number - oom/$abi/$device/$program.every_$every"
		done
	done
done
exit $bad
