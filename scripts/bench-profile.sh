#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench-profile.sh OUT [TITLE...]: where the instructions of the data path are: what an operation over each
# path costs by source file of the library, as callgrind counts them (scripts/bench/profile.py). OUT is a
# build directory, as make bench-profile fills it; TITLE is the beginning of the name of a path.
set -eu
. "${0%/*}/need.sh" addr2line python3 valgrind

export PYTHONDONTWRITEBYTECODE=1
exec python3 "${0%/*}/bench/profile.py" "$@"
