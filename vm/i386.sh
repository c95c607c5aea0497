#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# i386.sh: makes what 32-bit programs need in the machine: rdma-core and OpenFabrics' library in the
# directory "lib", and OpenFabrics' programs and stdbuf in "bin", of Debian's packages for i386. Prints
# where. They are downloaded with apt-get, from the sources of this system, and unpacked, once; nothing
# is installed, and dpkg need not know the architecture. libc is that of the cross compiler, which
# makes the programs of the tests (scripts/deps.sh --list i686).
set -euo pipefail

# shellcheck source=vm/packages.sh
. "$(dirname "$0")/packages.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libdat-vm
dir=$cache/i386
packages='libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 libdapl2 dapl2-utils
	coreutils'

mkdir -p "$cache"
exec 9>"$cache/build.lock"
flock 9
if [ ! -d "$dir" ]; then
	say "unpacking libraries and programs for i386"
	new=$dir.new
	rm -rf "$new"
	mkdir -p "$new"/{lib,bin}
	apt_for i386 "$new/apt"
	# shellcheck disable=SC2086 # a list of names
	download "$new/debs" $packages
	unpack "$new/debs" "$new/root"
	# The libraries of the devices too: libibverbs looks for them where it finds other libraries.
	find "$new/root" -path '*/i386-linux-gnu/*' -name '*.so*' -exec cp -Lp -t "$new/lib" {} +
	# stdbuf looks beside itself for the library that it preloads.
	cp -t "$new/bin" "$new"/root/usr/bin/{dtest*,dapltest,stdbuf} \
		"$new/root/usr/libexec/coreutils/libstdbuf.so"
	rm -r "$new"/{root,apt}
	mv "$new" "$dir"
fi
echo "$dir"
