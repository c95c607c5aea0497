#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# packages-test.sh: packs what the checkout has built (make libs), installs the packages in chroots of Debian 12
# and 13 as users would, over and beside OpenFabrics' libdapl2, runs programs on them, removes them, and looks
# at what is left; and the RPM packages in a scratch tree (packages-test-rpm.sh). Prints TAP.
# ONLY="debian-12 debian-13 rpm" names some of these; JOBS says how much is done at a time. Not among what is done
# otherwise: ubuntu-22.04 and ubuntu-24.04, and i386, Debian 12 with the packages of both architectures, as the optimized
# build for 32 bits takes minutes.
#
# Everything is mounted in namespaces of this script and ends with them. There is no network in them but the
# loopback interface; a network is needed once, when scripts/chroot.sh makes the chroots.
set -u -o pipefail
. "${0%/*}/need.sh" awk cat chroot cmp diff dirname find grep head id ip ln make mkdir mount mountpoint nproc python3 \
	readelf rm sed sha256sum sort tar umount uname unshare
. "${0%/*}/side-by-side.sh"
cd "$(dirname "$0")/.." || exit 1
work=build/packages-test
scratch=$work # of a group
number=0
bad=0
group=

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$scratch/log" 2>&1; then
		echo "ok $number - packages.$group.$name"
	else
		sed 's/^/# /' "$scratch/log"
		echo "not ok $number - packages.$group.$name"
		bad=$((bad + 1))
	fi
}

# skip REASON: the whole group.
skip() {
	number=$((number + 1))
	echo "ok $number - packages.$group # SKIP $1"
}

# --- a Debian system ------------------------------------------------------------------------

# fresh TARBALL: a new system in the tree $root, with the packages in /packages.
fresh() {
	root=/mnt
	mountpoint -q $root && umount -R $root
	mount -t tmpfs -o size=3g,mode=755 packages $root && tar -C $root -xf "$1" &&
		mount -t proc proc $root/proc && mount -t tmpfs shm $root/dev/shm &&
		mkdir $root/packages $root/packages-i386 $root/checkout &&
		mount --bind build/deb $root/packages &&
		{ [ ! -d build/deb-i386 ] || mount --bind build/deb-i386 $root/packages-i386; } && mount --bind . $root/checkout &&
		mount -o remount,bind,ro $root/checkout
}

# inside COMMAND: a line of shell in that system.
inside() {
	chroot $root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		DEBIAN_FRONTEND=noninteractive sh -euc "$1"
}

# install WHAT...: as a user does, with apt; ours by name.
install() {
	local what files=
	for what; do
		case $what in
		libdapl* | dapl*) files+=" $what" ;;
		*:i386) files+=" /packages-i386/${what%:i386}_*.deb" ;;
		*) files+=" /packages/${what}_*.deb" ;;
		esac
	done
	inside "apt-get -q -y install --no-install-recommends --allow-downgrades$files"
}

remove() {
	inside "apt-get -q -y purge $*"
}

# Everything that a package may put somewhere, and what ldconfig knows. Debian's rdma-core, which the original
# needs, makes a group of users and leaves it.
state() {
	(
		cd $root || exit
		find . \( -path ./proc -o -path ./dev -o -path ./tmp -o -path './packages*' -o -path ./checkout \
			-o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/log -o -path ./var/cache \
			-o -path ./etc/ld.so.cache -o -path ./run \
			-o -path "./etc/g*" \) -prune -o ! -type d -printf '%p %y %m %s %l\n' \
			-o -type d -printf '%p %y %m\n' | sort
	)
	sha256sum $root/etc/dat.conf 2>&1
	inside 'ldconfig -p | grep -E "dat|dapl" | sort; dpkg-divert --list "*dat*"; dpkg-query -W "*dat*" "*dapl*"' 2>&1
}

# same STATE: what is there now is what was in that file.
same() {
	state >"$scratch/now"
	diff "$1" "$scratch/now"
}

# The library that dtest is linked with is PATTERN's package.
dtest_uses() {
	local file
	file=$(inside 'readlink -f "$(ldd /usr/bin/dtest | awk "/libdat2/ { print \$3 }")"')
	echo "$file"
	case $file in $1) ;; *) return 1 ;; esac
}
ours='*/libdat2.so.2.libdat-*'
original='*/libdat2.so.2.0.0'

