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
# VM_SUITE=bookworm-backports takes that of another suite of Debian.
# VM_MIRROR is the address of a mirror of Ubuntu, of which VM_SUITE=bionic-updates is a suite then. Such a machine has no
# RDMA devices.
# VM_USERLAND=trixie puts the programs and libraries of another release over those of the host.
# VM_ARCH=arm64 makes all this for AArch64, and unpacks programs and libraries for it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libdat-vm
host=$cache/host

# shellcheck source=vm/packages.sh
. "$here/packages.sh"
# shellcheck source=vm/userland.sh
. "$here/userland.sh"

arch=${VM_ARCH:-amd64}
case $arch in
amd64) qemu=qemu-system-x86_64 packages_of='qemu-system-x86 binutils gcc' cross='' karch=x86 ;;
arm64)
	qemu=qemu-system-aarch64 cross=aarch64-linux-gnu- karch=arm64
	packages_of='qemu-system-arm binutils-aarch64-linux-gnu gcc-aarch64-linux-gnu'
	;;
*) die "VM_ARCH is amd64 or arm64, not $arch" ;;
esac
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || die 'needs a Debian system on amd64'
mkdir -p "$cache"
exec 9>"$cache/build.lock"
flock 9

# --- programs of the host -------------------------------------------------------------------

export PATH=$PATH:$host/usr/sbin:$host/usr/bin:$host/sbin:$host/bin:/usr/sbin:/sbin
read -r qemu_package binutils compiler <<<"$packages_of"
tools="$qemu:$qemu_package busybox:busybox-static cpio:cpio depmod:kmod xz:xz-utils zstd:zstd python3:python3
	${cross}strip:$binutils make:make ${cross}gcc:$compiler gcc:gcc bc:bc"
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

suite=${VM_SUITE-}

# lists: apt is asked for packages of the machine's processor, and of the suite, from here on.
lists() {
	[ "$arch$suite" = amd64 ] || [ -n "${APT_CONFIG-}" ] || apt_for "$arch" "$cache/apt/$arch-$suite" "$suite"
}

# newest: the newest kernel that has been made.
newest() {
	# shellcheck disable=SC2012 # names of kernels
	(cd "$cache" && ls -d [0-9]*-"$arch" 2>/dev/null | sort -V | tail -1) || true
}

kernel=${VM_KERNEL-}
# What the packages with a kernel are called, with the newest and with each.
newest_image=linux-image-$arch images='linux-image'
if [ -n "${VM_MIRROR-}" ]; then
	[ "$arch" = amd64 ] && [ -n "$suite" ] || die 'VM_MIRROR is for amd64, and needs VM_SUITE'
	newest_image=linux-image-generic images='linux-image linux-modules linux-modules-extra'
fi
# The lists of another architecture are got when something has to be made, not each time.
[ -n "$kernel" ] || [ "$arch" = amd64 ] || [ -n "$suite" ] || kernel=$(newest)
if [ -z "$kernel" ]; then
	lists
	kernel=$(apt-cache depends "$newest_image" 2>/dev/null |
		sed -n 's/.*Depends: linux-image-//p' | head -1)
	# No package lists: what has been built before will do.
	[ -n "$kernel" ] || kernel=$(newest)
	[ -n "$kernel" ] || die "apt does not know $newest_image; is 'apt-get update' due?"
fi
dir=$cache/$kernel
mkdir -p "$dir"
version=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$kernel")

if [ ! -f "$dir/vmlinux" ]; then
	say "unpacking kernel $kernel"
	rm -rf "$dir/debs" "$dir/image"
	lists
	# shellcheck disable=SC2086 # a list of names
	download "$dir/debs" ${images// /-$kernel }-"$kernel"
	unpack "$dir/debs" "$dir/image"
	# Decompressing the kernel under emulation takes longer than booting it. That for AArch64 is not compressed, and
	# older ones of Ubuntu do not boot otherwise.
	case $arch${VM_MIRROR:+-ubuntu} in
	amd64) python3 "$here/vmlinux.py" "$dir/image/boot/vmlinuz-$kernel" >"$dir/vmlinux.new" ;;
	*) cp "$dir/image/boot/vmlinuz-$kernel" "$dir/vmlinux.new" ;;
	esac
	mv "$dir/vmlinux.new" "$dir/vmlinux"
