#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# rpm.sh [DIRECTORY]: makes the RPM packages of what the checkout has built (make libs), in build/rpm
# or DIRECTORY. From a tarball of `make dist`, `rpmbuild -tb` makes them.
set -eu -o pipefail
. "${0%/*}/need.sh" cat debugedit dirname eu-strip head mkdir rm rpmbuild rpmspec sed

cd "$(dirname "$0")/.."
tree=$PWD
out=${1:-build/rpm}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
package=$(rpmspec -q --srpm --queryformat '%{VERSION}' packaging/libdat.spec)
[ "$package" = "$version" ] || {
	echo "rpm.sh: packaging/libdat.spec is about $package, Cargo.toml about $version" >&2
	exit 1
}
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
# The changelog of the specification has the time that files and packages get.
rpmbuild -bb --define "dat_tree $tree" --define "_topdir $out/work" --define "_rpmdir $out" \
	--define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
	--define 'source_date_epoch_from_changelog 1' --define 'use_source_date_epoch_as_buildtime 1' \
	--define 'clamp_mtime_to_source_date_epoch 1' --define '_buildhost localhost' \
	packaging/libdat.spec >"$out/build.log" 2>&1 || {
	cat "$out/build.log" >&2
	exit 1
}
rm -rf "$out/work"
(cd "$out" && ls -- *.rpm) | sed "s|^|${out#"$tree"/}/|"
