#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# install-test.sh: installs into a scratch directory, uses what is there as a consumer would,
# uninstalls, and prints TAP. Then the same beside packages of the system, which stay as they are:
# those of a database of the test's own, and Debian's libdapl2 where that is installed.
set -u
. "${0%/*}/need.sh" addr2line awk cat cc chmod cmake diff dirname find grep head id ldd ln make mkdir \
	mktemp mv nm pkg-config readelf readlink realpath rm sed sh sha256sum sort tail touch unshare

cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
dest=$scratch/root
number=0
bad=0
make=(make --no-print-directory "DESTDIR=$dest" PREFIX=/usr)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$scratch/log" 2>&1; then
		echo "ok $number - install.$name"
	else
		sed 's/^/# /' "$scratch/log"
		echo "not ok $number - install.$name"
		bad=$((bad + 1))
	fi
}

# skip NAME REASON
skip() {
	number=$((number + 1))
	echo "ok $number - install.$1 # SKIP $2"
}

# dat-info loads the installed libraries, whose calls are in the trace.
traced() {
	LD_LIBRARY_PATH=$dest/usr/lib "$dest/usr/bin/dat-trace" -o "$scratch/trace-%p" \
		"$dest/usr/bin/dat-info" >/dev/null 2>&1 &&
		cat "$scratch"/trace-* | grep -q ' dat_registry_list_providers(.* = DAT_SUCCESS, '
}

links_to() {
	[ "$(readlink "$dest/usr/lib/$1")" = "$2" ]
}

# source_of NAME: a program for that library, in $scratch/NAME.c.
source_of() {
	{
		[ "$1" = dat ] || echo '#define DAT2'
		cat tests-c/consumer.c
	} >"$scratch/$1.c"
}

# runs PROGRAM NAME LIBDIR: it runs on the library there.
runs() {
	LD_LIBRARY_PATH=$3 ldd "$1" | grep "lib$2\.so\.[12] => $3/" && LD_LIBRARY_PATH=$3 "$1"
}

# consumer NAME LIBDIR: a program that is compiled, linked and run against what was installed, with
# what pkg-config says.
consumer() {
	local name=$1 libdir=$2
	source_of "$name"
	# shellcheck disable=SC2046 # flags are words
	cc -std=c11 -Wall -Wextra -Werror -o "$scratch/c" "$scratch/$name.c" \
		$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs "$name") &&
		runs "$scratch/c" "$name" "$libdir"
}

# cmake_consumers PREFIX LIBDIR [OPTION]...: the same with what the configurations of CMake say.
cmake_consumers() {
	local project=$scratch/project name options=("-DCMAKE_PREFIX_PATH=$1" "${@:3}")
	rm -rf "$project"
	mkdir "$project"
	source_of dat
	source_of dat2
	cat >"$project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.13)
project(consumers C)
foreach(name dat dat2)
  find_package(\${name} 0.0.1 REQUIRED)
  find_package(\${name} $version EXACT REQUIRED)
  add_executable(with_\${name} $scratch/\${name}.c)
  target_link_libraries(with_\${name} PRIVATE \${name}::\${name})
endforeach()
find_package(dat 99 QUIET)
if(dat_FOUND)
  message(FATAL_ERROR "version $version is taken for 99")
endif()
END
	cmake -S "$project" -B "$project/build" "${options[@]}" &&
		cmake --build "$project/build" || return
	for name in dat dat2; do
		runs "$project/build/with_$name" "$name" "$2" || return
	done
	# A directory of headers that is gone is said, not used.
	mv "$1/include/dat2" "$1/include/gone"
	! cmake -S "$project" -B "$project/again" "${options[@]}" >"$scratch/said" 2>&1 &&
		grep 'dat2/udat.h does not exist' "$scratch/said"
	set -- $? "$1"
	mv "$2/include/gone" "$2/include/dat2"
	return "$1"
}

# Functions of the libraries are found in the source, through files with debug information that the
# libraries alone do not have.
debug_files() {
	local library file address
	for library in libdat.so.1 libdat2.so.2 libdapl-soft.so.2; do
		file=$dest/usr/lib/$library
		if readelf -SW "$file" | grep '\.debug_\|\.symtab'; then
			echo "$library has debug information inside" && return 1
		fi
		address=$(nm -D "$file" | awk '/ T (dat_evd_create|dat_provider_init)/ { print $1; exit }')
		addr2line -e "$file" "$address" | grep '/[a-z_]*\.rs:[0-9]' || return
		file=$(realpath "$file")
		[ "$(build_id "$file")" = "$(build_id "${file%/*}/.debug/${file##*/}.debug")" ] || return
	done
	[ -e "$dest/usr/bin/.debug/dat-perf.debug" ]
}
build_id() {
	readelf -nW "$1" | grep 'Build ID: [0-9a-f]\{40\}$' || echo "no build ID in $1" >&2
}

