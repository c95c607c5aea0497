#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# fresh-test.sh SYSTEM:[root|user]...: what README says, done by someone who has just got a bare Debian 12 or
# 13 or Ubuntu 22.04 or 24.04, as root or as a user without any rights: from the clone to a program of one's own.
# Without arguments, each Debian as both and each Ubuntu as one. SYSTEM is a name of scripts/chroot.sh (debian-12).
# Prints TAP; the transcripts are build/fresh/SYSTEM-WHO.txt.
#
# Rust is that of this machine, since installing it is rustup's business, and so are the certificates that its
# network may need. Crates and packages come from the network. Everything is mounted in a namespace of this
# script and ends with it.
set -u -o pipefail
. "${0%/*}/need.sh" cargo chown chroot cp dirname git grep id mkdir mount rustc sed tail tar tee umount unshare
cd "$(dirname "$0")/.." || exit 1
runs=${*:-debian-12:root debian-13:user debian-13:root debian-12:user ubuntu-22.04:user ubuntu-24.04:root}
root=/mnt
home=/home/new
number=0
bad=0

# as WHO COMMAND: a line of shell of root or of the user in the new system, with what both see, in the transcript.
as() {
	local who=$1 options=() at=$home
	[ "$who" = root ] && at=/root || options=(--userspec=1000:1000)
	printf '\n%s$ %s\n' "$who" "$2" >>"$transcript"
	chroot "${options[@]}" $root env -i PATH="/opt/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		RUSTUP_HOME=/opt/rustup LC_ALL=C.UTF-8 HOME=$at USER="$who" ${http_proxy:+"http_proxy=$http_proxy"} \
		${https_proxy:+"https_proxy=$https_proxy"} sh -euc "cd; [ ! -d libdat ] || cd libdat; $2" 2>&1 |
		tee -a "$transcript"
}

# step NAME WHO COMMAND
step() {
	local output status name=$1
	shift
	number=$((number + 1))
	output=$(as "$@")
	status=$?
	if [ $status = 0 ]; then
		echo "ok $number - fresh.$run.$name"
	else
		tail -20 <<<"$output" | sed 's/^/# /'
		echo "not ok $number - fresh.$run.$name"
		bad=$((bad + 1))
	fi
	return $status
}

# A bare system with Rust, a user, and the commit that is checked out here, as a repository to clone.
new_system() {
	mount -t tmpfs -o size=10g,mode=755 fresh $root && tar -C $root -xf "$1" &&
		mount -t proc proc $root/proc && mount -t tmpfs shm $root/dev/shm &&
		mkdir -p $root/opt/rustup $root/opt/cargo/bin &&
		mount --bind "$(rustup_home)" $root/opt/rustup && mount -o remount,bind,ro $root/opt/rustup &&
		mount --bind "$(dirname "$(command -v cargo)")" $root/opt/cargo/bin &&
		mount -o remount,bind,ro $root/opt/cargo/bin &&
		cp -L /etc/resolv.conf $root/etc/resolv.conf &&
		echo "new:x:1000:1000::$home:/bin/sh" >>$root/etc/passwd && echo 'new:x:1000:' >>$root/etc/group &&
		mkdir -p $root$home $root/srv && chown 1000:1000 $root$home &&
		git bundle create -q $root/srv/libdat.git HEAD $(git branch --show-current)
}

rustup_home() {
	rustc --print sysroot | sed 's|/toolchains/.*||'
}

# The trust that the network of this machine needs, once the package with the certificates is there.
certificates() {
	local file=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
	[ ! -f "$file" ] || cp "$file" $root/etc/ssl/certs/ca-certificates.crt
}

# README's words.
new_user() {
	local who=$1 readme packages prefix=/usr/local
	readme=$(sed -n 's/^\(apt install make [^#]*\)#.*/\1/p' README.md)
	step bare root "apt-get -q update && DEBIAN_FRONTEND=noninteractive ${readme/install/-q -y install}" || return
	certificates
	step clone "$who" 'git clone -q /srv/libdat.git libdat && cd libdat && git log --oneline | head -1' || return
	if [ "$who" = user ]; then
		# Whoever cannot install anything gets a line that says what to ask for.
		prefix=$home/dat
		packages=$(as user 'make demo' | sed -n 's/.*please have this done: //p')
		number=$((number + 1))
		if [ -n "$packages" ]; then
			echo "ok $number - fresh.$run.one_line_says_what_is_missing"
		else
			echo "not ok $number - fresh.$run.one_line_says_what_is_missing"
			bad=$((bad + 1))
			return
		fi
		step missing_packages root "DEBIAN_FRONTEND=noninteractive ${packages/install/-q -y install --no-install-recommends}" || return
	fi
	step demo "$who" 'make demo' || return
	step make "$who" 'make && ls -l build/release/lib' || return
	step install "$who" "make install PREFIX=$prefix"
	step pkg_config root 'DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends pkg-config'
	for major in 1 2; do
		dat=dat${major#1}
		step program_$dat "$who" "cp examples/hello$major.c ~/prog.c && cd &&
			export PKG_CONFIG_PATH=$prefix/lib/pkgconfig &&
			cc -o prog prog.c \$(pkg-config --cflags --libs $dat) &&
			export LD_LIBRARY_PATH=$prefix/lib && ldd ./prog | grep libdat && ./prog"
	done
	step dat_info "$who" "LD_LIBRARY_PATH=$prefix/lib $prefix/bin/dat-info && LD_LIBRARY_PATH=$prefix/lib $prefix/bin/dat-info --check"
	step trace "$who" "cd && LD_LIBRARY_PATH=$prefix/lib $prefix/bin/dat-trace -c ./prog"
	step perf "$who" "$prefix/bin/dat-perf --loopback -s 64 --time 0.1"
	[ "$who" = user ] || step found_without_a_variable root 'cd && ldd ./prog | grep /usr/local/lib/libdat && ./prog'
	step uninstall "$who" "make uninstall PREFIX=$prefix && [ -z \"\$(find $prefix -name '*dat*' 2>&1 | grep -v 'No such')\" ]"
}

if [ "${FRESH_INSIDE-}" != yes ]; then
	[ "$(id -u)" = 0 ] || { echo '1..0 # SKIP only root can make a chroot' && exit; }
	unshare --mount --pid --fork true 2>/dev/null || { echo '1..0 # SKIP no namespaces here' && exit; }
	[ -n "$(rustup_home)" ] || { echo '1..0 # SKIP Rust is not from rustup here' && exit; }
	mkdir -p build/fresh
	FRESH_INSIDE=yes exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
echo 'TAP version 13'
for run in $runs; do
	system=${run%%:*}
	who=${run#*:}
	transcript=build/fresh/$system-$who.txt
	: >"$transcript"
	if ! tarball=$(scripts/chroot.sh "$system" 2>build/fresh/log); then
		number=$((number + 1))
		echo "ok $number - fresh.$run # SKIP $(tail -1 build/fresh/log)"
		continue
	fi
	if new_system "$tarball" >build/fresh/log 2>&1; then
		new_user "$who"
	else
		number=$((number + 1))
		sed 's/^/# /' build/fresh/log
		echo "not ok $number - fresh.$run"
		bad=$((bad + 1))
	fi
	umount -R $root
done
echo "1..$number"
[ $bad = 0 ]
