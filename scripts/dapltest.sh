#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# dapltest.sh [--lib DIR] [--repeat N] [CASE]...: runs Debian's unmodified dapltest, dtestcm,
# dtestsrq and dtestx on our library, servers and clients in processes of their own, and prints
# TAP. A CASE is a pattern of test names without the device: 'F/*', 'T/threads-6-*'. No CASE:
# all. DEVICES names the interface adapters of tests-c/programs.conf (CONF) to use; SERVER:CLIENT are two,
# for the cases that have two ends. JOBS says how many of them are used at a time.
#
# These tools end with status 0 after many errors, so what they print is searched as well: for
# complaints, and for the figures that only a test that ran to its end prints.
#
# What is not run, and why:
#  - the option -Q of the transaction test: dapltest itself refuses it as not supported;
#  - F/queryinfo/5 (query of a connection request) is one line of dapltest that says UNSUPP.
set -u

. "${0%/*}/need.sh" awk cat dapltest dirname dtestcm dtestsrq dtestx find grep head \
	ldd mktemp nproc paste realpath rm sed sleep stdbuf timeout wc
. "${0%/*}/side-by-side.sh"
root=$(cd "$(dirname "$0")/.." && pwd)
arguments=("$@")

lib=$root/build/release/lib
repeat=1
while [ $# -gt 0 ]; do
	case $1 in
	--lib) lib=$(realpath "$2") && shift 2 ;;
	--repeat) repeat=$2 && shift 2 ;;
	*) break ;;
	esac
done
patterns=("${@:-*}")
export LD_LIBRARY_PATH=$lib DAT_OVERRIDE=${CONF:-$root/tests-c/programs.conf}

