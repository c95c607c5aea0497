/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How endpoints for datagrams learn where peers receive these: dat_ep_connect and dat_cr_accept with the
 * service type UD, dat_ib_ud_cm_free, dat_ib_ud_ah_free. DAT 2.0 only. */
#include "datagrams.h"

#include <arpa/inet.h>
#include <string.h>

static void exchange__tells_both_ends(void)
{
	struct outcome at_a, at_b;

	datagrams_up();
	CHECK_EQ(ep_state(da.ep), DAT_EP_STATE_UNCONNECTED);
	exchange(da.ep, db.ep, &at_a, &at_b);
	/* Some devices pad the private data with zeros. */
	CHECK_EQ(strcmp(at_a.data, "answer"), 0);
	CHECK_EQ(strcmp(at_b.data, "question"), 0);
	CHECK(same_host((struct sockaddr *)&at_a.to.ia_addr, db.rig.attr.ia_address_ptr));
	CHECK(same_host((struct sockaddr *)&at_b.to.ia_addr, da.rig.attr.ia_address_ptr));
	CHECK(at_a.to.qpn != at_b.to.qpn || at_a.to.qpn != 0);
	/* There is no connection. */
	CHECK_EQ(ep_state(da.ep), DAT_EP_STATE_UNCONNECTED);
	CHECK_EQ(ep_state(db.ep), DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(da.rig.connect_evd);
	EXPECT_NOTHING(db.rig.connect_evd);
	give_back(&at_a);
	give_back(&at_b);
	datagrams_down();
}

static void exchange__many_at_once(void)
{
	enum { MANY = 8 };
	struct outcome at_a[MANY], at_b[MANY];
	unsigned seen = 0, answered = 0;

	datagrams_up();
	for (int i = 0; i < MANY; i++) {
		char data[2] = { (char)('A' + i) };

		OK(ask(da.ep, datagrams_qual, data, SOON));
	}
	for (int i = 0; i < MANY; i++) {
		DAT_CR_HANDLE cr = await_question("");
		DAT_CR_PARAM param;

		OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
		OK(dat_cr_accept(cr, db.ep, 1, param.private_data));
	}
	for (int i = 0; i < MANY; i++) {
		at_a[i] = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
					 DAT_IB_UD_REMOTE_AH);
		at_b[i] = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
					 DAT_IB_UD_PASSIVE_REMOTE_AH);
		seen |= 1u << (at_a[i].data[0] - 'A');
		answered |= 1u << (at_b[i].data[0] - 'A');
	}
	CHECK_EQ(seen, (1u << MANY) - 1);
	CHECK_EQ(answered, (1u << MANY) - 1);
	for (int i = 0; i < MANY; i++) {
		give_back(&at_a[i]);
		give_back(&at_b[i]);
	}
	datagrams_down();
}

static void exchange__rejected(void)
{
	struct outcome outcome, other;

	datagrams_up();
	OK(ask(da.ep, datagrams_qual, "please", SOON));
	OK(dat_cr_reject(await_question("please"), 2, (DAT_PVOID)(uintptr_t) "no"));
	outcome = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_REJECT_EVENT,
				 DAT_IB_UD_CONNECT_REJECT);
	CHECK_EQ(strncmp(outcome.data, "no", 2), 0);
	CHECK(!outcome.to.ah && outcome.ep == da.ep);
	give_back(&outcome);
	/* Nothing is left of it. */
	exchange(da.ep, db.ep, &outcome, &other);
	datagrams_down();
}

static void exchange__with_nobody(void)
{
	struct outcome outcome;

	datagrams_up();
	OK(dat_psp_free(datagrams_psp));
	OK(ask(da.ep, datagrams_qual, "hello", SOON));
	outcome = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_ERROR_EVENT,
				 DAT_IB_UD_CONNECT_ERROR);
	CHECK(!outcome.to.ah && outcome.ep == da.ep && outcome.size == 0);
	give_back(&outcome);
	CHECK_EQ(ep_state(da.ep), DAT_EP_STATE_UNCONNECTED);
	datagrams_down();
}

static void exchange__without_an_answer(void)
{
	struct outcome outcome;
	unsigned long long begun;

	datagrams_up();
	begun = now_us();
	OK(ask(da.ep, datagrams_qual, "hello", SHORTLY));
	outcome = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_ERROR_EVENT,
				 DAT_IB_UD_CONNECT_ERROR);
	CHECK(now_us() - begun >= SHORTLY);
	give_back(&outcome);
	EXPECT_NOTHING(da.rig.connect_evd);
	datagrams_down();
}