installed() {
	inside "for package in $*; do [ \"\$(dpkg-query -W -f '\${db:Status-Status}' \$package)\" = installed ] || { echo no \$package; exit 1; }; done"
}

gone() {
	inside "for package in $*; do [ \"\$(dpkg-query -W -f '\${db:Status-Status}' \$package 2>/dev/null)\" != installed ] || { echo \$package; exit 1; }; done"
}

# dtest CONF DEVICE [LIBRARIES]: in a network namespace of its own, where nobody waits for the port of the last one.
dtest() {
	scripts/alone.sh chroot $root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
		CONF="/checkout/tests-c/$1" /checkout/scripts/dtest.sh --lib "/usr/lib/${3:-$(uname -m)-linux-gnu}" --one "$2" ''
}

# dtest_of_a_card: with OpenFabrics' dat.conf, which names cards that this machine has not.
dtest_of_a_card() {
	inside 'export DAT_FALLBACK=soft
		dtest -P ofa-v2-mlx4_0-1u >/tmp/server 2>&1 &
		tries=0
		until grep -q " 00000000:3DD4 .* 0A " /proc/net/tcp; do
			[ $tries -lt 300 ] && kill -0 $! || { cat /tmp/server; exit 1; }
			tries=$((tries + 1)); sleep 0.1
		done
		timeout 60 dtest -P ofa-v2-mlx4_0-1u -h 127.0.0.1 >/tmp/client 2>&1 || true
		wait
		cat /tmp/server /tmp/client
		grep -q PASSED /tmp/server && grep -q PASSED /tmp/client'
}

# consumer MODULE FLAGS: a program is compiled, linked and run as README says.
consumer() {
	inside "cp /checkout/tests-c/consumer.c /tmp
		cc $2 -o /tmp/consumer /tmp/consumer.c \$(pkg-config --cflags --libs $1)
		DAT_FALLBACK=soft /tmp/consumer"
}

# What a debugger looks for is there, for each of our files.
debug_files() {
	local file id
	for file in "$root"/usr/lib/*/libdat*.so.*.libdat-* "$root"/usr/lib/*/libdapl-*.so.? "$root"/usr/bin/dat-*; do
		id=$(readelf -n "$file" | sed -n 's/^ *Build ID: //p')
		[ -f "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug" ] || {
			echo "$file: nothing for $id"
			return 1
		}
	done
}

# The page that man shows for dat.conf is of the package.
page_of() {
	inside "case \$(dpkg -S /usr/share/man/man5/dat.conf.5.gz; zcat /usr/share/man/man5/dat.conf.5.gz) in
		*builtin:soft*) [ $1 = libdat-doc ] ;;
		*) [ $1 = dapl2-utils ] ;; esac"
}

# The chroot has not been told of any of our packages.
leaves() {
	same "$1" && gone "'libdat*'"
}

# --- what users do --------------------------------------------------------------------------

