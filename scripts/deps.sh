#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# deps.sh [--list] build|check|check-rdma-sys|bench|bench-verbs: installs the Debian packages (and
# Rust components) that are missing and prints their names; does nothing, and needs no network,
# when nothing is missing. With --list it only prints what is needed.
set -eu

# What a build of the libraries and of C programs on them needs.
build='gcc libc6-dev make lld'
# What the tests need on top. dapl2-utils brings dtest, and with libdapl2 the original
# libdat2.so.2, which only scripts/examples-test.sh loads: the others name our directory and check with ldd.
# The last are for the programs and the devices of the virtual machine.
check='clang-format g++ binutils valgrind libc6-dbg iproute2 util-linux coreutils dapl2-utils python3
	ibverbs-providers libibverbs-dev librdmacm-dev mandoc cmake pkg-config'
# What the bindings of the crate rdma-sys are made from (make check-rdma-sys).
check_rdma_sys='libclang-dev pkg-config libibverbs-dev librdmacm-dev'
# What libdat is measured beside (make bench), and what drives it.
bench='ucx-utils libucx-dev libfabric-bin iproute2 util-linux python3'

# What the comparison with the original library needs (make bench-verbs).
bench_verbs='valgrind libibverbs-dev librdmacm-dev libdapl2'

list=
if [ "${1-}" = --list ]; then
	list=1
	shift
fi
case "${1-}" in
build) wanted=$build ;;
check) wanted="$build $check" ;;
check-rdma-sys) wanted="$build $check_rdma_sys" ;;
bench) wanted="$build $bench" ;;
bench-verbs) wanted="$build $bench_verbs" ;;
*) echo "usage: $0 [--list] build|check|check-rdma-sys|bench|bench-verbs" >&2; exit 2 ;;
esac
if [ -n "$list" ]; then
	# shellcheck disable=SC2086 # a list of names
	printf '%s\n' $wanted
	exit
fi

if command -v dpkg-query >/dev/null; then
	missing=
	for package in $wanted; do
		status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
		[ "$status" = 'install ok installed' ] || missing="$missing $package"
	done
	if [ -n "$missing" ]; then
		echo "deps: installing with apt:$missing"
		sudo=
		if [ "$(id -u)" != 0 ]; then
			command -v sudo >/dev/null || {
				echo "deps: not root and no sudo; please install:$missing" >&2
				exit 1
			}
			sudo=sudo
		fi
		$sudo apt-get -q update
		# shellcheck disable=SC2086 # a list of names
		$sudo env DEBIAN_FRONTEND=noninteractive \
			apt-get -q -y install --no-install-recommends $missing
	fi
else
	for tool in cc make ld.lld; do
		command -v "$tool" >/dev/null || {
			echo "deps: not a Debian system; please provide: $wanted (no $tool found)" >&2
			exit 1
		}
	done
fi

command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
command -v cargo >/dev/null || {
	echo 'deps: no cargo found; install Rust 1.95 or newer (rustup) and try again' >&2
	exit 1
}
if [ "$1" = check ]; then
	for component in rustfmt clippy; do
		case $component in
		rustfmt) cargo fmt --version >/dev/null 2>&1 && continue ;;
		clippy) cargo clippy --version >/dev/null 2>&1 && continue ;;
		esac
		echo "deps: adding the Rust component $component"
		rustup component add "$component"
	done
fi
