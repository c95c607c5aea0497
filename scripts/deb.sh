#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# deb.sh [DIRECTORY]: makes the Debian packages of what the checkout has built (make libs), in
# build/deb or DIRECTORY, and shows them to lintian. Their rules are in packaging/debian; in an
# unpacked tarball of `make dist`, dpkg-buildpackage builds them after `cp -r packaging/debian .`.
# DEB_ARCH names another architecture of Debian (i386) than that of the machine: its packages are built
# with Debian's cross compiler, in build/deb-i386.
set -eu -o pipefail
. "${0%/*}/need.sh" cp cut dirname dpkg-buildpackage dpkg-parsechangelog grep head mkdir rm sed

cd "$(dirname "$0")/.."
tree=$PWD
arch=${DEB_ARCH-}
# The documents are for every architecture: they are among the packages of the machine's own.
kinds=${arch:+any}
kinds=${kinds:-binary}
out=${1:-build/deb${arch:+-$arch}}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
package=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
[ "${package%-*}" = "$version" ] || {
	echo "deb.sh: packaging/debian/changelog is about $package, Cargo.toml about $version" >&2
	exit 1
}
rm -rf "$out"
mkdir -p "$out/libdat-$version"
out=$(cd "$out" && pwd)
cp -r packaging/debian "$out/libdat-$version"
log=$out/build.log
(cd "$out/libdat-$version" &&
	DAT_TREE=$tree dpkg-buildpackage ${arch:+--host-arch="$arch"} \
		--build="$kinds" --unsigned-source --unsigned-changes) >"$log" 2>&1 || {
	cat "$log" >&2
	exit 1
}
rm -rf "$out/libdat-$version"
if command -v lintian >/dev/null; then
	lintian --allow-root --fail-on error,warning "$out"/*.changes
else
	echo 'deb.sh: lintian is not installed, and nothing has looked at the packages'
fi
(cd "$out" && ls -- *.deb) | sed "s|^|${out#"$tree"/}/|"
