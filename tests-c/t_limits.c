/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT_INSUFFICIENT_RESOURCES: what an adapter says it has is used up, or the process may open
 * no more descriptors. What a process needs at least. Queues that are full are in t_post, lengths beyond a limit in t_evd. */
#include "common.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What an adapter must not have more of for a test to use it up. */
enum { MOST = 1 << 17 };

/* --- as many as there are ------------------------------------------------------------------- */

static struct rig rig;
static DAT_LMR_TRIPLET none;

/* What a test has made. */
static DAT_HANDLE objects[MOST + 1];
static DAT_COUNT made;

/* Makes objects until there are no more: that many, less those the rig has already. */
static void use_up(DAT_RETURN (*make)(DAT_HANDLE *), DAT_RETURN (*unmake)(DAT_HANDLE),
		   DAT_COUNT limit, DAT_COUNT of_the_rig)
{
	DAT_HANDLE object;
	DAT_RETURN ret = DAT_SUCCESS;

	if (limit > MOST)
		tap_unsupported("too many of them to use them up");
	if (getenv("TAP_TIMEOUT"))
		tap_skip("too many of them for a memory checker");
	while (made <= limit && (ret = make(&objects[made])) == DAT_SUCCESS)
		made++;
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	REQUIRE(made == limit - of_the_rig);
	/* One that goes makes room. */
	OK(unmake(objects[made - 1]));
	OK(make(&objects[made - 1]));
	CHECK_RET(make(&object), DAT_INSUFFICIENT_RESOURCES);
}

/* Those that were made go, and those that were refused have left nothing. */
static void give_back(DAT_RETURN (*unmake)(DAT_HANDLE))
{
	while (made > 0)
		OK(unmake(objects[--made]));
	RIG_DOWN_UNUSED(&rig);
}

static DAT_RETURN a_pz(DAT_HANDLE *pz)
{
	return dat_pz_create(rig.ia, (DAT_PZ_HANDLE *)pz);
}

static void pz_create__as_many_as_there_are(void)
{
	rig_up(&rig);
	use_up(a_pz, dat_pz_free, rig.attr.max_pzs, 1);
	give_back(dat_pz_free);
}

static DAT_RETURN an_evd(DAT_HANDLE *evd)
{
	return dat_evd_create(rig.ia, 1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, (DAT_EVD_HANDLE *)evd);
}

static void evd_create__as_many_as_there_are(void)
{
	rig_up(&rig);
	/* Those for completions are what an adapter counts. */
	use_up(an_evd, dat_evd_free, rig.attr.max_evds, 2);
	give_back(dat_evd_free);
}

/* As small as endpoints can be. */
static DAT_EP_ATTR small(void)
{
	DAT_EP_ATTR attr = ep_attr(&rig);

	attr.max_recv_dtos = 1;
	attr.max_request_dtos = 1;
	attr.max_recv_iov = 1;
	attr.max_request_iov = 1;
	return attr;
}

static DAT_RETURN an_ep(DAT_HANDLE *ep)
{
	DAT_EP_ATTR attr = small();

	return dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd, &attr,
			     (DAT_EP_HANDLE *)ep);
}

static void ep_create__as_many_as_there_are(void)
{
	DAT_SRQ_ATTR srq_attr = { 1, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	use_up(an_ep, dat_ep_free, rig.attr.max_eps, 0);
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	attr = small();
	CHECK_RET(dat_ep_create_with_srq(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
					 rig.connect_evd, srq, &attr, &ep),
		  DAT_INSUFFICIENT_RESOURCES);
	OK(dat_srq_free(srq));
	give_back(dat_ep_free);
}

static DAT_RETURN an_rmr(DAT_HANDLE *rmr)
{
	return dat_rmr_create(rig.pz, (DAT_RMR_HANDLE *)rmr);
}

static void rmr_create__as_many_as_there_are(void)
{
	rig_up(&rig);
	use_up(an_rmr, dat_rmr_free, rig.attr.max_rmrs, 0);
	give_back(dat_rmr_free);
}

static DAT_RETURN an_srq(DAT_HANDLE *srq)
{
	DAT_SRQ_ATTR attr = { 1, 1, DAT_SRQ_LW_DEFAULT };

	return dat_srq_create(rig.ia, rig.pz, &attr, (DAT_SRQ_HANDLE *)srq);
}

static void srq_create__as_many_as_there_are(void)
{
	rig_up(&rig);
	use_up(an_srq, dat_srq_free, rig.attr.max_srqs, 0);
	give_back(dat_srq_free);
}

static void lmr_create__longer_than_a_region_may_be(void)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	const DAT_VLEN too_long = (DAT_VLEN)1 << 48;
	static char byte;

	rig_up(&rig);
	memset(&region, 0, sizeof region);
	region.for_va = &byte;
	/* More than there is address space; in 2.0 the attribute cannot say as much. */
	REQUIRE(rig.attr.max_lmr_block_size < too_long);
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, too_long, rig.pz,
				DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INSUFFICIENT_RESOURCES);
	rig_down(&rig);
}

