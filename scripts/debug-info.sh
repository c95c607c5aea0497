#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# debug-info.sh apart|none|inside FILE...: what becomes of the debug information of libraries and
# programs that are about to be installed. apart: it is moved to the file .debug/NAME.debug beside
# each, where debuggers look for it; none: it is removed; inside: the files stay as they are. OBJCOPY
# names another objcopy, which those of another architecture need.
set -eu
. "${0%/*}/need.sh" "${OBJCOPY:-objcopy}" chmod mkdir

where=${1-}
case $where in
apart | none | inside) shift ;;
*) echo "usage: $0 apart|none|inside FILE..." >&2 && exit 2 ;;
esac
[ "$where" != inside ] || exit 0
for file; do
	debug=${file%/*}/.debug/${file##*/}.debug
	if [ "$where" = apart ]; then
		mkdir -p "${debug%/*}"
		"${OBJCOPY:-objcopy}" --only-keep-debug "$file" "$debug"
		chmod 644 "$debug"
	fi
	"${OBJCOPY:-objcopy}" --strip-unneeded "$file"
	[ "$where" = none ] || "${OBJCOPY:-objcopy}" "--add-gnu-debuglink=$debug" "$file"
done
