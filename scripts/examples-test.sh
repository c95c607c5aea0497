#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# examples-test.sh [EXAMPLE]...: builds the examples as a user does, by the line in the comment of each
# against a staged installation, runs them over each path of the soft provider, with wrong arguments, without
# a server, with servers and clients that are killed or stopped, and under valgrind, and prints TAP. PROFILE
# says which build is installed (release). EXAMPLE leaves the others out.
set -u
. "${0%/*}/need.sh" c++ cc cp dirname find grep head make mkdir mkfifo mktemp pkg-config rm sed seq \
	sleep timeout valgrind

cd "$(dirname "$0")/.." || exit 1
[ -n "${EXAMPLES_ALONE-}" ] || EXAMPLES_ALONE=1 exec scripts/alone.sh "$0" "$@"
only=${*:-hello1 hello2 hello evloop pingpong kvstore srqserver old-files}
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
dest=$scratch/root
prefix=/opt/libdat
number=0
bad=0

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$scratch/log" 2>&1; then
		echo "ok $number - examples.$name"
	else
		sed 's/^/# /' "$scratch/log" | head -40
		echo "not ok $number - examples.$name"
		bad=$((bad + 1))
	fi
}

wanted() {
	case " $only " in *" $1 "*) ;; *) return 1 ;; esac
}

# --- built as the comment says -------------------------------------------------------------------

installed() {
	make --no-print-directory PROFILE="${PROFILE:-release}" "DESTDIR=$dest" "PREFIX=$prefix" MANIFEST= \
		install
}

# The line behind "Build:" in the comment of a file.
build_line() {
	sed -n 's/^[ */]*Build: *//p' "$1" | head -1
}

# Warnings are faults: the line has -Wall and -Wextra.
built() {
	local line
	line=$(build_line "$1")
	[ -n "$line" ] || { echo "$1: no line to build it"; return 1; }
	echo "$line"
	sh -c "$line" >"$scratch/said" 2>&1 && [ ! -s "$scratch/said" ] && return
	cat "$scratch/said"
	return 1
}

check installed installed
[ $bad = 0 ] || { echo "1..$number"; exit 1; }
export PKG_CONFIG_PATH=$dest$prefix/lib/pkgconfig LD_LIBRARY_PATH=$dest$prefix/lib
# A relocatable file has the place where it is.
case $(pkg-config --variable=prefix dat2) in "$dest"*) ;; *) export PKG_CONFIG_SYSROOT_DIR=$dest ;; esac
cd "$dest$prefix/share/doc/libdat/examples" || exit 1
for source in *.c *.cpp; do
	! wanted "${source%.*}" && ! wanted old-files || check "built.$source" built "$source"
done
[ $bad = 0 ] || { echo "1..$number"; exit 1; }

# --- runs ----------------------------------------------------------------------------------------

export DAT_OVERRIDE=$root/tests-c/programs.conf
unset DAT_FALLBACK DAT_DBG_TYPE DAT_DBG_DEST
# With a limit that no run reaches; valgrind is added below. A program that is started in the background is
# the child of the process whose number the shell has.
limited=(timeout -k 1 60)

run() {
	"${limited[@]}" "$@"
}

# prints TEXT COMMAND...: the command succeeds, and prints just that.
prints() {
	local text=$1
	shift
	run "$@" >out
	local status=$?
	cat out
	[ $status -eq 0 ] && [ "$(cat out)" = "$text" ]
}

# await FILE TEXT PROCESS: waits until the text is in the file, as long as the process lives.
await() {
	until grep -q "$2" "$1" 2>/dev/null; do
		kill -0 "$3" 2>/dev/null || grep -q "$2" "$1" || return 1
		sleep 0.02
	done
}

# start READY PROGRAM ARGUMENT...: starts a server on a free qualifier, which "$port" is then, and waits
# until READY is in its output, server.out. The process is $server.
start() {
	local ready=$1 tries
	shift
	for tries in 1 2 3 4 5 6 7 8 9 10; do
		port=$((20000 + RANDOM % 10000))
		"${limited[@]}" "$1" -q $port "${@:2}" >server.out 2>server.err &
		server=$!
		await server.out "$ready" $server && return
		grep -q DAT_CONN_QUAL_IN_USE server.err || break
	done
	cat server.out server.err
	return 1
}

