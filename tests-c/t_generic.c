/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls that take a handle of any type: dat_get_handle_type(3DAT),
 * dat_set_consumer_context(3DAT), dat_get_consumer_context(3DAT); and how return codes are made. */
#include "common.h"

static struct rig rig;

enum { MOST = 16 };

static struct {
	DAT_HANDLE handle;
	DAT_HANDLE_TYPE type;
} objects[MOST];
static int count;

static void has(DAT_HANDLE handle, DAT_HANDLE_TYPE type)
{
	REQUIRE(count < MOST);
	objects[count].handle = handle;
	objects[count++].type = type;
}

/* One object of every type. */
static void up(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_CNO_HANDLE cno;
	DAT_PSP_HANDLE psp;
	DAT_RSP_HANDLE rsp;
	DAT_RMR_HANDLE rmr;
	DAT_SRQ_HANDLE srq;
	DAT_SRQ_ATTR srq_attr = { 8, 1, DAT_SRQ_LW_DEFAULT };

	rig_up(&rig);
	OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	psp = listen_any(&rig, &qualifier);
	OK(try_connect(make_ep(&rig, NULL), &rig, qualifier, SOON));
	has(rig.ia, DAT_HANDLE_TYPE_IA);
	has(rig.pz, DAT_HANDLE_TYPE_PZ);
	has(rig.recv_evd, DAT_HANDLE_TYPE_EVD);
	has(rig.async_evd, DAT_HANDLE_TYPE_EVD);
	has(make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG).lmr, DAT_HANDLE_TYPE_LMR);
	has(make_ep(&rig, NULL), DAT_HANDLE_TYPE_EP);
	has(psp, DAT_HANDLE_TYPE_PSP);
	has(await_request(&rig), DAT_HANDLE_TYPE_CR);
	has(cno, DAT_HANDLE_TYPE_CNO);
	qualifier = free_qualifier(&rig);
	OK(dat_rsp_create(rig.ia, qualifier, make_ep(&rig, NULL), rig.cr_evd, &rsp));
	has(rsp, DAT_HANDLE_TYPE_RSP);
	if (rig.attr.max_rmrs > 0) {
		OK(dat_rmr_create(rig.pz, &rmr));
		has(rmr, DAT_HANDLE_TYPE_RMR);
	}
	if (rig.provider.srq_supported) {
		OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
		has(srq, DAT_HANDLE_TYPE_SRQ);
	}
}

static void get_handle_type__of_every_object(void)
{
	up();
	for (int i = 0; i < count; i++) {
		DAT_HANDLE_TYPE type = (DAT_HANDLE_TYPE)77;

		CHECK_RET(dat_get_handle_type(objects[i].handle, &type), DAT_SUCCESS);
		CHECK_EQ(type, objects[i].type);
		CHECK_RET(dat_get_handle_type(objects[i].handle, NULL), DAT_INVALID_PARAMETER);
	}
	rig_down(&rig);
}

static void consumer_context__of_every_object(void)
{
	DAT_CONTEXT context;

	/* Zero at first; each object has its own; any value will do. */
	up();
	for (int i = 0; i < count; i++) {
		context = cookie(~0ull);
		CHECK_RET(dat_get_consumer_context(objects[i].handle, &context), DAT_SUCCESS);
		CHECK_EQ(context.as_64, 0);
		CHECK_RET(dat_set_consumer_context(objects[i].handle,
						   cookie(0x8877665544332200 + (unsigned)i)),
			  DAT_SUCCESS);
	}
	for (int i = 0; i < count; i++) {
		CHECK_RET(dat_get_consumer_context(objects[i].handle, &context), DAT_SUCCESS);
		CHECK_EQ(context.as_64, 0x8877665544332200 + (unsigned)i);
		/* Another one takes its place. */
		CHECK_RET(dat_set_consumer_context(objects[i].handle, cookie(~0ull)), DAT_SUCCESS);
		CHECK_RET(dat_get_consumer_context(objects[i].handle, &context), DAT_SUCCESS);
		CHECK_EQ(context.as_64, ~0ull);
		CHECK_RET(dat_get_consumer_context(objects[i].handle, NULL), DAT_INVALID_PARAMETER);
	}
	rig_down(&rig);
}