devices=${DEVICES:-soft soft-shm soft-tcp soft:soft-tcp soft-tcp:soft soft:soft-shm soft-shm:soft-shared}
limit=${DAPLTEST_TIMEOUT:-60} # seconds, of one client
complaints='[Ee]rror|ERR|[Ww]arning|[Ff]ail|FAIL|bad |can not|unimplemented|timed out'
logs=$(mktemp -d) || exit 1
device=${DAPLTEST_DEVICE-} # as in the names of the cases; empty in the script that runs all
serves=${device%%:*}       # those of the two ends
asks=${device#*:}
number=0
bad=0
round=
server= # process id of the dapltest that serves
trap 'stop_server; rm -rf "$logs"' EXIT

# --- results --------------------------------------------------------------------------------

# why_private: why no memory moves on soft-shared here, as our library reports it; nothing if it does.
why_private() {
	timeout -k 5 "$limit" dapltest -T L -D soft-shared -m 1 limit_ia 2>&1 </dev/null |
		sed -n 's/^libdat: memory=eager is without effect: //p' | head -1
}

# wanted NAME: is it among the cases to run?
wanted() {
	local pattern
	for pattern in "${patterns[@]}"; do
		# shellcheck disable=SC2053 # a pattern it is
		[[ $1 == $pattern ]] && return 0
	done
	return 1
}

# verdict NAME: one line of TAP; a failure if $logs/why says anything.
verdict() {
	number=$((number + 1))
	if [ ! -s "$logs/why" ]; then
		echo "ok $number - $round$device/$1"
	else
		sed 's/^/# /' "$logs/why"
		echo "not ok $number - $round$device/$1"
		bad=$((bad + 1))
	fi
}

# quiet LOG: prints the lines that complain. A number like 0xbad1 does not.
quiet() {
	sed 's/0x[0-9a-f]*//g' "$1" | grep -nE "$complaints" | head -20
}

# --- the server of dapltest -----------------------------------------------------------------

# logged TEXT: the server has said so since its log was emptied.
logged() {
	grep -qF "$1" "$logs/server" 2>/dev/null
}

# until_true COMMAND...: waits at most 20 seconds.
until_true() {
	local tries
	for ((tries = 0; tries < 400; tries++)); do
		"$@" && return 0
		sleep 0.05
	done
	return 1
}

start_server() {
	[ -z "$server" ] || return 0
	: >"$logs/server"
	stdbuf -oL dapltest -T S -D "$serves" >>"$logs/server" 2>&1 </dev/null &
	server=$!
	until_true logged 'Service Point Ready' && return 0
	stop_server
	return 1
}

stop_server() {
	[ -n "$server" ] || return 0
	kill -9 "$server" 2>/dev/null
	wait "$server" 2>/dev/null
	server=
}

# client TYPE ARGUMENTS...: runs a test T or P to its end and prints what went wrong. The output
# is in $logs/client. The server is there already, or started.
client() {
	local status done='Transaction Test Finished'
	[ "$1" = T ] || done='Finished performance test.  Exiting.'
	: >"$logs/client"
	[ -n "$server" ] || { echo 'the server does not start' && return; }
	: >"$logs/server"
	timeout -k 5 "$limit" dapltest -T "$1" -s 127.0.0.1 -D "$asks" "${@:2}" \
		>"$logs/client" 2>&1 </dev/null
	status=$?
	[ $status = 0 ] || echo "client: exit status $status"
	quiet "$logs/client" | sed 's/^/client: /'
	until_true logged "$done" || echo 'server: does not finish the test'
	quiet "$logs/server" | sed 's/^/server: /'
	kill -0 "$server" 2>/dev/null || echo 'server: has ended'
}

# report NAME: the verdict of a test that has written to $logs/why what went wrong. A server is
# not used again after that.
report() {
	if [ -s "$logs/why" ]; then
		sed 's/^/# client| /' "$logs/client"
		sed 's/^/# server| /' "$logs/server"
		stop_server
	fi
	verdict "$1"
}

# --- F: functions ---------------------------------------------------------------------------

# feature NAME CASES: one line for each case of a feature.
feature() {
	local name=$1 cases=$2 case status
	wanted "F/$name" || return 0
	# Its tests listen where the server does.
	stop_server
	timeout -k 5 "$limit" dapltest -T F -D "$device" -f "$name" >"$logs/client" 2>&1 </dev/null
	status=$?
	for ((case = 0; case < cases; case++)); do
		awk -v want="$case" '
			/Function feature:/ { on = ($NF == want) }
			on && /failed in file|^Error/ { print }
			on && /^Result: (PASS|UNSUPP)/ { result = $2 }
			END {
				if (result == "") print "no result"
				if (result == "UNSUPP" && name != "queryinfo/5") print "not supported"
			}' name="$name/$case" "$logs/client" >"$logs/why"
		[ $status = 0 ] || echo "exit status $status" >>"$logs/why"
		verdict "F/$name/$case"
	done
}

# --- L: limits ------------------------------------------------------------------------------

# limit_of WIDTH WHAT FORMAT: tries to create a thousand in WIDTH instances of the IA; FORMAT is
# what it says in the end. It is no complaint that there is an end to resources.
limit_of() {
	local width=$1 what=$2 said=$3 status
	wanted "L/$what-$width" || return 0
	{
		timeout -k 5 "$limit" dapltest -T L -D "$device" -m 1000 -w "$width" "limit_$what" \
			>"$logs/client" 2>&1 </dev/null
		status=$?
		[ $status = 0 ] || echo "exit status $status"
		quiet "$logs/client" | grep -v 'fails: DAT_INSUFFICIENT_RESOURCES'
		grep -qE "^LimitTest: $said" "$logs/client" || echo "does not say '$said'"
	} >"$logs/why"
	[ ! -s "$logs/why" ] || sed 's/^/# client| /' "$logs/client"
	verdict "L/$what-$width"
}

# --- T: transactions ------------------------------------------------------------------------

# transaction_problems ARGUMENTS...: runs the test and prints what went wrong.
transaction_problems() {
	local threads=1 width=1 i
	for ((i = 1; i < $#; i++)); do
		case ${!i} in
		-t) i=$((i + 1)) && threads=${!i} ;;
		-w) i=$((i + 1)) && width=${!i} ;;
		esac
	done
	client T "$@"
	# That is all it prints when everything took less than a tick of its clock.
	! grep -q 'Test completed successfully, but cannot calculate stats' "$logs/client" || return
	# The statistics name what moved; without them the test did not run.
	grep -q "Stats ---- : $threads threads, $width EPs" "$logs/client" ||
		echo 'no statistics'
	awk -v ops=" $* " '
		function moved(what, op) {
			if (ops ~ (" " op " ") && !(amount[what] > 0)) print what ": nothing moved"
		}
		/^Total/ && / MB -/ {
			what = $0; sub(/ *:.*/, "", what)
			value = $0; sub(/[^:]*: */, "", value)
			amount[what] = value + 0
		}
		END {
			moved("Total Send", "SR"); moved("Total Recv", "SR")
			moved("Total RDMA Read", "RR"); moved("Total RDMA Write", "RW")
		}' "$logs/client"
}

# transaction NAME ARGUMENTS...
transaction() {
	wanted "T/$1" || return 0
	start_server
	transaction_problems "${@:2}" >"$logs/why"
	report "T/$1"
}

# --- P: performance -------------------------------------------------------------------------

# performance NAME ARGUMENTS...
performance() {
	local name=P/$1
	wanted "$name" || return 0
	start_server
	{
		client P "${@:2}"
		grep -q '^raw: ' "$logs/client" || echo 'no statistics'
	} >"$logs/why"
	sed -n 's/^ *\(Operation Throughput\|Bandwidth\|Arithmetic mean\) *: */\1 /p' \
		"$logs/client" | head -3 | sed 's/Arithmetic mean/latency/' | paste -sd, |
		sed "s|^|# $name: |; s|,|, |g"
	report "$name"
}

# --- the server in bad times, and its end ---------------------------------------------------

descriptors() {
	find "/proc/$server/fd" -mindepth 1 | wc -l
}

# settled: prints how many file descriptors the server has open, once that is the same for a while: what
# belongs to a connection may go a moment after its test.
settled() {
	local before="" now
	now=$(descriptors)
	until [ "$now" = "$before" ]; do
		before=$now
		sleep 0.3
		now=$(descriptors)
	done
	echo "$now"
}

# has_at_most N: whether the server has no more file descriptors open.
has_at_most() {
	[ "$(descriptors)" -le "$1" ]
}

# same_descriptors N: complains unless the server has as many file descriptors open, or soon.
same_descriptors() {
	until_true has_at_most "$1" || echo "the server had $1 file descriptors, now $(descriptors)"
}

# established N: at least so many connections are on this host, both ends counted: over TCP, or
# local sockets, of which only one end has a name.
established() {
	[ $(($(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "01"' | wc -l) + \
		2 * $(awk '$6 == "03" && $8 ~ /^@libdat\//' /proc/net/unix | wc -l))) -ge "$1" ]
}

small=(-i 20 client SR 1024 1 server SR 1024 1)

# Many clients, one after the other, leave no file descriptor behind.
many_clients() {
	local before i
	wanted Server/many-clients || return 0
	start_server
	{
		transaction_problems "${small[@]}"
		before=$(settled)
		for ((i = 0; i < 10; i++)); do
			transaction_problems -t 2 -w 4 "${small[@]}"
		done
		same_descriptors "$before"
	} >"$logs/why"
	report Server/many-clients
}

# Clients are killed in the midst of their data; the server serves the next, and what it opened
# for those that are gone is closed.
killed_clients() {
	local before i victim
	wanted Server/killed-clients || return 0
	start_server
	{
		transaction_problems "${small[@]}"
		before=$(settled)
		for ((i = 0; i < 3; i++)); do
			: >"$logs/server"
			dapltest -T T -s 127.0.0.1 -D "$asks" -i 1000000 -t 2 -w 4 \
				client SR 4096 1 server RW 4096 1 server SR 4096 1 \
				>"$logs/client" 2>&1 </dev/null &
			victim=$!
			# Eight, seen from both ends.
			until_true established 16 || echo 'no connections'
			sleep 0.2
			{ kill -9 "$victim" && wait "$victim"; } 2>/dev/null
			until_true logged 'Transaction Test Finished' ||
				echo 'the server does not notice the end of a client'
			transaction_problems "${small[@]}"
		done
		same_descriptors "$before"
	} >"$logs/why"
	report Server/killed-clients
}

server_gone() {
	! kill -0 "$server" 2>/dev/null
}

# The server that has served all this takes everything down and ends by itself.
quit() {
	local status
	wanted Q/quit || return 0
	start_server
	: >"$logs/server"
	{
		timeout -k 5 "$limit" dapltest -T Q -s 127.0.0.1 -D "$asks" \
			>"$logs/client" 2>&1 </dev/null
		status=$?
		[ $status = 0 ] || echo "client: exit status $status"
		quiet "$logs/client"
		if until_true server_gone; then
			wait "$server"
			status=$?
			server=
			[ $status = 0 ] || echo "server: exit status $status"
		else
			echo 'server: does not end'
		fi
		logged 'Exiting' || echo 'server: does not say that it ends'
		quiet "$logs/server"
	} >"$logs/why"
	report Q/quit
}

# --- dtestcm, dtestsrq, dtestx --------------------------------------------------------------

# ready_or_gone PID: the server waits for its client, or has ended. dtestcm listens on a TCP port
# of its own for that; dtestsrq says so.
ready_or_gone() {
	grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X 15828) [0-9A-F]*:[0-9A-F]* 0A " \
		/proc/net/tcp /proc/net/tcp6 ||
		grep -q 'server ready on port' "$logs/server" ||
		! kill -0 "$1" 2>/dev/null
}

client_only=()
# both_ends STATUS PROGRAM ARGUMENTS...: runs a server and a client with the same arguments, those of
# the array client_only apart, and prints what complains if they do not end with STATUS.
both_ends() {
	local want=$1 program=$2 pid status
	shift 2
	timeout -k 5 "$limit" stdbuf -oL "$program" -P "$serves" -s "$@" \
		>"$logs/server" 2>&1 </dev/null &
	pid=$!
	until_true ready_or_gone $pid
	timeout -k 5 "$limit" stdbuf -oL "$program" -P "$asks" -h 127.0.0.1 "$@" "${client_only[@]}" \
		>"$logs/client" 2>&1 </dev/null
	status=$?
	[ $status = "$want" ] || echo "client: exit status $status"
	wait $pid
	status=$?
	[ $status = "$want" ] || echo "server: exit status $status"
}

# connections NAME COUNT ARGUMENTS...: dtestcm
connections() {
	local name=dtestcm/$1 count=$2
	wanted "$name" || return 0
	stop_server
	{
		both_ends 0 dtestcm -c "$count" "${@:3}"
		grep -q "ALL $count CONNECTED on Client" "$logs/client" || echo 'client: not connected'
		grep -q "ALL $count CONNECTED on Server" "$logs/server" || echo 'server: not connected'
		quiet "$logs/client"
		quiet "$logs/server"
	} >"$logs/why"
	sed -n "s|^ *Connections: *|# $name: |p" "$logs/client"
	report "$name"
}

# shared_receive NAME ARGUMENTS...: dtestsrq
shared_receive() {
	local name=dtestsrq/$1
	wanted "$name" || return 0
	stop_server
	{
		both_ends 0 dtestsrq "${@:2}"
		grep -q 'Test Complete' "$logs/client" || echo 'client: does not complete'
		grep -q 'Test Complete' "$logs/server" || echo 'server: does not complete'
		quiet "$logs/client"
		quiet "$logs/server"
	} >"$logs/why"
	report "$name"
}

# dtestx: an RDMA write with immediate data and atomic operations, in both directions
extensions() {
	local end test
	wanted dtestx/connected || return 0
	stop_server
	{
		both_ends 0 dtestx
		for end in client server; do
			for test in RDMA_WRITE_WITH_IMMEDIATE_DATA CMP_SWAP FETCH_ADD; do
				grep -q "$test test - PASSED" "$logs/$end" || echo "$end: no $test"
			done
			quiet "$logs/$end"
		done
	} >"$logs/why"
	report dtestx/connected
}

# datagrams NAME ARGUMENTS...: dtestx with endpoints for datagrams, which connect in both directions
datagrams() {
	local name=dtestx/$1 client_only=(-c) end
	wanted "$name" || return 0
	stop_server
	{
		both_ends 0 dtestx -h 127.0.0.1 "${@:2}"
		for end in client server; do
			grep -q 'UD test PASSED' "$logs/$end" || echo "$end: not passed"
			quiet "$logs/$end"
		done
	} >"$logs/why"
	report "$name"
}

# --- the list -------------------------------------------------------------------------------

alone_cases() {
	local width

	feature hwconn 4
	feature endpoint 3
	feature pz 3
	feature mem 5
	feature connmgt 2
	feature queryinfo 18

	for width in 1 16; do
		limit_of $width ia 'IAs opened: [0-9]{3,}$'
		limit_of $width pz 'PZs created: [0-9]{3,}$'
		limit_of $width cno 'CNOs created: [0-9]{3,}$'
		limit_of $width evd 'EVDs created: [0-9]{3,}$'
		limit_of $width ep 'EPs created: [0-9]{3,}$'
		limit_of $width rsp 'RSPs created: [0-9]{3,}$'
		limit_of $width psp 'PSPs created: [0-9]{3,}$'
		limit_of $width lmr 'LMRs created: [0-9]{3,}$'
		limit_of $width rpost 'recv buffers posted per EP: [0-9]{3,}$'
		limit_of $width size_lmr 'LMR of 0x[0-9a-f]* bytes OK - stopping now'
	done
}

pair_cases() {
	local threads width op mode

	transaction SR -i 200 client SR 4096 1 server SR 4096 1
	transaction SR-segments -i 200 client SR 1024 4 server SR 2048 4
	transaction SR-large -i 50 client SR 262144 1 server SR 262144 1
	transaction SR-reaped-on-receive -i 200 client SR 1024 3 -f server SR 2048 1 -f
	transaction RR -i 200 client SR 256 1 client RR 4096 2 server SR 256 1
	transaction RR-server -i 200 client SR 256 1 server RR 4096 2 server SR 256 1
	transaction RW -i 200 client SR 256 1 client RW 4096 4 server SR 256 1
	transaction RW-server -i 200 client SR 256 1 server RW 4096 4 server SR 256 1
	mixed=(client SR 256 1 client RW 4096 2 server RR 4096 1 client RR 65536 1
		server RW 2048 3 server SR 512 2)
	transaction mixed -i 100 "${mixed[@]}"
	for mode in '-V' '-P' '-r' '-V -P' '-V -r' '-P -r' '-V -P -r'; do
		# shellcheck disable=SC2086 # one or more options
		transaction "mixed${mode// /}" -i 50 -t 2 -w 3 $mode "${mixed[@]}"
	done
	# What the manual page of dapltest gives as its complex example.
	transaction example -V -i 100 -t 2 -w 4 client RW 4096 1 server RW 2048 4 \
		client SR 1024 4 server SR 4096 2 client SR 1024 3 -f server SR 2048 1 -f
	for threads in 1 2 3 4 5 6; do
		for width in 1 2 3 4 5 6 7 8; do
			transaction "$threads-threads-$width-endpoints" -i 20 -t $threads -w $width \
				-V "${mixed[@]}"
		done
	done

	for op in RW RR; do
		for mode in b p; do
			performance "$op-$mode-64" -i 2000 -m $mode $op 64 1
			performance "$op-$mode-4096x4" -i 2000 -m $mode $op 4096 4
			performance "$op-$mode-65536" -i 500 -m $mode $op 65536 1
			performance "$op-$mode-one-by-one" -i 1000 -m $mode -p 1 $op 64 1
		done
	done

	many_clients
	killed_clients
	quit

	connections poll 500
	connections wait 500 -w
	shared_receive shared -c 10 -B 10 -t 5
	shared_receive not-shared -c 10 -B 10 -t 5 -S 0
	extensions
	datagrams datagrams -u
	datagrams datagrams-2 -U 2
	datagrams datagrams-8 -U 8
	datagrams datagrams-each -u -m
	datagrams datagrams-8-each -U 8 -m
}

# --- a device, and all of them ---------------------------------------------------------------

# of_device DEVICE: all cases on it, in a network namespace of their own
of_device() {
	DAPLTEST_DEVICE=$1 "$root/scripts/alone.sh" "$0" "${arguments[@]}"
}

# no_such_case: a failure for each pattern that no case has had. F/mem is F/mem/0 and others.
no_such_case() {
	local pattern name
	! grep -q '^ok .* # SKIP ' "$logs"/*.tap || return
	for pattern in "${patterns[@]}"; do
		while IFS= read -r name; do
			# shellcheck disable=SC2053 # a pattern it is
			[[ $name == $pattern || $name == $pattern/* ]] && continue 2
		done < <(sed -nE 's,^(not )?ok [0-9]+ - (round [0-9]+: )?[^/]*/,,p' "$logs"/*.tap)
		echo "not ok 0 - there is such a case: $pattern"
	done
}

if [ -z "$device" ]; then
	{
		# shellcheck disable=SC2086 # words
		side_by_side "$logs" of_device $devices
		no_such_case
	} | one_stream
	exit
fi

uses=
for program in dapltest dtestcm dtestsrq dtestx; do
	used=$(ldd "$(command -v "$program")" | awk '/libdat2/ { print $3 }')
	if ! [ -e "$used" ] || ! [ "$used" -ef "$lib/libdat2.so.2" ]; then
		uses+="# $program would load: $used"$'\n'
	fi
done
if [ -n "$uses" ]; then
	printf '%s' "$uses"
	echo "not ok 1 - $device/the programs use the library in $lib"
	echo '1..1'
	exit 1
fi
case $device in *shared*) why=$(why_private) ;; *) why= ;; esac
if [ -n "$why" ]; then
	echo "ok 1 - $device # SKIP $why"
	echo '1..1'
	exit
fi
for ((again = 1; again <= repeat; again++)); do
	[ "$repeat" = 1 ] || round="round $again: "
	[ "$serves" != "$asks" ] || alone_cases
	pair_cases
done
if [ $number != 0 ]; then
	: >"$logs/why"
	verdict "the programs use the library in $lib"
fi
echo "1..$number"
[ $bad = 0 ]