# ended PROCESS STATUS: waits for the end of a process, which has this status.
ended() {
	local status=0
	wait "$1" || status=$?
	[ $status = "$2" ] || { echo "status $status, not $2"; cat server.out server.err; return 1; }
}

# fails TEXT STATUS PROGRAM ARGUMENT...: the program ends with that status and one line with TEXT on
# standard error (and those of the library itself).
fails() {
	local text=$1 status=0 expected=$2
	shift 2
	run "$@" >out 2>err || status=$?
	cat out err
	[ $status = "$expected" ] || { echo "status $status, not $expected"; return 1; }
	grep -v '^libdat: ' err | grep -q -- "$text"
}

# The process that `timeout` has started; the file has no newline.
child_of() {
	local children
	read -r children <"/proc/$1/task/$1/children"
	echo "${children%% *}"
}

hello() {
	prints '22 bytes have arrived: hello from the client' "./$1" "$2"
}

ticks() {
	prints '5 messages, one at each tick' ./evloop "$1" 5
}

pingpong() {
	start waiting ./pingpong -i "$1" && run ./pingpong -q $port -i "$1" -s "$2" -n "$3" localhost >out &&
		ended $server 0 && grep -q "^$2 bytes, $3 rounds: [0-9.]* us least" out
}

kvstore() {
	start entries ./kvstore -i "$1" -c 3 serve 1000 &&
		"${limited[@]}" ./kvstore -q $port -i "$1" get localhost key-0 key-999 >out &&
		[ "$(cat out)" = "key-0: the value of number 0"$'\n'"key-999: the value of number 999" ] &&
		! run ./kvstore -q $port -i "$1" get localhost key-1 key-1000 >out &&
		grep -q '^key-1: the value' out && grep -q '^key-1000: not found$' out &&
		# shellcheck disable=SC2046 # words
		"${limited[@]}" ./kvstore -q $port -i "$1" get localhost $(seq -f key-%g 0 999) >out &&
		[ "$(grep -c '^key-.*: the value of number ' out)" = 1000 ] && ended $server 0
}

# Many clients at a time; those that are killed do not disturb the others.
srqserver() {
	local client clients=() killed
	start waiting ./srqserver -i "$1" -c 9 || return 1
	"${limited[@]}" ./srqserver -q $port -i "$1" -n 10000000 localhost >killed.out 2>&1 &
	killed=$!
	await server.out 'client 1' $server || return 1
	for client in 1 2 3 4 5 6 7 8; do
		"${limited[@]}" ./srqserver -q $port -i "$1" -n 200 localhost >"client$client" 2>&1 &
		clients+=($!)
	done
	kill -9 "$(child_of $killed)"
	wait $killed
	for client in 1 2 3 4 5 6 7 8; do
		wait "${clients[client - 1]}" && grep -q '^200 answers$' "client$client" ||
			{ cat "client$client"; return 1; }
	done
	ended $server 0 && grep -q ' messages of 9 clients$' server.out
}

for adapter in soft soft-shm soft-tcp; do
	for program in hello1 hello2 hello; do
		! wanted $program || check "$program.$adapter" hello $program $adapter
	done
	! wanted evloop || check "evloop.$adapter" ticks $adapter
	! wanted pingpong || check "pingpong.$adapter" pingpong $adapter 8 1000
	! wanted kvstore || check "kvstore.$adapter" kvstore $adapter
	! wanted srqserver || check "srqserver.$adapter" srqserver $adapter
done
! wanted pingpong || check pingpong.large pingpong soft 1000000 100

# --- what goes wrong -----------------------------------------------------------------------------

for program in hello1 hello2 hello evloop; do
	! wanted $program || check "$program.no_such_adapter" fails 'none: DAT_PROVIDER_NOT_FOUND' 1 ./$program none