/* --- no more descriptors ---------------------------------------------------------------------- */

static struct rlimit before;

/* From here on nothing can be opened. */
static void no_descriptors(void)
{
	struct rlimit limit;
	int lowest = dup(0);

	REQUIRE(lowest >= 0 && close(lowest) == 0);
	REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
	limit = before;
	limit.rlim_cur = (rlim_t)lowest;
	REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void descriptors_again(void)
{
	REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void ia_open__no_descriptors(void)
{
	DAT_IA_HANDLE first = open_ia(NULL), second;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	no_descriptors();
	CHECK_RET(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &second),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK(evd == DAT_HANDLE_NULL);
	descriptors_again();
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &second));
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(first, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void psp_create__no_descriptors(void)
{
	DAT_CONN_QUAL qualifier, other;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	qualifier = free_qualifier(&rig);
	no_descriptors();
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK_RET(dat_psp_create_any(rig.ia, &other, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INSUFFICIENT_RESOURCES);
	descriptors_again();
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_SUCCESS);
	rig_down(&rig);
}

static void rsp_create__no_descriptors(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	qualifier = free_qualifier(&rig);
	no_descriptors();
	CHECK_RET(dat_rsp_create(rig.ia, qualifier, ep, rig.cr_evd, &rsp),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	descriptors_again();
	CHECK_RET(dat_rsp_create(rig.ia, qualifier, ep, rig.cr_evd, &rsp), DAT_SUCCESS);
	rig_down(&rig);
}

/* Connects where nobody listens: that takes a socket on every path. */
static void ep_connect__no_descriptors(void)
{
	DAT_CONN_QUAL unused;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_post_recv(ep, 0, &none, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	unused = free_qualifier(&rig);
	no_descriptors();
	CHECK_RET(try_connect(ep, &rig, unused, SOON), DAT_INSUFFICIENT_RESOURCES);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(rig.connect_evd);
	EXPECT_NOTHING(rig.recv_evd);
	descriptors_again();
	OK(try_connect(ep, &rig, unused, SOON));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	rig_down(&rig);
}

static void ep_dup_connect__no_descriptors(void)
{
	struct pair pair;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	DAT_EP_HANDLE first, second;

	/* As above: the listener of the first connection is gone. */
	rig_up(&pair.a);
	rig_up(&pair.b);
	first = make_ep(&pair.a, NULL);
	second = make_ep(&pair.a, NULL);
	psp = listen_any(&pair.b, &qualifier);
	OK(try_connect(first, &pair.b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&pair.b), make_ep(&pair.b, NULL), 0, NULL));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(dat_psp_free(psp));
	no_descriptors();
	CHECK_RET(dat_ep_dup_connect(second, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK_EQ(ep_state(second), DAT_EP_STATE_UNCONNECTED);
	descriptors_again();
	OK(dat_ep_dup_connect(second, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	pair_down(&pair);
}

/* --- no more qualifiers ------------------------------------------------------------------------ */

/* A network of our own with two ports for those who take any; false if we may not. */
static bool two_ports(void)
{
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd;
	FILE *range;
	bool done;

	if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
		return false;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
	close(fd);
	range = done ? fopen("/proc/sys/net/ipv4/ip_local_port_range", "w") : NULL;
	if (range == NULL)
		return false;
	done = fprintf(range, "40000 40001\n") > 0;
	return fclose(range) == 0 && done;
}

static void psp_create_any__no_qualifier_left(void)
{
	DAT_CONN_QUAL first, second, third = 77;
	DAT_PSP_HANDLE psp, none_left = DAT_HANDLE_NULL;

	if (!two_ports())
		tap_skip("no network namespace for this user");
	rig_up(&rig);
	psp = listen_any(&rig, &first);
	listen_any(&rig, &second);
	CHECK_RET(dat_psp_create_any(rig.ia, &third, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &none_left),
		  DAT_CONN_QUAL_UNAVAILABLE);
	CHECK(none_left == DAT_HANDLE_NULL);
	OK(dat_psp_free(psp));
	listen_any(&rig, &third);
	CHECK_EQ(third, first);
	rig_down(&rig);
}

/* A port serves for a connection to each of several destinations. */
static void ep_connect__more_than_there_are_ports(void)
{
	const DAT_CONN_QUAL qualifier[] = { 30001, 30002 };
	DAT_PSP_HANDLE psp[2];

	if (!two_ports())
		tap_skip("no network namespace for this user");
	rig_up(&rig);
	for (int i = 0; i < 2; i++)
		OK(dat_psp_create(rig.ia, qualifier[i], rig.cr_evd, DAT_PSP_CONSUMER_FLAG,
				  &psp[i]));
	for (int i = 0; i < 4; i++) {
		OK(try_connect(make_ep(&rig, NULL), &rig, qualifier[i % 2], SOON));
		OK(dat_cr_accept(await_request(&rig), make_ep(&rig, NULL), 0, NULL));
		for (int end = 0; end < 2; end++)
			EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	}
	rig_down(&rig);
}

/* --- address space --------------------------------------------------------------------------- */

enum { MOST_GIB = 65 };

/* Address space in use, in KiB. */
static unsigned long long address_space(void)
{
	unsigned long long kib = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	REQUIRE(status);
	while (fgets(line, sizeof line, status))
		if (sscanf(line, "VmSize: %llu", &kib) == 1)
			break;
	fclose(status);
	REQUIRE(kib > 0);
	return kib;
}

/* Machines limit it for all processes, and tools draw it: little is reserved. */
static void ia_open__address_space(void)
{
	unsigned long long at_first = address_space();

	if (getenv("TAP_TIMEOUT"))
		tap_skip("a memory checker has an address space of its own");
	rig_up(&rig);
	CHECK(address_space() - at_first < (unsigned long long)MOST_GIB << 20);
	rig_down(&rig);
}

/* `ulimit -v` of a gigabyte, which is not used up by reservations. */
static void ia_open__little_address_space(void)
{
	struct rlimit limit = { 1000 * 1000 * 1024, 1000 * 1000 * 1024 };
	DAT_EP_HANDLE ep[100];

	if (getenv("TAP_TIMEOUT"))
		tap_skip("a memory checker needs more of it");
	REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
	rig_up(&rig);
	for (int i = 0; i < 100; i++)
		ep[i] = make_ep(&rig, NULL);
	for (int i = 0; i < 100; i++)
		OK(dat_ep_free(ep[i]));
	rig_down(&rig);
}

/* A sandbox that does not say what the limits are. */
static void connect__limits_that_are_not_told(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	struct pair pair;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		tap_skip("the kernel filters no system calls");
	pair_up(&pair, NULL);
	OK(recv_nothing(pair.ep_b, 1));
	OK(send_nothing(pair.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(pair.b.recv_evd, 1, DAT_DTO_SUCCESS);
	pair_down(&pair);
}

static const struct tap_test tests[] = {
	T(pz_create, as_many_as_there_are),
	T(evd_create, as_many_as_there_are),
	T(ep_create, as_many_as_there_are),
	T(rmr_create, as_many_as_there_are),
	T(srq_create, as_many_as_there_are),
	T(lmr_create, longer_than_a_region_may_be),
	T(ia_open, no_descriptors),
	T(psp_create, no_descriptors),
	T(rsp_create, no_descriptors),
	T(ep_connect, no_descriptors),
	T(ep_dup_connect, no_descriptors),
	T(psp_create_any, no_qualifier_left),
	T(ep_connect, more_than_there_are_ports),
	T(ia_open, address_space),
	T(ia_open, little_address_space),
	T(connect, limits_that_are_not_told),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
