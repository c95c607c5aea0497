#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build.sh DIRECTORY PROFILE PACKAGE...: builds packages of this workspace, and makes DIRECTORY the
# place of links to their shared libraries and programs. cargo is asked where it has put them:
# CARGO_TARGET_DIR, CARGO_BUILD_TARGET and every configuration file of cargo have a say in that.
# CARGO names another cargo.
set -eu -o pipefail
. "${0%/*}/need.sh" "${CARGO:-cargo}" dirname ln mkdir mktemp rm sed

[ $# -ge 3 ] || { echo "usage: $0 DIRECTORY PROFILE PACKAGE..." >&2 && exit 2; }
mkdir -p "$1"
directory=$(cd "$1" && pwd)
profile=$2
shift 2
cd "$(dirname "$0")/.."
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
# Release libraries have the same bytes wherever they are built.
cargo=("${CARGO:-cargo}")
[ "$profile" != release ] || cargo=(scripts/remap.sh "${cargo[@]}")
"${cargo[@]}" build --locked --profile "$profile" "${@/#/--package=}" \
	--message-format=json-render-diagnostics >"$messages"

# The messages of shared libraries have "filenames", those of programs "executable".
mapfile -t files < <(sed -n -e '/"reason":"compiler-artifact"/!d' \
	-e '/"kind":\["cdylib"\]/s/.*"filenames":\["\([^"]*\)".*/\1/p' \
	-e 's/.*"executable":"\([^"]*\)".*/\1/p' "$messages")
declare -A linked=()
for file in ${files[@]+"${files[@]}"}; do
	case $file in *build-script-build) continue ;; esac
	link=$directory/${file##*/}
	if [ -n "${linked[$link]-}" ]; then
		echo "build.sh: cargo has built ${file##*/} for several targets; choose one" >&2
		exit 1
	fi
	linked[$link]=1
	ln -sfn "$file" "$link"
done
if [ ${#linked[@]} = 0 ]; then
	echo 'build.sh: cargo names no library and no program that it has built' >&2
	exit 1
fi
