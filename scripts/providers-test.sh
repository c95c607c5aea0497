#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# providers-test.sh OUT: tries our providers as libraries of their own (OUT/lib/libdapl-*), and prints TAP.
# Programs of Debian's dapl2-utils run on OpenFabrics' own libdat2, which loads libdapl-soft.so.2; and a
# part of the C suite runs on our libraries, which load libdapl-soft.so.1 and .so.2 like those of any
# vendor.
set -u

. "${0%/*}/need.sh" awk dpkg-query grep head ln mktemp nproc paste readelf realpath rm sort
. "${0%/*}/side-by-side.sh"
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "${1:?usage: providers-test.sh OUT}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The library of the package, not one that is installed over it.
original=$(dpkg-query -L libdat2-2 libdapl2 2>/dev/null | grep '/libdat2\.so\.2\.[0-9.]*$' | head -1)
if [ -z "$original" ] || [ ! -e "$original" ]; then
	echo 'TAP version 13'
	echo "not ok 1 - OpenFabrics' libdat2 is installed"
	echo 1..1
	exit 1
fi
mkdir "$work/lib"
ln -s "$(realpath "$original")" "$work/lib/libdat2.so.2"
ln -s "$out/lib/libdapl-soft.so.2" "$work/lib/"

# files: SONAME and symbols of the libraries, and that they are never unmapped, as their threads and the
# program's handler of faults may be in them.
files() {
	local library want got number=0
	for library in soft.so.1 soft.so.2 verbs.so.1 verbs.so.2; do
		want="libdapl-$library dat_provider_fini dat_provider_init"
		[[ $library == *.1 ]] || want="libdapl-$library dapl_extensions dat_provider_fini dat_provider_init"
		got=$({
			readelf -dW "$out/lib/libdapl-$library" | awk -F'[][]' '/SONAME/ { print $2 }'
			readelf --dyn-syms -W "$out/lib/libdapl-$library" |
				awk '$1 ~ /:$/ && $1 != "Num:" && $7 != "UND" { print $8 }' | sort
		} | paste -sd ' ')
		number=$((number + 1))
		if [ "$got" = "$want" ] && readelf -dW "$out/lib/libdapl-$library" | grep NODELETE >/dev/null; then
			echo "ok $number - libdapl-$library"
		else
			echo "# $got"
			echo "not ok $number - libdapl-$library"
		fi
	done
	echo "1..$number"
}

# Not F/queryinfo of dapltest: OpenFabrics' library follows handles that are none.
suites() {
	local conf=$root/tests-c/providers-programs.conf
	files | results
	CONF=$conf DEVICES='soft soft-shm soft-tcp' \
		"$root/scripts/dtest.sh" --lib "$work/lib" '' '-W' 2>&1 | results
	CONF=$conf DEVICES='soft soft-tcp' "$root/scripts/dapltest.sh" --lib "$work/lib" \
		'dtestx/*' 'dtestcm/poll' 'T/mixed*' 'F/mem' 'F/connmgt' 2>&1 | results
	CONF=$root/tests-c/providers.conf RUNS='dat:soft dat:soft-tcp dat2:soft dat2:soft-shm' \
		"$root/scripts/ctest.sh" "$out" t_connect t_disconnect t_dto t_lmr t_rdma t_send 2>&1 | results
}

suites | one_stream
