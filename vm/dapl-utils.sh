# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Debian's dapl2-utils as tests: to be read after lib.sh. These programs end with status 0 after
# many errors, so what they say is searched as well.

# Seconds, of one end. Only a hang takes so long; two programs that spin share emulated processors
# with the thread of siw that moves their data, a slice at a time.
limit=240

# others_did SERVER CLIENT WHY: what siw or OpenFabrics' library has done, if that is what went wrong,
# as far as the ends can tell. Nothing that a peer does prevents it.
others_did() {
	local end whose crc='^libdat: .* protocol violation: MPA CRC mismatch'
	if [[ "$1 $2" == *:*siw* ]]; then
		# dtest posts the receives of its ping-pong after the message that lets the other end
		# begin. Other devices wait for a receive; siw ends the connection.
		if grep -aq 'do_ping_pong_msg' $logs/server && said server 'recv event: len=0 cookie=0'; then
			echo 'the first message came before its receive'
		# See `moving` in exclude: dtest writes into memory that the other end may be reading. Not
		# if it is siw that says so: that would be of what our end has sent.
		elif said server "$crc" || said client "$crc"; then
			echo 'siw has sent memory that had changed since its checksum'
		# siw's connecting end takes the answer for damaged if the first message has come with
		# it; the accepting end is established, and may send, as soon as the answer is sent.
		elif said client '^libdat: .* RDMA_CM_EVENT_CONNECT_ERROR, status -22|CONN_ERR event=0x6 status=-22'; then
			echo 'the first message came together with the answer'
		fi
	fi
	# Several threads: OpenFabrics' library gives one an event that is none in the place of a
	# completion, and the thread waits for that for ever.
	for end in server client; do
		[ $end = server ] && whose=$1 || whose=$2
		if [[ $whose =~ ^(debian|debian32|loaded): ]] && said $end 'swallowing Invalid_DAT_EVENT_NUMBER'; then
			echo "OpenFabrics' library gave an event without a number"
			return
		fi
		# Now and then on a machine with much to do; nothing of ours is in that process.
		if [[ $whose == debian*:* && $3 == *"$end: exit status 139"* ]]; then
			echo "OpenFabrics' library has crashed"
			return
		fi
	done
}

# attempts NAME SERVER CLIENT AFTER COMMAND...: the command prints what goes wrong with a test. It
# is run again if others did that, and only then. AFTER SERVER is run after whatever went wrong.
attempts() {
	local name=$1 why did tries=5
	while
		why=$("${@:5}")
		[ -n "$why" ] && did=$(others_did "$2" "$3" "$why") && [ -n "$did" ] && [ $((tries -= 1)) -gt 0 ]
	do
		echo "# $name: $did; again"
		"$4" "$2"
	done
	verdict "$name" "$why"
	[ -z "$why" ] || "$4" "$2"
}

# dtest_case SERVER CLIENT ARGUMENTS...
dtest_case() {
	local name="dtest${3:+ ${*:3}}/$1/$2"
	wanted "$name" || return 0
	attempts "$name" "$1" "$2" : dtest_once "$@"
}

# dtest_once SERVER CLIENT ARGUMENTS...: prints what went wrong.
dtest_once() {
	local status why end
	serve $limit "$1" 'waiting for client' dtest -P "${1#*:}" "${@:3}"
	call $limit "$2" dtest -P "${2#*:}" -h "$(address_of "$1")" "${@:3}"
	status=$?
	served
	why=$(complain $status $?)
	for end in server client; do
		said $end PASSED || why+=$'\n'"$end: does not say PASSED"
	done
	echo "$why"
}

# dtestcm_case SERVER CLIENT COUNT
dtestcm_case() {
	local name="dtestcm $3/$1/$2" status why
	wanted "$name" || return 0
	serve $limit "$1" '[Ww]aiting' dtestcm -P "${1#*:}" -s -c "$3"
	call $limit "$2" dtestcm -P "${2#*:}" -h "$(address_of "$1")" -c "$3"
	status=$?
	served
	why=$(complain $status $?)
	said client "ALL $3 CONNECTED on Client" || why+=$'\nclient: not connected'
	said server "ALL $3 CONNECTED on Server" || why+=$'\nserver: not connected'
	verdict "$name" "$why"
}

# dtestsrq_case SERVER CLIENT
dtestsrq_case() {
	local name="dtestsrq/$1/$2" status why
	wanted "$name" || return 0
	serve $limit "$1" '[Ww]aiting' dtestsrq -P "${1#*:}" -s
	call $limit "$2" dtestsrq -P "${2#*:}" -h "$(address_of "$1")"
	status=$?
	served
	why=$(complain $status $?)
	verdict "$name" "$why"
}

