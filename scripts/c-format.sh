#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# c-format.sh [--fix]: checks that the C files of tests, measurements and examples have the format that
# .clang-format describes; --fix gives it to them. The public headers below include/ are laid out by
# hand. CLANG_FORMAT names another clang-format (14 to 19).
set -eu
. "${0%/*}/need.sh" "${CLANG_FORMAT:-clang-format}" dirname find timeout xargs

cd "$(dirname "$0")/.."
case "${1-}" in
--fix) action=-i ;;
'') action='--dry-run -Werror' ;;
*) echo "usage: $0 [--fix]" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086 # a list of options
find tests tests-c benches vm/progs examples \( -name '*.[ch]' -o -name '*.cpp' \) -print0 |
	xargs -0 timeout 120 "${CLANG_FORMAT:-clang-format}" $action
