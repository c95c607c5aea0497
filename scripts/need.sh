# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# . need.sh PROGRAM...: ends the script that reads it unless all these programs are there. Without
# this a missing filter of a pipe would print nothing, which is what a test without a fault prints.
absent=
for program; do
	command -v "$program" >/dev/null && continue
	absent+=" $program"
	case $program in
	cargo | rustc) absent+=' (install Rust, for instance with rustup)' ;;
	cargo-*) absent+=" (cargo install --locked $program)" ;;
	esac
done
if [ -n "$absent" ]; then
	echo "${0##*/}: not found:$absent" >&2
	exit 1
fi
unset absent program