# dtestx_case SERVER CLIENT TEST...: RDMA writes with immediate data, and atomic operations. TESTS are
# those that are to have passed; it leaves out what a device has not.
dtestx_case() {
	local name="dtestx/$1/$2" status why end test
	wanted "$name" || return 0
	serve $limit "$1" '[Ww]aiting' dtestx -P "${1#*:}" -v
	call $limit "$2" dtestx -P "${2#*:}" -h "$(address_of "$1")" -v
	status=$?
	served
	why=$(complain $status $?)
	for end in server client; do
		for test in "${@:3}"; do
			said $end "$test test - PASSED" || why+=$'\n'"$end: does not say that $test has passed"
		done
	done
	verdict "$name" "$why"
}

# dtestx_datagrams_case SERVER CLIENT ARGUMENTS...: datagrams. Each end asks the other.
dtestx_datagrams_case() {
	local name="dtestx ${*:3}/$1/$2" status why end
	wanted "$name" || return 0
	serve $limit "$1" '[Ww]aiting' dtestx -P "${1#*:}" -v -s -h "$(address_of "$2")" "${@:3}"
	call $limit "$2" dtestx -P "${2#*:}" -v -c -h "$(address_of "$1")" "${@:3}"
	status=$?
	served
	why=$(complain $status $?)
	for end in server client; do
		said $end 'test PASSED' || why+=$'\n'"$end: does not say PASSED"
	done
	verdict "$name" "$why"
}

# dapltest_cases SERVER CLIENT: one server, several clients, and the last ends it.
dapltest_cases() {
	local ends="$1/$2" status why
	wanted "dapltest/$ends" || return 0
	dapltest_server "$1"

	transaction "$@" 'T SR' -i 50 client SR 256 1 server SR 256 1
	transaction "$@" 'T mixed' -i 20 client SR 1024 2 client RW 4096 2 client RR 4096 1 \
		server SR 1024 1 server RW 4096 1 server RR 4096 1
	transaction "$@" 'T read-segments' -i 20 client SR 256 1 client RR 4096 2 server SR 256 1
	transaction "$@" 'T wide' -i 20 -w 8 client SR 1024 1 server SR 1024 1
	transaction "$@" 'T threads' -i 20 -t 6 client SR 1024 1 server SR 1024 1
	transaction "$@" 'T validate' -i 20 -V client SR 4096 1 client RW 4096 1 server SR 4096 1
	transaction "$@" 'T poll' -i 20 -P client SR 1024 1 -f server SR 1024 1 -f
	performance "$@" 'P write' -m b -i 100 -p 4 RW 4096 1
	performance "$@" 'P read' -m p -i 100 -p 4 RR 4096 1

	if wanted "dapltest Q/$ends"; then
		call $limit "$2" dapltest -T Q -s "$(address_of "$1")" -D "${2#*:}"
		status=$?
		served
		why=$(complain $status $?)
		verdict "dapltest Q/$ends" "$why"
	else
		kill "$server" 2>/dev/null
		wait "$server"
	fi
}

# dapltest_server SERVER
dapltest_server() {
	serve $((limit * 10)) "$1" 'Service Point Ready' dapltest -T S -D "${1#*:}"
}

# dapltest_anew SERVER: the next test is not to suffer from the last one.
dapltest_anew() {
	kill "$server" 2>/dev/null
	wait "$server"
	dapltest_server "$1"
}

# dapltest_once SERVER CLIENT DONE COUNTED TYPE ARGUMENTS...: prints what went wrong. The server's
# log begins anew, and says DONE in the end; without the statistics, COUNTED, nothing was tested.
dapltest_once() {
	local status
	: >$logs/server
	call $limit "$2" dapltest -T "$5" -s "$(address_of "$1")" -D "${2#*:}" "${@:6}"
	status=$?
	until_true 20 said server "$3" || echo 'server: does not finish the test'
	gone && echo 'server: has ended'
	complain $status 0
	said client "$4" || echo 'no statistics'
}

# transaction SERVER CLIENT NAME ARGUMENTS...
transaction() {
	local name="dapltest $3/$1/$2"
	wanted "$name" || return 0
	attempts "$name" "$1" "$2" dapltest_anew \
		dapltest_once "$1" "$2" 'Transaction Test Finished' 'Stats ----' T "${@:4}"
}

# performance SERVER CLIENT NAME ARGUMENTS...
performance() {
	local name="dapltest $3/$1/$2"
	wanted "$name" || return 0
	attempts "$name" "$1" "$2" dapltest_anew \
		dapltest_once "$1" "$2" 'Finished performance test' '^raw: ' P "${@:4}"
}

# limits END: creates objects until there are no more.
limits() {
	local what name why
	: >$logs/server
	for what in ia pz cno evd ep rsp psp lmr rpost; do
		name="dapltest L $what/$1"
		wanted "$name" || continue
		why=
		call $limit "$1" dapltest -T L -D "${1#*:}" -m 50 "limit_$what" ||
			why="exit status $?"
		# That the next one fails is what it is after.
		why+=$(grep -aE "$complaints" $logs/client | grep -vE '^(LimitTest: dat_.* fails|libdat: )' | head -5)
		said client '^LimitTest: ' || why+=$'\nno result'
		verdict "$name" "$why"
	done
}
