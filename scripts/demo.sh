#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# demo.sh OUT [--quick]: starts the demo's server and client as two processes on this host, on
# the library in OUT/lib. No configuration is given: the built-in IA "soft" is used. CLIENT is another OUT, from which
# the client is; LIBRARIES says where the libraries of another processor are. Where there is a program OUT/env, it starts
# those of OUT (scripts/emulated.sh). LIMIT says how many seconds each may take.
set -u
. "${0%/*}/need.sh" cat grep mktemp realpath rm sed seq sleep timeout
. "${0%/*}/loaded.sh"

out=$(realpath "${1:?usage: demo.sh OUT [--quick]}")
shift
client=$(realpath "${CLIENT:-$out}")
limit=${LIMIT:-120}

# libraries OUT: where the program from there finds its libraries
libraries() {
	echo "LD_LIBRARY_PATH=$1/lib${LIBRARIES:+:$LIBRARIES}"
}

# starter OUT: what starts a program from there, with variables in front of it
starter() {
	if [ -x "$1/env" ]; then echo "$1/env"; else echo env; fi
}

# The system may have another library of this name.
for end in "$out" "$client"; do
	used=$(loaded "$(starter "$end")" "$(libraries "$end")" "$end/dat_demo" 2>&1) || { echo "demo: $used" >&2 && exit 1; }
	case $used in
	*"libdat.so.1 => $end/lib/"*) ;;
	*) echo "demo: would run on: $used" >&2 && exit 1 ;;
	esac
done

log=$(mktemp) || exit 1
timeout -k 5 "$limit" "$(starter "$out")" "$(libraries "$out")" "$out/dat_demo" server >"$log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; rm -f "$log"' EXIT
qualifier=
for _ in $(seq 600); do
	qualifier=$(sed -n 's/^server: .* qualifier \([0-9]*\)$/\1/p' "$log")
	[ -z "$qualifier" ] && kill -0 $server 2>/dev/null || break
	sleep 0.1
done
if [ -z "$qualifier" ]; then
	echo 'demo: the server did not start:' >&2
	cat "$log" >&2
	exit 1
fi
timeout -k 5 "$limit" "$(starter "$client")" "$(libraries "$client")" "$client/dat_demo" client -q "$qualifier" "$@" 127.0.0.1
client_status=$?
wait $server
server_status=$?
cat "$log"
if [ $client_status != 0 ] || [ $server_status != 0 ]; then
	echo "demo: FAILED (client status $client_status, server status $server_status)" >&2
	exit 1
fi
