#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build-test.sh: that scripts/build.sh and the Makefile find what cargo has built, wherever the
# environment and the configuration of cargo make it put that. A workspace of two small crates is
# built for this. Prints TAP.
set -u
. "${0%/*}/need.sh" cargo cat chmod cp dirname env grep make mkdir mktemp readlink rm rustc sed

cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
host=$(rustc -vV | sed -n 's/^host: //p')
number=0
bad=0
unset CARGO CARGO_BUILD_TARGET CARGO_TARGET_DIR

# check NAME COMMAND...
check() {
	local name=$1
	shift
	number=$((number + 1))
	if "$@" >"$scratch/log" 2>&1; then
		echo "ok $number - build.$name"
	else
		sed 's/^/# /' "$scratch/log"
		echo "not ok $number - build.$name"
		bad=$((bad + 1))
	fi
}

# --- cargo itself ---------------------------------------------------------------------------

work=$scratch/work
mkdir -p "$work/scripts" "$work/library/src" "$work/program/src"
cp scripts/build.sh scripts/need.sh "$work/scripts"
printf '[workspace]\nmembers = ["library", "program"]\nresolver = "3"\n' >"$work/Cargo.toml"
for crate in library program; do
	printf '[package]\nname = "%s"\nversion = "0.1.0"\nedition = "2024"\n' $crate >"$work/$crate/Cargo.toml"
done
printf '[lib]\ncrate-type = ["cdylib"]\n' >>"$work/library/Cargo.toml"
echo '#[unsafe(no_mangle)] pub extern "C" fn one() -> u32 { 1 }' >"$work/library/src/lib.rs"
echo 'fn main() {}' >"$work/program/src/main.rs"
echo 'fn main() {}' >"$work/program/build.rs"
(cd "$work" && cargo generate-lockfile --quiet --offline)

# built_below DIRECTORY [VARIABLE=VALUE]...: the links lead to files there.
built_below() {
	local directory=$1 name
	shift
	rm -rf "$scratch/links" "$work/target"
	env "$@" "$work/scripts/build.sh" "$scratch/links" dev library program || return
	for name in liblibrary.so program; do
		[ "$(readlink "$scratch/links/$name")" = "$directory/$name" ] && [ -f "$directory/$name" ] || {
			echo "$name: $(readlink "$scratch/links/$name")"
			return 1
		}
	done
	[ "$(cd "$scratch/links" && echo *)" = 'liblibrary.so program' ]
}

configured() {
	mkdir "$work/.cargo"
	printf '[build]\ntarget = "%s"\ntarget-dir = "%s"\n' "$host" "$scratch/configured" >"$work/.cargo/config.toml"
	built_below "$scratch/configured/$host/debug"
	set -- $?
	rm -r "$work/.cargo"
	return "$1"
}

fails_where_the_sources_do() {
	echo 'fn main() { nonsense }' >"$work/program/src/main.rs"
	! "$work/scripts/build.sh" "$scratch/links" dev program >"$scratch/said" 2>&1 &&
		grep 'cannot find value `nonsense`' "$scratch/said"
}

check by_default built_below "$work/target/debug"
check target built_below "$work/target/$host/debug" "CARGO_BUILD_TARGET=$host"
check target_dir built_below "$scratch/elsewhere/debug" "CARGO_TARGET_DIR=$scratch/elsewhere"
check both built_below "$scratch/both/$host/debug" "CARGO_BUILD_TARGET=$host" "CARGO_TARGET_DIR=$scratch/both"
check configuration configured
check fails fails_where_the_sources_do

# --- make, with a cargo that only says what it has built -------------------------------------

cat >"$scratch/cargo" <<'END'
#!/bin/sh
[ "${1-}" != --version ] || exec cargo --version
echo "for ${CARGO_BUILD_TARGET:-the host}" >>"${0%/*}/calls"
for name in ${MESSAGES-libdat.so libdat2.so}; do
	echo '{"reason":"compiler-artifact","target":{"kind":["cdylib"]},"filenames":["/to/'"$name"'"],"executable":null}'
done
END
chmod +x "$scratch/cargo"
build=(make --no-print-directory "OUT=$scratch/out" "CARGO=$scratch/cargo")

calls() {
	cat "$scratch/calls"
	[ "$(sed -n "$1p" "$scratch/calls")" = "$2" ] && [ -z "$(sed "1,$1d" "$scratch/calls")" ]
}
once_for_a_target() {
	"${build[@]}" libs && "${build[@]}" libs && calls 1 'for the host' &&
		[ "$(readlink "$scratch/out/cargo/libdat2.so")" = /to/libdat2.so ] &&
		CARGO_BUILD_TARGET=other "${build[@]}" libs && calls 2 'for other' &&
		CARGO_BUILD_TARGET=other "${build[@]}" libs && calls 2 'for other' &&
		"${build[@]}" libs && calls 3 'for the host'
}
two_targets() {
	! MESSAGES='libdat.so libdat.so' CARGO=$scratch/cargo scripts/build.sh "$scratch/links" dev libdat \
		>"$scratch/said" 2>&1 && grep 'cargo has built libdat.so for several targets; choose one' "$scratch/said"
}
nothing() {
	! MESSAGES='' CARGO=$scratch/cargo scripts/build.sh "$scratch/links" dev libdat >"$scratch/said" 2>&1 &&
		grep 'cargo names no library and no program' "$scratch/said"
}
check once_for_each_target once_for_a_target
check several_targets_are_refused two_targets
check nothing_built_is_refused nothing
echo "1..$number"
[ $bad = 0 ]
