#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# fuzz.sh [TARGET]...: builds the targets of fuzz/ with the stable compiler and runs each on the
# inputs of fuzz/corpus/TARGET and on others that libFuzzer derives from what they cover. Prints TAP.
# An input that fails stays in build/fuzz.
#
# RUNS is the number of inputs of a parser (100000 by default); a target that makes connections takes
# a hundredth of them. With FUZZ_SECONDS each target runs for that time instead, under AddressSanitizer, and
# what it finds worth keeping stays in build/fuzz/corpus. FUZZ_JOBS says how many run at a time (2 by default).
set -u
. "${0%/*}/need.sh" cargo cat dirname mkdir nice realpath rm rustc sed tail wc

cd "$(dirname "$0")/.." || exit 1
runs=${RUNS:-100000}
seconds=${FUZZ_SECONDS:-0}
jobs=${FUZZ_JOBS:-2}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/fuzz
mapfile -t every < <(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
[ $# -gt 0 ] || set -- "${every[@]}"

# What cargo-fuzz instruments with. With --target, build scripts are left without.
flags="--cfg fuzzing -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
-Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks"
if [ "$seconds" -gt 0 ]; then
	# -Z flags need a nightly compiler or this; what is built here is not shipped.
	export RUSTC_BOOTSTRAP=1
	flags="$flags -Zsanitizer=address"
	target=$target-asan
	# In a process with handlers for faults a stop is like a handler that ends a wait. What is
	# reachable only through the arena of the handles, which is no heap, would be reported as lost.
	export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0
fi
mkdir -p build/fuzz "$target"
target=$(realpath "$target")
export RUSTFLAGS="${RUSTFLAGS:-} $flags"
cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml --target "$host" \
	--target-dir "$target" || exit 1

# run NAME: runs a target, and writes its log.
run() {
	local name=$1 args=() corpus=build/fuzz/corpus/$1
	[ "$name" != dat_conf ] || args=(-seed_inputs=dat.conf.example,tests-c/dat.conf)
	if [ "$seconds" -gt 0 ]; then
		mkdir -p "$corpus"
		args+=("-max_total_time=$seconds" -detect_leaks=0 -timeout=60 -rss_limit_mb=4096 "$corpus")
	else
		args+=("-runs=$(count "$name")" -seed=1 -timeout=10)
	fi
	[ ! -d "fuzz/corpus/$name" ] || args+=("fuzz/corpus/$name")
	# Inputs that are found are written to the first folder, which the committed one must not be.
	if [ "$seconds" = 0 ] && [ -d "fuzz/corpus/$name" ]; then
		rm -rf "$corpus.run"
		mkdir -p "$corpus.run"
		args=("$corpus.run" "${args[@]}")
	fi
	# Long inputs from the beginning: a connection is more than its first message.
	[ -z "${connections[$name]-}" ] || args+=(-len_control=0)
	nice "$target/$host/release/$name" -max_len="${connections[$name]-4096}" -print_final_stats=1 \
		"-artifact_prefix=build/fuzz/$name-" "${args[@]}" >"build/fuzz/$name.log" 2>&1
	echo $? >"build/fuzz/$name.status"
}

# The targets that make connections, and the longest input of each.
declare -A connections=([tcp_stream]=512 [mpa_handshake]=768 [shm_handshake]=768)

# count NAME: the number of inputs of a bounded run.
count() {
	if [ -n "${connections[$1]-}" ]; then echo $((runs / 100)); else echo "$runs"; fi
}

echo 'TAP version 13'
echo "1..$#"
for name; do
	rm -f "build/fuzz/$name.status"
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
	run "$name" &
done
wait
number=0
bad=0
for name; do
	number=$((number + 1))
	log=build/fuzz/$name.log
	status=$(cat "build/fuzz/$name.status")
	# libFuzzer ends with the number of inputs.
	done=$(sed -n 's/^Done \([0-9]*\) runs in .*/\1/p' "$log")
	least=1
	[ "$seconds" -gt 0 ] || least=$(count "$name")
	if [ "$status" = 0 ] && [ "${done:-0}" -ge "$least" ]; then
		echo "ok $number - fuzz/$name # $done inputs"
	else
		tail -40 "$log" | sed 's/^/# /'
		echo "# exit status $status, ${done:-?} of $least inputs"
		echo "not ok $number - fuzz/$name"
		bad=$((bad + 1))
	fi
done
[ $# -gt 0 ] && [ $bad = 0 ]
