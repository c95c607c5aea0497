#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# check.sh [SUITE]...: runs every test suite, or those named, and adds up what cargo and the
# TAP streams report. The last line is the sum: "N passed, N failed".
#
# LONG=1 runs the slow suites whole (`make check-long`). Without it each of them has a bounded
# part, which leaves out only what another suite runs too: the C suite is whole in release, and
# the part under valgrind, in the dev build and in the machine is of programs that between them
# create, use and destroy every kind of object.
set -u -o pipefail
. "${0%/*}/need.sh" awk cargo cat dirname head make mkdir nice nproc python3 tail tee
. "${0%/*}/side-by-side.sh"

cd "$(dirname "$0")/.."
logs=build/check
mkdir -p "$logs"
: >"$logs/failed"
total_passed=0
total_failed=0
summary=

# count LOG: what a log reports, as "passed failed skipped"
count() {
	awk '
	/^ok / { if (/# SKIP/) skipped++; else passed++ }
	/^not ok / { failed++ }
	/^1\.\.0 # SKIP/ { skipped++ }
	/^1\.\.0$/ || /^Ran 0 tests in / { failed++ }
	/^test result:/ { passed += $4; failed += $6 }
	# A test of cargo that this machine cannot run has passed (tests/common/skip.rs).
	/^skipped: / { passed--; skipped++ }
	# Python says how many there were, and then how many of them were bad
	# or skipped.
	/^Ran [0-9]+ tests? in / { passed += $2 }
	/^(OK|FAILED) \(/ {
		split($0, parts, /[(), ]+/)
		for (i in parts) {
			if (split(parts[i], pair, "=") != 2)
				continue
			passed -= pair[2]
			if (pair[1] == "skipped") skipped += pair[2]; else failed += pair[2]
		}
	}
	END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

# failures LOG: what a log says of each test that failed: the last lines of a TAP diagnosis and
# the verdict, what cargo and Python print of it, or the last lines of a log without either
failures() {
	local said
	said=$(awk '
	/^# / { said[++lines] = $0; next }
	/^not ok / {
		for (i = lines > 6 ? lines - 5 : 1; i <= lines; i++) print said[i]
		print
	}
	# cargo: the panic and the line after it, which is its message
	following { print; following-- }
	/^thread .* panicked at / { print; following = 1 }
	/^test .* \.\.\. FAILED$/ || /^(FAIL|ERROR): / || /^error(\[|:)/ { print }
	{ lines = 0 }' "$1" | head -20)
	if [ -n "$said" ]; then echo "$said"; else tail -8 "$1"; fi
}

# processors FILE: sets $processors to the seconds that what this shell has waited for has taken of the processors
processors() {
	# A shell of its own would have its own times.
	times >"$1"
	processors=$(awk -F '[ms ]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$1")
}

# timed NAME COMMAND...: runs the command of a suite in a shell that runs nothing else meanwhile, and writes its exit
# status, its seconds and the seconds that it has taken of the processors
timed() {
	local name=$1 start=$SECONDS before processors status
	shift
	processors "$logs/$name.times"
	before=$processors
	"$@"
	status=$?
	processors "$logs/$name.times"
	echo "$status $((SECONDS - start)) $((processors - before))" >"$logs/$name.end"
	return $status
}

is_wanted() {
	case " $wanted " in *" $1 "*) ;; *) return 1 ;; esac
}

# begin LANE NAME COMMAND... [-- NAME COMMAND...]...: begins suites that run one after the other, beside those
# that follow to `finish LANE`. They use one processor, or wait at times, or are nice to the others.
declare -A lanes=()
begin() {
	local lane=$1
	shift
	# A process group of its own, so that all of it can be ended.
	set -m
	in_lane "$@" </dev/null &
	set +m
	lanes[$lane]=$!
}

# in_lane NAME COMMAND... [-- NAME COMMAND...]...: runs the suites, and writes what `finish` reads
in_lane() {
	local name command
	: >"$logs/$lane.lane"
	while [ $# -gt 0 ]; do
		name=$1 command=()
		shift
		while [ $# -gt 0 ] && [ "$1" != -- ]; do
			command+=("$1")
			shift
		done
		[ $# = 0 ] || shift
		is_wanted "$name" || continue
		echo "=== $name begins: ${command[*]}"
		timed "$name" "${command[@]}" >"$logs/$name.log" 2>&1
		echo "$name" >>"$logs/$lane.lane"
	done
}

interrupted() {
	local job
	for job in "${lanes[@]}"; do
		kill -- "-$job" 2>/dev/null
	done
	exit 1
}
trap interrupted INT TERM

# finish LANE
finish() {
	local name status
	wait "${lanes[$1]}"
	status=$?
	unset "lanes[$1]"
	while read -r name; do
		echo "=== $name has ended"
		cat "$logs/$name.log"
		report "$name"
	done <"$logs/$1.lane"
	[ $status = 0 ] && return
	echo "the shell of these suites has died with $status" >"$logs/$1.log"
	echo "$status 0 0" >"$logs/$1.end"
	report "$1"
}

# suite NAME COMMAND...
suite() {
	is_wanted "$1" || return
	echo "=== $1: ${*:2}"
	# Until it has ended it has failed.
	echo '1 0 0' >"$logs/$1.end"
	timed "$@" 2>&1 | tee "$logs/$1.log"
	report "$1"
}

# report NAME: adds up what a suite has reported
report() {
	local name=$1 log=$logs/$1.log status seconds taken passed failed skipped
	read -r status seconds taken <"$logs/$name.end"
	read -r passed failed skipped < <(count "$log")
	# A suite that reports no tests is one test itself; one that died has failed.
	if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
		failed=1
	elif [ "$status" = 0 ] && [ $((passed + failed + skipped)) = 0 ]; then
		passed=1
	fi
	if [ "$failed" != 0 ]; then
		printf '=== %s: what failed\n%s\n' "$name" "$(failures "$log")" >>"$logs/failed"
	fi
	total_passed=$((total_passed + passed))
	total_failed=$((total_failed + failed))
	summary+=$(printf '%-16s %5d passed %5d failed %5d skipped %5d s, %5d s of processor time' \
		"$name" "$passed" "$failed" "$skipped" "$seconds" "$taken")$'\n'
}

every='fmt c-format clippy msrv doc rust fuzz bench-driver loom order sim build build-test self-test vm model install ctest-order ctest ctest-valgrind old-kernels dtest dapltest aarch64 i686 examples providers demo address secure tsan-programs packages'
# Other processors, in emulation, and another C library: few changes are of one alone.
long_only='ppc64le s390x riscv64 musl'
[ -z "${LONG-}" ] || every+=" $long_only"
wanted=${*:-$every}
for name in $wanted; do
	case " $every " in *" $name "*) ;; *) echo "check.sh: no suite $name; there are: $every" >&2 && exit 2 ;; esac
done
make=(make --no-print-directory)

if [ -n "${LONG-}" ]; then
	order_runs=
	valgrind_1=() valgrind_2=()
	dtest_devices= dapltest_devices=
	vm_only='*'
	vm=(iwarp:siw yama:siw ours:rxe provider:rxe suite:rxe behaviour:rxe)
	i686_runs= i686_unit=all
	export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
	# The C suite as a whole takes more than half an hour in the machine.
	export VM_TIMEOUT=${VM_TIMEOUT:-5400}
else
	order_runs='dat2:soft dat:soft-shm dat2:soft-tcp'
	i686_runs='dat:soft-tcp dat2:soft-shm'
	i686_unit='guarded cancel:: trace:: system_call mem:: handle::'
	valgrind_1=(t_cr t_disconnect t_rdma)
	valgrind_2=(t_ep t_evd t_registry t_conf_file t_rmr t_rmr_invalidate t_srq t_srq_marks)
	dtest_devices='soft soft-tcp'
	dapltest_devices='soft soft-shm soft-tcp soft:soft-tcp'
	vm_only='@(transfers|moving|tuned|strangers|reject|server-close|crash|nobody|dtest*|dat2/rxe/t_@(atomics|connect|cr|csp|datagram_peers|datagrams|disconnect|exchange|extensions|immediate|rdma|rmr|rmr_ep|rmr_invalidate|send|counters|unmapped|zero_based|zero_based_rmr)|behaviour/@(connection|rejected|nobody_listens|graceful|twice|with_receives|connected_again|messages|segments|operations|write_with_an_unknown_key|every))*'
	vm=(iwarp:siw yama:siw suite:rxe behaviour:rxe)
fi

# Each version of the API and each path once; what they have in common is slow enough. Over shared memory it is the
# end of a program that matters: valgrind reads all memory then.
valgrind_part() {
	"${make[@]}" PROFILE=release libs ctest-bin &&
		side_by_side "$logs" valgrind_run dat:soft-tcp dat2:soft dat2:soft-shm | one_stream
}

# valgrind_run RUN: with the programs for this version of the API
valgrind_run() {
	local programs=()
	case $1 in
	dat:*) programs=("${valgrind_1[@]}") ;;
	*-shm) programs=(t_send) ;;
	*) programs=("${valgrind_2[@]}") ;;
	esac
	"${make[@]}" PROFILE=release VALGRIND=1 RUNS="$1" TESTS="${programs[*]}" ctest
}

# What an old kernel lacks concerns memory that is registered, and the path through shared memory, which there is from
# Linux 3.17 on.
old_kernels() {
	"${make[@]}" PROFILE=release libs ctest-bin build/release/old_kernel &&
		side_by_side "$logs" old_kernel_run 3.10:dat2:soft 3.10:dat:soft-tcp 4.4:dat2:soft-shm 4.18:dat:soft-shm | one_stream
}

# old_kernel_run KERNEL:RUN
old_kernel_run() {
	local programs=(t_send t_rdma t_cr t_kill t_exec)
	[ -z "${LONG-}" ] || programs=()
	KERNEL=${1%%:*} RUNS=${1#*:} scripts/ctest.sh build/release "${programs[@]}"
}

suite fmt cargo fmt --all --check
suite c-format scripts/c-format.sh
# These need processors and nothing else, and get what the others leave. A million seeds of the simulation are a
# quarter of an hour on two processors.
begin background msrv nice -n 19 scripts/msrv.sh -- loom nice -n 19 scripts/loom.sh -- \
	sim nice -n 19 env SIM_RUNS="$([ -n "${LONG-}" ] && echo 1000000 || echo 20000)" scripts/sim.sh
suite clippy cargo clippy --workspace --all-targets --locked -- -D warnings
suite doc env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items
# The proofs that need Debian's packages must not be passed over here. Many tests wait for a time limit.
suite rust env RUST_TEST_THREADS=$((2 * $(nproc))) DAT_CHECK_DTEST=1 DAT_CHECK_VERBS=1 DAT_CHECK_RELEASE=1 cargo test --workspace --locked --no-fail-fast
suite fuzz scripts/fuzz.sh
suite bench-driver env PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -s scripts/bench
suite order env BOUNDED="$([ -n "${LONG-}" ] || echo 1)" scripts/order.sh
suite build "${make[@]}" PROFILE=release libs ctest-bin build/release/dat_demo
suite build-test scripts/build-test.sh
suite self-test scripts/self-test.sh build/release
# Emulation takes its time, and devices and programs of others have races of their own: `make
# vm-check` runs more, see vm/README.md.
begin machine vm env ABIS=dat2 ONLY="$vm_only" vm/check.sh build/release "${vm[@]}"
suite model env MODEL_STEPS="$([ -n "${LONG-}" ] && echo 1000000 || echo 600000)" "${make[@]}" PROFILE=release model
suite install scripts/install-test.sh
suite ctest-valgrind valgrind_part
finish machine
# The suites beside these mostly wait.
begin emulation aarch64 scripts/emulated.sh aarch64 -- i686 env RUNS="$i686_runs" UNIT="$i686_unit" scripts/i686.sh \
	-- ppc64le scripts/emulated.sh ppc64le -- s390x scripts/emulated.sh s390x \
	-- riscv64 scripts/emulated.sh riscv64 -- musl scripts/musl.sh
# Overflow and debug assertions are in dev builds only, of which this is one.
suite ctest-order env RUNS="$order_runs" "${make[@]}" ctest-order
suite ctest "${make[@]}" PROFILE=release ctest
suite old-kernels old_kernels
suite dtest env DEVICES="$dtest_devices" "${make[@]}" PROFILE=release dtest
suite dapltest env DEVICES="$dapltest_devices" "${make[@]}" PROFILE=release dapltest
suite examples scripts/examples-test.sh
suite providers scripts/providers-test.sh build/release
suite demo scripts/demo.sh build/release --quick
suite address scripts/address-test.sh build/release
suite secure scripts/secure-test.sh build/release/lib
suite tsan-programs scripts/tsan-programs.sh build/release
finish emulation
suite packages scripts/packages-test.sh
finish background

echo '=== summary'
printf '%s' "$summary"
cat "$logs/failed"
echo "$total_passed passed, $total_failed failed" | tee "$logs/total"
[ $total_failed = 0 ] && [ $((total_passed)) -gt 0 ]
