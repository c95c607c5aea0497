#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh [OPTION]... SCRIPT [ARGUMENT]...
# run.sh [OPTION]... -c 'COMMANDS'
#
# Boots the virtual machine and runs a bash script, or commands, in it as root, in the directory
# of the caller. Output and exit status are those of the script; 124: it took too long; 125: the
# machine failed. README.md beside this file says what the script finds.
#
#   --device rxe|siw|none  which device DEVICE, NETDEV, ADDRESS, RDMA_DEVICE describe (default rxe)
#   --timeout SECONDS  limit of the script (default 600)
#   --job DIR          a directory to share as /vm, and to keep
#   --env NAME=VALUE   a variable for the script
set -u -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
device=rxe
limit=600
job=
commands=
environment=()
boot_limit=90

usage() {
	sed -n '4,14s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--device) device=${2-} && shift 2 || usage ;;
	--timeout) limit=${2-} && shift 2 || usage ;;
	--job) job=${2-} && shift 2 || usage ;;
	--env) environment+=("${2-}") && shift 2 || usage ;;
	-c) commands=${2-} && shift 2 || usage ;;
	-*) usage ;;
	*) break ;;
	esac
done
[ -n "$commands" ] || [ $# -gt 0 ] || usage
case $device in
rxe) netdev=eth0 address=10.0.0.1 ;;
siw) netdev=eth1 address=10.1.0.1 ;;
none) netdev='' address='' ;;
*) usage ;;
esac
case $limit in '' | *[!0-9]*) usage ;; esac

built=$("$here/build.sh") || exit 125
eval "$built"
# shellcheck disable=SC2154 # from build.sh
PATH=$PATH:$vm_host/usr/bin
shares=() # QEMU's own files, if it is unpacked rather than installed
for path in qemu seabios; do
	[ ! -d "$vm_host/usr/share/$path" ] || shares+=(-L "$vm_host/usr/share/$path")
done

scratch=
qemu=
stop() {
	[ -z "$qemu" ] || { kill "$qemu" && wait "$qemu"; } 2>/dev/null
	qemu=
}
trap 'stop; [ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 125' INT TERM HUP
if [ -z "$job" ]; then
	scratch=$(mktemp -d)
	job=$scratch
fi
mkdir -p "$job"
job=$(realpath "$job")
cp "$here/guest.sh" "$job/guest.sh"
{
	printf 'export %q\n' "DEVICE=$device" "NETDEV=$netdev" "ADDRESS=$address" \
		"RDMA_DEVICE=${device}0" ${environment[@]+"${environment[@]}"}
	printf '%q\n' "VM_DIRECTORY=$PWD" "VM_TIMEOUT=$limit"
} >"$job/environment"
if [ -n "$commands" ]; then
	printf '%s\n' "$commands" >"$job/command"
else
	printf 'exec bash %q' "$(realpath "$1")" >"$job/command"
	shift
	[ $# = 0 ] || printf ' %q' "$@" >>"$job/command"
fi

# One machine at a time: two would starve each other until tests run into their limits.
exec 8>"$vm_cache/run.lock"
flock -n 8 || {
	echo 'vm: waiting for another machine to end' >&2
	flock 8
}

# shellcheck disable=SC2154 # from build.sh
[ -z "$vm_userland" ] ||
	shares+=(-fsdev "local,id=userland,path=$vm_userland,security_model=none,readonly=on,multidevs=remap"
		-device virtio-9p-pci,fsdev=userland,mount_tag=userland)

# What differs between processors. On AArch64 the model is one without the instructions that are slow to emulate.
machine='-M q35 -cpu max -device isa-debug-exit,iobase=0xf4,iosize=0x04'
append='console=ttyS0 tsc=reliable no_timer_check'
# shellcheck disable=SC2154 # from build.sh
if [ "$vm_arch" = arm64 ]; then
	machine='-M virt,gic-version=3 -cpu neoverse-n1'
	append='console=ttyAMA0'
fi

# shellcheck disable=SC2154,SC2086 # from build.sh; lists of words
boot() {
	LD_LIBRARY_PATH=$vm_host/usr/lib/x86_64-linux-gnu:$vm_host/lib/x86_64-linux-gnu \
		QEMU_MODULE_DIR=$vm_host/usr/lib/x86_64-linux-gnu/qemu \
		exec "$vm_qemu" ${shares[@]+"${shares[@]}"} \
		-nodefaults -no-user-config -display none -monitor none -no-reboot \
		$machine -accel "${VM_ACCEL:-tcg,thread=multi}" -smp 2 -m "${VM_MEMORY:-2048}" \
		-kernel "$vm_kernel" -initrd "$vm_initramfs" \
		-append "$append quiet loglevel=4 panic=-1 oops=panic reboot=t \
mitigations=off nowatchdog random.trust_cpu=on net.ifnames=0 rcupdate.rcu_cpu_stall_suppress=1" \
		-serial "file:$job/console" \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
		-device virtio-9p-pci,fsdev=root,mount_tag=root \
		-fsdev "local,id=job,path=$job,security_model=none,multidevs=remap" \
		-device virtio-9p-pci,fsdev=job,mount_tag=job </dev/null >"$job/qemu" 2>&1
}

for attempt in 1 2; do
	rm -f "$job"/{started,status,status.new}
	: >"$job/stdout"
	: >"$job/stderr"
	boot &
	qemu=$!
	tail -s 0.1 -n +1 -f --pid=$qemu "$job/stdout" 2>/dev/null &
	out=$!
	tail -s 0.1 -n +1 -f --pid=$qemu "$job/stderr" >&2 2>/dev/null &
	err=$!

	deadline=$((SECONDS + boot_limit))
	booted=
	while kill -0 $qemu 2>/dev/null && [ $SECONDS -lt $deadline ]; do
		if [ -z "$booted" ] && [ -e "$job/started" ]; then
			booted=1
			# The script's own limit ends it inside; this one is for a machine that froze.
			deadline=$((SECONDS + limit + 60))
		fi
		sleep 0.1
	done
	stop
	wait $out $err 2>/dev/null
	[ ! -e "$job/status" ] || exit "$(cat "$job/status")"
	echo "vm: the machine ended without a report${booted:+ while the script ran}" >&2
	tail -n 20 "$job/qemu" "$job/console" >&2
	# A machine that never came up may have been starved; one that did has run the script.
	[ -z "$booted" ] || break
	[ $attempt = 2 ] || echo 'vm: once more' >&2
done
exit 125
