#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# check.sh [OUT] [GROUP[:DEVICE]]...: runs groups of tests (see cases.sh) in the virtual machine,
# a machine each, and prints one TAP stream. OUT is where `make libs ctest-bin` has put
# libraries and C suite, build/release by default. At the end stands a table of the cases by group
# and device. ONLY='dtest*' chooses tests by their names,
# ABIS=dat2 the version of the API that the C suite runs on. DAT_DELAY=verbs.flushed delays a point of
# the libraries that scripts/order.sh has built, with OUT=build/order. TAP_TIMEOUT is the seconds that a
# test of the C suite may take. The groups suite32 and mixed32
# run 32-bit programs, with libraries and C suite for 32-bit x86 from OUT32, where scripts/i686.sh has
# put them. VM_ARCH=arm64 is a machine of AArch64, with CC for it and OUT=build/aarch64; its group is suite.
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=$here/../build/release
limit=${VM_TIMEOUT:-1800} # seconds, of one group

if [ $# -gt 0 ] && [ -d "$1/lib" ]; then
	out=$1
	shift
fi
out=$(realpath "$out")
out32=$(realpath -m "${OUT32:-$here/../build/i686}")
groups=("$@")
[ $# -gt 0 ] || groups=(iwarp:siw base:rxe base:siw loaded:rxe loaded:siw ours:rxe ours:siw
	mixed:rxe mixed:siw provider:rxe provider:siw yama:siw suite:rxe suite:siw behaviour:rxe)
for i in "${!groups[@]}"; do
	case ${groups[i]} in *:*) ;; *) groups[i]+=:siw ;; esac
done

echo 'TAP version 13'
if [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ]; then
	echo '1..0 # SKIP the machine is made of Debian packages for amd64'
	exit 0
fi
programs=()
# rdma_peer needs the headers and libraries of rdma-core, which there are for this processor alone.
[ "${VM_ARCH:-amd64}" = amd64 ] || programs=("$out"/vm/dat_{peer,many,behaviour})
make -s -C "$here/progs" OUT="$out/vm" LIB="$out/lib" ${programs[@]+"${programs[@]}"} >&2 || exit 1
i386=
case " ${groups[*]}" in *32:*) i386=$("$here/i386.sh") || exit 1 ;; esac

number=0
bad=0
declare -A good=() skipped=() failed=()

# count GROUP LINE: of the table.
count() {
	case $2 in
	not*) failed[$1]=$((${failed[$1]-0} + 1)) ;;
	*'# SKIP'*) skipped[$1]=$((${skipped[$1]-0} + 1)) ;;
	*) good[$1]=$((${good[$1]-0} + 1)) ;;
	esac
}

# table: the cases of each group, by device.
table() {
	local name device cell known=' '
	echo '# ok / excluded, with the reason / not ok'
	printf '# %-8s %16s %16s\n' group rxe siw
	for group in "${groups[@]}"; do
		name=${group%%:*}
		[[ $known == *" $name "* ]] && continue
		known+="$name "
		printf '# %-8s' "$name"
		for device in rxe siw; do
			cell=$name:$device
			[[ " ${groups[*]} " == *" $cell "* ]] &&
				cell="${good[$cell]-0} / ${skipped[$cell]-0} / ${failed[$cell]-0}" ||
				cell=-
			printf ' %16s' "$cell"
		done
		echo
	done
}

for group in "${groups[@]}"; do
	name=${group%%:*}
	device=${group#*:}
	echo "# $group"
	finished=
	while IFS= read -r line; do
		case $line in
		'ok '* | 'not ok '*)
			number=$((number + 1))
			verdict=ok
			case $line in not*) verdict='not ok' && bad=$((bad + 1)) ;; esac
			count "$group" "$line"
			echo "$verdict $number - ${line#* - }"
			;;
		1..*) finished=1 ;;
		*) echo "$line" ;;
		esac
	done < <("$here/run.sh" --device "$device" --timeout "$limit" \
		--env "LIBDAT=$out/lib" --env "PROGS=$out/vm" --env "CTEST=$out" \
		--env "OUT32=$out32" --env "I386=$i386" --env "ONLY=${ONLY:-*}" --env "ABIS=${ABIS:-dat dat2}" \
		--env "DAT_DELAY=${DAT_DELAY-}" \
		${TAP_TIMEOUT:+--env "TAP_TIMEOUT=$TAP_TIMEOUT"} "$here/cases.sh" "$name")
	if [ -z "$finished" ]; then
		number=$((number + 1))
		bad=$((bad + 1))
		count "$group" not
		echo "not ok $number - $group runs to its end"
	fi
done
table
echo "1..$number"
[ $number -gt 0 ] && [ $bad = 0 ]
