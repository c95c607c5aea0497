#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# order.sh [PROGRAM]...: runs programs of the C suite on a library that delays its threads at one
# point after another (src/delay.rs), and prints TAP: one test for each program, path and point.
# docs/event-order.md says which order the programs hold the library to.
#
# POINTS names the points ("ep.state upcall.cq"), RUNS versions of the API and IAs of
# tests-c/dat.conf ("dat2:soft dat:soft-tcp"), DELAY the microseconds of a delay, JOBS how many
# programs run at once. BOUNDED=1 runs each program at each point on one of the paths, in turn.
set -u

. "${0%/*}/need.sh" awk cat dirname grep make mktemp rm sed sort timeout xargs
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
programs=("$@")
if [ $# = 0 ]; then
	programs=(t_notify t_order t_order_data t_order_ends t_order_evd t_order_requests)
	[ -n "${BOUNDED-}" ] || programs+=(t_agent t_cno t_connect t_cr t_disconnect t_evd t_evd_wait
		t_handoff t_psp t_rmr t_rmr_invalidate t_rsp t_srq t_srq_marks)
fi
make --no-print-directory TESTS="${programs[*]}" order-bin >&2 || exit 1

export ALONE=$root/scripts/alone.sh OUT=$root/build/order LD_LIBRARY_PATH=$root/build/order/lib
export DAT_OVERRIDE=$root/tests-c/dat.conf
export DELAY=${DELAY:-2000} LIMIT=${LIMIT:-120}
runs=(${RUNS:-dat2:soft dat:soft-shm dat2:soft-tcp dat2:soft-shared})
all=$(grep -rhoE 'delay::point\("[a-z_.]+"\)' src | sed 's/.*("\(.*\)")/\1/' | sort -u)
# Those of the verbs device are reached in the machine (vm/).
points=(${POINTS:-$(grep -v '^verbs\.' <<<"$all")})
for point in "${points[@]}"; do
	grep -qxF "$point" <<<"$all" || { echo "order.sh: no point $point in src" >&2 && exit 2; }
done
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
export RESULTS=$results

# one ABI:IA PROGRAM POINT: runs a program with a point delayed; its result is a file. In a network
# of its own: a program must not connect to a port that it has freed and another one has.
one() {
	local run=$1 program=$2 point=$3 name=$1-$2-$3 status
	DAT_DELAY=$point:$DELAY DAT_DELAY_LOG=$RESULTS/reached TAP_TIMEOUT=60 \
		"$ALONE" timeout -k 5 "$LIMIT" "$OUT/${run%%:*}/$program" "${run#*:}" \
		>"$RESULTS/$name.out" 2>&1 </dev/null
	status=$?
	awk -v status=$status -v name="${run/:/\/}/$program at $point" '
	/^ok / { ran++ }
	/^not ok / { ran++; bad++; print "# " $0 }
	/^1\.\.[0-9]+$/ { planned = substr($0, 4) }
	/^#/ { print }
	END {
		if (ran != planned || !ran || status > 1)
			print "# " ran + 0 " of " planned + 0 " tests, exit status " status
		print (bad || ran != planned || !ran || status ? "not ok" : "ok") " - " name
	}' "$RESULTS/$name.out" >"$RESULTS/$name.tap"
}
export -f one

for ((i = 0; i < ${#programs[@]}; i++)); do
	for ((j = 0; j < ${#points[@]}; j++)); do
		on=("${runs[@]}")
		# Those of shared memory are reached there alone.
		[[ ${points[j]} != shm.* ]] || mapfile -t on < <(printf '%s\n' "${runs[@]}" | grep -E ':soft-sh')
		for ((k = 0; k < ${#on[@]}; k++)); do
			# Another path for each program and for each point.
			[ -n "${BOUNDED-}" ] && [ $(((i + j) % ${#on[@]})) != $k ] && continue
			# Of functions that DAT 1.2 does not have.
			[ -e "$OUT/${on[k]%%:*}/${programs[i]}" ] || continue
			echo "${on[k]} ${programs[i]} ${points[j]}"
		done
	done
done | xargs -P "${JOBS:-4}" -L 1 bash -c 'one "$@"' one

echo 'TAP version 13'
number=0
bad=0
while IFS= read -r line; do
	case $line in
	'ok - '* | 'not ok - '*)
		number=$((number + 1))
		echo "${line%% - *} $number - ${line#* - }"
		[ "${line%% - *}" = ok ] || bad=$((bad + 1))
		;;
	*) echo "$line" ;;
	esac
done < <(cat "$results"/*.tap)
# A point that no thread reaches shows nothing.
for point in "${points[@]}"; do
	number=$((number + 1))
	if grep -qsxF "$point" "$results/reached"; then
		echo "ok $number - reached $point"
	else
		echo "not ok $number - reached $point"
		bad=$((bad + 1))
	fi
done
echo "1..$number"
[ "$bad" = 0 ]
