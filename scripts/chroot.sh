#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# chroot.sh 12|13 [--originals|--i386] : prints the path of a tarball of a bare Debian 12 or 13, below build/chroots.
# Makes it first, from the mirror that apt uses on this machine, unless it is there. With --originals it also
# has a C compiler and pkg-config, and what apt needs to install OpenFabrics' libdapl2, libdapl-dev and
# dapl2-utils without a network. Debian 13 has those no more, but a machine that comes from Debian 12 does.
# With --i386 it is a machine for 32-bit programs, too, and what apt can install is dapl2-utils:i386.
#
# Ends with status 77, and a reason on stderr, where that is not possible.
set -eu -o pipefail
. "${0%/*}/need.sh" cksum cut date dirname head id mkdir mktemp mv rm tar

cd "$(dirname "$0")/.."
cannot() {
	echo "$1" >&2
	exit 77
}

case ${1-} in
12) suite=bookworm ;;
13) suite=trixie ;;
*) echo "usage: $0 12|13 [--originals]" >&2 && exit 2 ;;
esac
case ${2-} in
'') kind= ;;
--originals | --i386) kind=${2#-} ;;
*) echo "chroot.sh: unknown option $2" >&2 && exit 2 ;;
esac
# Another version of this script makes others.
made_by=$(cksum <scripts/chroot.sh | cut -d ' ' -f 1)
tarball=$PWD/build/chroots/$suite$kind-$made_by.tar
if [ -f "$tarball" ]; then
	echo "$tarball"
	exit
fi
[ "$(id -u)" = 0 ] || cannot 'only root can make a chroot'
for program in debootstrap apt-get apt-config wget; do
	command -v $program >/dev/null || cannot "there is no $program on this machine"
done
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null |
	head -1) || true
[ -n "$mirror" ] || cannot 'apt knows no mirror of Debian on this machine'
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy-}" ] || export http_proxy=$proxy
wget -q -T 20 -t 2 -O /dev/null "${mirror%/}/dists/$suite/InRelease" ||
	cannot "the mirror that apt uses gives no Debian $1"

mkdir -p build/chroots
work=$(mktemp -d build/chroots/new.XXXXXX)
trap 'rm -rf "$work"' EXIT
root=$PWD/$work/root
# What goes wrong is said only if something does.
quiet() {
	"$@" >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		exit 1
	}
}
inside() {
	quiet chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} "$@"
}
if [ -n "$kind" ]; then
	bare=$("$0" "$1")
	mkdir "$root"
	tar -C "$root" -xf "$bare"
	[ $suite = bookworm ] || echo "deb $mirror bookworm main" >>"$root/etc/apt/sources.list"
	[ "$kind" != -i386 ] || inside dpkg --add-architecture i386
	inside apt-get -q update
	[ "$kind" = -i386 ] || inside apt-get -q -y install --no-install-recommends gcc libc6-dev pkg-config
	# The packages stay in the cache, from which apt installs them.
	rm -f "$root/etc/apt/apt.conf.d/docker-clean"
	inside apt-get -q clean
	case $kind in
	-i386) later=(libdapl2:i386 dapl2-utils:i386) ;;
	*) later=(libdapl2 libdapl-dev dapl2-utils) ;;
	esac
	inside apt-get -q -y install --no-install-recommends --download-only "${later[@]}"
else
	quiet debootstrap --variant=minbase $suite "$root" "$mirror"
	inside apt-get -q clean
fi
tar -C "$root" --numeric-owner -cf "$work/tar" .
mv "$work/tar" "$tarball"
echo "$tarball"