/* A request is answered by an endpoint of its kind. */
static void exchange__of_the_other_kind(void)
{
	struct outcome at_a, at_b;
	DAT_EP_HANDLE plain_a, plain_b;
	DAT_CR_HANDLE cr;

	datagrams_up();
	plain_a = make_ep(&da.rig, NULL);
	plain_b = make_ep(&db.rig, NULL);
	OK(ask(da.ep, datagrams_qual, "", SOON));
	cr = await_question("");
	CHECK_CODE(dat_cr_accept(cr, plain_b, 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	OK(dat_cr_accept(cr, db.ep, 0, NULL));
	at_a = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_REMOTE_AH);
	at_b = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_PASSIVE_REMOTE_AH);
	give_back(&at_a);
	give_back(&at_b);
	OK(try_connect(plain_a, &db.rig, datagrams_qual, SOON));
	cr = await_request(&db.rig);
	CHECK_CODE(dat_cr_accept(cr, db.ep, 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	OK(dat_cr_accept(cr, plain_b, 0, NULL));
	EXPECT(da.rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(db.rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	datagrams_down();
}

/* A common service point of db's IA, and its port. */
static DAT_CSP_HANDLE make_csp(DAT_CONN_QUAL *port)
{
	struct sockaddr_storage any = { .ss_family = db.rig.attr.ia_address_ptr->sa_family };
	DAT_COMM comm = { .domain = any.ss_family, .type = SOCK_STREAM };
	DAT_CSP_HANDLE csp;
	DAT_CSP_PARAM param;
	struct sockaddr_in at;

	OK(dat_csp_create(db.rig.ia, &comm, (DAT_IA_ADDRESS_PTR)&any, db.rig.cr_evd, &csp));
	OK(dat_csp_query(csp, DAT_CSP_FIELD_ALL, &param));
	/* Addresses of IPv6 have the port at the same place. */
	memcpy(&at, param.address_ptr, sizeof at);
	*port = ntohs(at.sin_port);
	return csp;
}

/* Asked where datagrams are received, the service point of db with this qualifier refuses, and db has no event. */
static void is_refused(DAT_CONN_QUAL qual)
{
	struct outcome outcome;

	OK(ask(da.ep, qual, "", SOON));
	outcome = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_ERROR_EVENT,
				 DAT_IB_UD_CONNECT_ERROR);
	give_back(&outcome);
	EXPECT_NOTHING(db.rig.cr_evd);
}

/* Endpoints that the provider makes, and those that are reserved, are for connections, and so are streams. */
static void exchange__with_other_service_points(void)
{
	DAT_EP_HANDLE reserved;
	DAT_PSP_HANDLE other;
	DAT_CSP_HANDLE csp;
	DAT_RSP_HANDLE rsp;
	DAT_CONN_QUAL qual;

	datagrams_up();
	OK(dat_psp_create_any(db.rig.ia, &qual, db.rig.cr_evd, DAT_PSP_PROVIDER_FLAG, &other));
	is_refused(qual);
	OK(dat_psp_free(other));
	reserved = make_ep(&db.rig, NULL);
	qual = free_qualifier(&db.rig);
	OK(dat_rsp_create(db.rig.ia, qual, reserved, db.rig.cr_evd, &rsp));
	is_refused(qual);
	OK(dat_rsp_free(rsp));
	CHECK_CODE(dat_rsp_create(db.rig.ia, qual, db.ep, db.rig.cr_evd, &rsp), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EP);
	CHECK_EQ(ep_state(db.ep), DAT_EP_STATE_UNCONNECTED);
	csp = make_csp(&qual);
	is_refused(qual);
	OK(dat_csp_free(csp));
	datagrams_down();
}

static void exchange__arguments(void)
{
	struct outcome at_a, at_b;
	char long_data[2000] = { 0 };
	DAT_EP_HANDLE alone = DAT_HANDLE_NULL;
	DAT_EP_ATTR attr;
	DAT_CR_HANDLE cr;

	datagrams_up();
	CHECK_RET(dat_ep_connect(da.ep, db.rig.attr.ia_address_ptr, datagrams_qual, SOON,
				 sizeof long_data, long_data, DAT_QOS_BEST_EFFORT,
				 DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(ask(da.ep, 0, "", SOON), DAT_INVALID_PARAMETER);
	attr = datagram_attr(&da.rig);
	OK(dat_ep_create(da.rig.ia, da.rig.pz, da.rig.recv_evd, da.rig.request_evd, DAT_HANDLE_NULL,
			 &attr, &alone));
	CHECK_CODE(ask(alone, datagrams_qual, "", SOON), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EVD_CONN);
	OK(ask(da.ep, datagrams_qual, "", SOON));
	cr = await_question("");
	/* The request is still there after an answer that is refused. */
	CHECK_RET(dat_cr_accept(cr, db.ep, sizeof long_data, long_data), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_cr_accept(cr, da.ep, 0, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	OK(dat_cr_accept(cr, db.ep, 0, NULL));
	at_a = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_REMOTE_AH);
	at_b = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_PASSIVE_REMOTE_AH);
	give_back(&at_a);
	give_back(&at_b);
	datagrams_down();
}

/* What an event holds is given back once, each part by itself. */
static void handles__are_freed_once(void)
{
	struct outcome at_a, at_b;

	datagrams_up();
	exchange(da.ep, db.ep, &at_a, &at_b);
	CHECK_RET(dat_ib_ud_ah_free(da.ep, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_ud_cm_free(da.ep, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_ud_cm_free(da.ep, &at_a), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_ud_cm_free(DAT_HANDLE_NULL, at_a.cm), DAT_INVALID_HANDLE);
	OK(dat_ib_ud_cm_free(da.ep, at_a.cm));
	CHECK_RET(dat_ib_ud_cm_free(da.ep, at_a.cm), DAT_INVALID_PARAMETER);
	/* The address handle is there still. */
	OK(send_from(&da, 0, 0, 1, &at_a, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_SENT(da.rig.request_evd, 1);
	OK(dat_ib_ud_ah_free(da.ep, &at_a.to));
	CHECK_RET(dat_ib_ud_ah_free(da.ep, &at_a.to), DAT_INVALID_PARAMETER);
	CHECK_RET(send_from(&da, 0, 0, 2, &at_a, DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	/* In the other order. */
	OK(dat_ib_ud_ah_free(db.ep, &at_b.to));
	OK(dat_ib_ud_cm_free(db.ep, at_b.cm));
	CHECK_RET(dat_ib_ud_cm_free(db.ep, at_b.cm), DAT_INVALID_PARAMETER);
	datagrams_down();
}

/* An endpoint that is freed takes its exchanges and its events with it, and the address handles that the
 * consumer has not got. */
static void handles__of_a_freed_endpoint(void)
{
	struct outcome at_a, at_b;
	DAT_EP_HANDLE other;

	datagrams_up();
	other = make_datagram_ep(&da.rig);
	exchange(other, db.ep, &at_a, &at_b);
	OK(ask(other, datagrams_qual, "", SOON));
	OK(dat_cr_accept(await_question(""), db.ep, 0, NULL));
	/* One exchange is over, and one waits for its answer. */
	EXPECT(db.rig.connect_evd, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED);
	OK(ask(other, datagrams_qual, "", SOON));
	await_question("");
	OK(dat_ep_free(other));
	EXPECT_NOTHING(da.rig.connect_evd);
	CHECK_RET(dat_ib_ud_cm_free(da.ep, at_a.cm), DAT_INVALID_PARAMETER);
	/* The consumer has this address handle, for any of its endpoints. */
	OK(receive_at(&db, 0, 10, 1));
	OK(send_from(&da, 0, 10, 2, &at_a, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_RECEIVED(db.rig.recv_evd, 1, 10);
	datagrams_down();
}

/* Programs of older versions of the extensions give nothing back. */
static void handles__are_no_objects_of_the_ia(void)
{
	struct outcome at_a, at_b;

	datagrams_up();
	exchange(da.ep, db.ep, &at_a, &at_b);
	CHECK_RET(dat_ia_close(da.rig.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE);
	OK(dat_psp_free(datagrams_psp));
	free_mem(&da.mem);
	free_mem(&db.mem);
	OK(dat_ep_free(da.ep));
	OK(dat_ep_free(db.ep));
	rig_down_unused(__FILE__, __LINE__, &da.rig);
	rig_down_unused(__FILE__, __LINE__, &db.rig);
}

static const struct tap_test tests[] = {
	T(exchange, tells_both_ends),
	T(exchange, many_at_once),
	T(exchange, rejected),
	T(exchange, with_nobody),
	T(exchange, without_an_answer),
	T(exchange, of_the_other_kind),
	T(exchange, with_other_service_points),
	T(exchange, arguments),
	T(handles, are_freed_once),
	T(handles, of_a_freed_endpoint),
	T(handles, are_no_objects_of_the_ia),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
