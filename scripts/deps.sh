#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# deps.sh [--list|--check] GROUP: installs the Debian packages (and Rust components) that a group of
# make targets needs and that are missing, and prints their names; does nothing, and needs no network,
# when nothing is missing. Rust comes first: it is not installed from here, and without it the rest is
# of no use. Where nothing can be installed, one line says what is missing. --list only prints the
# packages; --check only looks for Rust and a C compiler, and installs nothing.
set -eu

cd "$(dirname "$0")/.."
# What a build of the libraries and of C programs on them needs.
build='gcc libc6-dev make lld'
# What the C programs run in: namespaces, limits.
run="$build binutils iproute2 util-linux coreutils"
# The programs of OpenFabrics. dapl2-utils brings dtest, and with libdapl2 the original libdat2.so.2,
# which only scripts/examples-test.sh loads: the others name our directory and check with ldd.
programs="$run dapl2-utils"
# What packages are made with, and the chroots that they are tested in.
deb="$build dpkg-dev debhelper lintian pkg-config"
rpm="$build rpm debugedit elfutils"
chroot='debootstrap wget'
# A cross compiler, and what runs its programs (make aarch64, make ppc64le and so on).
aarch64="$build gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
ppc64le="$build gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross qemu-user"
s390x="$build gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user"
riscv64="$build gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user"
# The C library musl, and a compiler for that (make musl).
musl="$build musl-tools"
# A cross compiler and libraries, for 32-bit programs (make i686).
i686="$build gcc-i686-linux-gnu libc6-dev-i386-cross libibverbs-dev librdmacm-dev"
# What the tests need on top. The last are for the programs and the devices of the virtual machine.
check="$programs $aarch64 $i686 $deb $rpm $chroot clang-format g++ valgrind libc6-dbg python3
	ibverbs-providers libibverbs-dev librdmacm-dev mandoc cmake pkg-config"
check_long="$check $ppc64le $s390x $riscv64 $musl"
# What the bindings of the crate rdma-sys are made from (make check-rdma-sys).
check_rdma_sys="$build libclang-dev pkg-config libibverbs-dev librdmacm-dev"
# What libdat is measured beside (make bench), and what drives it.
bench="$build ucx-utils libucx-dev libfabric-bin iproute2 util-linux python3"

# What the comparison with the original library needs (make bench-verbs).
bench_verbs="$build valgrind libibverbs-dev librdmacm-dev libdapl2"
# What counts instructions, and names the lines that they are of (make bench-profile).
bench_profile="$bench_verbs binutils python3"
# libFuzzer is compiled from C++.
fuzz="$build g++"
lint="$build clang-format g++"
fresh="$run $chroot git"

groups='build|run|aarch64|ppc64le|s390x|riscv64|i686|musl|programs|check|check-long|check-rdma-sys|bench|bench-verbs|bench-profile|fuzz|lint|deb|rpm|fresh'
action=install
case "${1-}" in
--list | --check)
	action=${1#--}
	shift
	;;
esac
case "${1-}" in
build) wanted=$build ;;
run) wanted=$run ;;
deb) wanted=$deb ;;
rpm) wanted=$rpm ;;
aarch64) wanted=$aarch64 ;;
ppc64le) wanted=$ppc64le ;;
s390x) wanted=$s390x ;;
riscv64) wanted=$riscv64 ;;
i686) wanted=$i686 ;;
musl) wanted=$musl ;;
programs) wanted=$programs ;;
check) wanted=$check ;;
check-long) wanted=$check_long ;;
check-rdma-sys) wanted=$check_rdma_sys ;;
bench) wanted=$bench ;;
bench-verbs) wanted=$bench_verbs ;;
bench-profile) wanted=$bench_profile ;;
fuzz) wanted=$fuzz ;;
lint) wanted=$lint ;;
fresh) wanted=$fresh ;;
*) echo "usage: $0 [--list|--check] $groups" >&2; exit 2 ;;
esac
if [ "$action" = list ]; then
	# shellcheck disable=SC2086 # a list of names
	printf '%s\n' $wanted
	exit
fi

fail() {
	echo "deps: $1" >&2
	exit 1
}