# with_debug_info WHERE: where the debug information is, in a tree of its own.
with_debug_info() {
	rm -rf "$scratch/debug"
	"${make[@]}" "DESTDIR=$scratch/debug" "DEBUG_INFO=$1" install || return
	[ -z "$(find "$scratch/debug" -name '*.debug*')" ] || return
	readelf -SW "$scratch/debug/usr/lib/libdat2.so.2" >"$scratch/sections" || return
	case $1 in
	none) ! grep '\.debug_\|\.symtab' "$scratch/sections" ;;
	inside) grep '\.debug_info' "$scratch/sections" ;;
	esac
}

refused_debug_info() {
	! "${make[@]}" "DESTDIR=$scratch/debug" DEBUG_INFO=elsewhere install >"$scratch/said" 2>&1 &&
		grep 'usage: .*apart|none|inside' "$scratch/said"
}

# moved LIBDIR: what was installed there, below /usr, is used from another place.
moved() {
	local name libdir=$scratch/moved/a/b${1#/usr}
	rm -rf "$scratch/moved" "$scratch/unmoved"
	mkdir -p "$scratch/moved/a"
	"${make[@]}" "DESTDIR=$scratch/unmoved" "LIBDIR=$1" DEBUG_INFO=none install || return
	mv "$scratch/unmoved/usr" "$scratch/moved/a/b"
	for name in dat dat2; do
		consumer "$name" "$libdir" || return
	done
	# Where CMake looks for such a directory depends on the system.
	cmake_consumers "$scratch/moved/a/b" "$libdir" "-Ddat_DIR=$libdir/cmake/dat" \
		"-Ddat2_DIR=$libdir/cmake/dat2"
}

# Directories that are not below PREFIX stand in the files as they are.
apart() {
	local out=$scratch/apart
	"${make[@]}" "DESTDIR=$out" LIBDIR=/opt/lib INCLUDEDIR=/opt/include DEBUG_INFO=none install || return
	grep -x 'prefix=/usr' "$out/opt/lib/pkgconfig/dat.pc" &&
		grep -x 'libdir=/opt/lib' "$out/opt/lib/pkgconfig/dat.pc" &&
		grep -x 'includedir=/opt/include' "$out/opt/lib/pkgconfig/dat.pc" &&
		grep '_library "/opt/lib/libdat.so"' "$out/opt/lib/cmake/dat/dat-config.cmake"
}

# A file that belongs to the administrator.
mkdir -p "$dest/etc"
echo '# mine' >"$dest/etc/dat.conf"

check works "${make[@]}" install
check again "${make[@]}" install
check leaves_dat_conf_alone grep -qx '# mine' "$dest/etc/dat.conf"
check libdat_links links_to libdat.so libdat.so.1
check libdat_soname_link links_to libdat.so.1 "libdat.so.1.libdat-$version"
check libdat2_links links_to libdat2.so libdat2.so.2
check libdat2_soname_link links_to libdat2.so.2 "libdat2.so.2.libdat-$version"
check consumer_of_dat consumer dat "$dest/usr/lib"
check consumer_of_dat2 consumer dat2 "$dest/usr/lib"
check consumers_with_cmake cmake_consumers "$dest/usr" "$dest/usr/lib"
check moved moved /usr/lib
check moved_with_a_directory_for_the_architecture moved /usr/lib/a-linux-gnu
check directories_apart apart
check debug_files debug_files
check no_debug_information with_debug_info none
check debug_information_inside with_debug_info inside
check debug_information_elsewhere_is_refused refused_debug_info
check dat_info env LD_LIBRARY_PATH="$dest/usr/lib" "$dest/usr/bin/dat-info"
check dat_perf env LD_LIBRARY_PATH="$dest/usr/lib" "$dest/usr/bin/dat-perf" --loopback \
	--time 0.01 -s 8,4K --verify
check dat_top "$dest/usr/bin/dat-top" --once
check dat_trace traced
check example_configuration test -f "$dest/usr/share/doc/libdat/dat.conf.example"
check examples test -f "$dest/usr/share/doc/libdat/examples/hello2.c"
check man_page_of_dat_conf test -f "$dest/usr/share/man/man5/dat.conf.5"
check man_page_of_dat_info test -f "$dest/usr/share/man/man1/dat-info.1"
check man_page_of_dat_trace test -f "$dest/usr/share/man/man1/dat-trace.1"
check man_page_of_dat_perf test -f "$dest/usr/share/man/man1/dat-perf.1"
check man_page_of_dat_top test -f "$dest/usr/share/man/man1/dat-top.1"
check man_page_of_libdat test -f "$dest/usr/share/man/man7/libdat.7"
# pages_of_functions: all of them are there
pages_of_functions() {
	local page
	for page in man/man3/*.3; do
		cmp "$page" "$dest/usr/share/man/man3/${page##*/}" || return 1
	done
}
check man_pages_of_functions pages_of_functions
check uninstall "${make[@]}" uninstall
leftover() {
	[ "$(find "$dest" ! -path "$dest")" = "$dest/etc"$'\n'"$dest/etc/dat.conf" ] || {
		find "$dest"
		return 1
	}
}
check uninstall_leaves_nothing leftover

