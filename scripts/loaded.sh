# SPDX-License-Identifier: MIT OR Apache-2.0
#
# For scripts that source this file: which libraries a program runs on.

# loaded ENV... PROGRAM: prints what ldd would print of PROGRAM, for a program of another processor or another C library
# too. ENV is the command env, or one that takes variables in front of the program as env does.
loaded() {
	local start=("${@:1:$#-1}") program=${!#} musl
	if musl=$(LC_ALL=C grep -aom1 '/lib/ld-musl-[a-z0-9_]*\.so\.1' "$program"); then
		"${start[@]}" "$musl" --list "$program"
	else
		"${start[@]}" LD_TRACE_LOADED_OBJECTS=1 "$program"
	fi
}
