#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# i386.sh: makes what 32-bit programs need in the machine: rdma-core and OpenFabrics' library in the
# directory "lib", and OpenFabrics' programs and stdbuf in "bin", of Debian's packages for i386. Prints
# where. They are downloaded with apt-get, from the sources of this system, and unpacked, once; nothing
# is installed, and dpkg need not know the architecture. libc is that of the cross compiler, which
# makes the programs of the tests (scripts/deps.sh --list i686).
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/libdat-vm
dir=$cache/i386
packages='libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 libdapl2 dapl2-utils
	coreutils'

die() { echo "vm: $*" >&2; exit 1; }

mkdir -p "$cache"
exec 9>"$cache/build.lock"
flock 9
if [ ! -d "$dir" ]; then
	echo "vm: unpacking libraries and programs for i386" >&2
	new=$dir.new
	rm -rf "$new"
	mkdir -p "$new"/{lib,bin,debs,root,apt/state/lists/partial,apt/cache/archives/partial}
	: >"$new/apt/status"
	cat >"$new/apt/conf" <<-END
		APT::Architecture "i386";
		APT::Architectures { "i386"; };
		APT::Sandbox::User "root";
		Dir::State "$new/apt/state";
		Dir::State::status "$new/apt/status";
		Dir::Cache "$new/apt/cache";
	END
	export APT_CONFIG=$new/apt/conf
	# The lists that it has got may do.
	apt-get -qq update >&2 || true
	# shellcheck disable=SC2086 # a list of names
	(cd "$new/debs" && apt-get -qq download $packages >&2) || die "cannot download $packages for i386"
	for deb in "$new"/debs/*.deb; do
		dpkg -x "$deb" "$new/root"
	done
	# The libraries of the devices too: libibverbs looks for them where it finds other libraries.
	find "$new/root" -path '*/i386-linux-gnu/*' -name '*.so*' -exec cp -Lp -t "$new/lib" {} +
	# stdbuf looks beside itself for the library that it preloads.
	cp -t "$new/bin" "$new"/root/usr/bin/{dtest*,dapltest,stdbuf} \
		"$new/root/usr/libexec/coreutils/libstdbuf.so"
	rm -r "$new"/{debs,root,apt}
	mv "$new" "$dir"
fi
echo "$dir"
