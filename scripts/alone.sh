#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# alone.sh COMMAND...: runs a command in a network namespace of its own, where every port is
# free and nobody else is. Where the kernel does not allow that, one command at a time runs.
set -eu

flags=--net
[ "$(id -u)" = 0 ] || flags='--map-root-user --net'
# shellcheck disable=SC2086 # two words
if unshare $flags ip link set lo up 2>/dev/null; then
	exec unshare $flags sh -c 'ip link set lo up && exec "$@"' sh "$@"
fi
lock=${TMPDIR:-/tmp}/libdat-tests.$(id -u).lock
exec flock "$lock" "$@"