done
for program in pingpong kvstore srqserver; do
	wanted $program || continue
	arguments=(localhost)
	[ $program != kvstore ] || arguments=(get localhost key)
	check $program.no_such_adapter fails 'none: DAT_PROVIDER_NOT_FOUND' 1 \
		./$program -i none -q 4711 "${arguments[@]}"
	check $program.no_arguments fails '^usage: ' 2 ./$program
	check $program.wrong_option fails '^usage: ' 2 ./$program -q 4711 -Z
	check $program.wrong_qualifier fails 'q: not a number' 1 ./$program -q 0 "${arguments[@]}"
	check $program.wrong_host fails 'no.such.host.invalid: ' 1 ./$program -q 4711 "${arguments[@]/localhost/no.such.host.invalid}"
	for adapter in soft soft-tcp; do
		check $program.no_server.$adapter fails 'localhost: no server listens there' 1 \
			./$program -i $adapter -q 19999 "${arguments[@]}"
	done
done
! wanted evloop || check evloop.wrong_arguments fails '^usage: ' 2 ./evloop soft no

# killed END: pingpong, of which one end is killed in between; the other says so.
killed_pingpong() {
	local client status=0
	start waiting ./pingpong -i "$2" || return 1
	"${limited[@]}" ./pingpong -q $port -i "$2" -n 10000000 localhost >client.out 2>client.err &
	client=$!
	await server.out rounds $server || return 1
	if [ "$1" = server ]; then
		kill -9 "$(child_of $server)"
		wait $server
		ended $client 1 && cat client.err && [ ! -s client.out ] && mv client.err err
	else
		kill -9 "$(child_of $client)"
		wait $client
		ended $server 1 && mv server.err err
	fi || status=1
	cat err
	[ $status = 0 ] && grep -Eq 'the peer is gone|Error|DAT_INVALID_STATE|broken' err
}

# A server that is stopped: the client waits no longer than its time-out.
stopped_pingpong() {
	local client stopped status=0
	start waiting ./pingpong -i "$1" || return 1
	"${limited[@]}" ./pingpong -q $port -i "$1" -n 10000000 localhost >client.out 2>client.err &
	client=$!
	await server.out rounds $server || return 1
	stopped=$(child_of $server)
	kill -STOP "$stopped"
	ended $client 1 && grep -q 'DAT_TIMEOUT_EXPIRED' client.err || status=1
	cat client.err
	kill -9 "$stopped"
	wait $server
	return $status
}

# The client's output goes to a pipe that nobody empties until the server is killed, so that the client
# cannot have ended by then.
killed_kvstore() {
	local client first
	start entries ./kvstore -i "$1" serve 1000 || return 1
	rm -f pipe && mkfifo pipe
	# shellcheck disable=SC2046 # words
	"${limited[@]}" ./kvstore -q $port -i "$1" get localhost $(for i in 1 2 3 4 5 6 7 8; do seq -f key-%g 0 999; done) \
		>pipe 2>client.err &
	client=$!
	exec 3<pipe
	read -r first <&3
	kill -9 "$(child_of $server)"
	wait $server
	cat <&3 >/dev/null
	exec 3<&-
	ended $client 1
	cat client.err
	[ "$first" = 'key-0: the value of number 0' ] && grep -q 'RDMA read: the server is gone' client.err
}

killed_srqserver() {
	local client
	start waiting ./srqserver -i "$1" -c 2 || return 1
	"${limited[@]}" ./srqserver -q $port -i "$1" -n 10000000 localhost >client.out 2>client.err &
	client=$!
	await server.out 'client 1' $server || return 1
	kill -9 "$(child_of $server)"
	wait $server
	ended $client 1
	cat client.err
	grep -q 'srqserver: ' client.err
}

for adapter in soft-shm soft-tcp; do
	! wanted pingpong || check pingpong.server_is_killed.$adapter killed_pingpong server $adapter
	! wanted pingpong || check pingpong.client_is_killed.$adapter killed_pingpong client $adapter
	! wanted kvstore || check kvstore.server_is_killed.$adapter killed_kvstore $adapter
	! wanted srqserver || check srqserver.server_is_killed.$adapter killed_srqserver $adapter
done
! wanted pingpong || check pingpong.server_is_stopped stopped_pingpong soft

# --- a library without dat_cno_fd_create ---------------------------------------------------------

fallback='no dat_cno_fd_create here: a thread waits for the CNO'

