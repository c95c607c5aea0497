#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build.sh: makes what run.sh boots: Debian's kernel, uncompressed, and an initramfs with the
# modules of the RDMA devices, siw among them, which Debian leaves out and we build from
# Debian's source package against Debian's headers. Prints, as shell assignments, where things are.
#
# Everything lands in a cache outside the tree and is made once per kernel version. Nothing is
# installed and nothing needs root: packages are downloaded with apt-get and unpacked, QEMU and
# the tools too where the system lacks them.
#
# VM_KERNEL=6.1.0-40-amd64 chooses a kernel; otherwise it is the one linux-image-amd64 stands for.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libdat-vm
host=$cache/host

say() { echo "vm: $*" >&2; }
die() { say "$*"; exit 1; }

[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || die 'needs a Debian system on amd64'
mkdir -p "$cache"
exec 9>"$cache/build.lock"
flock 9

# download DIR PACKAGE...: the .deb files, into DIR
download() {
	local dir=$1
	shift
	mkdir -p "$dir"
	(cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$@" >&2) ||
		die "cannot download $*; is 'apt-get update' due?"
}

# unpack DEBS INTO
unpack() {
	local deb
	for deb in "$1"/*.deb; do
		dpkg -x "$deb" "$2"
	done
	rm -r "$1"
}

# --- programs of the host -------------------------------------------------------------------

export PATH=$PATH:$host/usr/sbin:$host/usr/bin:$host/sbin:$host/bin:/usr/sbin:/sbin
tools='qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod
	xz:xz-utils zstd:zstd python3:python3 strip:binutils make:make gcc:gcc bc:bc'
missing=
for tool in $tools; do
	command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
if [ -n "$missing" ]; then
	say "unpacking programs that this system lacks:$missing"
	# Unpacked and not installed: QEMU would push out other versions of its packages.
	# shellcheck disable=SC2086 # a list of names
	mapfile -t packages < <(apt-get -s --no-install-recommends install $missing |
		awk '$1 == "Inst" { print $2 }')
	[ ${#packages[@]} -gt 0 ] || die "apt knows no packages$missing"
	rm -rf "$cache/debs"
	download "$cache/debs" "${packages[@]}"
	unpack "$cache/debs" "$host"
	# Links that name the place of installation.
	find "$host" -type l -lname '/*' | while read -r link; do
		ln -sfn "$host$(readlink "$link")" "$link"
	done
fi

# --- kernel and modules ---------------------------------------------------------------------

kernel=${VM_KERNEL:-$(apt-cache depends linux-image-amd64 2>/dev/null |
	sed -n 's/.*Depends: linux-image-//p' | head -1)}
if [ -z "$kernel" ]; then
	# No package lists: what has been built before will do.
	kernel=$(cd "$cache" && ls -d [0-9]*-amd64 2>/dev/null | sort -V | tail -1)
	[ -n "$kernel" ] || die "apt does not know linux-image-amd64; is 'apt-get update' due?"
fi
dir=$cache/$kernel
mkdir -p "$dir"
version=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$kernel")

if [ ! -f "$dir/vmlinux" ]; then
	say "unpacking kernel $kernel"
	rm -rf "$dir/debs" "$dir/image"
	download "$dir/debs" "linux-image-$kernel"
	unpack "$dir/debs" "$dir/image"
	# Decompressing the kernel under emulation takes longer than booting it.
	python3 "$here/vmlinux.py" "$dir/image/boot/vmlinuz-$kernel" >"$dir/vmlinux.new"
	mv "$dir/vmlinux.new" "$dir/vmlinux"
fi

if [ ! -f "$dir/siw.ko" ]; then
	say "building siw for $kernel"
	rm -rf "$dir/debs" "$dir/build"
	mapfile -t packages < <(apt-cache depends "linux-headers-$kernel" |
		sed -nE 's/.*Depends: (linux-(headers|kbuild|compiler)-.*)/\1/p')
	download "$dir/debs" "linux-headers-$kernel" "${packages[@]}"
	unpack "$dir/debs" "$dir/build"
	headers=$dir/build/usr/src/linux-headers-$kernel
	# The headers name each other by the paths they would be installed in.
	find "$headers" -maxdepth 1 \( -name Makefile -o -name .kernelvariables \) -exec \
		sed -i -E "s#(^|[ =])/usr/(src|lib)/linux#\1$dir/build/usr/\2/linux#g" {} +
	download "$dir/debs" "linux-source-$version"
	unpack "$dir/debs" "$dir/build"
	source=linux-source-$version/drivers/infiniband/sw/siw
	tar -C "$dir/build" -xf "$dir/build/usr/src/linux-source-$version.tar.xz" "$source"
	make -s -C "$headers" M="$dir/build/$source" CONFIG_RDMA_SIW=m -j"$(nproc)" modules >&2
	strip --strip-debug -o "$dir/siw.ko.new" "$dir/build/$source/siw.ko"
	mv "$dir/siw.ko.new" "$dir/siw.ko"
	rm -rf "$dir/build"
fi

# --- initramfs ------------------------------------------------------------------------------

# What the root file system needs, and then the devices.
first='virtio_pci 9pnet_virtio 9p overlay'
then='dummy veth crc32_pclmul crc32_generic crc32c_generic libcrc32c ib_uverbs ib_umad rdma_ucm
	rdma_rxe siw'
initramfs=$dir/initramfs-$(cat "$here/build.sh" "$here/init" | sha256sum | cut -c 1-12).cpio

if [ ! -f "$initramfs" ]; then
	root=$dir/initramfs
	rm -rf "$root" "$dir"/initramfs-*.cpio
	mkdir -p "$root"/{bin,proc,sys,dev,lower,overlay,new,modules}
	cp "$(command -v busybox)" "$root/bin/busybox"
	install -m 755 "$here/init" "$root/init"
	install -D -m 644 "$dir/siw.ko" "$dir/image/lib/modules/$kernel/extra/siw.ko"
	depmod -b "$dir/image" "$kernel"

	# list MODULE...: the files to load, each after those it needs
	list() {
		local module action file
		for module in "$@"; do
			modprobe -d "$dir/image" -S "$kernel" --show-depends "$module" |
				while read -r action file _; do
					[ "$action" != insmod ] || echo "$file"
				done
		done | awk '!seen[$0]++'
	}
	# shellcheck disable=SC2086 # lists of names
	{
		list $first >"$root/modules/first.files"
		list $then | grep -vxFf "$root/modules/first.files" >"$root/modules/then.files"
	}
	for stage in first then; do
		while read -r file; do
			name=$(basename "$file")
			name=${name%%.ko*}.ko
			case $file in
			*.xz) xz -dc "$file" >"$root/modules/$name" ;;
			*.zst) zstd -dcq "$file" >"$root/modules/$name" ;;
			*) cp "$file" "$root/modules/$name" ;;
			esac
			strip --strip-debug "$root/modules/$name"
			echo "$name"
		done <"$root/modules/$stage.files" >"$root/modules/$stage"
		rm "$root/modules/$stage.files"
	done
	(cd "$root" && find . | cpio --quiet -o -H newc) >"$initramfs.new"
	mv "$initramfs.new" "$initramfs"
	rm -rf "$root"
fi

cat <<END
vm_cache='$cache'
vm_host='$host'
vm_kernel='$dir/vmlinux'
vm_initramfs='$initramfs'
END
