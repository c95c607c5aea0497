#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# reproducible.sh: that the same commit gives the same bytes. The tarball of scripts/dist.sh is made twice;
# then it is unpacked in two directories, and all libraries and programs are built in both as packagers do it,
# without a network and without files of cargo. Prints TAP. Takes the time of two release builds.
set -u -o pipefail
. "${0%/*}/need.sh" cargo cmp dirname env grep id make mkdir mktemp rm sed tail tar unshare

cd "$(dirname "$0")/.." || exit 1
mkdir -p build
work=$(mktemp -d "$PWD/build/reproducible.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
number=0
bad=0

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$work/log" 2>&1; then
		echo "ok $number - reproducible.$name"
	else
		tail -20 "$work/log" | sed 's/^/# /'
		echo "not ok $number - reproducible.$name"
		bad=$((bad + 1))
	fi
}

# built NAME: the libraries and programs of the tarball, built in a directory of that name.
built() {
	local tree=$work/$1 namespace=(unshare --net)
	[ "$(id -u)" = 0 ] || namespace=(unshare --user --map-current-user --net)
	mkdir -p "$tree/cargo" && tar -C "$tree" -xf "$work/1/$tarball" && cd "$tree/${tarball%.tar.xz}" &&
		env -u CARGO_TARGET_DIR CARGO_HOME="$tree/cargo" "${namespace[@]}" make --no-print-directory libs &&
		cd "$work/.."
}

same_files() {
	local file count=0 one=$work/a/${tarball%.tar.xz}/build/release/cargo two=$work/bb/${tarball%.tar.xz}/build/release/cargo
	for file in "$one"/*; do
		cmp "$file" "$two/${file##*/}" || return
		count=$((count + 1))
	done
	echo "$count files"
	[ $count -ge 8 ]
}

# What is built names none of the directories in which it was.
no_directories() {
	! grep -rlF "$work" "$work/a/${tarball%.tar.xz}/build/release/cargo/"
}

echo 'TAP version 13'
for n in 1 2; do
	check "tarball_$n" scripts/dist.sh "$work/$n"
done
tarball=$(cd "$work/1" && echo libdat-*.tar.xz)
check same_tarball cmp "$work/1/$tarball" "$work/2/$tarball"
check built built a
check built_elsewhere built bb
check same_files same_files
check no_directories no_directories
echo "1..$number"
[ $bad = 0 ]
