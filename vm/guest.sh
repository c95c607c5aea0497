# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What runs in the machine: makes the devices, then the commands that run.sh was given. The
# files beside it in /vm: environment (shell assignments), command (a bash script).
#
# One network namespace with both devices, each for both ends of a test: neither device works
# on lo, and two rxe devices of one namespace do not reach each other. The other end of siw's
# netdev is in the namespace "peer", for programs that meet siw over plain TCP.

# shellcheck disable=SC1091 # written by run.sh
. /vm/environment

ip link set lo up
hostname vm
echo '127.0.0.1 localhost vm' >/etc/hosts
ulimit -l unlimited

ip link add eth0 mtu 9000 type dummy
ip addr add 10.0.0.1/24 dev eth0
ip link set eth0 up
ip netns add peer
ip link add eth1 mtu 9000 type veth peer name eth2 mtu 9000 netns peer
ip addr add 10.1.0.1/24 dev eth1
ip link set eth1 up
ip -n peer link set lo up
ip -n peer addr add 10.1.0.2/24 dev eth2
ip -n peer link set eth2 up
if [ "$DEVICE" != none ]; then
	rdma link add rxe0 type rxe netdev eth0 &&
		rdma link add siw0 type siw netdev eth1 || {
		echo 'vm: cannot make the RDMA devices' >&2
		exit 125
	}
fi
touch /vm/started

cd "$VM_DIRECTORY" || exit 125
exec timeout -k 5 "$VM_TIMEOUT" bash /vm/command </dev/null
