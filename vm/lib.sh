# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts in the machine: runs the two ends of a test, and reports in TAP.
#
# An end is WHOSE:DEVICE, with a DEVICE of rxe or siw (or another name of conf/ that ends so),
# which is also the name of the IA, and of
#   ours     our library, our verbs provider
#   suite    the same, with the rules that the C suite tests
#   loaded   our library, with OpenFabrics' provider library in it
#   provider OpenFabrics' libdat2, with our verbs provider in it
#   debian   OpenFabrics' libraries
#   soft     our library, our soft provider on the other end of siw's wire
#   plain    the same, without checksums where the peer agrees, as siw does
#   rdma     no DAT at all: the program on librdmacm
# With "32" after it (ours32, suite32, debian32) these are the 32-bit libraries and programs.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${LIBDAT:=$here/../build/release/lib}"
# What 32-bit programs need: their library and C suite, and what i386.sh has made.
: "${OUT32:=$here/../build/i686}" "${I386:=}"
root32=/usr/i686-linux-gnu
logs=/vm/log
# Our provider without our libdat2.
alone=$logs/provider
mkdir -p $alone
ln -sf "$LIBDAT/libdapl-verbs.so.2" $alone/
number=0
bad=0
server= # process id
as_user= # set if both ends run without rights
complaints='[Ee]rror|ERR|[Ww]arning|[Ff]ail|FAIL|bad |can not|unimplemented|timed out|panicked'

# What the devices, or programs that are not ours, can not do: patterns, and why.
patterns=()
reasons=()
while read -r pattern reason; do
	case $pattern in '' | '#'*) continue ;; esac
	patterns+=("$pattern")
	reasons+=("$reason")
done <"$here/exclude"

# wanted NAME: it is to be run; or says why not.
wanted() {
	# shellcheck disable=SC2053 # a pattern it is
	[[ $1 == ${ONLY:-*} ]] && ! excluded "$1"
}

# excluded NAME: it is in the list; says why.
excluded() {
	local i
	for i in "${!patterns[@]}"; do
		# shellcheck disable=SC2053 # patterns they are
		if [[ $1 == ${patterns[i]} ]]; then
			number=$((number + 1))
			echo "ok $number - $1 # SKIP ${reasons[i]}"
			return 0
		fi
	done
	return 1
}

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

# address_of END
address_of() {
	case $1 in
	soft:* | plain:*) echo 10.1.0.2 ;;
	*:*rxe) echo 10.0.0.1 ;;
	*:siw) echo 10.1.0.1 ;;
	esac
}

# run_end END COMMAND...: becomes the command.
run_end() {
	local whose=${1%%:*} prefix=() theirs=$I386/lib:$root32/lib
	shift
	case $whose in
	ours | suite | loaded | soft | plain) export LD_LIBRARY_PATH=$LIBDAT ;;
	provider) export LD_LIBRARY_PATH=$alone ;;
	ours32 | suite32) export LD_LIBRARY_PATH=$OUT32/lib:$theirs ;;
	debian32) export LD_LIBRARY_PATH=$theirs ;;
	esac
	case $whose in
	*32) PATH=$I386/bin:$PATH whose=${whose%32} ;;
	esac
	case $whose in
	# What our library has to say is shown if the case fails.
	ours | suite | provider | soft | plain)
		export DAT_OVERRIDE=$here/conf/$whose.conf DAT_DBG_TYPE=2 DAT_DBG_DEST=1
		;;
	*) export DAT_OVERRIDE=$here/conf/ofa.conf PEER_SLICE=200 ;;
	esac
	case $whose in
	soft | plain) prefix=(ip netns exec peer) ;;
	esac
	[ -z "$as_user" ] || prefix+=(setpriv --reuid 1000 --regid 1000 --clear-groups)
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
	grep -aqE "$2" "$logs/$1" 2>/dev/null
}

ready() {
	said server "$1" || ! kill -0 "$server" 2>/dev/null
}

# serve SECONDS END PATTERN COMMAND...: starts the server and waits until it says PATTERN.
serve() {
	local limit=$1 end=$2 pattern=$3
	shift 3
	: >$logs/server
	# Appended to, because dapltest_once empties it.
	(run_end "$end" timeout -k 2 "$limit" stdbuf -oL "$@") >>$logs/server 2>&1 </dev/null &
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
	until_true 30 gone || kill "$server" 2>/dev/null
	wait "$server"
}

