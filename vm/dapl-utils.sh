# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Debian's dapl2-utils as tests: to be read after lib.sh. These programs end with status 0 after
# many errors, so what they say is searched as well.

limit=60

# dtest SERVER CLIENT ARGUMENTS...
dtest_case() {
	local server_end=$1 client_end=$2 status why end
	shift 2
	serve $limit "$server_end" 'waiting for client' dtest -P "${server_end#*:}" "$@"
	call $limit "$client_end" dtest -P "${client_end#*:}" -h "$(address_of "${server_end#*:}")" "$@"
	status=$?
	served
	why=$(complain $status $?)
	for end in server client; do
		said $end PASSED || why+=$'\n'"$end: does not say PASSED"
	done
	verdict "$server_end $client_end dtest $*" "$why"
}
