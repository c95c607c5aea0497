#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# dtest.sh [--lib DIR] [--repeat N] [MODE]...: runs Debian's unmodified dtest on our library,
# server and client in two processes, and prints TAP together with the figures that dtest
# reports. A mode is dtest's arguments in one word: "" or "-W -a -b 65536". No mode: all.
# DEVICES names the interface adapters of tests-c/programs.conf (CONF) to use; SERVER:CLIENT are two.
#
# dtest ends with status 0 even when it found errors, so both outputs are searched as well.
set -u

. "${0%/*}/need.sh" awk dirname dtest grep ldd mktemp realpath rm sed sleep stdbuf timeout
root=$(cd "$(dirname "$0")/.." && pwd)
lib=$root/build/release/lib
repeat=1
one=
port=15828 # dtest's own TCP connection, on which the two ends exchange addresses
devices=${DEVICES:-soft soft-shm soft-tcp soft:soft-tcp soft-tcp:soft soft-shm:soft}
limit=${DTEST_TIMEOUT:-300} # generous: -D moves 8 GiB and looks at every byte

while [ $# -gt 0 ]; do
	case $1 in
	--lib) lib=$(realpath "$2") && shift 2 ;;
	--repeat) repeat=$2 && shift 2 ;;
	--one) one=$2 && shift 2 ;; # one mode on that device, in this network namespace
	*) break ;;
	esac
done
export LD_LIBRARY_PATH=$lib DAT_OVERRIDE=${CONF:-$root/tests-c/programs.conf}

# in_state STATE: is a TCP socket with our port in this state (hexadecimal, see tcp(7))?
in_state() {
	grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X $port) [0-9A-F]*:[0-9A-F]* $1 " \
		/proc/net/tcp /proc/net/tcp6
}

# Prints what went wrong; nothing if nothing did.
run_one() {
	local server_log=$1 client_log=$2
	shift 2
	local tries=0 server server_status client_status

	# Only where namespaces are refused does the last run still hold the port.
	while in_state 06 || in_state 0A; do
		tries=$((tries + 1))
		[ $tries -le 900 ] || { echo "port $port is in use"; return; }
		sleep 0.1
	done
	timeout -k 5 "$limit" stdbuf -oL dtest -P "${one%%:*}" "$@" >"$server_log" 2>&1 </dev/null &
	server=$!
	trap 'kill $server 2>/dev/null' EXIT
	tries=0
	until in_state 0A; do
		tries=$((tries + 1))
		if [ $tries -gt 1200 ] || ! kill -0 $server 2>/dev/null; then
			echo 'the server does not listen'
			kill $server 2>/dev/null
			wait $server
			return
		fi
		sleep 0.05
	done
	timeout -k 5 "$limit" stdbuf -oL dtest -P "${one#*:}" -h 127.0.0.1 "$@" >"$client_log" 2>&1 </dev/null
	client_status=$?
	# The server ends with the client; if the client failed it may wait for ever.
	tries=0
	while kill -0 $server 2>/dev/null && [ $tries -lt 600 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	kill $server 2>/dev/null
	wait $server
	server_status=$?
	trap - EXIT
	[ $client_status = 0 ] || echo "client: exit status $client_status"
	[ $server_status = 0 ] || echo "server: exit status $server_status"
	grep -q PASSED "$client_log" || echo 'client: does not say PASSED'
	grep -q PASSED "$server_log" || echo 'server: does not say PASSED'
	complaints "$client_log" | sed 's/^/client: /'
	complaints "$server_log" | sed 's/^/server: /'
}

# complaints LOG: what dtest says of errors. A 32-bit dtest has no 32-bit library of stdbuf, and does without.
complaints() {
	grep -E 'FAILED|ERR|[Ee]rror|Warning' "$1" | grep -v "^ERROR: ld\.so: .*libstdbuf\.so' from LD_PRELOAD"
}

if [ -n "$one" ]; then
	logs=$(mktemp -d) || exit 1
	# shellcheck disable=SC2086 # a mode is a list of arguments
	wrong=$(run_one "$logs/server" "$logs/client" $1)
	for end in server client; do
		[ -z "$wrong" ] || sed "s/^/# $end| /" "$logs/$end" 2>/dev/null
		grep -hE 'latency|MB/s|usec| us' "$logs/$end" 2>/dev/null |
			sed -E "s/^ *[0-9]+:? */# $end: /"
	done
	rm -rf "$logs"
	[ -z "$wrong" ] || echo "$wrong" | sed 's/^/# /'
	[ -z "$wrong" ]
	exit
fi

if [ $# = 0 ]; then
	set -- '' -p -c -u -t -w -W '-W -a -b 65536' -D '-b 65536 -B 100'
fi
number=0
bad=0
echo 'TAP version 13'
read -ra devices <<<"$devices"
echo "1..$(($# * repeat * ${#devices[@]} + 1))"

number=$((number + 1))
used=$(ldd "$(command -v dtest)" | awk '/libdat2/ { print $3 }')
if [ -e "$used" ] && [ "$used" -ef "$lib/libdat2.so.2" ]; then
	echo "ok $number - dtest uses the library in $lib"
else
	echo "# dtest would load: $used"
	echo "not ok $number - dtest uses the library in $lib"
	exit 1
fi

for ((round = 1; round <= repeat; round++)); do
	for device in "${devices[@]}"; do
		for mode in "$@"; do
			number=$((number + 1))
			verdict=ok
			"$root/scripts/alone.sh" "$root/scripts/dtest.sh" --lib "$lib" --one "$device" "$mode" ||
				verdict='not ok'
			[ "$verdict" = ok ] || bad=$((bad + 1))
			name="$device/dtest${mode:+ $mode}"
			[ "$repeat" = 1 ] || name="$name (round $round)"
			echo "$verdict $number - $name"
		done
	done
done
[ $bad = 0 ]
