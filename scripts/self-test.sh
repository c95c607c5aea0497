#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# self-test.sh OUT: that the test scripts can fail. Each is run without each of the programs that it
# reads need.sh for, and those that run programs on our library are run on others in its place: one
# that gives DAT_SUCCESS for every call, one without any function, an empty file. OUT is where make
# has put libraries and programs. Prints TAP.
set -u
. "${0%/*}/need.sh" bash cat cc chmod dirname env grep head ln mkdir mktemp realpath rm sed sh sort timeout tr

# Tools that scripts take by these variables are tried by their own names.
unset CARGO CLANG_FORMAT OBJCOPY
cd "$(dirname "$0")/.." || exit 1
out=$(realpath "${1:?usage: self-test.sh OUT}")
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
number=0
bad=0

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$scratch/why" 2>&1; then
		echo "ok $number - self.$name"
	else
		sed 's/^/# /' "$scratch/why"
		echo "not ok $number - self.$name"
		bad=$((bad + 1))
	fi
}

# --- programs that are missing --------------------------------------------------------------

# needed SCRIPT: what it reads need.sh for. Scripts that know several processors are for AArch64 without an argument.
needed() {
	sed -e :a -e '/\\$/N; s/\\\n//; ta' "$1" | sed -n 's/^\. .*\/need\.sh" //p' |
		sed -E -e 's/\$\{VALGRIND:\+valgrind\}/valgrind/' -e 's/"\$\{[A-Z0-9_]+:-([a-z0-9-]+)\}"/\1/g' \
			-e 's/"\$cc"/aarch64-linux-gnu-gcc/' -e 's/"\$\{emulator\[0\]\}"/qemu-aarch64/'
}

# names_what_is_missing SCRIPT PROGRAM...: the script ends at once, and names each of them.
names_what_is_missing() {
	local script=$1 absent program path=$scratch/path
	shift
	[ $# -gt 0 ] || { echo 'nothing is needed'; return 1; }
	for absent; do
		rm -rf "$path"
		mkdir "$path"
		for program in bash dirname "$@"; do
			[ "$program" = "$absent" ] || [ -e "$path/$program" ] ||
				ln -s "$(type -P "$program" || echo /bin/true)" "$path/$program"
		done
		if VALGRIND=1 PATH=$path "$BASH" "$script" >"$scratch/said" 2>&1; then
			echo "$script succeeds without $absent" && return 1
		fi
		# What it says may be followed by where that program comes from.
		if [[ $(cat "$scratch/said") != "${script##*/}: not found: $absent"?( (*)) ]]; then
			echo "without $absent:" && cat "$scratch/said" && return 1
		fi
	done
}

for script in scripts/*.sh; do
	mapfile -t programs < <(needed "$script" | tr -s '[:blank:]' '\n')
	# need.sh itself, what installs programs, and parts of other scripts.
	[[ $script == scripts/@(need|deps|packages-test-rpm|side-by-side|cross|loaded).sh ]] || check "missing.$script" names_what_is_missing "$script" "${programs[@]}"
done

# --- what is missing on a fresh machine ------------------------------------------------------

# A PATH for deps.sh with the programs that it always has, and those of a fresh machine.
fresh=$scratch/fresh
mkdir "$fresh"
for program in dirname env head sed sh sort tr; do
	ln -s "$(type -P $program)" "$fresh/$program"
done

# has NAME TEXT: a program that runs this text.
has() {
	printf '#!/bin/sh\n%s\n' "$2" >"$fresh/$1"
	chmod +x "$fresh/$1"
}

# deps STATUS LINE ARGUMENT...: deps.sh ends so, and says this line (a pattern) and nothing else.
deps() {
	local status=$1 line=$2 got
	shift 2
	rm -f "$scratch/apt"
	PATH=$fresh HOME=/nonexistent APT=$scratch/apt CC=cc "$fresh/sh" scripts/deps.sh "$@" >"$scratch/said" 2>&1
	got=$?
	cat "$scratch/said"
	# shellcheck disable=SC2053 # a pattern
	[ $got = "$status" ] && [[ $(cat "$scratch/said") == $line ]]
}

fresh_machine() {
	local newest='echo cargo 1.999.0'
	has apt-get 'echo "$*" >>"$APT"'
	has id 'echo 0'
	has dpkg-query 'echo "make install ok installed"'
	deps 1 'deps: no cargo found: install Rust 1.* or newer *' build && [ ! -e "$scratch/apt" ] || return
	has cargo 'echo "error: rustup could not choose a version" >&2; exit 1'
	deps 1 'deps: cargo does not run: rustup default stable *' build && [ ! -e "$scratch/apt" ] || return
	has cargo 'echo "cargo 1.63.0 (fd9c4297c 2022-07-01)"'
	deps 1 'deps: Rust 1.63 is too old: 1.* or newer is needed *' build && [ ! -e "$scratch/apt" ] || return
	has cargo "$newest"
	deps 1 'deps: no C compiler (cc) found: make deps *' --check build && [ ! -e "$scratch/apt" ] || return
	deps 0 'deps: installing with apt: gcc libc6-dev lld' build || return
	grep 'install .* gcc libc6-dev lld$' "$scratch/apt" || return
	has apt-get 'exit 100'
	deps 1 $'deps: installing with apt: *\ndeps: apt-get update failed; missing: gcc libc6-dev lld' build || return
	has id 'echo 1000'
	deps 1 'deps: not root and no sudo; please have this done: apt-get install gcc libc6-dev lld' build || return
	has dpkg-query 'for p; do case $p in -*) ;; *) echo "$p install ok installed" ;; esac; done'
	deps 0 '' check || return
	# rustfmt and clippy are there, or cannot be added.
	has cargo "case \$1 in --version) $newest ;; *) exit 1 ;; esac"
	deps 1 'deps: cargo has no rustfmt, and there is no rustup to add it' check || return
	has cargo "$newest"
	rm "$fresh/dpkg-query"
	has make :
	deps 1 'deps: please install the packages of this system that have: cc ld.lld' build || return
	has cc :
	has ld.lld :
	deps 0 '' build && deps 0 '' --check build
}
check fresh_machine fresh_machine

# --- libraries that are no good -------------------------------------------------------------

# library FILE VERSION SYMBOLS...: makes one in which every function gives DAT_SUCCESS.
library() {
	local file=$1 version=$2 symbol
	shift 2
	{
		echo "DAT_$version {"
		[ $# = 0 ] || { echo 'global:' && printf '\t%s;\n' "$@"; }
		echo 'local: *; };'
	} >"$scratch/map"
	for symbol in "${@:-local}"; do
		echo "unsigned $symbol(void) { return 0; }"
	done >"$scratch/library.c"
	cc -w -shared -fPIC -Wl,-soname,"${file##*/}" -Wl,--version-script="$scratch/map" -o "$file" \
		"$scratch/library.c"
}