/* 0 takes the context away. */
static void consumer_context__taken_away(void)
{
	DAT_CONTEXT context = cookie(1);
	DAT_CONTEXT none = { 0 };

	up();
	for (int i = 0; i < count; i++) {
		CHECK_RET(dat_set_consumer_context(objects[i].handle, cookie(5)), DAT_SUCCESS);
		CHECK_RET(dat_set_consumer_context(objects[i].handle, none), DAT_SUCCESS);
		CHECK_RET(dat_get_consumer_context(objects[i].handle, &context), DAT_SUCCESS);
		CHECK_EQ(context.as_64, 0);
	}
	rig_down(&rig);
}

/* A handle that is none: the result is as it was. No place for the result: refused. */
static void consumer_context__of_nothing(void)
{
	DAT_HANDLE_TYPE type = (DAT_HANDLE_TYPE)77;
	DAT_CONTEXT context = cookie(0x1234);
	DAT_PZ_HANDLE pz;

	rig_up(&rig);
	OK(dat_pz_create(rig.ia, &pz));
	OK(dat_set_consumer_context(pz, cookie(7)));
	CHECK_CODE(dat_get_consumer_context(pz, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_get_handle_type(pz, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	OK(dat_pz_free(pz));
	CHECK_RET(dat_get_consumer_context(pz, &context), DAT_INVALID_HANDLE);
	CHECK_EQ(context.as_64, 0x1234);
	CHECK_RET(dat_set_consumer_context(pz, cookie(8)), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(pz, &type), DAT_INVALID_HANDLE);
	CHECK_EQ(type, 77);
	rig_down(&rig);
}

static void return_code__class_type_and_subtype(void)
{
	DAT_RETURN ret = dat_pz_free(DAT_HANDLE_NULL);

	CHECK_EQ(ret & DAT_CLASS_ERROR, DAT_CLASS_ERROR);
	CHECK_EQ(DAT_GET_TYPE(ret), DAT_INVALID_HANDLE);
	CHECK_EQ(DAT_GET_SUBTYPE(ret), DAT_INVALID_HANDLE_PZ);
	CHECK_EQ(ret, (DAT_RETURN)(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_PZ));
}

static void return_code__queue_empty(void)
{
	DAT_EVENT event;
	DAT_EVD_HANDLE evd;
	DAT_CNO_HANDLE cno;

	/* Programs that poll compare with the name. */
	rig_up(&rig);
	CHECK_EQ(dat_evd_dequeue(rig.recv_evd, &event), DAT_QUEUE_EMPTY);
	OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	CHECK_EQ(dat_cno_wait(cno, 0, &evd), DAT_QUEUE_EMPTY);
	rig_down(&rig);
}

static void return_code__qualifier_in_use(void)
{
	struct rig other;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	DAT_RSP_HANDLE rsp;

	/* Programs that look for a free qualifier go on as long as they get what has this name. */
	rig_up(&rig);
	rig_up(&other);
	listen_any(&other, &qualifier);
	CHECK_EQ(dat_psp_create(rig.ia, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		 DAT_CONN_QUAL_IN_USE);
	CHECK_EQ(dat_rsp_create(rig.ia, qualifier, make_ep(&rig, NULL), rig.cr_evd, &rsp),
		 DAT_CONN_QUAL_IN_USE);
	CHECK_EQ(dat_psp_create(other.ia, qualifier, other.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		 DAT_CONN_QUAL_IN_USE);
	rig_down(&rig);
	rig_down(&other);
}

static const struct tap_test tests[] = {
	T(return_code, class_type_and_subtype), T(return_code, queue_empty),
	T(return_code, qualifier_in_use),	T(get_handle_type, of_every_object),
	T(consumer_context, of_every_object),	T(consumer_context, taken_away),
	T(consumer_context, of_nothing),	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
