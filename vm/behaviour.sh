# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The scenarios of progs/behaviour on our library and on OpenFabrics', one after the other: to be read after
# lib.sh. Where the two differ, docs/differences.md has the lines and the reason. That is of rxe: how siw ends a
# connection differs from run to run.

differences=$here/../docs/differences.md

# expected_difference SCENARIO: the lines that the document has
expected_difference() {
	awk -v heading="### \`$1\`" '
	/^###? / { here = $0 == heading }
	/^```$/ { inside = 0 }
	here && inside { print }
	/^```diff$/ { inside = 1 }' "$differences"
}

# behave END SCENARIO: what the scenario prints, and how it ended
behave() {
	local status
	(DAPL_DBG_TYPE=0 run_end "$@" 2>$logs/client </dev/null)
	status=$?
	[ $status -lt 128 ] || echo "ended by signal $((status - 128))"
	[ $status = 0 ] || [ $status -ge 128 ] || echo "exit status $status"
}

# behaviour_case SCENARIO
behaviour_case() {
	local name="behaviour/$1" end
	wanted "$name" || return 0
	: >$logs/server
	for end in debian ours; do
		behave "$end:$DEVICE" timeout -k 2 90 "$PROGS/dat_behaviour" "$DEVICE" "$1" >"$logs/$end.said"
	done
	diff $logs/debian.said $logs/ours.said | sed -n 's/^< /-/p; s/^> /+/p' >$logs/difference
	# What neither library does is no difference.
	if [ "$(tail -n 1 $logs/ours.said)" != end ]; then
		verdict "$name" "the scenario does not come to its end:"$'\n'"$(tail -n 5 $logs/ours.said)"
	elif expected_difference "$1" | cmp -s - $logs/difference; then
		verdict "$name"
	else
		verdict "$name" "$(echo 'docs/differences.md has other lines than these (-: of OpenFabrics):'
			cat $logs/difference)"
	fi
}

behaviour_cases() {
	local scenario scenarios name
	scenarios=$(LD_LIBRARY_PATH=$LIBDAT "$PROGS/dat_behaviour" list)
	for scenario in $scenarios; do
		behaviour_case "$scenario"
	done
	name=behaviour/every_difference_has_its_scenario
	wanted "$name" || return 0
	verdict "$name" "$(sed -n 's/^### `\([a-z0-9_]*\)`.*/\1/p' "$differences" | sort -u |
		grep -vxF "$scenarios" | sed 's/$/: there is no such scenario/')"
}
