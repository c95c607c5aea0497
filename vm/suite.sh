# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The C suite in the machine: to be read after lib.sh.

: "${CTEST:=$LIBDAT/..}"

# c_suite END: every program, on either version of the API; ABIS names another choice.
c_suite() {
	local end=$1 device=${1#*:} suite=$CTEST
	case $end in *32:*) suite=$OUT32 ;; esac
	local abi program name log=$logs/client status planned ran line verdict why
	: >$logs/server
	# Emulation is slow, and so is a host with other things to do.
	export TAP_TIMEOUT=${TAP_TIMEOUT:-60}
	for abi in ${ABIS:-dat dat2}; do
		for program in "$suite/$abi"/t_*; do
			[ -x "$program" ] || continue
			name=$abi/$device/$(basename "$program")
			[[ $name/ == ${ONLY:-*} ]] || continue
			(run_end "$end" timeout -k 5 600 "$program" "$device") >$log 2>&1 </dev/null
			status=$?
			planned=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' $log | head -1)
			ran=0
			why=
			while IFS= read -r line; do
				case $line in
				'ok '* | 'not ok '*) ran=$((ran + 1)) ;;
				1..*) continue ;;
				*) why+="${line#\# }"$'\n' && continue ;;
				esac
				c_verdict "$abi/$device/" "$line" "$why"
				why=
			done <$log
			if [ "$ran" != "${planned:-none}" ] || [ $status -gt 1 ]; then
				: >$log
				verdict "$name" "$ran of ${planned:-?} tests, exit status $status"$'\n'"$why"
			fi
		done
	done
}

# c_verdict PREFIX LINE SAID: one line of a program's TAP as one of ours.
c_verdict() {
	local name=$1${2#* - }
	case $2 in
	*'# SKIP'*)
		number=$((number + 1))
		echo "ok $number - $name"
		;;
	'ok '*) verdict "$name" ;;
	*)
		# What the device cannot do has been run, which costs little, and is told.
		excluded "$name" && return
		number=$((number + 1))
		bad=$((bad + 1))
		[ -z "$3" ] || sed 's/^/# /' <<<"${3%$'\n'}"
		echo "not ok $number - $name"
		;;
	esac
}
