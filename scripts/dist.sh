#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# dist.sh [DIRECTORY]: writes build/dist/libdat-VERSION.tar.xz, or into DIRECTORY, and prints its name: this commit
# with all crates of its workspaces below vendor/, which builds without a network and without files of
# cargo. The same commit gives the same bytes.
set -eu -o pipefail
. "${0%/*}/need.sh" cargo cat dirname find git head mkdir mktemp mv rm sed sort tar xz

cd "$(dirname "$0")/.."
tree=$PWD
out=${1:-build/dist}
git rev-parse --git-dir >/dev/null 2>&1 || {
	echo 'dist.sh: this is no checkout of git, whose commit goes into the tarball' >&2
	exit 1
}
[ -z "$(git status --porcelain)" ] || echo 'dist.sh: what is not committed does not go into the tarball' >&2
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d "$out/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
version=$(git show HEAD:Cargo.toml | sed -n 's/^version = "\(.*\)"/\1/p' | head -1)
name=libdat-$version
mkdir "$work/$name"
git archive HEAD | tar -C "$work/$name" -xf -
cd "$work/$name"
mapfile -t others < <(find . -name Cargo.lock ! -path ./Cargo.lock | sort | sed 's/lock$/toml/')
# With --quiet cargo does not print the configuration.
cargo vendor --locked --versioned-dirs "${others[@]/#/--sync=}" vendor >>.cargo/config.toml 2>"$work/log" || {
	cat "$work/log" >&2
	exit 1
}
cd ..
tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
	--mtime="@$(git -C "$tree" log -1 --format=%ct)" -cf - "$name" | xz -T1 -6 >tar.xz
mv tar.xz "$out/$name.tar.xz"
echo "$out/$name.tar.xz"