# outdir NAME: a directory like OUT, with libraries yet to come.
outdir() {
	mkdir -p "$scratch/$1/lib"
	ln -s libdat.so.1 "$scratch/$1/lib/libdat.so"
	ln -s libdat2.so.2 "$scratch/$1/lib/libdat2.so"
	ln -s "$out/dat" "$out/dat2" "$out/dat_demo" "$scratch/$1"
}

mapfile -t symbols1 < <(grep -o '^dat_[a-z_0-9]*' abi/symbols-1.2.txt)
mapfile -t symbols2 < <(grep -o '^dat_[a-z_0-9]*' abi/symbols-2.0.txt)
outdir success
library "$scratch/success/lib/libdat.so.1" 1.2 "${symbols1[@]}"
library "$scratch/success/lib/libdat2.so.2" 2.0 "${symbols2[@]}"
outdir nothing
library "$scratch/nothing/lib/libdat.so.1" 1.2
library "$scratch/nothing/lib/libdat2.so.2" 2.0
outdir empty
: >"$scratch/empty/lib/libdat.so.1"
: >"$scratch/empty/lib/libdat2.so.2"

# refuses COMMAND...: the suite fails, and says so.
refuses() {
	local status
	timeout -k 5 60 "$@" >"$scratch/said" 2>&1 </dev/null
	status=$?
	[ $status != 0 ] && [ $status -lt 124 ] && grep -qE '^not ok |^Bail out!|FAILED|^demo: ' "$scratch/said" &&
		return
	echo "exit status $status:"
	cat "$scratch/said"
	return 1
}

# all_fail COMMAND...: the suite fails in every test, but for that of the library's place.
all_fail() {
	refuses "$@" || return
	! grep '^ok ' "$scratch/said" | grep -v 'uses_our_library'
}

# ctest_fails VERSION OUT
ctest_fails() {
	RUNS=$1:soft TAP_TIMEOUT=5 all_fail scripts/ctest.sh "$2" t_pz
}

# The other two differ from the first in what the loader says.
[ -n "${LONG-}" ] && faults='success nothing empty' || faults=success
for fault in $faults; do
	in=$scratch/$fault
	check "$fault.ctest.dat" ctest_fails dat "$in"
	check "$fault.ctest.dat2" ctest_fails dat2 "$in"
	check "$fault.dtest" refuses env DEVICES=soft scripts/dtest.sh --lib "$in/lib" -p
	check "$fault.dapltest" refuses env DEVICES=soft scripts/dapltest.sh --lib "$in/lib" F/hwconn
	check "$fault.demo" refuses scripts/demo.sh "$in" --quick
	check "$fault.secure" refuses scripts/secure-test.sh "$in/lib"
done
echo "1..$number"
[ $bad = 0 ]
