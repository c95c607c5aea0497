/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Qualifiers of more than 32 bits of programs that mean the lower half (dat.conf(5), without
 * rules=pages): Intel MPI connects to the number of a process, with something of its stack above it.
 * The IA is that of the test with "-programs" behind its name. */
#include "service.h"
#ifdef DAT2
#include "datagrams.h"
#endif

#include <string.h>
#include <unistd.h>

/* What such a program has above the qualifier. */
static const DAT_CONN_QUAL above = (DAT_CONN_QUAL)0x5596 << 32;
/* The name of the IA whose rules are those of the pages. */
static const char *with_pages;

static DAT_PSP_HANDLE listen_at(DAT_CONN_QUAL where)
{
	DAT_PSP_HANDLE point = DAT_HANDLE_NULL;

	OK(dat_psp_create(b.ia, where, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &point));
	return point;
}

/* A connection to `asked` is one to the service point at `where`. */
static void leads_to(DAT_CONN_QUAL asked, DAT_PSP_HANDLE point, DAT_CONN_QUAL where)
{
	DAT_EP_HANDLE from = make_ep(&a, NULL), to = make_ep(&b, NULL);

	OK(try_connect(from, &b, asked, SOON));
	OK(dat_cr_accept(request_at(point, where), to, 0, NULL));
	established();
}

static void leads_nowhere(DAT_CONN_QUAL asked)
{
	OK(try_connect(make_ep(&a, NULL), &b, asked, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT_NOTHING(b.cr_evd);
}

static void qualifier__lower_half(void)
{
	ends_up();
	connect_with_data(above | qualifier);
	ends_down();
}

/* The number of a process may have more than 16 bits. */
static void qualifier__lower_half_that_is_no_port(void)
{
	DAT_CONN_QUAL half = 0x40000000 | (DAT_CONN_QUAL)getpid();

	points_up();
	leads_to(above | half, listen_at(half), half);
	ends_down();
}

static void qualifier__lower_half_rejects(void)
{
	ends_up();
	OK(try_connect(ep_a, &b, above | qualifier, SOON));
	OK(dx_cr_reject(request_at(psp, qualifier)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	ends_down();
}

static void qualifier__the_whole_comes_first(void)
{
	DAT_CONN_QUAL whole;
	DAT_PSP_HANDLE point;

	ends_up();
	whole = above | qualifier;
	point = listen_at(whole);
	leads_to(whole, point, whole);
	leads_to(qualifier, psp, qualifier);
	leads_to(whole + ((DAT_CONN_QUAL)1 << 35), psp, qualifier);
	OK(dat_psp_free(point));
	leads_to(whole, psp, qualifier);
	ends_down();
}

static void qualifier__nobody_has_either(void)
{
	DAT_CONN_QUAL half;

	points_up();
	half = free_qualifier(&b);
	leads_nowhere(above | half);
	/* A listener for more than 32 bits gets what is for it and nothing else. */
	listen_at(above | half);
	leads_nowhere((above << 1) | half);
	leads_nowhere(half);
	ends_down();
}

static void qualifier__nothing_below(void)
{
	ends_up();
	leads_nowhere(above);
	ends_down();
}

static void qualifier__reserved(void)
{
	DAT_RSP_HANDLE rsp;

	points_up();
	qualifier = free_qualifier(&b);
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, above | qualifier, SOON));
	OK(dat_cr_accept(request_reserved(rsp, qualifier), DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	ends_down();
}

/* The rules are those of the IA that connects. */
static void qualifier__by_the_pages(void)
{
	const char *name = tap_ia;

	rig_up(&b);
	psp = listen_any(&b, &qualifier);
	tap_ia = with_pages;
	rig_up(&a);
	leads_nowhere(above | qualifier);
	tap_ia = name;
	ends_down();
}

#ifdef DAT2
static void qualifier__of_datagrams(void)
{
	struct outcome at_a, at_b;

	datagrams_up();
	OK(ask(da.ep, above | datagrams_qual, "question", SOON));
	OK(dat_cr_accept(await_question("question"), db.ep, 6, (DAT_PVOID)(uintptr_t) "answer"));
	at_a = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_REMOTE_AH);
	at_b = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_PASSIVE_REMOTE_AH);
	CHECK(!strncmp(at_a.data, "answer", 6) && !strncmp(at_b.data, "question", 8));
	OK(receive_at(&db, 0, 100, 1));
	datagram_arrives(&at_a, 1);
	give_back(&at_a);
	give_back(&at_b);
	/* Nobody listens at the half either. */
	OK(dat_psp_free(datagrams_psp));
	OK(ask(da.ep, above | datagrams_qual, "question", SOON));
	at_a = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_ERROR_EVENT,
			      DAT_IB_UD_CONNECT_ERROR);
	give_back(&at_a);
	datagrams_down();
}
#endif

static const struct tap_test tests[] = {
	T(qualifier, lower_half),
	T(qualifier, lower_half_that_is_no_port),
	T(qualifier, lower_half_rejects),
	T(qualifier, the_whole_comes_first),
	T(qualifier, nobody_has_either),
	T(qualifier, nothing_below),
	T(qualifier, reserved),
	T(qualifier, by_the_pages),
#ifdef DAT2
	T(qualifier, of_datagrams),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	with_pages = argc > 1 ? argv[1] : tap_ia;
	return tap_main_programs(argc, argv, tests);
}