# The original is there, and ours take its place.
over() {
	fresh "$1" || return
	check original install libdapl2 dapl2-utils libdapl-dev
	state >"$scratch/original"
	check original_is_used dtest_uses "$original"
	check over_it install libdat1 libdat2-2 libdat-dev libdat-tools libdat-doc libdat-providers
	check takes_its_place gone libdapl2 libdapl-dev
	check leaves_its_programs installed dapl2-utils libdat1 libdat2-2 libdat-dev libdat-tools libdat-doc
	check leaves_dat_conf inside 'dpkg-query -W -f "\${Conffiles}" libdapl2 | grep -q /etc/dat.conf && [ -f /etc/dat.conf ]'
	check loader_finds_ours dtest_uses "$ours"
	check all_are_in_the_cache inside 'for library in libdat.so.1 libdat2.so.2 libdapl-soft.so.1 libdapl-soft.so.2 \
		libdapl-verbs.so.1 libdapl-verbs.so.2; do ldconfig -p | grep -q "$library " || { echo $library; exit 1; }; done'
	check dtest dtest programs.conf soft
	check dtest_over_tcp dtest programs.conf soft-tcp
	check dtest_of_a_card dtest_of_a_card
	check consumer_of_dat consumer dat ''
	check consumer_of_dat2 consumer dat2 -DDAT2
	check dat_info inside 'DAT_FALLBACK=soft dat-info'
	check dat_perf inside 'DAT_FALLBACK=soft dat-perf --loopback --time 0.01 -s 8,4K --verify'
	check page page_of libdat-doc
	check files_are_whole inside 'dpkg --verify libdat1 libdat2-2 libdat-dev libdat-tools libdat-doc libdat-providers'
	check debug_symbols install libdat1-dbgsym libdat2-2-dbgsym libdat-tools-dbgsym libdat-providers-dbgsym
	check debug_files debug_files
	check original_again install libdapl2
	check original_takes_its_place gone libdat2-2 libdat-dev libdat-tools
	check original_is_used_again dtest_uses "$original"
	check original_headers install libdapl-dev
	check purge remove "'libdat[1-]*'"
	check page_of_the_original page_of dapl2-utils
	check leaves_nothing leaves "$scratch/original"
}

# Ours are there first, without the original.
first() {
	fresh "$1" || return
	# Of rdma-core, which the original needs, and not of what apt takes away later.
	check adduser inside 'apt-get -q -y install --no-install-recommends adduser'
	state >"$scratch/bare"
	check first install libdat2-2 libdat1
	check needs_no_rdma_core gone libdapl2 libibverbs1
	check its_programs install dapl2-utils
	check its_programs_take_ours gone libdapl2
	check its_programs_use_ours dtest_uses "$ours"
	check dtest_first dtest programs.conf soft
	check no_dat_conf inside '! [ -e /etc/dat.conf ]'
	check original_later install libdapl2
	check original_later_is_used dtest_uses "$original"
	check ours_again install libdat2-2
	check ours_again_are_used dtest_uses "$ours"
	check purge_ours remove "'libdat[12]*'"
	check its_programs_have_a_library inside 'dpkg --audit; ! ldd /usr/bin/dtest 2>/dev/null | grep "not found"'
	check purge_all inside 'apt-get -q -y purge dapl2-utils libdapl2; apt-get -q -y purge --autoremove'
	check leaves_nothing_at_all leaves "$scratch/bare"
}

# The original stays, with our providers.
beside() {
	fresh "$1" || return
	check original_stays install libdapl2 dapl2-utils
	state >"$scratch/original"
	check providers install libdat-providers libdat1 libdat-doc
	check both installed libdapl2 libdat-providers libdat1
	check original_is_used_beside dtest_uses "$original"
	check dtest_on_the_original dtest providers-programs.conf soft
	check dtest_on_the_original_over_tcp dtest providers-programs.conf soft-tcp
	check purge_providers remove libdat-providers libdat1 libdat-doc
	check leaves_the_original leaves "$scratch/original"
}

# 32-bit programs on a 64-bit system, which has our packages of both architectures.
both_sizes() {
	fresh "$1" || return
	check adduser inside 'apt-get -q -y install --no-install-recommends adduser'
	check original install libdapl2:i386 dapl2-utils:i386
	state >"$scratch/original"
	check original_is_used dtest_uses "$original"
	check over_it install libdat1:i386 libdat2-2:i386 libdat-providers:i386
	check takes_its_place gone libdapl2:i386
	check leaves_its_programs installed dapl2-utils:i386
	check loader_finds_ours dtest_uses '*/i386-linux-gnu/libdat2.so.2.libdat-*'
	check dtest dtest programs.conf soft i386-linux-gnu
	check dtest_over_tcp dtest programs.conf soft-tcp i386-linux-gnu
	check beside_it install libdat1 libdat2-2 libdat-providers libdat-tools libdat-doc
	check both installed libdat1:i386 libdat1:amd64 libdat2-2:i386 libdat2-2:amd64 libdat-providers:i386
	check dtest_with_both dtest programs.conf soft i386-linux-gnu
	check dat_info inside 'DAT_FALLBACK=soft dat-info'
	check tools_of_32_bits install libdat-tools:i386
	check dat_info_of_32_bits inside 'DAT_FALLBACK=soft dat-info && od -An -tx1 -j4 -N1 /usr/bin/dat-info | grep -q 01'
	check dat_perf_of_32_bits inside 'DAT_FALLBACK=soft dat-perf --loopback --time 0.01 -s 8,4K --verify'
	check headers_of_both install libdat-dev libdat-dev:i386
	check files_are_whole inside 'dpkg --verify libdat1:i386 libdat2-2:i386 libdat1:amd64 libdat2-2:amd64'
	check debug_symbols install libdat1-dbgsym:i386 libdat2-2-dbgsym:i386 libdat1-dbgsym libdat2-2-dbgsym
	check original_again install libdapl2:i386
	check purge remove "'libdat[1-]*' 'libdat[1-]*:i386'"
	check leaves_nothing leaves "$scratch/original"
}

