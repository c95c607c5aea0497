#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# ctest.sh OUT [PROGRAM]...: runs the C test programs OUT/dat/t_* (DAT 1.2) and OUT/dat2/t_*
# (DAT 2.0) on the libraries in OUT/lib, over each path of the soft provider, and prints one
# TAP stream. VALGRIND=1 runs them under valgrind, KERNEL=3.10, 4.4 or 4.18 as on that version of Linux
# (tests-c/old_kernel.c). RUNS says on which version of the API and
# which IA of tests-c/dat.conf: "dat:soft dat2:soft-tcp"; dat2:soft:soft-tcp is for the programs
# that have a second process, which uses another IA than the first. LIMIT says how many seconds a
# program may take, CONF another dat.conf, JOBS how many runs there are at a time, LIBRARIES where the
# libraries of another processor are. Exit status 0 if nothing failed.
set -u

. "${0%/*}/need.sh" awk dirname grep head ls mkdir nproc realpath sed timeout ${VALGRIND:+valgrind}
. "${0%/*}/side-by-side.sh"
. "${0%/*}/loaded.sh"
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "${1:?usage: ctest.sh OUT [PROGRAM]...}")
shift
runs=${RUNS:-dat:soft dat:soft-shm dat:soft-tcp dat2:soft dat2:soft-shm dat2:soft-shared dat2:soft-tcp
dat2:soft:soft-tcp dat2:soft-tcp:soft dat2:soft-shm:soft dat2:soft-shared:soft-shm}
logs=$out/log

export LD_LIBRARY_PATH=$out/lib${LIBRARIES:+:$LIBRARIES} DAT_OVERRIDE=${CONF:-$root/tests-c/dat.conf}
limit=${LIMIT:-300}
tool=()
how=
if [ -n "${VALGRIND-}" ]; then
	how=valgrind/
	limit=${LIMIT:-1500}
	# Each version and each path once; what they have in common is slow enough.
	runs=${RUNS:-dat:soft-tcp dat2:soft}
	export TAP_TIMEOUT=240
	tool=(valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite
		--errors-for-leak-kinds=definite --trace-children=yes --fair-sched=yes
		"--suppressions=$root/tests-c/valgrind.supp")
fi

if [ -n "${KERNEL-}" ]; then
	how=linux-$KERNEL/
	runs=${RUNS:-dat:soft-tcp dat2:soft}
	tool=("$out/old_kernel" "$KERNEL")
fi

# one RUN: in a network namespace of its own, unless the caller has made one (CTEST_ALONE)
one() {
	local alone=("$root/scripts/alone.sh")
	[ -z "${CTEST_ALONE-}" ] || alone=()
	RUNS=$1 CTEST_ONE=1 "${alone[@]}" "$0" "$out" "${programs[@]}"
}

if [ -z "${CTEST_ONE-}" ]; then
	programs=("$@")
	streams=$logs/runs${how:+-${how%/}}
	mkdir -p "$streams"
	# shellcheck disable=SC2086 # words
	side_by_side "$streams" one $runs | one_stream
	exit
fi

number=0
bad=0

# verdict ok|not\ ok GROUP TEST
verdict() {
	number=$((number + 1))
	echo "$1 $number - $2/$3"
	[ "$1" = ok ] || bad=$((bad + 1))
}

echo 'TAP version 13'
for run in $runs; do
	abi=${run%%:*}
	device=${run#*:}
	name=$how$abi/$device
	programs=("$@")
	if [ ${#programs[@]} = 0 ]; then
		case $device in
		*:*) programs=(t_kill t_peer t_shared t_state) ;;
		*) mapfile -t programs < <(cd "$out/$abi" && ls t_*) ;;
		esac
	fi

	# The system may have the original under the same name.
	used=$(loaded env "$out/$abi/${programs[0]}" | awk '/libdat/ { print $3 }')
	case $used in
	"$out"/lib/*) verdict ok "$name" uses_our_library ;;
	*)
		echo "# $abi/${programs[0]} would load: $used"
		verdict 'not ok' "$name" uses_our_library
		continue
		;;
	esac

	for program in "${programs[@]}"; do
		log=$logs/${name//[\/:]/-}-$program.tap
		timeout -k 5 "$limit" "${tool[@]}" "$out/$abi/$program" "$device" \
			>"$log" 2>&1 </dev/null
		status=$?
		planned=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$log" | head -1)
		ran=0
		while IFS= read -r line; do
			case $line in
			'ok '*) verdict ok "$name" "${line#* - }" ;;
			'not ok '*) verdict 'not ok' "$name" "${line#* - }" ;;
			1..*) continue ;;
			'#'*) echo "$line" && continue ;;
			*) echo "# $line" && continue ;;
			esac
			ran=$((ran + 1))
		done <"$log"
		# A program that died says less than it planned.
		if [ "$ran" != "${planned:-none}" ] || [ "$status" -gt 1 ]; then
			echo "# $program: $ran of ${planned:-?} tests, exit status $status"
			verdict 'not ok' "$name" "$program.runs_to_the_end"
		fi
	done
done
echo "1..$number"
[ "$bad" = 0 ]
