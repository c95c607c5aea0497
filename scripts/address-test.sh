#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# address-test.sh OUT: which address the soft provider takes for what an entry of dat.conf names,
# and for no name at all, on two hosts that this script makes of network namespaces. The directory
# OUT has what `make libs ctest-bin` builds. Prints TAP.
set -u
. "${0%/*}/need.sh" cat cut grep id ip mktemp mount nsenter readlink realpath rm sed seq sleep \
	ss timeout umount unshare

out=$(realpath "${1:?usage: address-test.sh OUT}")
tools=$out/cargo
if [ -z "${ADDRESS_TEST_AGAIN-}" ]; then
	flags=(--net --mount --propagation private)
	[ "$(id -u)" = 0 ] || flags+=(--map-root-user)
	if ! unshare "${flags[@]}" ip link add near type veth peer name far 2>/dev/null; then
		echo "1..0 # SKIP no network namespaces with veth devices here"
		exit 0
	fi
	ADDRESS_TEST_AGAIN=1 exec unshare "${flags[@]}" "$0" "$out"
fi

scratch=$(mktemp -d) || exit 1
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; umount /etc/hosts 2>/dev/null; rm -rf "$scratch"' EXIT
export DAT_OVERRIDE=$scratch/dat.conf
number=0
bad=0

# This host: the first interface is not that of the default route. The other host has the same
# link-local address on its second interface as this one has on its own.
unshare --net sleep 600 &
pids+=($!)
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
there() { nsenter --net="/proc/$other/ns/net" "$@"; }
ip link set lo up
ip link add first type veth peer name first-end
ip link add near type veth peer name far netns "$other"
there ip link set lo up
for link in first first-end near; do
	ip link set "$link" addrgenmode none up
done
there ip link set far addrgenmode none up
ip address add 10.77.1.1/24 dev first
ip address add 10.77.2.1/24 dev near
ip address add fe80::77/64 dev first nodad
ip address add fe80::77/64 dev near nodad
ip address add fe80::78/64 dev near nodad
there ip address add 10.77.2.2/24 dev far
there ip address add fe80::99/64 dev far nodad
cat >"$scratch/hosts" <<-END
	127.0.0.1 localhost
	10.77.2.1 svr1-ib0
	10.77.2.2 svr2-ib0
	127.0.1.1 both
	10.77.1.1 both
END
mount --bind "$scratch/hosts" /etc/hosts

# entry PARAMETERS: the IA "a" has these parameters.
entry() { echo "a u2.0 threadsafe default builtin:soft libdat.1.0 \"$1\" \"\"" >"$DAT_OVERRIDE"; }

# row: the address of the IA and its state
row() { "$tools/dat-info" --api 2.0 2>/dev/null | sed -n 's/^a  *2.0  *builtin:soft  *\([^ ]*\)  *[^ ]*  *\(.*\)$/\1 \2/p'; }

# is NAME WANTED GOT
is() {
	number=$((number + 1))
	# shellcheck disable=SC2254 # a pattern
	case $3 in
	$2) echo "ok $number - address.$1" ;;
	*)
		[ ! -s "$scratch/said" ] || sed 's/^/# /' "$scratch/said"
		printf '# "%s", not "%s"\nnot ok %s - address.%s\n' "$3" "$2" "$number" "$1"
		bad=$((bad + 1))
		;;
	esac
}

# address NAME PARAMETERS WANTED
address() {
	entry "$2"
	is "$1" "$3" "$(row)"
}

address of_an_interface "near" "10.77.2.1 ok"
address itself "10.77.1.1" "10.77.1.1 ok"
address of_a_host_name "svr1-ib0 0" "10.77.2.1 ok"
address of_localhost "localhost" "127.0.0.1 ok"
address of_a_host_name_that_others_reach "both" "10.77.1.1 ok"
address of_another_host "svr2-ib0 0" \
	"- dat_ia_open: DAT_INSUFFICIENT_RESOURCES* (svr2-ib0 is 10.77.2.2, not an address of this machine)"
address of_an_unknown_host "svr3-ib0 0" \
	"- *(no network interface, address or host \"svr3-ib0\": *)"
near=$(ip -o link show dev near | cut -d: -f1)
address with_the_name_of_its_scope "fe80::77%near" "fe80::77%$near ok"
address with_the_number_of_its_scope "fe80::77%$near" "fe80::77%$near ok"
address with_one_scope_possible "fe80::78" "fe80::78%$near ok"
address with_several_scopes_possible "fe80::77" \
	"- *(fe80::77 is an address of more than one interface: *%first*, *%near*)"
address with_an_unknown_scope "fe80::77%nosuch" "- *(no network interface \"nosuch\")"
address on_another_interface "fe80::78%first" "- *(fe80::78%first is no address of this machine)"
address without_a_route "" "10.77.1.1 ok"
ip route add default via 10.77.2.2
address of_the_default_route "" "10.77.2.1 ok"
ip -4 address flush dev first
ip -4 address flush dev near
address without_ipv4_but_link_local "" "127.0.0.1 ok"
ip address add 2001:db8::77/64 dev near nodad
address without_ipv4 "" "2001:db8::77 ok"
ip address del 2001:db8::77/64 dev near

# moves NAME END...: dat-perf measures from an end with a link-local address.
moves() {
	local name=$1
	shift
	timeout 60 "$tools/dat-perf" -i a "$@" -t latency -o send -s 64 -n 100 >"$scratch/said" 2>&1
	is "$name" 0 "$?"
}

cat >"$scratch/server.conf" <<-END
	a u2.0 threadsafe default builtin:soft libdat.1.0 "fe80::99" ""
END
# Not by the function, whose process would be killed at the end and not that of the server.
DAT_OVERRIDE=$scratch/server.conf nsenter --net="/proc/$other/ns/net" \
	"$tools/dat-perf" -i a --server >"$scratch/server" 2>&1 &
pids+=($!)
for _ in $(seq 600); do
	there ss -Hltn 2>/dev/null | grep -q . && break
	sleep 0.1
done
entry "fe80::77%near"
moves to_a_peer_with_a_scope --client "fe80::99%near"
moves to_a_peer_in_the_scope_of_the_ia --client "fe80::99"
moves within_a_process --loopback

LD_LIBRARY_PATH=$out/lib timeout 60 "$out/dat2/t_csp" a common.query >"$scratch/said" 2>&1
is of_a_common_service_point 0 "$?"

echo "1..$number"
[ "$bad" = 0 ]