# --- beside packages ------------------------------------------------------------------------

prefix=$scratch/prefix
# Nothing of this writes to the system: the prefix is ours, and so is the package database.
here=(env "DPKG_ADMINDIR=$scratch/dpkg" make --no-print-directory "PREFIX=$prefix" DESTDIR= DEBUG_INFO=none
	LDCONFIG=true)

# owned PATH...: makes a package database in which the package "original" owns these paths.
owned() {
	rm -rf "$scratch/dpkg"
	mkdir -p "$scratch/dpkg/info"
	echo 1 >"$scratch/dpkg/info/format"
	printf '%s\n' 'Package: original' 'Status: install ok installed' 'Maintainer: a <a@b>' \
		'Architecture: all' 'Version: 1' 'Description: a' '' >"$scratch/dpkg/status"
	printf '%s\n' /. "$@" >"$scratch/dpkg/info/original.list"
}

# refuses PATH COMMAND...: the command fails and names the path and its package, and the prefix is
# as it was.
refuses() {
	local path=$1 before
	shift
	before=$(snapshot)
	if "$@" >"$scratch/said" 2>&1; then
		echo "not refused"
		return 1
	fi
	cat "$scratch/said"
	grep -qF "  $path (original)" "$scratch/said" && [ "$(snapshot)" = "$before" ]
}

# Everything below the prefix, with its content.
snapshot() {
	mkdir -p "$prefix"
	find "$prefix" -printf '%P %y %l %T@\n' | sort
	find "$prefix" -type f -exec sha256sum {} + | sort
}

# A library as the original package has it.
original() {
	printf 'int original;\n' >"$scratch/original.c"
	cc -shared -fPIC -Wl,-soname,libdat2.so.2 -o "$prefix/lib/libdat2.so.2.0.0" \
		"$scratch/original.c"
}

soname_leads_to() {
	/sbin/ldconfig -n "$prefix/lib"
	[ "$(readlink "$prefix/lib/libdat2.so.2")" = "$1" ]
}

says() {
	local words=$1
	shift
	"$@" >"$scratch/said" 2>&1
	cat "$scratch/said"
	grep -q "$words" "$scratch/said"
}

if command -v dpkg >/dev/null; then
	for path in lib/libdat2.so.2 lib/libdat2.so lib/libdat.so include/dat2/udat.h \
		lib/pkgconfig/dat.pc; do
		owned "$prefix/$path"
		check "refuses.$path" refuses "$prefix/$path" "${here[@]}" install
	done
	owned "$prefix/share/man/man5/dat.conf.5.gz"
	check refuses.compressed_page refuses "$prefix/share/man/man5/dat.conf.5.gz" \
		"${here[@]}" install
	owned "$prefix/lib/libdat2.so.2"
	ln -s "$prefix/lib" "$scratch/lib"
	check refuses.another_name_of_the_directory refuses "$prefix/lib/libdat2.so.2" \
		"${here[@]}" "LIBDIR=$scratch/lib" install
	check refuses.a_destdir_that_is_the_system refuses "$prefix/lib/libdat2.so.2" \
		"${here[@]}" DESTDIR=/ install
	check a_destdir_is_nobodys "${here[@]}" "DESTDIR=$scratch/staged" MANIFEST= install
	check no_manifest_on_demand test ! -e "$scratch/staged$prefix/share/doc/libdat/manifest"
	owned /nothing

	original_alone() {
		mkdir -p "$prefix/lib" && original &&
			says 'ldconfig would prefer it' "${here[@]}" install &&
			[ "$(find "$prefix" -type f)" = "$prefix/lib/libdat2.so.2.0.0" ]
	}
	check refuses.to_be_shadowed original_alone
	rm -rf "$prefix"

	check beside_packages "${here[@]}" install
	check ldconfig_leaves_the_link soname_leads_to "libdat2.so.2.libdat-$version"
	# Another version takes the place of this one.
	check upgrade "${here[@]}" VERSION=9.9 install
	one_version() {
		[ -z "$(find "$prefix/lib" -name "*libdat-$version")" ] &&
			soname_leads_to libdat2.so.2.libdat-9.9
	}
	check upgrade_leaves_one_version one_version

	# A package that comes afterwards replaces what it has, too, and then that is the package's.
	original
	echo '/* original */' >"$prefix/include/dat2/udat.h"
	owned "$prefix/lib/libdat2.so.2.0.0" "$prefix/lib/libdat2.so.2" "$prefix/include/dat2/udat.h" \
		"$prefix/include/dat2/dat.h"
	echo '# mine' >>"$prefix/share/doc/libdat/dat.conf.example"
	check the_library_of_a_package_is_preferred soname_leads_to libdat2.so.2.0.0
	check uninstall_beside_a_package "${here[@]}" uninstall
	only_theirs() {
		(cd "$prefix" && find . ! -type d | sort) >"$scratch/left"
		cat "$scratch/left"
		printf './%s\n' include/dat2/dat.h include/dat2/udat.h lib/libdat2.so.2 \
			lib/libdat2.so.2.0.0 share/doc/libdat/dat.conf.example |
			diff - "$scratch/left" && [ "$(readlink "$prefix/lib/libdat2.so.2")" = libdat2.so.2.0.0 ]
	}
	check uninstall_leaves_what_is_of_others only_theirs
	rm -rf "$prefix"
