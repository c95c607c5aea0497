#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# cases.sh GROUP: the tests of one group, in the machine. The groups are the functions below
# whose names begin with "group_", with a dash for the underscore; check.sh lists them.
#
# LIBDAT: where our libraries are; PROGS: the programs of vm/progs; CTEST: the C suite. OUT32: libraries
# and C suite for 32-bit x86; I386: what i386.sh has made.
set -u

# shellcheck source=vm/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=vm/dapl-utils.sh
. "$here/dapl-utils.sh"
# shellcheck source=vm/suite.sh
. "$here/suite.sh"
# shellcheck source=vm/behaviour.sh
. "$here/behaviour.sh"

endings='write-key write-bounds read-key read-bounds long-message close crash
	server-write-key server-read-key server-long-message server-close server-crash'

# scenarios SERVER CLIENT SCENARIO...
scenarios() {
	local scenario
	for scenario in "${@:3}"; do
		meet "$1" "$2" "$scenario"
	done
}

# every_mode SERVER CLIENT: dtest, and the two ends need not be of one library.
every_mode() {
	local mode
	for mode in '' '-p' '-c' '-u' '-w' '-W -S 1' '-v' '-D -a'; do
		# shellcheck disable=SC2086 # a list of arguments
		dtest_case "$@" -b 4096 -B 10 $mode
	done
	dtest_case "$@" -b 64 -B 10
	dtest_case "$@" -b 65536 -B 10
	dtest_case "$@" -b 1048576 -B 4
}

# extension_cases SERVER CLIENT: of the InfiniBand extensions, which iWARP has not.
extension_cases() {
	[ "$DEVICE" = rxe ] || return 0
	dtestx_case "$@" RDMA_WRITE_WITH_IMMEDIATE_DATA CMP_SWAP FETCH_ADD
}

# datagram_cases SERVER CLIENT: both ends of our library, on devices that have them.
datagram_cases() {
	local mode
	[ "$DEVICE" = rxe ] || return 0
	for mode in -u '-U 2' '-U 8' '-u -m'; do
		# shellcheck disable=SC2086 # a list of arguments
		dtestx_datagrams_case "$@" $mode
	done
}

