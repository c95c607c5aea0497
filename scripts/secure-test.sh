#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# secure-test.sh LIB: what users can make a program do that runs with more rights than they have
# (set-uid, set-gid), on the libraries in the directory LIB. Prints TAP; what this machine or this
# user cannot test is a SKIP with its reason.
#
# Root lets one user without rights run a program that is set-uid for another one. Everybody else
# runs a program that is set-gid for a second group of their own. The kernel starts both in secure
# mode (AT_SECURE).
set -u
. "${0%/*}/need.sh" cat cc chgrp chmod chown cp dirname env findmnt grep head id mkdir \
	mktemp mount readlink realpath rm sed setpriv tail tr umount unshare

# Whether this process has a mount namespace that its parent does not have.
own_mounts() {
	local outer
	outer=$(readlink "/proc/$PPID/ns/mnt") && [ "$outer" != "$(readlink /proc/self/ns/mnt)" ]
}

# For a dat.conf of our own in /etc.
if [ "$(id -u)" = 0 ] && [ -z "${SECURE_TEST_AGAIN-}" ] &&
	unshare --mount --propagation private true 2>/dev/null; then
	SECURE_TEST_AGAIN=1 exec unshare --mount --propagation private "$0" "$@"
fi

cd "$(dirname "$0")/.." || exit 1
lib=$(realpath "${1:?usage: secure-test.sh LIB}")
# Two users that need not exist.
owner=65533
user=65534
number=0
bad=0
scratch=
trap '[ -z "$scratch" ] || { umount "$scratch/etc" 2>/dev/null; rm -rf "$scratch"; }' EXIT

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@"; then
		echo "ok $number - secure.$name"
	else
		head -3 "$scratch/out" "$scratch/err" | sed 's/^/# /'
		echo "not ok $number - secure.$name"
		bad=$((bad + 1))
	fi
}

# skip NAME REASON
skip() {
	number=$((number + 1))
	echo "ok $number - secure.$1 # SKIP $2"
}

# Makes a program secure. The owner comes first, because a new owner takes the bits away.
give_rights() {
	if [ "$(id -u)" = 0 ]; then
		chown $owner "$1" && chmod 4755 "$1"
	else
		chgrp "$group" "$1" && chmod 2755 "$1"
	fi
}

# prepare DIRECTORY: puts libraries, provider and programs below a directory.
prepare() {
	local version soname
	[ -z "$scratch" ] || rm -rf "$scratch"
	scratch=$(mktemp -d "$1/libdat-secure.XXXXXX") && chmod 755 "$scratch" &&
		mkdir "$scratch/marks" "$scratch/plugins" "$scratch/etc" &&
		chmod 1777 "$scratch/marks" && mark=$scratch/marks/called &&
		cc -shared -fPIC -Wall -Wextra -Werror -o "$scratch/plugins/libmarker.so" \
			tests/registry/marker.c || return
	for version in 1.2 2.0; do
		soname=${soname_of[$version]}
		# Secure programs ignore LD_LIBRARY_PATH, so the directory is written into them.
		cp -L "$lib/$soname" "$scratch" &&
			cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -Iinclude \
				-DDAT_"${version%.*}" -o "$scratch/plain-$version" \
				tests/registry/opens.c "$scratch/$soname" -Wl,-rpath,"$scratch" &&
			cp "$scratch/plain-$version" "$scratch/secure-$version" &&
			give_rights "$scratch/secure-$version" || return
	done
}
declare -A soname_of=([1.2]=libdat.so.1 [2.0]=libdat2.so.2)

# run PROGRAM ARGUMENTS [NAME=VALUE]...: runs a program in the scratch directory. The file $mark is
# there afterwards if the user's provider was called.
run() {
	local program=$1 arguments=$2 as=()
	shift 2
	[ "$(id -u)" != 0 ] || as=(setpriv --reuid $user --regid $user --clear-groups)
	rm -f "$mark"
	# shellcheck disable=SC2086 # arguments are words
	(cd "$scratch" && "${as[@]}" env -u DAT_OVERRIDE -u DAT_DBG_TYPE -u DAT_DBG_DEST -u DAT_TRACE "$@" \
		"./$program" $arguments >"$scratch/out" 2>"$scratch/err")
}

# The name is not registered, and so the user's provider was not called.
refused() {
	grep -qx 'open 0x80[0-9a-f]*' "$scratch/out" && ! called
}

logged() {
	grep -q '^libdat: [^ ]* [0-9/]*: open an IA' "$scratch/err"
}

traced() {
	grep -q ' dat_ia_openv(name="soft", ' "$scratch/err"
}

# Neither on standard error nor in the file.
untraced() {
	grep -qx 'open 0x0' "$scratch/out" && [ ! -s "$scratch/err" ] && [ ! -e "$scratch/trace" ]
}

silent() {
	grep -qx 'open 0x0' "$scratch/out" && ! logged
}

counters_ignored() {
	grep -qx 'listen 0x0' "$scratch/out" && ! grep -q DAT_COUNTERS "$scratch/err"
}

called() {
	[ -e "$mark" ]
}

