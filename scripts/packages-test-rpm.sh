# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The part of packages-test.sh for RPM packages: rpm installs them in a scratch tree, with their dependencies
# and scripts. Packages that are made here stand in for a distribution, for OpenFabrics' dapl, and for a
# program that was built for that.

tree=$PWD/$scratch/rpmroot
rpms=$PWD/build/rpm

# stand_in NAME LINE...: a package with the lines in its head; FILES: what it has.
stand_in() {
	local name=$1
	shift
	{
		printf '%s\n' "Name: $name" 'Version: 2.1.10' 'Release: 1' 'Summary: x' 'License: x' 'BuildArch: noarch' "$@" \
			'%description' x '%install'
		for file in ${FILES-}; do
			echo "mkdir -p %{buildroot}${file%/*} && echo of OpenFabrics >%{buildroot}$file"
		done
		echo '%files'
		printf '%s\n' ${FILES-}
	} >"$scratch/$name.spec"
	rpmbuild -bb --quiet --define "_topdir $PWD/$scratch/rpmbuild" --define "_rpmdir $PWD/$scratch" \
		--define '_rpmfilename %%{NAME}.rpm' --define '_build_id_links none' --nodeps "$scratch/$name.spec"
}

# A machine with what our packages need of others.
distribution() {
	local needs
	needs=$(rpm -qp --requires "$rpms"/*.rpm | sort -u |
		grep -E '^(ld-linux|libc\.|libgcc|libm\.|rtld|/)' | sed 's/^/Provides: /')
	stand_in distribution "$needs" || return
	FILES="/usr/lib64/libdat2.so.2.0.0 /usr/share/man/man5/dat.conf.5 /etc/rdma/dat.conf" \
		stand_in dapl 'Provides: libdat2.so.2()(64bit), libdat2.so.2(DAT_2.0)(64bit)' || return
	FILES=/usr/bin/mpi stand_in mpi 'Requires: libdat2.so.2()(64bit), libdat2.so.2(DAT_2.0)(64bit), dapl >= 2.0' || return
	# The directories are of a distribution, too.
	mkdir -p "$tree"/{sbin,etc/rdma,usr/{bin,include,lib,lib64/{cmake,pkgconfig}}} \
		"$tree"/usr/share/{doc,licenses,man/man{1,3,5,7}} &&
		cp /sbin/ldconfig "$tree/sbin" && echo /usr/lib64 >"$tree/etc/ld.so.conf" && ldconfig -r "$tree" &&
		rpm_of -i "$scratch/distribution.rpm"
}

# rpm_of ARGUMENT...: rpm for that machine.
rpm_of() {
	rpm --root "$tree" --nosignature "$@"
}

# ours NAME...: installs packages of ours.
ours() {
	local name
	local -a files=()
	for name; do
		files+=("$rpms/$name"-[0-9]*.rpm)
	done
	rpm_of -i "${files[@]}"
}

rpm_files() {
	(cd "$tree" && find . -path ./var -prune -o -path ./etc/ld.so.cache -prune -o -printf '%p %y %m %l\n' | sort)
	ldconfig -r "$tree" -p
}

# refuses WORD COMMAND...: it fails, and says why.
refuses() {
	local word=$1
	shift
	! "$@" 2>"$scratch/said" || return 1
	cat "$scratch/said"
	grep -q "$word" "$scratch/said"
}

# The program of another package has all that it asks for.
program_is_served() {
	rpm_of -V --nofiles mpi
}

cache_has() {
	ldconfig -r "$tree" -p | grep -q "$1 "
}

rpm_leaves() {
	rpm_files | diff "$1" -
}

rpm_test() {
	check distribution distribution || return
	rpm_files >"$scratch/bare"
	check original rpm_of -i "$scratch/dapl.rpm" "$scratch/mpi.rpm"
	rpm_files >"$scratch/original"
	check not_over_it refuses 'conflicts with' ours libdat2
	check beside_it ours libdat-providers libdat1 libdat-doc
	check provider_is_in_the_cache cache_has libdapl-soft.so.2
	check erase_providers rpm_of -e libdat-providers libdat1 libdat-doc
	check leaves_the_original rpm_leaves "$scratch/original"
	check original_goes rpm_of -e --nodeps dapl
	check needs_both_libraries refuses 'libdat2.*is needed' ours libdat-devel libdat1
	check all ours libdat1 libdat2 libdat-devel libdat-tools libdat-doc libdat-providers libdat-debuginfo
	check program_is_served program_is_served
	check library_is_in_the_cache cache_has libdat2.so.2
	check files_are_whole rpm_of -V --nodeps libdat1 libdat2 libdat-devel libdat-tools libdat-doc libdat-providers
	check dat_info env LD_LIBRARY_PATH="$tree/usr/lib64" "$tree/usr/bin/dat-info"
	check no_dat_conf test ! -e "$tree/etc/dat.conf"
	check original_not_over_ours refuses 'conflicts with' rpm_of -i "$scratch/dapl.rpm"
	check erase rpm_of -e mpi libdat1 libdat2 libdat-devel libdat-tools libdat-doc libdat-providers libdat-debuginfo
	check leaves_nothing rpm_leaves "$scratch/bare"
}

if ! command -v rpmbuild >/dev/null || ! command -v eu-strip >/dev/null; then
	skip 'rpmbuild and elfutils are not installed (scripts/deps.sh rpm installs them)'
else
	check rpm scripts/rpm.sh
	rpm_test
fi
