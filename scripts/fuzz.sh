#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# fuzz.sh [TARGET]...: builds the targets of fuzz/ with the stable compiler and runs each on RUNS
# inputs (200000 by default) that libFuzzer derives from what they cover. Prints TAP. An input that
# fails stays in build/fuzz. `cargo +nightly fuzz run TARGET` does the same for longer, and with
# AddressSanitizer.
set -u
. "${0%/*}/need.sh" cargo dirname mkdir realpath rustc sed tail

cd "$(dirname "$0")/.." || exit 1
runs=${RUNS:-200000}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p build/fuzz "$target"
target=$(realpath "$target")
mapfile -t every < <(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
[ $# -gt 0 ] || set -- "${every[@]}"

# What cargo-fuzz instruments with, but for the sanitizer, which is the nightly compiler's. With
# --target, build scripts are left without.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
-Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks"
cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml --target "$host" \
	--target-dir "$target" || exit 1

echo 'TAP version 13'
echo "1..$#"
number=0
bad=0
for name; do
	number=$((number + 1))
	log=build/fuzz/$name.log
	seeds=()
	[ "$name" != dat_conf ] || seeds=(-seed_inputs=dat.conf.example,tests-c/dat.conf)
	"$target/$host/release/$name" "${seeds[@]}" -runs="$runs" -seed=1 -max_len=4096 -timeout=10 \
		"-artifact_prefix=build/fuzz/$name-" >"$log" 2>&1
	status=$?
	# libFuzzer ends with the number of inputs.
	done=$(sed -n 's/^Done \([0-9]*\) runs in .*/\1/p' "$log")
	if [ $status = 0 ] && [ "${done:-0}" -ge "$runs" ]; then
		echo "ok $number - fuzz/$name"
	else
		tail -40 "$log" | sed 's/^/# /'
		echo "# exit status $status, ${done:-?} of $runs inputs"
		echo "not ok $number - fuzz/$name"
		bad=$((bad + 1))
	fi
done
[ $# -gt 0 ] && [ $bad = 0 ]
