#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# mutant-suite.sh: the tests that scripts/mutants.sh runs on each mutant, those first that are likely
# to notice it soon. Ends when one has failed: exit status not 0. MUTANTS_OUT has the programs,
# MUTANTS_MODEL is the program of tests/model.
set -u
. "${0%/*}/need.sh" bash dirname grep ln mkdir nproc realpath timeout xargs

cd "$(dirname "$0")/.."
out=${MUTANTS_OUT:?}
model=${MUTANTS_MODEL:?}
limit=60

scripts/build.sh build/mutant dev libdat libdat2 || exit 1
libraries=$(realpath build/mutant)
mkdir -p "$libraries/lib"
ln -sf ../libdat.so "$libraries/lib/libdat.so.1"
ln -sf ../libdat2.so "$libraries/lib/libdat2.so.2"
export LD_LIBRARY_PATH=$libraries/lib DAT_OVERRIDE=$PWD/tests-c/dat.conf TAP_TIMEOUT=40

# run COMMAND...: ends this shell if the command fails
run() {
	local log
	if ! log=$(timeout -k 5 "$limit" "$@" 2>&1); then
		echo "caught by: $*"
		grep -m 5 -E '^not ok|^#' <<<"$log"
		exit 255
	fi
}

export MODEL_STEPS=6000 MODEL_SHRINK=0 MODEL_RUNS="dat2:soft dat2:soft-shm dat:soft"
limit=120 run "$model" "$out"

# The programs wait more than they compute: several at a time, each in a network of its own.
programs() {
	for run in dat2:soft dat:soft-tcp dat2:soft-shm; do
		for program in "$out/${run%%:*}"/t_*; do
			case $run/${program##*/} in
			# They take long, and need a machine of their own.
			*/t_memory* | */t_kill | */t_abuse* | */t_random* | dat:soft-tcp/t_bind) ;;
			*) echo "$program ${run#*:}" ;;
			esac
		done
	done
}
export limit
export -f run
# shellcheck disable=SC2016 # for the inner shell
programs | xargs -P $((3 * $(nproc))) -n 2 bash -c 'run scripts/alone.sh "$@"' run || exit 1
limit=300 run cargo test --locked --quiet --package dat-core --lib --test registry --test abi
# What is slow, and only what nothing else has noticed gets here: peers made by hand, processes that
# end, and the simulation.
# shellcheck disable=SC2046 # names of tests
limit=600 run cargo test --locked --quiet --package dat-core $(printf -- '--test %s ' connection_log dead_host \
	fuzz_connections fuzz_wire half_open handle_fork hostile hostile_memory namespaces \
	shm_limits shm_processes shm_shared shm_strangers stress)
SIM_RUNS=3000 limit=600 run scripts/sim.sh
