#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench-crowd.sh DIRECTORY: more processes that poll than processors. Pairs of processes exchange
# messages of 8 bytes on two processors, one pair, two and four at a time; DIRECTORY has dat-perf and
# the libraries. Prints, for libdat and for UCX if it is installed, the time of a message one way in
# microseconds: the mean of the pair that has the shortest one, and of the one that has the longest.
# PAIRS names other numbers of pairs.
set -u -o pipefail
. "${0%/*}/need.sh" awk cat ln mkdir mktemp realpath rm seq sleep sort taskset timeout

root=$(cd "$(dirname "$0")/.." && pwd)
programs=$(realpath "${1:?usage: bench-crowd.sh DIRECTORY}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/lib" && ln -s "$programs/libdat2.so" "$work/lib/libdat2.so.2"
export LD_LIBRARY_PATH=$work/lib DAT_OVERRIDE=$root/tests-c/dat.conf
# A pair that takes longer is given up.
limit=30

# on COMMAND...: runs it on the two processors
on() {
	timeout -k 1 "$limit" taskset -c 0,1 "$@"
}

# Each prints the mean of the pair of that number, over shm or tcp.
libdat() {
	local path=$1 port=$((21000 + $2))
	on "$programs/dat-perf" --server --once -i "soft-$path" -q "$port" >/dev/null 2>&1 &
	sleep 0.5
	on "$programs/dat-perf" --client 127.0.0.1 -i "soft-$path" -q "$port" -t latency -o send -s 8 \
		--time 2 2>/dev/null | awk '$2 == "send" { print $5 }'
	wait
}

ucx() {
	local port=$((22000 + $2))
	# Fewer messages where each may take milliseconds.
	local tool=(ucx_perftest -p "$port" -t tag_lat -s 8 -n "$3" -w 100 -f -v)
	export UCX_TLS=$1 UCX_WARN_UNUSED_ENV_VARS=n
	[ "$1" = shm ] || export UCX_NET_DEVICES=lo
	on "${tool[@]}" >/dev/null 2>&1 &
	sleep 0.5
	# The last line has the mean of all in its fourth column.
	on "${tool[@]}" 127.0.0.1 2>/dev/null | awk -F, '/^[0-9]/ { mean = $4 } END { if (mean) print mean }'
	wait
}

rivals=libdat
command -v ucx_perftest >/dev/null && rivals+=' ucx'
printf '%-8s %-5s %6s %12s %12s\n' program path pairs shortest longest
for path in shm tcp; do
	for pairs in ${PAIRS:-1 2 4}; do
		for rival in $rivals; do
			messages=$((pairs > 1 ? 3000 : 200000))
			for pair in $(seq "$pairs"); do
				"$rival" $path "$pair" $messages >"$work/$pair.mean" &
			done
			wait
			cat "$work"/*.mean | sort -g | awk -v rival="$rival" -v path=$path -v pairs="$pairs" -v limit=$limit '
				NR == 1 { shortest = $1 }
				{ longest = $1 }
				END {
					if (NR < pairs) longest = "over " limit " s"
					printf "%-8s %-5s %6d %12s %12s\n", rival, path, pairs, shortest, longest
				}'
			rm -f "$work"/*.mean
		done
	done
done
