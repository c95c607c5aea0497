#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# install-test.sh: installs into a scratch directory, uses what is there as a consumer would,
# uninstalls, and prints TAP.
set -u

cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
dest=$scratch/root
number=0
bad=0
make=(make --no-print-directory "DESTDIR=$dest" PREFIX=/usr)

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

links_to() {
	[ "$(readlink "$dest/usr/lib/$1")" = "$2" ]
}

# The flags that a package configuration file gives, under the scratch directory.
flags() {
	sed -n "s/^$2: //p" "$dest/usr/lib/pkgconfig/$1.pc" |
		sed "s|\${libdir}|$dest/usr/lib|; s|\${includedir}|$dest/usr/include|"
}

# A program that is compiled, linked and run against what was installed.
consumer() {
	local major=$2
	printf '#include <%s/udat.h>\n' "$1" >"$scratch/c.c"
	cat >>"$scratch/c.c" <<'END'
int main(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;
	DAT_PROVIDER_ATTR attr;
	static char name[] = "soft";

	if (dat_ia_open(name, 8, &evd, &ia) != DAT_SUCCESS)
		return 1;
	if (dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr) != DAT_SUCCESS)
		return 2;
	if (dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) != DAT_SUCCESS)
		return 3;
	return attr.dapl_version_major == DAT_VERSION_MAJOR ? 0 : 4;
}
END
	# shellcheck disable=SC2046 # flags are words
	cc -std=c11 -Wall -Wextra -Werror $(flags "$1" Cflags) -o "$scratch/c" "$scratch/c.c" \
		$(flags "$1" Libs) &&
		ldd "$scratch/c" | grep -q "lib$1.so.$major" &&
		LD_LIBRARY_PATH=$dest/usr/lib "$scratch/c"
}

# A file that belongs to the administrator.
mkdir -p "$dest/etc"
echo '# mine' >"$dest/etc/dat.conf"

check works "${make[@]}" install
check again "${make[@]}" install
check leaves_dat_conf_alone grep -qx '# mine' "$dest/etc/dat.conf"
check libdat_links links_to libdat.so libdat.so.1
check libdat_soname_link links_to libdat.so.1 libdat.so.1.0.2
check libdat2_links links_to libdat2.so libdat2.so.2
check libdat2_soname_link links_to libdat2.so.2 libdat2.so.2.0.0
check consumer_of_dat consumer dat 1
check consumer_of_dat2 consumer dat2 2
check dat_info env LD_LIBRARY_PATH="$dest/usr/lib" "$dest/usr/bin/dat-info"
check dat_perf env LD_LIBRARY_PATH="$dest/usr/lib" "$dest/usr/bin/dat-perf" --loopback \
	--time 0.01 -s 8,4K --verify
check example_configuration test -f "$dest/usr/share/doc/libdat/dat.conf.example"
check man_page_of_dat_conf test -f "$dest/usr/share/man/man5/dat.conf.5"
check man_page_of_dat_info test -f "$dest/usr/share/man/man1/dat-info.1"
check man_page_of_dat_perf test -f "$dest/usr/share/man/man1/dat-perf.1"
check uninstall "${make[@]}" uninstall
leftover() {
	[ "$(find "$dest" ! -type d)" = "$dest/etc/dat.conf" ] || {
		find "$dest" ! -type d
		return 1
	}
}
check uninstall_leaves_nothing leftover
echo "1..$number"
[ $bad = 0 ]
