/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Qualifiers whose ports the process may not open: to uDAPL they are numbers as any others, and programs take the
 * number of their process or of their rank. Tests give the privilege up before they open the IA: what has opened
 * an RDMA device may not use it any more once that has changed.
 *
 * The peer, "t_privileged IA --peer ROLE", listens "with" or "without" the privilege, writes its qualifier to
 * standard output and accepts one connection. */
#include "service.h"
#ifdef DAT2
#include "datagrams.h"
#endif

#include <inttypes.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Qualifiers from here to 1023 are tried: few programs listen there. */
enum { LOWEST = 700, PRIVILEGED = 1024 };

/* A socket with this port of all addresses; -1 if there can be none. */
static int open_port(DAT_CONN_QUAL port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6 };
	int on = 1, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	REQUIRE(fd >= 0);
	address.sin6_port = htons((uint16_t)port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0)
		return fd;
	close(fd);
	return -1;
}

/* The thread, and those that it begins, may not open privileged ports from now on. */
static void give_up_privilege(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];

	REQUIRE(syscall(SYS_capget, &header, sets) == 0);
	sets[CAP_TO_INDEX(CAP_NET_BIND_SERVICE)].effective &= ~CAP_TO_MASK(CAP_NET_BIND_SERVICE);
	REQUIRE(syscall(SYS_capset, &header, sets) == 0);
	if (open_port(LOWEST - 1) >= 0)
		tap_skip("any process may open all ports (net.ipv4.ip_unprivileged_port_start)");
}

/* Listens for the first such qualifier that no other process has. */
static DAT_PSP_HANDLE listen_low(const struct rig *rig, DAT_CONN_QUAL *where)
{
	DAT_PSP_HANDLE point = DAT_HANDLE_NULL;
	DAT_RETURN ret = DAT_CONN_QUAL_IN_USE;

	/* Not the same in all processes. */
	*where = LOWEST + (DAT_CONN_QUAL)getpid() % 200;
	for (; ret == DAT_CONN_QUAL_IN_USE; ++*where) {
		REQUIRE(*where < PRIVILEGED);
		ret = dat_psp_create(rig->ia, *where, rig->cr_evd, DAT_PSP_CONSUMER_FLAG, &point);
	}
	--*where;
	OK(ret);
	return point;
}

static void low_ends_up(void)
{
	give_up_privilege();
	points_up();
	psp = listen_low(&b, &qualifier);
}

static void be_peer(const char *role, const char *argument)
{
	struct rig rig;
	DAT_CONN_QUAL where;

	(void)argument;
	if (strcmp(role, "without") == 0)
		give_up_privilege();
	rig_up(&rig);
	listen_low(&rig, &where);
	printf("%" PRIu64 "\n", (uint64_t)where);
	fflush(stdout);
	OK(dat_cr_accept(await_request(&rig), make_ep(&rig, NULL), 0, NULL));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	await_end_of_input();
	rig_down(&rig);
}

static void privileged__connection(void)
{
	DAT_PSP_PARAM point;

	low_ends_up();
	OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &point));
	CHECK_EQ(point.conn_qual, qualifier);
	connect_with_data(qualifier);
	ends_down();
}

static void privileged__rejection(void)
{
	low_ends_up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dx_cr_reject(request_at(psp, qualifier)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	ends_down();
}

static void privileged__in_use(void)
{
	DAT_PSP_HANDLE second;

	low_ends_up();
	CHECK_RET(dat_psp_create(a.ia, qualifier, a.cr_evd, DAT_PSP_CONSUMER_FLAG, &second),
		  DAT_CONN_QUAL_IN_USE);
	OK(dat_psp_free(psp));
	OK(dat_psp_create(a.ia, qualifier, a.cr_evd, DAT_PSP_CONSUMER_FLAG, &second));
	ends_down();
}

static void privileged__nobody_listens(void)
{
	low_ends_up();
	OK(dat_psp_free(psp));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	/* The qualifier beside that of a listener is not the same. */
	psp = listen_low(&b, &qualifier);
	OK(try_connect(make_ep(&a, NULL), &b, qualifier - 1, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT_NOTHING(b.cr_evd);
	ends_down();
}

static void privileged__reserved(void)
{
	DAT_RSP_HANDLE rsp;

	low_ends_up();
	OK(dat_psp_free(psp));
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(request_reserved(rsp, qualifier), DAT_HANDLE_NULL, 0, NULL));
	established();
	ends_down();
}

/* A peer listens; nobody else can, and whoever connects reaches it. */
static void reach_peer(const char *role)
{
	struct peer peer = start_peer(role, NULL);
	DAT_PSP_HANDLE point;

	qualifier = peer_qualifier(&peer);
	points_up();
	CHECK_RET(dat_psp_create(b.ia, qualifier, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &point),
		  DAT_CONN_QUAL_IN_USE);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	end_peer(&peer);
	ends_down();
}

static void privileged__peer_without(void)
{
	reach_peer("without");
}

static void privileged__peer_with(void)
{
	give_up_privilege();
	reach_peer("with");
}

static void privileged__neither(void)
{
	give_up_privilege();
	reach_peer("without");
}

/* A program that speaks first, as some on privileged ports do. */
static void *greet(void *arg)
{
	static const char greeting[] = "220 mail.example.net ESMTP ready\r\n";
	int from, listener = *(int *)arg;

	while ((from = accept(listener, NULL, NULL)) >= 0) {
		send(from, greeting, sizeof greeting - 1, MSG_NOSIGNAL);
		shutdown(from, SHUT_WR);
		while (recv(from, (char[100]){ 0 }, 100, 0) > 0)
			;
		close(from);
	}
	return NULL;
}

static void privileged__another_program_has_the_port(void)
{
	pthread_t thread;
	int fd;

	/* Of the kernel's devices rxe has ports of its own, and siw does not survive a reply that is not of MPA. */
	if (!is_exact())
		tap_skip("only the soft provider shares its ports with other programs");
	qualifier = LOWEST;
	while ((fd = open_port(qualifier)) < 0) {
		if (++qualifier == PRIVILEGED)
			tap_skip("the test may open no privileged port");
	}
	REQUIRE(pthread_create(&thread, NULL, greet, &fd) == 0);
	give_up_privilege();
	points_up();
	OK(dat_psp_create(b.ia, qualifier, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(request_at(psp, qualifier), ep_b, 0, NULL));
	established();
	talk(ep_b);
	shutdown(fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(fd);
	ends_down();
}

#ifdef DAT2
static void privileged__datagrams(void)
{
	struct outcome at_a, at_b;

	give_up_privilege();
	datagrams_up();
	OK(dat_psp_free(datagrams_psp));
	datagrams_psp = listen_low(&db.rig, &datagrams_qual);
	exchange(da.ep, db.ep, &at_a, &at_b);
	OK(receive_at(&db, 0, 100, 1));
	datagram_arrives(&at_a, 1);
	give_back(&at_a);
	give_back(&at_b);
	datagrams_down();
}
#endif

static const struct tap_test tests[] = {
	T(privileged, connection),
	T(privileged, rejection),
	T(privileged, in_use),
	T(privileged, nobody_listens),
	T(privileged, reserved),
	T(privileged, peer_without),
	T(privileged, peer_with),
	T(privileged, neither),
	T(privileged, another_program_has_the_port),
#ifdef DAT2
	T(privileged, datagrams),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