fi

if [ -z "${VM_MIRROR-}" ] && [ ! -f "$dir/siw.ko" ]; then
	say "building siw for $kernel"
	rm -rf "$dir/debs" "$dir/build"
	lists
	mapfile -t packages < <(apt-cache depends "linux-headers-$kernel" |
		sed -nE 's/.*Depends: (linux-(headers|kbuild|compiler)-.*)/\1/p')
	for package in "linux-headers-$kernel" "${packages[@]}"; do
		case $package in
		# Its programs run here, for whichever processor the build is.
		linux-kbuild-*) (unset APT_CONFIG && arch=amd64 && lists && download "$dir/debs" "$package") ;;
		*) download "$dir/debs" "$package" ;;
		esac
	done
	unpack "$dir/debs" "$dir/build"
	headers=$dir/build/usr/src/linux-headers-$kernel
	# The headers name each other by the paths they would be installed in.
	find "$headers" -maxdepth 1 \( -name Makefile -o -name .kernelvariables \) -exec \
		sed -i -E "s#(^|[ =])/usr/(src|lib)/linux#\1$dir/build/usr/\2/linux#g" {} +
	download "$dir/debs" "linux-source-$version"
	unpack "$dir/debs" "$dir/build"
	source=linux-source-$version/drivers/infiniband/sw/siw
	tar -C "$dir/build" -xf "$dir/build/usr/src/linux-source-$version.tar.xz" "$source"
	# Without type information (BTF), for which newer kernels need another program.
	make -s -C "$headers" M="$dir/build/$source" ARCH="$karch" CROSS_COMPILE="$cross" CONFIG_RDMA_SIW=m \
		CONFIG_DEBUG_INFO_BTF_MODULES= -j"$(nproc)" modules >&2
	"${cross}strip" --strip-debug -o "$dir/siw.ko.new" "$dir/build/$source/siw.ko"
	mv "$dir/siw.ko.new" "$dir/siw.ko"
	rm -rf "$dir/build"
fi

# --- programs and libraries of another processor or release -------------------------------------

userland=
busybox=$(command -v busybox)
release=${VM_USERLAND-}
if [ "$arch$release" != amd64 ]; then
	userland=$cache/userland/$arch${release:+-$release}
	if [ ! -d "$userland" ]; then
		say "unpacking programs and libraries for $arch $release"
		mkdir -p "${userland%/*}"
		(unset APT_CONFIG && suite=$release && lists && userland "$userland")
	fi
	busybox=$userland/usr/bin/busybox
fi

# --- initramfs ------------------------------------------------------------------------------

# What the root file system needs, and then the devices.
first='virtio_pci 9pnet_virtio 9p overlay'
then='dummy veth crc32_generic crc32c_generic libcrc32c ib_uverbs ib_umad rdma_ucm rdma_rxe siw'
[ "$arch" != amd64 ] || then="crc32_pclmul $then"
[ -z "${VM_MIRROR-}" ] || then='dummy veth'
initramfs=$dir/initramfs-$(cat "$here/build.sh" "$here/init" | sha256sum | cut -c 1-12).cpio

if [ ! -f "$initramfs" ]; then
	root=$dir/initramfs
	rm -rf "$root" "$dir"/initramfs-*.cpio
	mkdir -p "$root"/{bin,proc,sys,dev,lower,userland,overlay,new,modules}
	cp "$busybox" "$root/bin/busybox"
	install -m 755 "$here/init" "$root/init"
	[ ! -f "$dir/siw.ko" ] || install -D -m 644 "$dir/siw.ko" "$dir/image/lib/modules/$kernel/extra/siw.ko"
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
			"${cross}strip" --strip-debug "$root/modules/$name"
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
vm_arch='$arch'
vm_qemu='$qemu'
vm_userland='$userland'
END
