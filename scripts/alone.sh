#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# alone.sh COMMAND...: runs a command in a network namespace of its own, where every port is
# free and nobody else is. Where the kernel does not allow that, one command at a time runs.
set -eu
. "${0%/*}/need.sh" flock id ip sh unshare

# dtest and dapltest listen from these up, among the ports that connections get: none gets them
# by chance.
reserved=45248-45999

flags=--net
[ "$(id -u)" = 0 ] || flags='--map-root-user --net'
# shellcheck disable=SC2086 # two words
if unshare $flags ip link set lo up 2>/dev/null; then
	# shellcheck disable=SC2016,SC2086 # for the inner shell
	exec unshare $flags sh -c 'ip link set lo up
		echo "$1" >/proc/sys/net/ipv4/ip_local_reserved_ports
		shift
		exec "$@"' sh "$reserved" "$@"
fi
lock=${TMPDIR:-/tmp}/libdat-tests.$(id -u).lock
exec flock "$lock" "$@"
