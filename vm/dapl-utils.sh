# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Debian's dapl2-utils as tests: to be read after lib.sh. These programs end with status 0 after
# many errors, so what they say is searched as well.

# Seconds, of one end. Only a hang takes so long; two programs that spin share emulated processors
# with the thread of siw that moves their data, a slice at a time.
limit=240

# dtest_case SERVER CLIENT ARGUMENTS...
#
# dtest posts the receives of its ping-pong after the message that lets the other end begin. Other
# devices wait for a receive; siw ends the connection. Then, and only then, it is run again.
dtest_case() {
	local name="dtest${3:+ ${*:3}}/$1/$2" why tries=5
	wanted "$name" || return 0
	while
		why=$(dtest_once "$@")
		[ -n "$why" ] && [ $((tries -= 1)) -gt 0 ] && [[ "$1 $2" == *:*siw* ]] &&
			grep -aq 'do_ping_pong_msg' $logs/server && said server 'recv event: len=0 cookie=0'
	do
		echo "# $name: the first message came before its receive; again"
	done
	verdict "$name" "$why"
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

# dapltest_cases SERVER CLIENT: one server, several clients, and the last ends it.
dapltest_cases() {
	local ends="$1/$2" status why
	wanted "dapltest/$ends" || return 0
	serve $((limit * 10)) "$1" 'Service Point Ready' dapltest -T S -D "${1#*:}"

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

# dapltest_client SERVER CLIENT DONE TYPE ARGUMENTS...: prints what goes wrong. The server's log
# begins anew, and says DONE in the end.
dapltest_client() {
	local status
	: >$logs/server
	call $limit "$2" dapltest -T "$4" -s "$(address_of "$1")" -D "${2#*:}" "${@:5}"
	status=$?
	until_true 20 said server "$3" || echo 'server: does not finish the test'
	gone && echo 'server: has ended'
	complain $status 0
}

# transaction SERVER CLIENT NAME ARGUMENTS...
transaction() {
	local name="dapltest $3/$1/$2" why
	wanted "$name" || return 0
	why=$(dapltest_client "$1" "$2" 'Transaction Test Finished' T "${@:4}")
	# Without the statistics the test has not run.
	said client 'Stats ----' || why+=$'\nno statistics'
	verdict "$name" "$why"
}

# performance SERVER CLIENT NAME ARGUMENTS...
performance() {
	local name="dapltest $3/$1/$2" why
	wanted "$name" || return 0
	why=$(dapltest_client "$1" "$2" 'Finished performance test' P "${@:4}")
	said client '^raw: ' || why+=$'\nno statistics'
	verdict "$name" "$why"
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