# The kernel's iWARP and a librdmacm program on it, against our iWARP over TCP, both ways.
group_iwarp() {
	local ends a b bytes
	for ends in soft:siw+rdma:siw rdma:siw+soft:siw; do
		a=${ends%+*} b=${ends#*+}
		# shellcheck disable=SC2086 # a list of names
		scenarios $a $b transfers moving $endings reject
		# As much as siw carries, beside what set-up needs.
		for bytes in 0 1 251; do
			meet $a $b close $bytes
			meet $a $b reject $bytes
		done
	done
	for ends in plain:siw+rdma:siw rdma:siw+plain:siw; do
		scenarios ${ends%+*} ${ends#*+} transfers moving read-key
	done
	meet none rdma:siw nobody
	for ends in soft:siw+debian:siw debian:siw+soft:siw; do
		a=${ends%+*} b=${ends#*+}
		scenarios $a $b transfers moving close server-close crash server-crash
		meet $a $b reject 0
		dtest_case $a $b -b 4096 -B 10
		dtest_case $a $b -b 65536 -B 10
	done
}

# The machine itself: librdmacm against librdmacm.
group_base() {
	# shellcheck disable=SC2086 # a list of names
	scenarios "rdma:$DEVICE" "rdma:$DEVICE" transfers moving $endings reject
	dtest_case "debian:$DEVICE" "debian:$DEVICE" -b 4096 -B 10
}

# OpenFabrics' provider library, which our registry loads.
group_loaded() {
	local end=loaded:$DEVICE
	# shellcheck disable=SC2086 # a list of names
	scenarios $end $end transfers moving
	every_mode $end $end
	dtestcm_case $end $end 10
	dapltest_cases $end $end
	limits $end
	[ "$DEVICE" = rxe ] || return
	# libdaploscm, which finds its peers over sockets; and an entry whose library is not there,
	# before one of the same name.
	every_mode loaded:scm-rxe loaded:scm-rxe
	dapltest_cases loaded:scm-rxe loaded:scm-rxe
	dtest_case loaded:late-rxe loaded:late-rxe -b 4096 -B 10
	# libdaploucm among them: on RoCE its own dtest finds no peer, so it is opened and used alone.
	many_case loaded:rxe rxe scm-rxe ucm-rxe late-rxe soft siw
}

# Our provider library, which OpenFabrics' registry loads, and the same at one end only.
group_provider() {
	local end=provider:$DEVICE
	loads_our_provider
	every_mode $end $end
	dtestcm_case $end $end 10
	dtestsrq_case $end $end
	extension_cases $end $end
	datagram_cases $end $end
	dapltest_cases $end $end
	dtest_case $end "debian:$DEVICE" -b 4096 -B 10
	dtest_case "debian:$DEVICE" $end -b 4096 -B 10
	extension_cases $end "debian:$DEVICE"
	extension_cases "debian:$DEVICE" $end
}

# Both ends ours.
group_ours() {
	local end=ours:$DEVICE
	# shellcheck disable=SC2086 # a list of names
	scenarios $end $end transfers moving $endings reject
	meet none $end nobody
	every_mode $end $end
	dtestcm_case $end $end 10
	dtestcm_case $end $end 50
	dtestsrq_case $end $end
	extension_cases $end $end
	datagram_cases $end $end
	dapltest_cases $end $end
	limits $end
}

# One end ours, the other the original, or a program on librdmacm.
group_mixed() {
	local ours=ours:$DEVICE other
	for other in "$ours rdma:$DEVICE" "rdma:$DEVICE $ours"; do
		# shellcheck disable=SC2086 # lists of names
		scenarios $other transfers moving $endings reject
	done
	other=debian:$DEVICE
	scenarios $ours $other transfers moving close server-close
	scenarios $other $ours transfers moving close server-close
	every_mode $ours $other
	every_mode $other $ours
	dtestcm_case $ours $other 10
	dtestcm_case $other $ours 10
	extension_cases $ours $other
	extension_cases $other $ours
	dapltest_cases $ours $other
	dapltest_cases $other $ours
}

# What a program sees of our library, line by line beside what OpenFabrics' lets it see.
group_behaviour() {
	behaviour_cases
}

# Shared memory where Yama lets processes reach their descendants alone, as those of a user without
# rights: root may reach all.
group_yama() {
	local scope=/proc/sys/kernel/yama/ptrace_scope
	if [ ! -e $scope ]; then
		verdict yama "no $scope: the kernel of the machine has no Yama"
		return
	fi
	echo 1 >$scope
	as_user=1
	scenarios soft:shm soft:shm transfers crash
	# Where the exception is not wanted: over TCP, and not at all with path=shm.
	scenarios soft:closed soft:closed transfers
	strangers soft:closed-shm
}

# What users of OpenFabrics' providers set reaches the queue pairs: smaller packets are more packets.
tuned_case() {
	local end=ours:rxe name=tuned/ours:rxe large small
	wanted "$name" || return 0
	count_packets meet $end $end transfers
	large=$packets
	export DAPL_IB_MTU=256 DAPL_ACK_TIMER=20 DAPL_ACK_RETRY=10 DAPL_RNR_TIMER=28 DAPL_TCLASS=32 \
		DAPL_MAX_INLINE=0 DAPL_CM_ARP_TIMEOUT_MS=8000 DAPL_UCM_REP_TIME=2000
	count_packets meet $end $end transfers
	small=$packets
	unset "${!DAPL_@}"
	if [ "$small" -lt $((4 * large)) ]; then
		verdict "$name" "$small packets of 256 bytes, $large of up to 4096"
	elif ! said client 'DAPL_UCM_REP_TIME has no effect' || said client 'DAPL_ACK_TIMER'; then
		verdict "$name" 'the log does not name the variables without effect'
	else
		verdict "$name"
	fi
}

# count_packets COMMAND...: packets is how many rxe sends meanwhile
count_packets() {
	local counter=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts before
	before=$(cat $counter)
	"$@"
	packets=$(($(cat $counter) - before))
}

group_suite() {
	[ "$DEVICE" != rxe ] || tuned_case
	c_suite "suite:$DEVICE"
}

# 32-bit programs.
group_suite32() {
	c_suite "suite32:$DEVICE"
}

# 32-bit programs: both ends, and one, with ours and OpenFabrics' of either size at the other.
group_mixed32() {
	local ours=ours32:$DEVICE other ends
	every_mode $ours $ours
	dtestcm_case $ours $ours 10
	dtestsrq_case $ours $ours
	extension_cases $ours $ours
	datagram_cases $ours $ours
	dapltest_cases $ours $ours
	for other in ours debian32 debian; do
		for ends in "$ours $other:$DEVICE" "$other:$DEVICE $ours"; do
			# shellcheck disable=SC2086 # two names
			{
				dtest_case $ends -b 4096 -B 10
				dtest_case $ends -b 4096 -B 10 -D -a
				dtest_case $ends -b 65536 -B 10 -W -S 1
				extension_cases $ends
				dapltest_cases $ends
			}
		done
	done
}

case $1 in
*32)
	# Where 32-bit programs look for it.
	ln -sfn $root32/lib/ld-linux.so.2 /lib/ld-linux.so.2
	uses_our_library "ours32:$DEVICE" "$OUT32/lib"
	;;
*) uses_our_library "ours:$DEVICE" "$LIBDAT" ;;
esac
"group_$1"
plan