else
	skip packages 'no dpkg'
fi

# Where another package manager has the system.
managers() {
	owned /nothing
	mkdir -p "$scratch/bin" "$prefix/lib"
	# What they say is theirs; whether a package owns a path is ours.
	cat >"$scratch/bin/rpm" <<'END'
#!/bin/sh
for path; do :; done
case $path in
*/libdat2.so.2) printf 'original '; exit 0 ;;
*) echo "file $path is not owned by any package"; exit 1 ;;
esac
END
	cat >"$scratch/bin/pacman" <<'END'
#!/bin/sh
shift
for path; do
	case $path in
	*/libdat2.so) echo "$path is owned by original 2.1.10-1" ;;
	*) echo "error: No package owns $path" >&2; bad=1 ;;
	esac
done
exit ${bad-0}
END
	chmod +x "$scratch/bin/rpm" "$scratch/bin/pacman"
	touch "$prefix/lib/libdat2.so.2"
	PATH=$scratch/bin:$PATH refuses "$prefix/lib/libdat2.so.2" "${here[@]}" install &&
		grep -qF "  $prefix/lib/libdat2.so (original)" "$scratch/said" &&
		! grep -q 'libdat\.so' "$scratch/said"
}
check refuses.rpm_and_pacman managers
rm -rf "$prefix"

without_install() {
	! "${here[@]}" uninstall >"$scratch/said" 2>&1 &&
		grep -q 'nothing is known to be installed' "$scratch/said"
}
check uninstall_of_nothing without_install

# --- beside Debian's libdapl2 ---------------------------------------------------------------

# In a mount namespace where /usr and /lib cannot be written: a library that does not refuse would
# destroy what is installed here.
system=$(dpkg -S '*/libdat2.so.2.0.0' 2>/dev/null | sed -n 's/^libdapl2.*: //p' | head -1)
sums() {
	# Those of the package, and what its links lead to.
	dpkg -L libdapl2 dapl2-utils | sort -u | while read -r path; do
		[ ! -e "$path" ] || [ -d "$path" ] || echo "$path $(readlink "$path") $(sha256sum <"$path")"
	done
}
# shellcheck disable=SC2016 # for the inner shell
read_only='for place in /usr /etc; do
	mount --bind $place $place && mount -o remount,ro,bind $place || exit 99
done
exec "$@"'
namespace=(unshare --mount --propagation private)
[ "$(id -u)" = 0 ] || namespace=(unshare --map-root-user --mount --propagation private)
namespace+=(sh -c "$read_only" sh)
refuses_libdapl2() {
	local what=$1
	shift
	if "${namespace[@]}" make --no-print-directory PREFIX=/usr "$@" DESTDIR= \
		LDCONFIG=true "$what" >"$scratch/said" 2>&1; then
		echo 'not refused'
		return 1
	fi
	cat "$scratch/said"
	[ "$(sums)" = "$before" ]
}
refuses_to_install() {
	refuses_libdapl2 install "LIBDIR=$1" && grep -qF "/libdat2.so.2 (libdapl2" "$scratch/said"
}
refuses_to_uninstall() {
	refuses_libdapl2 uninstall "LIBDIR=$1" &&
		grep -q 'nothing is known to be installed' "$scratch/said"
}
if [ -z "$system" ]; then
	skip libdapl2 'it is not installed'
elif ! "${namespace[@]}" true 2>"$scratch/said"; then
	skip libdapl2 "no read-only /usr to try it in: $(tail -1 "$scratch/said")"
else
	libdir=$(realpath "${system%/*}")
	before=$(sums)
	check libdapl2.install_is_refused refuses_to_install "$libdir"
	check libdapl2.install_by_the_other_name_is_refused refuses_to_install "${libdir#/usr}"
	check libdapl2.uninstall_is_refused refuses_to_uninstall "$libdir"
fi
echo "1..$number"
[ $bad = 0 ]