# As the header of another library is.
without_the_feature() {
	local flags
	cp -r "$dest$prefix/include/dat2" dat2 && sed -i '/LIBDAT_HAS_CNO_FD/d' dat2/udat.h || return 1
	flags=$(pkg-config --libs dat2)
	# shellcheck disable=SC2086 # words
	cc -Wall -Wextra -Werror -pthread -I. -o evloop-without evloop.c $flags &&
		prints "$fallback"$'\n''5 messages, one at each tick' ./evloop-without soft 5
}

# Built with ours, run with OpenFabrics' registry library, and our provider.
with_the_original() {
	mkdir -p original && cp -P "$dest$prefix"/lib/libdapl-soft.so.2 "${1%/*}"/libdat2.so.2* original/ &&
		echo "soft u2.0 nonthreadsafe default $PWD/original/libdapl-soft.so.2 libdat.1.0 \"lo\" \"\"" \
			>original.conf || return 1
	LD_LIBRARY_PATH=$PWD/original DAT_OVERRIDE=$PWD/original.conf \
		prints "$fallback"$'\n''5 messages, one at each tick' ./evloop soft 5
}

if wanted evloop; then
	check evloop.without_the_feature without_the_feature
	original=$(find /usr/lib -name 'libdat2.so.2.0.*' | head -1)
	if [ -n "$original" ]; then
		check evloop.with_the_original with_the_original "$original"
	else
		number=$((number + 1))
		echo "ok $number - examples.evloop.with_the_original # SKIP libdapl2 is not installed"
	fi
fi

# --- names of old files --------------------------------------------------------------------------

# Each entry of real files is served when the user asks for it.
old_file() {
	local file=$1 name api gives entry
	while IFS= read -r entry; do
		gives=${entry##*#= }
		case $gives in fault* | nondefault | kernel) continue ;; esac
		read -r name api _ <<<"$entry"
		for program in hello1 hello2; do
			case $api.$program in u1.2.hello2 | u2.0.hello1) continue ;; esac
			DAT_FALLBACK=soft DAT_OVERRIDE=$file run ./$program "$name" >out 2>err
			grep -q '^22 bytes have arrived' out && grep -qF "builtin:soft serves \`$name'" err ||
				{ echo "$name"; cat out err; return 1; }
		done
	done <"$file"
}

if wanted old-files; then
	for file in "$root"/tests/registry/files/*.conf; do
		name=${file##*/}
		check "old-files.${name%.conf}" old_file "$file"
	done
fi

# --- nothing is left behind ----------------------------------------------------------------------

# Between processes over TCP: of shared memory large ranges of addresses are reserved, in which valgrind
# searches for pointers at the end for minutes. A busy machine takes seconds there for what the programs
# wait for, so they get more time.
patient() {
	sed -i -E "s/^(#define TIMEOUT) \\(.*\\)/\\1 (120 * 1000 * 1000)/" "$1" &&
		grep -q '^#define TIMEOUT (120 \* 1000 \* 1000)' "$1" && built "$1"
}
for program in hello1 hello2 pingpong kvstore srqserver; do
	! wanted $program || check "$program.patient" patient $program.c
done
limited=(timeout -k 1 300 valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite
	--errors-for-leak-kinds=definite --fair-sched=yes "--suppressions=$root/tests-c/valgrind.supp")
for program in hello1 hello2 hello; do
	! wanted $program || check "$program.valgrind" hello $program soft-tcp
done
! wanted evloop || check evloop.valgrind ticks soft
! wanted pingpong || check pingpong.valgrind pingpong soft-tcp 8 100
valgrind_kvstore() {
	start entries ./kvstore -i soft-tcp serve 10 && run ./kvstore -q $port -i soft-tcp get localhost key-1 >out &&
		ended $server 0
}
! wanted kvstore || check kvstore.valgrind valgrind_kvstore
valgrind_srqserver() {
	start waiting ./srqserver -i soft-tcp -c 1 && run ./srqserver -q $port -i soft-tcp -n 5 localhost >out &&
		ended $server 0
}
! wanted srqserver || check srqserver.valgrind valgrind_srqserver

echo "1..$number"
[ $bad = 0 ]