# --- Rust -----------------------------------------------------------------------------------

needed=$(sed -n 's/^rust-version = "\([0-9.]*\)"/\1/p' Cargo.toml)
PATH="$PATH:${HOME:-}/.cargo/bin"
cargo=${CARGO:-cargo}
command -v "$cargo" >/dev/null ||
	fail "no cargo found: install Rust $needed or newer (rustup has it), and try again"
# A rustup without a toolchain has the program too.
version=$("$cargo" --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p')
[ -n "$version" ] || fail "$cargo does not run: rustup default stable gives it a toolchain"
if [ "$(printf '%s\n' "$version" "$needed" | sort -t . -k 1,1n -k 2,2n | head -1)" != "$needed" ]; then
	fail "Rust $version is too old: $needed or newer is needed (rustup update stable)"
fi
if [ "$action" = check ]; then
	command -v "${CC:-cc}" >/dev/null || fail "no C compiler (${CC:-cc}) found: make deps installs what is missing"
	exit
fi

# --- packages -------------------------------------------------------------------------------

if command -v dpkg-query >/dev/null; then
	# shellcheck disable=SC2086 # a list of names
	installed=$(dpkg-query -W -f='${Package} ${Status}\n' $wanted 2>/dev/null |
		sed -n 's/ install ok installed$//p' || true)
	missing=
	for package in $wanted; do
		case "
$installed
" in
		*"
$package
"*) ;;
		*) missing="$missing $package" ;;
		esac
	done
	if [ -n "$missing" ]; then
		sudo=
		if [ "$(id -u)" != 0 ]; then
			command -v sudo >/dev/null ||
				fail "not root and no sudo; please have this done: apt-get install$missing"
			sudo=sudo
		fi
		echo "deps: installing with apt:$missing"
		$sudo apt-get -q update || fail "apt-get update failed; missing:$missing"
		# shellcheck disable=SC2086 # a list of names
		$sudo env DEBIAN_FRONTEND=noninteractive \
			apt-get -q -y install --no-install-recommends $missing || fail "apt-get failed; missing:$missing"
	fi
else
	# Packages have other names elsewhere; their programs have the same.
	missing=
	for package in $wanted; do
		case $package in
		gcc) tool=${CC:-cc} ;;
		make | clang-format | g++ | valgrind | python3 | mandoc | cmake | pkg-config) tool=$package ;;
		lld) tool=ld.lld ;;
		binutils) tool=objcopy ;;
		iproute2) tool=ip ;;
		gcc-aarch64-linux-gnu) tool=aarch64-linux-gnu-gcc ;;
		gcc-powerpc64le-linux-gnu) tool=powerpc64le-linux-gnu-gcc ;;
		gcc-s390x-linux-gnu) tool=s390x-linux-gnu-gcc ;;
		gcc-riscv64-linux-gnu) tool=riscv64-linux-gnu-gcc ;;
		gcc-i686-linux-gnu) tool=i686-linux-gnu-gcc ;;
		musl-tools) tool=musl-gcc ;;
		qemu-user) tool=qemu-aarch64 ;;
		util-linux) tool=unshare ;;
		coreutils) tool=stdbuf ;;
		dapl2-utils) tool=dtest ;;
		ucx-utils) tool=ucx_perftest ;;
		libfabric-bin) tool=fi_pingpong ;;
		# Headers and libraries: compilers and tests say what they miss.
		*) continue ;;
		esac
		command -v "$tool" >/dev/null || missing="$missing $tool"
	done
	[ -z "$missing" ] || fail "please install the packages of this system that have:$missing"
fi

case $1 in
check | check-long | lint) components='rustfmt clippy' ;;
*) components= ;;
esac
for component in $components; do
	case $component in
	rustfmt) "$cargo" fmt --version >/dev/null 2>&1 && continue ;;
	clippy) "$cargo" clippy --version >/dev/null 2>&1 && continue ;;
	esac
	command -v rustup >/dev/null || fail "cargo has no $component, and there is no rustup to add it"
	echo "deps: adding the Rust component $component"
	rustup component add "$component" || fail "rustup could not add $component"
done
