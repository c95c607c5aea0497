#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# install.sh install STAGE DESTDIR MANIFEST LIBDIR: puts the files below the directory STAGE into
#     the system, and writes down in the file MANIFEST what they are. Refuses, before anything is
#     written, to replace what a package of the system has put there, and to be shadowed by it.
# install.sh uninstall DESTDIR MANIFEST: removes what stands in MANIFEST and is still the same.
#
# With a DESTDIR the files are for a package or for another system, and nobody is asked. LDCONFIG
# is what root runs afterwards in the system itself.
#
# A line of MANIFEST is "file SHA256 PATH", "link TARGET PATH", or "directory - PATH" for one that
# was not there before. Paths are without DESTDIR.
set -eu -o pipefail
. "${0%/*}/need.sh" chmod cp cut find id install mv paste readlink realpath rm rmdir sed sha256sum sort tr
export LC_ALL=C

fail() {
	echo "$verb: $1" >&2
	shift
	[ $# = 0 ] || printf '%s\n' "$@" >&2
	exit 1
}

# in_system: is there no DESTDIR, or one that leads to the system itself?
in_system() {
	[ -z "$root" ] || [ "$root/" -ef / ]
}

# --- who owns what --------------------------------------------------------------------------

# The names under which a package manager may know a path: as it is given, with links among its
# directories followed, and without /usr where the system has joined /lib and /usr/lib. A manual
# page is the same one if it is compressed.
names_of() {
	local path=$1 name names
	names=("$path" "$(realpath -m "${path%/*}")/${path##*/}")
	name=${names[1]#/usr}
	if [ "$name" != "${names[1]}" ] && [ "${name%/*}" -ef "/usr${name%/*}" ]; then
		names+=("$name")
	fi
	case $path in
	*/man/man?/*) names+=("${names[@]/%/.gz}") ;;
	esac
	printf '%s\n' "${names[@]}" | sort -u
}

# By path: the packages that own it, and under which name they do.
declare -A owner_of known_as

# find_owners PATH...: asks the package managers of this system.
find_owners() {
	local path name package manager
	local -A path_of=()
	for path; do
		while read -r name; do
			path_of[$name]=$path
		done < <(names_of "$path")
	done
	while IFS=$'\t' read -r name package; do
		owner_of[${path_of[$name]}]=$package
		known_as[${path_of[$name]}]=$name
	done < <(for manager in dpkg rpm pacman; do
		# They fail if nobody owns one of the paths.
		! command -v $manager >/dev/null || ask_$manager "${!path_of[@]}" || true
	done)
}

# Each of these takes names and prints lines of a name and its packages.

ask_dpkg() {
	dpkg -S "$@" 2>/dev/null |
		sed -nE '/^(diversion by|local diversion) /d; s/^(.*[^:]): (\/.*)$/\2\t\1/p'
}

ask_rpm() {
	local name package
	for name; do
		# rpm also says on standard output that nobody owns a file.
		if [ -e "$name" ] && package=$(rpm -qf --queryformat '%{NAME} ' "$name" 2>/dev/null); then
			printf '%s\t%s\n' "$name" "${package% }"
		fi
	done
}

ask_pacman() {
	pacman -Qo "$@" 2>/dev/null | sed -nE 's/^(.*) is owned by ([^ ]+) .*$/\1\t\2/p'
}

# --- the manifest ---------------------------------------------------------------------------

declare -A kind_of value_of
directories=()

read_manifest() {
	local kind value path
	[ -f "$root$manifest" ] || return 0
	while read -r kind value path; do
		case $kind in
		directory) directories+=("$path") ;;
		file | link)
			kind_of[$path]=$kind
			value_of[$path]=$value
			;;
		esac
	done <"$root$manifest"
}

# What is at a path, as the manifest says it: "KIND VALUE".
state_of() {
	if [ -L "$1" ]; then
		echo "link $(readlink "$1")"
	elif [ -f "$1" ]; then
		echo "file $(sha256sum <"$1" | cut -d ' ' -f 1)"
	else
		echo other
	fi
}

write_manifest() {
	local path
	{
		for path in "${!kind_of[@]}"; do
			echo "${kind_of[$path]} ${value_of[$path]} $path"
		done | sort -k 3
		for path in ${directories[@]+"${directories[@]}"}; do
			echo "directory - $path"
		done
	} >"$root$manifest.new"
	chmod 644 "$root$manifest.new"
	mv -f "$root$manifest.new" "$root$manifest"
}

# make_directory PATH: makes it and those above it, and remembers those that were not there.
make_directory() {
	[ ! -d "$root$1" ] || return 0
	[ -z "${1%/*}" ] || make_directory "${1%/*}"
	install -d -m 755 "$root$1"
	directories+=("$1")
}

# remove PATH: removes what stands in the manifest, if it is still that.
remove() {
	local path=$1
	[ -e "$root$path" ] || [ -L "$root$path" ] || return 0
	if [ -n "${owner_of[$path]-}" ]; then
		echo "left: $path belongs to the package ${owner_of[$path]} now"
	elif [ "$(state_of "$root$path")" != "${kind_of[$path]} ${value_of[$path]}" ]; then
		echo "left: $path is not what make install has put there"
	else
		rm -f "$root$path"
	fi
}

# --- install --------------------------------------------------------------------------------

refuse_owned() {
	local path owned=()
	for path in "${paths[@]}"; do
		[ -z "${owner_of[$path]-}" ] || owned+=("  ${known_as[$path]} (${owner_of[$path]})")
	done
	[ ${#owned[@]} != 0 ] || return 0
	fail 'packages of the system own these, so nothing is written:' "${owned[@]}" \
		'Choose another PREFIX or LIBDIR (/usr/local is free for this), or remove the packages:' \
		"  $(printf '%s\n' "${owner_of[@]}" | tr -s ', ' '\n' | sort -u | paste -sd ' ')"
}

# ldconfig leads a SONAME to the file of the highest version that has it. Ours count as lower than
# any number: what a package brings later is used as the package says.
refuse_shadowed() {
	local soname file
	for soname in libdat.so.1 libdat2.so.2; do
		for file in "$libdir/$soname".*; do
			[ -f "$file" ] && [ ! -L "$file" ] || continue
			[ -z "${kind_of[$file]-}" ] && [ ! -f "$stage$file" ] || continue
			fail "$file is another $soname, and ldconfig would prefer it." \
				'Remove it first, or choose another PREFIX or LIBDIR.'
		done
	done
}

install_files() {
	local path new kind value before
	mapfile -d '' -t paths < <(cd "$stage" && find . ! -type d -printf '/%P\0' | sort -z)
	read_manifest
	if in_system; then
		find_owners "${paths[@]}" "${!kind_of[@]}"
		refuse_owned
		refuse_shadowed
	fi
	before=("${!kind_of[@]}")
	if [ -n "$manifest" ]; then
		make_directory "${manifest%/*}"
	fi
	for path in "${paths[@]}"; do
		make_directory "${path%/*}"
	done
	# First, so that what is interrupted can be taken back.
	local -A ours=()
	for path in "${paths[@]}"; do
		ours[$path]=1
		read -r kind value < <(state_of "$stage$path")
		kind_of[$path]=$kind
		value_of[$path]=$value
	done
	[ -z "$manifest" ] || write_manifest
	for path in "${paths[@]}"; do
		# Whoever runs the program or uses the library meanwhile has the old file or the new one.
		new=$root${path%/*}/.${path##*/}.new
		cp -P --preserve=mode "$stage$path" "$new"
		mv -fT "$new" "$root$path"
	done
	for path in ${before[@]+"${before[@]}"}; do
		if [ -z "${ours[$path]-}" ]; then
			remove "$path"
			unset 'kind_of[$path]' 'value_of[$path]'
		fi
	done
	[ -z "$manifest" ] || write_manifest
	echo "${#paths[@]} files are installed${manifest:+; $root$manifest lists them}."
}

# --- uninstall ------------------------------------------------------------------------------

uninstall_files() {
	local path index
	[ -f "$root$manifest" ] ||
		fail "nothing is known to be installed: there is no file $root$manifest." \
			'Is PREFIX the one of make install?'
	read_manifest
	if in_system; then
		find_owners "$manifest" "${!kind_of[@]}"
		[ -z "${owner_of[$manifest]-}" ] ||
			fail "what is there is of the package ${owner_of[$manifest]}, which removes it"
	fi
	for path in "${!kind_of[@]}"; do
		remove "$path"
	done
	rm -f "$root$manifest"
	for ((index = ${#directories[@]} - 1; index >= 0; index--)); do
		rmdir "$root${directories[index]}" 2>/dev/null || true
	done
}

verb=${1-}
case $verb in
install)
	stage=$2 root=$3 manifest=$4 libdir=$5
	install_files
	;;
uninstall)
	root=$2 manifest=$3
	uninstall_files
	;;
*)
	echo "usage: $0 install STAGE DESTDIR MANIFEST LIBDIR | uninstall DESTDIR MANIFEST" >&2
	exit 2
	;;
esac
if in_system && [ "$(id -u)" = 0 ]; then
	"${LDCONFIG:-ldconfig}"
fi
