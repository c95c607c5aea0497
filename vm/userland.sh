# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For build.sh, which sources this file after packages.sh: the programs and libraries of a machine that does not run
# those of the host.

# What guest.sh, the groups of tests and the C suite call.
userland_programs='bash busybox-static coreutils dash findutils gawk grep hostname ibverbs-providers ibverbs-utils
	iproute2 libc-bin mawk procps rdmacm-utils sed util-linux'
# The same, of packages that newer releases of Debian do not have.
userland_where_there_is='dapl2-utils'

# userland DIR: unpacks them into DIR, with all that they depend on. Its /bin, /lib and /sbin are those below /usr, as
# the host has them.
userland() {
	local new=$1.new name packages=$userland_programs
	for name in $userland_where_there_is; do
		[ -z "$(apt-cache search --names-only "^$name\$")" ] || packages+=" $name"
	done
	# Nothing is installed for apt, so that all that is needed is listed.
	# shellcheck disable=SC2086 # a list of names
	mapfile -t packages < <(apt-get -s --no-install-recommends install $packages | awk '$1 == "Inst" { print $2 }')
	[ ${#packages[@]} -gt 1 ] || die 'apt does not know the programs of the machine'
	rm -rf "$new"
	download "$new.debs" "${packages[@]}"
	unpack "$new.debs" "$new"
	for name in bin lib sbin lib64; do
		[ ! -d "$new/$name" ] || [ -L "$new/$name" ] ||
			cp -a --remove-destination "$new/$name/." "$new/usr/$name/"
		rm -rf "${new:?}/$name"
		[ ! -d "$new/usr/$name" ] || ln -s "usr/$name" "$new/$name"
	done
	rm -rf "$new"/usr/share/{doc,man,locale}
	mv "$new" "$1"
}
