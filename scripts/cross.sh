# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts that source this file: what it takes to build and test for another processor.

# need_target TARGET LOG: has rustup add the standard library of Rust for TARGET, if it is not there. Where that cannot
# be done the script ends with a SKIP that has the reason.
need_target() {
	[ ! -d "$(rustc --print sysroot)/lib/rustlib/$1" ] || return 0
	rustup target add "$1" >"$2" 2>&1 || skip_all "no standard library of Rust for $1: $(tail -1 "$2")"
}

# skip_all REASON: ends the script, which has run nothing.
skip_all() {
	echo 'TAP version 13'
	echo "1..0 # SKIP $1"
	exit
}

# unit_tap: the lines of `cargo test` as TAP, and a line with the exit status.
unit_tap() {
	awk '
	/^running [0-9]+ tests?$/ { planned = $2 }
	/^test .* \.\.\. ignored/ { planned-- }
	/^test .* \.\.\. ok$/ { print "ok " ++n " - " $2; next }
	/^test .* \.\.\. FAILED$/ { print "not ok " ++n " - " $2; next }
	/^error|panicked at/ { print "# " $0 }
	END { if (planned > 0) print "1.." planned; print "exit status " (n == planned ? 0 : 9) }'
}

# complete PREFIX NAME: prints the results that it reads, with PREFIX/NAME before the name of each test, and a failure
# where there are fewer than planned, or no good exit status.
complete() {
	local line ran=0 planned='' status=''
	while IFS= read -r line; do
		case $line in
		'ok '* | 'not ok '*)
			ran=$((ran + 1))
			echo "${line%% [0-9]*} $ran - $1/$2/${line#* - }"
			;;
		1..*) planned=${line#1..} ;;
		'exit status '*) status=${line##* } ;;
		*) echo "# ${line#\# }" ;;
		esac
	done
	if [ "$ran" != "${planned:-none}" ] || [ "${status:-9}" -gt 1 ]; then
		echo "# $ran of ${planned:-?} tests, exit status ${status:-none}"
		echo "not ok $((++ran)) - $1/$2.runs_to_the_end"
	fi
	echo "1..$ran"
}

# for_processor NAME: sets what it takes to build for another processor with Debian's cross compiler, and to run its
# programs in qemu's emulation of user programs: $target, the compiler $cc (CROSS_CC), $root with its libraries
# (CROSS_ROOT), and the command $emulator, which is $runner too. Fails if the name is not known.
for_processor() {
	# Its name in the targets of Rust, in Debian's packages and in qemu's programs.
	local names
	case $1 in
	aarch64) names=(aarch64 aarch64 aarch64) ;;
	ppc64le) names=(powerpc64le powerpc64le ppc64le) ;;
	s390x) names=(s390x s390x s390x) ;;
	riscv64) names=(riscv64gc riscv64 riscv64) ;;
	*) return 1 ;;
	esac
	target=${names[0]}-unknown-linux-gnu
	cc=${CROSS_CC:-${names[1]}-linux-gnu-gcc}
	root=${CROSS_ROOT:-/usr/${names[1]}-linux-gnu}
	emulator=(qemu-"${names[2]}" -L "$root")
	runner=${emulator[*]}
}

# elsewhere COMMAND...: runs it with what it takes to build for $target with the compiler $cc. Tests are started with the
# command $runner.
elsewhere() {
	local variable
	variable=CARGO_TARGET_$(echo "$target" | tr a-z- A-Z_)
	# The crates that only tests of this machine and benchmarks need are not built (Cargo.toml).
	env "CARGO_BUILD_TARGET=$target" "${variable}_LINKER=$cc" "${variable}_RUNNER=$runner" \
		"RUSTFLAGS=${RUSTFLAGS:-} --cfg dat_emulated" "$@"
}

# core_tests NAME [ARGUMENT...]: the unit tests of the core, built by the function NAME, with these arguments. UNIT has
# words in the names of those that are run, if not all.
core_tests() {
	local name=$1 words=()
	shift
	[ "${UNIT:-all}" = all ] || read -ra words <<<"$UNIT"
	"$name" cargo test --locked --package dat-core --lib -- "$@" ${words[@]+"${words[@]}"} 2>&1 |
		unit_tap | complete "$name" unit
}

# c_suite NAME OUT [PROGRAM]...: the C suite of OUT, whose runs mostly wait. LIBRARIES is as for ctest.sh.
c_suite() {
	{
		JOBS='' scripts/ctest.sh "${@:2}"
		echo "exit status $?"
	} | complete "$1" suite
}

# demo SERVER CLIENT LOG: the demo between programs of these two builds, as TAP.
demo() {
	if CLIENT=build/$2 scripts/demo.sh "build/$1" --quick >"$3" 2>&1; then
		echo "ok 1 - $1_and_$2"
	else
		sed 's/^/# /' "$3"
		echo "not ok 1 - $1_and_$2"
	fi
	echo 1..1
	echo 'exit status 0'
}
