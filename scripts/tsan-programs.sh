#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tsan-programs.sh OUT: what ThreadSanitizer reports of programs on our libraries in OUT/lib, which are not compiled for
# it. tests-c/race.c is compiled with -fsanitize=thread by cc, and by clang if that is there: what the API orders is a race
# in no case, and what it does not order is one in each. RUNS says on which version of the API and which IA of
# tests-c/dat.conf, or of another file behind an @. LONG=1 adds a part of the C suite. Prints TAP.
#
# No option of the checker is set. Its older versions end at once where the kernel chooses addresses among too many
# (vm.mmap_rnd_bits): so it does not choose here.
set -u
. "${0%/*}/need.sh" awk cc dirname grep make mkdir nproc realpath sed setarch timeout uname
. "${0%/*}/side-by-side.sh"
. "${0%/*}/loaded.sh"

cd "$(dirname "$0")/.." || exit 1
out=$(realpath "${1:?usage: tsan-programs.sh OUT}")
# The last have other function tables: those that count, and those of a library that another one loads.
runs=${RUNS:-dat:soft dat:soft-shm dat:soft-tcp dat2:soft dat2:soft-shm dat2:soft-tcp
dat2:soft-shm-counters dat2:soft-tcp@providers.conf}
mine=$out/tsan-programs
mkdir -p "$mine/log"
export LD_LIBRARY_PATH=$out/lib
unset TSAN_OPTIONS
# gcc has the checker in a library, clang has it in the program.
compilers=(cc)
for compiler in clang clang-{14..22}; do
	command -v "$compiler" >/dev/null && compilers+=("$compiler") && break
done
sources=(tests-c/{race,race_messages,race_events,race_connections,common,tap,connection,moved}.c)

number=0
bad=0

# verdict NAME COMMAND...: the command succeeds
verdict() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@"; then
		echo "ok $number - tsan.$name"
	else
		sed 's/^/# /' "$said" | grep -E 'WARNING|#[0-3] |SUMMARY|FATAL|tests-c|missing|libdat' | head -40
		echo "not ok $number - tsan.$name"
		bad=$((bad + 1))
	fi
}

# compile COMPILER VERSION
compile() {
	local flags=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -fsanitize=thread -pthread)
	[ "$2" = dat ] || flags+=(-DDAT2)
	"$1" "${flags[@]}" -Iinclude -Itests-c -o "$mine/$1-$2" "${sources[@]}" -L"$out/lib" "-l$2" >"$said" 2>&1
}

# uses_ours PROGRAM
uses_ours() {
	loaded env "$1" >"$said"
	grep -q "libdat.* => $out/lib/" "$said"
}

# race PROGRAM ARGUMENT...: what the program prints is in $said
race() {
	timeout -k 5 120 setarch "$(uname -m)" -R "$@" >"$said" 2>&1 </dev/null
}

# ordered PROGRAM IA: nothing is reported.
ordered() {
	race "$1" "$2" ordered && [ ! -s "$said" ]
}

# reported PROGRAM IA MODE: each case is, and nothing but races.
reported() {
	local case cases missing=
	race "$1" "$2" list "$3" || return
	mapfile -t cases <"$said"
	[ ${#cases[@]} -gt 0 ] || return
	race "$1" "$2" "$3"
	# The exit status of a program that races were reported of.
	[ $? = 66 ] || return
	for case in "${cases[@]}"; do
		grep -qE "^ +#0 (use|prepare)_$case " "$said" || missing+=" $case"
	done
	if [ -n "$missing" ]; then
		echo "missing:$missing" >>"$said"
		return 1
	fi
	! grep '^WARNING: ThreadSanitizer' "$said" | grep -v 'data race (pid='
}

# one COMPILER:VERSION:IA[@FILE], or `suite`
one() {
	local compiler version ia program
	if [ "$1" = suite ]; then
		suite
		return
	fi
	IFS=: read -r compiler version ia <<<"$1"
	said=$mine/log/${1//:/-}.said
	program=$mine/$compiler-$version
	export DAT_OVERRIDE=$PWD/tests-c/dat.conf
	case $ia in
	*@*) DAT_OVERRIDE=$PWD/tests-c/${ia#*@} ia=${ia%@*} ;;
	esac
	verdict "$1.uses_our_library" uses_ours "$program"
	verdict "$1.what_is_ordered_is_no_race" ordered "$program" "$ia"
	verdict "$1.use_without_the_event_is_a_race" reported "$program" "$ia" early
	verdict "$1.a_change_afterwards_is_a_race" reported "$program" "$ia" late
	echo "1..$number"
}

# The programs of the C suite that neither fork nor have handlers of signals, which the checker replaces.
programs=(t_agent t_bind t_cno t_completion t_connect t_cr t_disconnect t_ep t_evd t_order t_order_data t_order_ends
	t_order_evd t_order_requests t_programs t_rdma t_rmr t_send t_srq t_stress)
suite() {
	local binaries=() version
	for version in dat dat2; do
		binaries+=("${programs[@]/#/$mine/suite/$version/}")
	done
	make --no-print-directory OUT="$mine/suite" CFLAGS='-O1 -g -fsanitize=thread' libs "${binaries[@]}" >/dev/null &&
		JOBS=3 RUNS='dat:soft-tcp dat2:soft dat2:soft-shm' setarch "$(uname -m)" -R \
			scripts/ctest.sh "$mine/suite" "${programs[@]}"
}

said=$mine/log/compile.said
for compiler in "${compilers[@]}"; do
	for version in dat dat2; do
		if ! compile "$compiler" $version; then
			cat "$said"
			echo "Bail out! $compiler cannot compile a program for ThreadSanitizer"
			exit 1
		fi
	done
done
all=()
for compiler in "${compilers[@]}"; do
	for run in $runs; do
		all+=("$compiler:$run")
	done
done
[ -z "${LONG-}" ] || all+=(suite)
side_by_side "$mine/log" one "${all[@]}" | one_stream
