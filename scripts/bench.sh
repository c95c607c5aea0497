#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench.sh TOOLS OTHERS: runs the benchmark (bench/main.py) with the dat-perf of a directory, and with
# our programs on the libraries of others in another one, in a
# network namespace of its own, where TCP uses cubic: large streams over the loopback interface
# are halved by bbr, and all programs are to have the same.
#
# ROUNDS=7   how often everything is measured
# ONLY=      targets, or the beginnings of their names: ONLY="shm tcp.send"
#
# If everything is measured, docs/bench has the figures, and docs/performance.md and docs/bench.svg are
# made of all that is there.
set -eu
. "${0%/*}/need.sh" dirname id ip mkdir python3 realpath sh unshare

cd "$(dirname "$0")/.."
tools=$(realpath "${1:?usage: bench.sh TOOLS OTHERS}")
others=${2:?usage: bench.sh TOOLS OTHERS}
only=${ONLY-}
export PYTHONDONTWRITEBYTECODE=1
mkdir -p build/bench
[ -e "$tools/libdat2.so" ] || {
	echo "bench: no libdat2.so beside dat-perf in $tools" >&2
	exit 2
}

run=(python3 scripts/bench/main.py --tools "$tools" --others "$others" --rounds "${ROUNDS:-7}" --only "$only"
	--json build/bench/bench.json)
[ -n "$only" ] || run+=(--keep)

# The route says it for both ends of a connection, and unlike the sysctl it also may where
# cubic is not among the algorithms that every user may choose.
# shellcheck disable=SC2016 # for the inner shell
inside='ip link set lo up &&
ip route replace table local local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1 congctl cubic'
flags=(--net)
[ "$(id -u)" = 0 ] || flags=(--map-root-user --net)
if unshare "${flags[@]}" sh -c "$inside" 2>/dev/null; then
	exec unshare "${flags[@]}" sh -c "$inside"' && exec "$@"' sh "${run[@]}" --congestion cubic
fi
echo 'bench: no network namespace of our own: TCP as the system has it' >&2
exec "${run[@]}"
