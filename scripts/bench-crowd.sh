#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench-crowd.sh DIRECTORY: many connections, and more processes that poll than processors; DIRECTORY
# has dat-perf, bench-probe and the libraries.
#
# First two processes exchange messages of 8 bytes over so many connections in turn, all of them polled by
# one event dispatcher. Prints the median and the mean of a message one way in microseconds, how many times
# the median of the first number of connections that is, and how long a connection took to make; beside
# that how long a bare socket takes to connect, with one message each way. ENDPOINTS names other numbers.
#
# Then pairs of processes exchange messages of 8 bytes on two processors, one pair, two and four at a time.
# Prints, for libdat and for UCX if it is installed, the time of a message one way in microseconds: the mean
# of the pair that has the shortest one, and of the one that has the longest. PAIRS names other numbers of
# pairs.
set -u -o pipefail
. "${0%/*}/need.sh" awk cat ln mkdir mktemp realpath rm seq sleep sort taskset timeout tr

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

# many PATH COUNT: median and mean of a message, and microseconds that a connection took.
many() {
	on "$programs/dat-perf" --server --once -i "soft-$1" -q 20900 >/dev/null 2>&1 &
	sleep 0.5
	on "$programs/dat-perf" --client 127.0.0.1 -i "soft-$1" -q 20900 -t latency -o send -s 8 -e "$2" \
		-w 1 --time 2 --json 2>/dev/null | tr -d '",' | awk '
		$1 == "connect_seconds:" { connect = $2 }
		$1 == "endpoints:" { count = $2 }
		$1 == "mean:" { mean = $2 }
		$1 == "p50:" { middle = $2 }
		END { if (middle) printf "%.3f %.3f %.1f\n", middle, mean, connect / count * 1e6 }'
	wait
}

ulimit -n "$(ulimit -H -n)"
printf '%-8s %-5s %11s %10s %10s %8s %11s\n' program path connections median mean times connecting
for path in shm tcp; do
	first=
	for count in ${ENDPOINTS:-100 1000 5000 10000}; do
		read -r middle mean connecting < <(many $path "$count") || {
			printf '%-8s %-5s %11d %10s\n' libdat $path "$count" failed
			continue
		}
		: "${first:=$middle}"
		awk -v path=$path -v count="$count" -v middle="$middle" -v mean="$mean" -v first="$first" \
			-v connecting="$connecting" 'BEGIN {
				printf "%-8s %-5s %11d %10.3f %10.3f %7.2fx %11.1f\n", "libdat", path, count, middle, mean,
					middle / first, connecting
			}'
	done
done
"$programs/bench-probe" connect 0 1 1000 | awk '{
	printf "%-8s %-5s %11d %10s %10s %8s %11.1f\n\n", "socket", "tcp", 1000, "", "", "", $2 / 1e3
}'

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