# find_place: finds a directory in which programs can be made secure, and leaves the files there.
# Otherwise $why says what prevents it.
find_place() {
	local place
	why= group=
	if [ "$(id -u)" != 0 ]; then
		group=$(id -G | tr ' ' '\n' | grep -vx "$(id -g)" | head -1)
		if [ -z "$group" ]; then
			why='neither root nor in a second group, so no program can be made secure'
			return 1
		fi
	fi
	mkdir -p build
	for place in "${TMPDIR:-/tmp}" "$PWD/build"; do
		if ! prepare "$place"; then
			echo "Bail out! nothing can be built in $place"
			exit 1
		fi
		if ! run plain-2.0 none || ! grep -qx 'secure 0' "$scratch/out"; then
			cat "$scratch/out" "$scratch/err" | sed "s|^|# $place: |"
			echo "Bail out! what is built in $place does not run"
			exit 1
		fi
		run secure-2.0 none
		grep -qx 'secure 1' "$scratch/out" && return
		if grep -q '^NoNewPrivs:.*1' /proc/self/status; then
			why='no_new_privs is set, so no program gets more rights'
		elif findmnt -no OPTIONS -T "$place" | grep -qw nosuid; then
			why="$place is mounted nosuid"
		else
			why="a set-uid program in $place does not run in secure mode"
		fi
		cat "$scratch/out" "$scratch/err" | sed "s|^|# $place: |"
	done
	return 1
}

# Lines of a dat.conf: "a", which the user's provider serves, and "b", which ours does.
entries() {
	echo "a u$version nonthreadsafe default $1 m.1.0 \"$mark\" \"\""
	echo "b u$version nonthreadsafe default builtin:soft m.1.0 \"lo\" \"\""
}

environment_tests() {
	local override=DAT_OVERRIDE=$scratch/dat.conf
	entries "$scratch/plugins/libmarker.so" >"$scratch/dat.conf"
	run "plain-$version" a "$override"
	check "$version.an_ordinary_program_takes_the_override" called
	run "secure-$version" a "$override"
	check "$version.a_secure_program_ignores_the_override" refused

	run "plain-$version" soft DAT_DBG_TYPE=0xff
	check "$version.an_ordinary_program_logs_what_it_is_told_to" logged
	run "secure-$version" soft DAT_DBG_TYPE=0xff
	check "$version.a_secure_program_ignores_the_log_variables" silent

	run "plain-$version" soft DAT_TRACE=calls
	check "$version.an_ordinary_program_is_traced" traced
	run "secure-$version" soft DAT_TRACE=calls DAT_TRACE_FILE="$scratch/trace"
	check "$version.a_secure_program_is_not_traced" untraced

	run "plain-$version" 'ofa-v2-no-card listen' DAT_FALLBACK=soft
	check "$version.an_ordinary_program_takes_the_fallback" \
		grep -qx 'listen 0x0' "$scratch/out"
	run "secure-$version" ofa-v2-no-card DAT_FALLBACK=soft
	check "$version.a_secure_program_ignores_the_fallback" refused

	run "plain-$version" 'b listen' "$override" DAT_COUNTERS=wrong
	check "$version.an_ordinary_program_takes_the_variable_of_counters" \
		grep -q DAT_COUNTERS "$scratch/err"
	run "secure-$version" 'soft listen' DAT_COUNTERS=wrong
	check "$version.a_secure_program_ignores_the_variable_of_counters" counters_ignored

	# The Rust runtime would take the size of a new thread's stack, in bytes, from this variable.
	run "plain-$version" 'b listen' "$override" RUST_MIN_STACK=9000000000000000000
	check "$version.no_variable_sets_the_size_of_our_stacks" \
		grep -qx 'listen 0x0' "$scratch/out"
}

# The configuration is the system's here; the user chooses the working directory.
default_file_tests() {
	entries plugins/libmarker.so >/etc/dat.conf
	run "plain-$version" a
	check "$version.an_ordinary_program_loads_by_a_relative_path" called
	run "secure-$version" a
	check "$version.a_secure_program_loads_by_no_relative_path" refused
	check "$version.the_refusal_names_file_and_line" \
		grep -q '^libdat: /etc/dat.conf:1: plugins/libmarker.so: .*relative' "$scratch/err"
	entries "$scratch/plugins/libmarker.so" >/etc/dat.conf
	run "secure-$version" a
	check "$version.a_secure_program_loads_by_an_absolute_path" called
}

# A copy of /etc for this namespace, without any dat.conf. Otherwise $scratch/err says why not.
mount_etc() {
	if ! own_mounts; then
		echo 'not root, or no mount namespace' >&2
		return 1
	fi
	mount -t tmpfs -o mode=755 tmpfs "$scratch/etc" &&
		mkdir "$scratch/etc/upper" "$scratch/etc/work" &&
		mount -t overlay -o "lowerdir=/etc,upperdir=$scratch/etc/upper,workdir=$scratch/etc/work" \
			overlay /etc &&
		rm -rf /etc/dat /etc/rdma /etc/dat.conf
} 2>"$scratch/err"

if find_place; then
	for version in 1.2 2.0; do
		environment_tests
	done
	if mount_etc; then
		for version in 1.2 2.0; do
			default_file_tests
		done
	else
		skip default_files "no /etc of our own: $(tail -1 "$scratch/err")"
	fi
else
	skip all "$why"
fi
echo "1..$number"
[ $bad = 0 ]
