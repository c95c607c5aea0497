#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# mutants.sh OUT: changes the library in one place after another (cargo-mutants), and runs
# scripts/mutant-suite.sh on each of these mutants, with the programs in OUT, which are built in the
# profile dev. One that passes shows a rule that no test holds. MUTANTS_FILES are the sources to
# change (a glob, src/dapl/** by default), MUTANTS_SHARD a part of the mutants ("3/20": every
# twentieth, so that one part is a sample of all). Results are in MUTANTS_OUTPUT (build/mutants);
# mutants that were caught are not tried again when the same directory is used once more.
set -eu
. "${0%/*}/need.sh" awk cargo cargo-mutants cat dirname grep mkdir realpath

root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "${1:?usage: mutants.sh OUT}")
cd "$root"
scripts/build.sh build/model dev dat-model
export MUTANTS_OUT="$out"
export MUTANTS_MODEL="$root/build/model/dat-model"
output=${MUTANTS_OUTPUT:-build/mutants}
mkdir -p "$output"
# Debug information is most of the time that a build takes.
export CARGO_PROFILE_DEV_DEBUG=0
# The test of tests/mutants is there for this script alone.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg dat_mutant"
# Every mutant is built and tested alone: the tests measure times.
status=0
cargo mutants --package dat-core --test-package dat-mutants --iterate --shuffle \
	--file "${MUTANTS_FILES:-src/dapl/**}" ${MUTANTS_SHARD:+--sharding round-robin --shard "$MUTANTS_SHARD"} \
	--output "$output" --timeout "${MUTANTS_TIMEOUT:-600}" --build-timeout 600 --no-times || status=$?
# 2 and 3: mutants were missed, or took too long.
case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac

results=$output/mutants.out
unexplained=$(awk -F '\t' '
	FNR == NR { if (!/^#/) known[$1 ": " $2]; next }
	{ mutant = $0; sub(/:[0-9]+:[0-9]+:/, ":", mutant); if (!(mutant in known)) print }
' tests/mutants/explained.tsv "$results/missed.txt")
count() { cat "$@" | grep -c . || :; }
caught=$(count "$results/caught.txt" "$results/timeout.txt" "$results/previously_caught.txt")
missed=$(count "$results/missed.txt")
echo "$caught caught, $missed missed; without a reason in tests/mutants/explained.tsv:"
echo "${unexplained:-none}"
[ -z "$unexplained" ]
