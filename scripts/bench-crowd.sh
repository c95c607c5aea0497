#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bench-crowd.sh DIRECTORY [PART...]: many connections, more processes that poll than processors, and what
# else programs have that is not one connection (scripts/bench/crowd.py). DIRECTORY has dat-perf,
# bench-probe and the libraries. ENDPOINTS and PAIRS name other numbers of connections and of pairs.
set -eu
. "${0%/*}/need.sh" python3 taskset

export PYTHONDONTWRITEBYTECODE=1
exec python3 "${0%/*}/bench/crowd.py" --endpoints "${ENDPOINTS:-100 1000 5000 10000}" \
	--pairs "${PAIRS:-1 2 4}" "$@"
