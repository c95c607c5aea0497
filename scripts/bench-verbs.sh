#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench-verbs.sh OUT [ROUNDS]: what uDAPL adds to the raw verbs calls, in nanoseconds and in
# instructions, for our library and for the original (Debian's libdapl2), on a device that does
# nothing (benches/verbs). OUT is a build directory, as make bench-verbs fills it.
#
# The programs take turns, and what a round adds is counted against the raw calls of the same
# round: the machine may be faster in the next. Instructions are those of twice as many
# iterations less those of once as many, as callgrind counts them. One table is printed.
set -eu -o pipefail
. "${0%/*}/need.sh" awk cat grep ldd mktemp realpath rm sed seq valgrind

out=$(realpath "$1")
rounds=${2:-9}
bench=$out/bench-verbs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What each operation may add, in nanoseconds: with DAPL's figure in mind, at about half of it.
operations='write send empty wait'
declare -A target=([write]=10 [send]=22 [empty]=4 [wait]=25)
declare -A title=(
	[write]='write + completion'
	[send]='recv + send + 2 compl.'
	[empty]='empty dequeue'
	[wait]='write + ready wait'
)

cat >"$work/ours.conf" <<END
bench u2.0 threadsafe default builtin:verbs libdat.1.0 "lo 0" ""
END
cat >"$work/original.conf" <<END
bench u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "lo 0" ""
END

# run raw|ours|original [COMMAND OPTION...] -- [ARGUMENT...]
run() {
	local which=$1 program=overhead_dat lib=$bench/lib prefix=()
	shift
	while [ "$1" != -- ]; do
		prefix+=("$1")
		shift
	done
	shift
	case $which in
	raw) program=overhead_raw ;;
	ours) lib=$out/lib:$lib ;;
	esac
	LD_LIBRARY_PATH=$lib DAT_OVERRIDE=$work/$which.conf "${prefix[@]}" "$bench/$program" "$@"
}

# uses ours|original: does the program find our library?
uses() {
	run "$1" ldd -- | grep -F "$out/lib/libdat2" >/dev/null
}
if ! uses ours || uses original; then
	echo 'bench-verbs: not the libraries that were meant' >&2
	exit 1
fi

for _ in $(seq "$rounds"); do
	for which in raw ours original; do
		run $which -- | sed "s/^/$which /"
	done
done >"$work/ns"

count=20000
for operation in $operations; do
	for which in raw ours original; do
		for n in $count $((2 * count)); do
			run $which valgrind --tool=callgrind --callgrind-out-file=/dev/null -- \
				"$operation" "$n" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
			awk -v key="$which $operation" '/Collected/ { print key, $NF }' "$work/log"
		done
	done
done >"$work/instructions"

awk -v operations="$operations" -v count=$count \
	-v targets="$(for o in $operations; do echo "$o=${target[$o]}"; done)" \
	-v titles="$(for o in $operations; do echo "$o=${title[$o]}"; done)" '
function median(values, n,   i, j, t) {
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
			t = values[j]; values[j] = values[j - 1]; values[j - 1] = t
		}
	return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}
function added(which, operation,   i, list) {
	for (i = 1; i <= seen["raw", operation]; i++)
		list[i] = ns[which, operation, i] - ns["raw", operation, i]
	return median(list, i - 1)
}
function pairs(text, to,   i, n, lines, at) {
	n = split(text, lines, "\n")
	for (i = 1; i <= n; i++) {
		at = index(lines[i], "=")
		to[substr(lines[i], 1, at - 1)] = substr(lines[i], at + 1)
	}
}
FILENAME ~ /\/ns$/ {
	i = ++seen[$1, $2]
	ns[$1, $2, i] = $3
	next
}
{ instructions[$1, $2] = ($3 - last[$1, $2]) / count; last[$1, $2] = $3 }
END {
	pairs(targets, target)
	pairs(titles, title)
	n = split(operations, order, " ")
	printf "%-24s %8s %14s %16s %8s  %-8s %17s\n", "", "raw", "ours adds",
		"original adds", "target", "", "instructions"
	printf "%-24s %8s %14s %16s %8s  %-8s %5s %6s %9s\n", "operation", "ns", "ns", "ns",
		"ns", "", "raw", "+ours", "+original"
	for (k = 1; k <= n; k++) {
		o = order[k]
		for (i = 1; i <= seen["raw", o]; i++)
			raw[i] = ns["raw", o, i]
		ours = added("ours", o)
		printf "%-24s %8.1f %14.1f %16.1f %8d  %-8s %5.0f %6.0f %9.0f\n", title[o],
			median(raw, seen["raw", o]), ours, added("original", o), target[o],
			sprintf("%.1f", ours) + 0 <= target[o] + 0 ? "reached" : "missed", instructions["raw", o],
			instructions["ours", o] - instructions["raw", o],
			instructions["original", o] - instructions["raw", o]
	}
}' "$work/ns" "$work/instructions"