# --------------------------------------------------------------------------------------------

# inside_group: what a group does in the namespaces that it has
inside_group() {
	ip link set lo up
	if [ "$group" = rpm ]; then
		# shellcheck source=scripts/packages-test-rpm.sh
		. scripts/packages-test-rpm.sh
		return
	fi
	local tarball=$work/$group.tar
	if [ "$group" = i386 ]; then
		both_sizes "$tarball"
		umount -R "$root"
		return
	fi
	over "$tarball"
	first "$tarball"
	beside "$tarball"
	umount -R "$root"
}

# The recipe is Python, and asks for the same as Cargo.toml.
recipe() {
	local recipe=packaging/spack/package.py
	python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' $recipe &&
		grep -q "\"rust@$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -1):\"" $recipe &&
		grep -q "version(\"$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)\"" $recipe
}

# chroot_of GROUP
chroot_of() {
	local tarball what=("$1" --originals)
	group=$1
	[ "$group" != i386 ] || what=(debian-12 --i386)
	if tarball=$(scripts/chroot.sh "${what[@]}" 2>"$scratch/log"); then
		ln -s "$tarball" "$work/$group.tar"
	elif [ $? = 77 ]; then
		skip "$(cat "$scratch/log")"
	else
		cat "$scratch/log"
		check chroot false
	fi
}

# run WHAT: prints TAP
run() {
	scratch=$work/$1
	mkdir -p "$scratch"
	case $1 in
	build)
		group=spack
		check recipe recipe
		group=build
		check libraries make --no-print-directory PROFILE=release libs
		;;
	# With lintian: its warnings are failures.
	deb) group=build && check deb scripts/deb.sh ;;
	deb-i386) group=build && check deb_i386 env DEB_ARCH=i386 scripts/deb.sh ;;
	chroot-*) chroot_of "${1#chroot-}" ;;
	*) exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" --inside "$1" ;;
	esac
	echo "1..$number"
}

if [ "${1-}" = --inside ]; then
	group=$2
	scratch=$work/$group
	inside_group
	echo "1..$number"
	exit
fi

[ "$(id -u)" = 0 ] || { echo '1..0 # SKIP only root can make a chroot' && exit; }
unshare --mount --net --pid --fork true 2>/dev/null || { echo '1..0 # SKIP no namespaces here' && exit; }
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

# all: prints the results. The packages are built, and the chroots made, before they are installed in them.
all() {
	local wanted=" ${ONLY:-debian-12 debian-13 rpm} " system before=() after=()
	local systems=(debian-12 debian-13 ubuntu-22.04 ubuntu-24.04 i386)
	for system in "${systems[@]}"; do
		[[ $wanted != *" $system "* ]] || before+=("chroot-$system")
	done
	[[ $wanted != *' i386 '* ]] || before+=(deb-i386)
	[ ${#before[@]} = 0 ] || before=(deb "${before[@]}")
	[[ $wanted != *' rpm '* ]] || before+=(rpm)
	side_by_side "$work" run build
	side_by_side "$work" run "${before[@]}"
	for system in "${systems[@]}"; do
		[ ! -e "$work/$system.tar" ] || after+=("$system")
	done
	side_by_side "$work" run "${after[@]}"
}
all | one_stream
