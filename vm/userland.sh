# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For build.sh, which sources this file after packages.sh: the programs and libraries of a machine whose processor is
# another than that of the host.

# What guest.sh, the groups of tests and the C suite call, and the libraries of those.
userland_packages='bash busybox-static coreutils dash dapl2-utils findutils gawk grep hostname ibverbs-providers
	ibverbs-utils iproute2 libacl1 libattr1 libblkid1 libbpf1 libbsd0 libc-bin libc6 libcap-ng0 libcap2 libdapl2 libelf1 libgcc-s1 libgcrypt20
	libgmp10 libgpg-error0 libibverbs1 liblz4-1 liblzma5 libmd0 libmnl0 libmount1 libmpfr6 libncursesw6 libnl-3-200
	libnl-route-3-200 libpcre2-8-0 libproc2-0 librdmacm1 libreadline8 libselinux1 libsigsegv2 libsmartcols1
	libsystemd0 libtinfo6 libudev1 libzstd1 mawk procps rdmacm-utils sed util-linux zlib1g'

# userland DIR: unpacks it into DIR, whose /bin, /lib and /sbin are those below /usr, as the host has them.
userland() {
	local new=$1.new name
	rm -rf "$new"
	# shellcheck disable=SC2086 # a list of names
	download "$new.debs" $userland_packages
	unpack "$new.debs" "$new"
	for name in bin lib sbin; do
		[ ! -d "$new/$name" ] || cp -a --remove-destination "$new/$name/." "$new/usr/$name/"
		rm -rf "${new:?}/$name"
		ln -s "usr/$name" "$new/$name"
	done
	rm -rf "$new"/usr/share/{doc,man,locale}
	mv "$new" "$1"
}
