#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# chroot.sh SYSTEM [--originals|--i386] : prints the path of a tarball of a bare system, below build/chroots:
# debian-12, debian-13, ubuntu-22.04 or ubuntu-24.04. Makes it first, unless it is there, from the mirror of Debian that
# apt uses on this machine, or that of Ubuntu which debootstrap knows. With --originals it also
# has a C compiler and pkg-config, and what apt needs to install OpenFabrics' libdapl2, libdapl-dev and
# dapl2-utils without a network. Debian 13 has those no more, but a machine that comes from Debian 12 does.
# With --i386 it is a machine for 32-bit programs, too, and what apt can install is dapl2-utils:i386.
#
# Ends with status 77, and a reason on stderr, where that is not possible.
set -eu -o pipefail
. "${0%/*}/need.sh" cksum cut date dirname grep head id mkdir mktemp mv rm sed tar

cd "$(dirname "$0")/.."
cannot() {
	echo "$1" >&2
	exit 77
}

system=${1-}
case $system in
debian-12) suite=bookworm ;;
debian-13) suite=trixie ;;
ubuntu-22.04) suite=jammy ;;
ubuntu-24.04) suite=noble ;;
*) echo "usage: $0 debian-12|debian-13|ubuntu-22.04|ubuntu-24.04 [--originals|--i386]" >&2 && exit 2 ;;
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
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy-}" ] || export http_proxy=$proxy

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

# unpack SYSTEM: the bare one, in the tree $root.
unpack() {
	local bare
	bare=$(scripts/chroot.sh "$1")
	mkdir "$root"
	tar -C "$root" -xf "$bare"
}

# has_system MIRROR
has_system() {
	wget -q -T 20 -t 2 -O /dev/null "${1%/}/dists/$suite/InRelease" || cannot "the mirror gives no $system"
}

debian() {
	local mirror
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' \
		2>/dev/null | head -1) || true
	[ -n "$mirror" ] || cannot 'apt knows no mirror of Debian on this machine'
	has_system "$mirror"
	quiet debootstrap --variant=minbase $suite "$root" "$mirror"
}

# The keys are a package of Debian 13. debootstrap has one script for all releases of Ubuntu, which knows their mirror;
# in Debian 12 it does not have the name of the newest.
ubuntu() {
	local bare=$root keys
	root=$PWD/$work/keys
	unpack debian-13
	inside apt-get -q update
	inside apt-get -q -y install --no-install-recommends ubuntu-archive-keyring
	keys=$root/usr/share/keyrings/ubuntu-archive-keyring.gpg
	root=$bare
	debootstrap --variant=minbase --components=main,universe --keyring="$keys" $suite "$root" '' gutsy >"$work/log" 2>&1 || {
		! grep -q 'Failed getting release file' "$work/log" || cannot "debootstrap's mirror gives no $system"
		cat "$work/log" >&2
		exit 1
	}
}

if [ -n "$kind" ]; then
	unpack "$system"
	mirror=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$root/etc/apt/sources.list" | head -1)
	has_system "$mirror"
	[ "$system" != debian-13 ] || echo "deb $mirror bookworm main" >>"$root/etc/apt/sources.list"
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
	"${system%-*}"
	inside apt-get -q clean
fi
tar -C "$root" --numeric-owner -cf "$work/tar" .
mv "$work/tar" "$tarball"
echo "$tarball"
