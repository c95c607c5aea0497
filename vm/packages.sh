# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts that source this file: Debian's packages, downloaded with apt-get from the sources of this system and
# unpacked. Nothing is installed, and dpkg need not know the architecture.

say() { echo "vm: $*" >&2; }
die() { say "$*"; exit 1; }

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

# apt_for ARCHITECTURE DIR [SUITE]: from here on apt-get and apt-cache are for this architecture, with lists in DIR, and
# for this suite of the mirror of Debian that this system uses, or of VM_MIRROR, which is one of Ubuntu.
apt_for() {
	local mirror=${VM_MIRROR-} keys=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -z "$mirror" ] || keys=$(ubuntu_keys "${2%/*}")
	mkdir -p "$2"/{state/lists/partial,cache/archives/partial}
	: >"$2/status"
	cat >"$2/conf" <<-END
		APT::Architecture "$1";
		APT::Architectures { "$1"; };
		APT::Sandbox::User "root";
		Dir::State "$2/state";
		Dir::State::status "$2/status";
		Dir::Cache "$2/cache";
	END
	if [ -n "${3-}" ]; then
		[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
			head -1)
		[ -n "$mirror" ] || die 'apt knows no mirror of Debian on this machine'
		echo "deb [signed-by=$keys] $mirror $3 main" >"$2/sources.list"
		cat >>"$2/conf" <<-END
			Dir::Etc::sourcelist "$2/sources.list";
			Dir::Etc::sourceparts "/dev/null";
		END
	fi
	export APT_CONFIG=$2/conf
	# The lists that it has got may do.
	apt-get -qq update >&2 || true
}

# ubuntu_keys DIR: the file with the keys of Ubuntu, from a package of Debian 13, which is kept in DIR.
ubuntu_keys() {
	local keys=$1/ubuntu-keys/usr/share/keyrings/ubuntu-archive-keyring.gpg
	if [ ! -f "$keys" ]; then
		(
			unset VM_MIRROR
			apt_for amd64 "$1/amd64-trixie" trixie
			download "$1/debs" ubuntu-keyring
			unpack "$1/debs" "$1/ubuntu-keys"
		) || exit
	fi
	echo "$keys"
}
