# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts that source this file: TAP streams of several runs, which may be at the same time, as one.

# results: prints the results of the TAP stream that it reads. A run that died has no plan.
results() {
	awk '
	/^TAP version/ { next }
	/^1\.\.[0-9]+$/ { planned = 1; next }
	{ print; fflush() }
	END { if (!planned) print "not ok 0 - the run has not come to its end" }'
}

# one_stream: makes one TAP stream of the results that it reads. Status 0 if nothing failed and there
# was a test.
one_stream() {
	awk '
	BEGIN { print "TAP version 13" }
	/^ok / { sub(/^ok [0-9]+/, "ok " ++number) }
	/^not ok / { sub(/^not ok [0-9]+/, "not ok " ++number); bad++ }
	{ print; fflush() }
	END { print "1.." number + 0; exit bad > 0 || number == 0 }'
}

# side_by_side LOGS COMMAND RUN...: calls COMMAND RUN for each run, whose TAP stream goes to
# LOGS/RUN.tap, and prints their results in the order given here. JOBS says how many there are at a time
# (twice as many as processors, since such runs mostly wait).
side_by_side() {
	local logs=$1 command=$2 jobs=${JOBS:-$((2 * $(nproc)))} started=() log
	shift 2
	# What runs in the background of a script ignores the interrupt from the keyboard.
	trap 'kill $(jobs -p) 2>/dev/null; exit 1' INT TERM
	while [ $# -gt 0 ] || [ ${#started[@]} -gt 0 ]; do
		if [ $# -gt 0 ] && [ ${#started[@]} -lt "$jobs" ]; then
			log=$logs/${1//[:\/]/-}.tap
			"$command" "$1" >"$log" 2>&1 &
			started+=("$!:$log")
			shift
			continue
		fi
		wait "${started[0]%%:*}"
		results <"${started[0]#*:}"
		started=("${started[@]:1}")
	done
}