# ended CLIENT_STATUS SERVER_STATUS: prints what is wrong with how the two ends ended.
ended() {
	[ "$1" = 0 ] || echo "client: exit status $1"
	[ "$2" = 0 ] || echo "server: exit status $2"
}

# complain CLIENT_STATUS SERVER_STATUS: and with what they said.
complain() {
	local end
	ended "$@"
	for end in client server; do
		# What our library says of itself is for the reader of a failure.
		grep -av '^libdat: ' $logs/$end | grep -aE "$complaints" | head -5 | sed "s/^/$end: /"
	done
}

# --- vm/progs -------------------------------------------------------------------------------

: "${PROGS:=$LIBDAT/../vm}"
port=7000

# peer_command END: the program, and its WHERE.
peer_command() {
	case $1 in
	rdma:*) echo "$PROGS/rdma_peer $(address_of "$1")" ;;
	*) echo "$PROGS/dat_peer ${1#*:}" ;;
	esac
}

# meet SERVER CLIENT SCENARIO [BYTES]: both ends of a scenario of vm/progs; a SERVER "none" is
# not there.
meet() {
	local name="${*:3}/$1/$2" status why= end ends='server client' server_end=$1 commands=()
	wanted "$name" || return 0
	port=$((port + 1))
	if [ "$1" = none ]; then
		ends=client
		: >$logs/server
		server_end=$2
	else
		read -ra commands <<<"$(peer_command "$1")"
		serve 40 "$1" listening "${commands[@]}" serve $port "${@:3}"
	fi
	read -ra commands <<<"$(peer_command "$2")"
	call 40 "$2" "${commands[@]}" connect "$(address_of "$server_end")" $port "${@:3}"
	status=$?
	[ "$1" = none ] || served
	why=$(ended $status $?)
	for end in $ends; do
		said $end PASSED || why+=$'\n'"$end: does not say PASSED"
	done
	verdict "$name" "$why"
}

# strangers END: two processes that listen and connect by this end do not find each other.
strangers() {
	local name="strangers/$1" commands=() why=
	wanted "$name" || return 0
	port=$((port + 1))
	read -ra commands <<<"$(peer_command "$1")"
	serve 40 "$1" listening "${commands[@]}" serve $port transfers
	call 40 "$1" "${commands[@]}" connect "$(address_of "$1")" $port nobody
	ended $? 0 >$logs/ended
	kill "$server" 2>/dev/null
	wait "$server"
	why=$(cat $logs/ended)
	said client PASSED || why+=$'\nclient: does not say PASSED'
	verdict "$name" "$why"
}

# many_case END IA...: all these IAs in one process.
many_case() {
	local name="many/$1" status why
	wanted "$name" || return 0
	: >$logs/server
	call 40 "$1" "$PROGS/dat_many" "${@:2}"
	status=$?
	why=$(ended $status 0)
	said client PASSED || why+=$'\nclient: does not say PASSED'
	verdict "$name" "$why"
}

# The original loads our provider.
loads_our_provider() {
	local used
	: >$logs/client
	: >$logs/server
	used=$(run_end "provider:$DEVICE" ldd "$(command -v dtest)" | awk '/libdat2/ { print $3 }')
	if [ -e "$used" ] && [ "$(readlink -f "$used")" != "$(readlink -f "$LIBDAT/libdat2.so.2")" ]; then
		verdict "OpenFabrics' libdat2 is used"
	else
		verdict "OpenFabrics' libdat2 is used" "it is $used"
	fi
}

# uses_our_library END DIRECTORY: that of the directory. The system may have the original under the
# same names.
uses_our_library() {
	local used
	used=$(run_end "$1" env LD_TRACE_LOADED_OBJECTS=1 dtest | awk '/libdat2/ { print $3 }')
	: >$logs/client
	: >$logs/server
	if [ -e "$used" ] && [ "$(readlink -f "$used")" = "$(readlink -f "$2/libdat2.so.2")" ]; then
		verdict "our library is used/$1"
	else
		verdict "our library is used/$1" "it is $used"
	fi
}
