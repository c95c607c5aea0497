# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts in the machine: runs the two ends of a test, and reports in TAP.
#
# An end is WHOSE:IA. WHOSE says which libdat2 (and libdat) the program finds: "ours", from
# $LIBDAT, or "debian", the one of the system. IA is a name of dat.conf, in a network namespace:
# that of soft is "peer".

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DAT_OVERRIDE=$here/dat.conf
: "${LIBDAT:=$here/../build/release/lib}"
logs=/vm/log
mkdir -p $logs
number=0
bad=0
server= # process id
complaints='[Ee]rror|ERR|[Ww]arning|[Ff]ail|FAIL|bad |can not|unimplemented|timed out|panicked'

# verdict NAME [WHY]: one line of TAP, not ok if there is a WHY, and then with what the ends said.
verdict() {
	number=$((number + 1))
	if [ -z "${2-}" ]; then
		echo "ok $number - $1"
		return
	fi
	bad=$((bad + 1))
	sed 's/^/# /' <<<"$2"
	local end
	for end in server client; do
		tail -n 40 $logs/$end 2>/dev/null | sed "s/^/# $end| /"
	done
	echo "not ok $number - $1"
}

# plan: what comes last.
plan() {
	echo "1..$number"
	[ $bad = 0 ]
}

# address_of IA
address_of() {
	case $1 in
	*rxe) echo 10.0.0.1 ;;
	*siw) echo 10.1.0.1 ;;
	soft) echo 10.1.0.2 ;;
	esac
}

# run_end WHOSE:IA COMMAND...: becomes the command.
run_end() {
	local whose=${1%%:*} ia=${1#*:} prefix=()
	shift
	[ "$ia" != soft ] || prefix=(ip netns exec peer)
	[ "$whose" != ours ] || export LD_LIBRARY_PATH=$LIBDAT
	exec "${prefix[@]}" "$@"
}

# until_true SECONDS COMMAND...
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# said END PATTERN
said() {
	grep -qE "$2" "$logs/$1" 2>/dev/null
}

ready() {
	said server "$1" || ! kill -0 "$server" 2>/dev/null
}

# serve SECONDS END PATTERN COMMAND...: starts the server and waits until it says PATTERN.
serve() {
	local limit=$1 end=$2 pattern=$3
	shift 3
	(run_end "$end" timeout -k 2 "$limit" stdbuf -oL "$@") >$logs/server 2>&1 </dev/null &
	server=$!
	until_true 30 ready "$pattern"
}

# call SECONDS END COMMAND...: the client, whose status it returns.
call() {
	local limit=$1 end=$2
	shift 2
	(run_end "$end" timeout -k 2 "$limit" stdbuf -oL "$@") >$logs/client 2>&1 </dev/null
}

gone() {
	! kill -0 "$server" 2>/dev/null
}

# served: the status of the server, which gets some seconds to end.
served() {
	until_true 10 gone || kill "$server" 2>/dev/null
	wait "$server"
}

# two_ends SECONDS: server and client have been started by serve and call; prints what is wrong
# with how they ended and what they said.
complain() {
	local client_status=$1 server_status=$2 end
	[ "$client_status" = 0 ] || echo "client: exit status $client_status"
	[ "$server_status" = 0 ] || echo "server: exit status $server_status"
	for end in client server; do
		grep -E "$complaints" $logs/$end | head -5 | sed "s/^/$end: /"
	done
}
