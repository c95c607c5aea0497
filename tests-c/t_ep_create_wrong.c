/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_create(3DAT) with one wrong argument at a time: the code names the argument, and nothing of
 * the endpoint is left behind. */
#include "common.h"

enum evd { RECV, REQUEST, CONNECT, EVDS };

static const DAT_RETURN wrong_evd[EVDS] = {
	DAT_INVALID_HANDLE_EVD_RECV,
	DAT_INVALID_HANDLE_EVD_REQUEST,
	DAT_INVALID_HANDLE_EVD_CONN,
};

/* The arguments of a call. */
struct call {
	DAT_IA_HANDLE ia;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd[EVDS];
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE *to;
};

static struct rig rig;
static DAT_EP_HANDLE ep;

/* Arguments without a fault, on a new rig. */
static struct call right(void)
{
	struct call call;

	rig_up(&rig);
	ep = DAT_HANDLE_NULL;
	call = (struct call){ rig.ia,
			      rig.pz,
			      { rig.recv_evd, rig.request_evd, rig.connect_evd },
			      ep_attr(&rig),
			      &ep };
	return call;
}

/* The call is refused with this code, and nothing uses the rig. */
#define REFUSED(call, type, subtype) refused(__LINE__, (call), (type), (subtype))

static void refused(int line, const struct call *call, DAT_RETURN type, DAT_RETURN subtype)
{
	DAT_RETURN ret = dat_ep_create(call->ia, call->pz, call->evd[RECV], call->evd[REQUEST],
				       call->evd[CONNECT], &call->attr, call->to);

	check_code(__FILE__, line, "dat_ep_create", ret, type, subtype);
	CHECK(ep == DAT_HANDLE_NULL);
	rig_down_unused(__FILE__, line, &rig);
}

static void ep_create__no_fault(void)
{
	struct call call = right();

	OK(dat_ep_create(call.ia, call.pz, call.evd[RECV], call.evd[REQUEST], call.evd[CONNECT],
			 &call.attr, call.to));
	CHECK(ep != DAT_HANDLE_NULL);
	CHECK_RET(dat_ia_close(rig.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE);
	rig_down(&rig);
}

static void ep_create__handle_of_no_ia(void)
{
	struct call call = right();

	call.ia = DAT_HANDLE_NULL;
	REFUSED(&call, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	call = right();
	call.ia = rig.pz;
	REFUSED(&call, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}

static void ep_create__handle_of_no_zone(void)
{
	struct call call = right();

	call.pz = rig.recv_evd;
	REFUSED(&call, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
	call = right();
	OK(dat_pz_free(rig.pz));
	OK(dat_pz_create(rig.ia, &rig.pz));
	REFUSED(&call, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
}

static void ep_create__handles_of_no_evd(void)
{
	for (int i = 0; i < EVDS; i++) {
		struct call call = right();
		DAT_EVD_HANDLE freed;

		call.evd[i] = rig.pz;
		REFUSED(&call, DAT_INVALID_HANDLE, wrong_evd[i]);
		call = right();
		call.evd[i] = (DAT_EVD_HANDLE)(uintptr_t)0x1230;
		REFUSED(&call, DAT_INVALID_HANDLE, wrong_evd[i]);
		call = right();
		freed = make_evd(rig.ia, 8, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
		OK(dat_evd_free(freed));
		call.evd[i] = freed;
		REFUSED(&call, DAT_INVALID_HANDLE, wrong_evd[i]);
	}
}

/* Each EVD is made for every kind of event but those that the endpoint has for it. */
static void ep_create__evds_of_other_kinds(void)
{
	const DAT_EVD_FLAGS kinds[] = {
		DAT_EVD_SOFTWARE_FLAG,	 DAT_EVD_CR_FLAG,	DAT_EVD_DTO_FLAG,
		DAT_EVD_CONNECTION_FLAG, DAT_EVD_RMR_BIND_FLAG, DAT_EVD_ASYNC_FLAG,
	};
	const DAT_EVD_FLAGS needed[EVDS] = { DAT_EVD_DTO_FLAG, DAT_EVD_DTO_FLAG,
					     DAT_EVD_CONNECTION_FLAG };

	for (int i = 0; i < EVDS; i++)
		for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
			struct call call;

			if (kinds[kind] == needed[i])
				continue;
			call = right();
			OK(dat_evd_free(rig.cr_evd));
			rig.cr_evd = make_evd(rig.ia, 8, kinds[kind]);
			call.evd[i] = rig.cr_evd;
			REFUSED(&call, DAT_INVALID_HANDLE, wrong_evd[i]);
		}
}

/* The zone and the queues of completions are those of the instance; for the EVD of connection events
 * see t_ep_create. */
static void ep_create__objects_of_another_open(void)
{
	struct rig other;

	rig_up(&other);
	for (int i = 0; i < 3; i++) {
		struct call call = right();

		if (i == RECV)
			call.evd[RECV] = other.recv_evd;
		else if (i == REQUEST)
			call.evd[REQUEST] = other.request_evd;
		else
			call.pz = other.pz;
		REFUSED(&call, DAT_INVALID_HANDLE,
			i < CONNECT ? wrong_evd[i] : DAT_INVALID_HANDLE_PZ);
	}
	CHECK_RET(dat_evd_free(other.recv_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(other.request_evd), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(other.pz), DAT_SUCCESS);
	rig_down(&other);
}

static void ep_create__no_place_for_the_handle(void)
{
	struct call call = right();

	call.to = NULL;
	REFUSED(&call, DAT_INVALID_PARAMETER, DAT_INVALID_ARG7);
}

/* One attribute is this. */
#define WITH(field, value)                                                \
	do {                                                              \
		struct call call_ = right();                              \
		call_.attr.field = (value);                               \
		REFUSED(&call_, DAT_INVALID_PARAMETER, DAT_INVALID_ARG6); \
	} while (0)

/* One attribute is no count, or beyond its limit. */
#define NO_COUNT(field, limit)                    \
	do {                                      \
		WITH(field, -1);                  \
		WITH(field, INT32_MIN);           \
		if ((limit) < INT32_MAX)          \
			WITH(field, (limit) + 1); \
	} while (0)

static DAT_IA_ATTR limits(void)
{
	struct rig any;

	rig_up(&any);
	rig_down(&any);
	return any.attr;
}

static void ep_create__counts_without_sense(void)
{
	DAT_IA_ATTR most = limits();

	NO_COUNT(max_recv_dtos, most.max_dto_per_ep);
	NO_COUNT(max_request_dtos, most.max_dto_per_ep);
	NO_COUNT(max_recv_iov, most.max_iov_segments_per_dto);
	NO_COUNT(max_request_iov, most.max_iov_segments_per_dto);
	NO_COUNT(max_rdma_read_in, most.max_rdma_read_per_ep_in);
	NO_COUNT(max_rdma_read_out, most.max_rdma_read_per_ep_out);
	NO_COUNT(max_rdma_read_iov, most.max_iov_segments_per_rdma_read);
	NO_COUNT(max_rdma_write_iov, most.max_iov_segments_per_rdma_write);
	/* DAT_HW_DEFAULT, which is -1, is a watermark. */
	WITH(srq_soft_hw, DAT_HW_DEFAULT - 1);
	WITH(srq_soft_hw, INT32_MIN);
}

static void ep_create__sizes_beyond_the_limits(void)
{
	DAT_IA_ATTR most = limits();

	if (most.max_message_size + 1 > most.max_message_size)
		WITH(max_message_size, most.max_message_size + 1);
	if (most.max_rdma_size + 1 > most.max_rdma_size)
		WITH(max_rdma_size, most.max_rdma_size + 1);
}

static void ep_create__flags_without_sense(void)
{
	const DAT_COMPLETION_FLAGS recv[] = { DAT_COMPLETION_SUPPRESS_FLAG,
					      DAT_COMPLETION_BARRIER_FENCE_FLAG };

	for (size_t i = 0; i < sizeof recv / sizeof *recv; i++)
		WITH(recv_completion_flags, recv[i]);
	/* Those that are no flags. */
	for (unsigned bit = 0x20; bit <= 0x40000000; bit <<= 1) {
		WITH(recv_completion_flags, (DAT_COMPLETION_FLAGS)bit);
		WITH(request_completion_flags, (DAT_COMPLETION_FLAGS)bit);
	}
}

/* A service and a quality that the provider does not have. */
static void ep_create__models_not_offered(void)
{
	struct call call = right();

	call.attr.service_type = (DAT_SERVICE_TYPE)77;
	REFUSED(&call, DAT_MODEL_NOT_SUPPORTED, 0);
	call = right();
	if (rig.provider.dat_qos_supported & DAT_QOS_PREMIUM)
		tap_unsupported("the provider has that quality of service");
	call.attr.qos = DAT_QOS_PREMIUM;
	REFUSED(&call, DAT_MODEL_NOT_SUPPORTED, 0);
}

static const struct tap_test tests[] = {
	T(ep_create, no_fault),
	T(ep_create, handle_of_no_ia),
	T(ep_create, handle_of_no_zone),
	T(ep_create, handles_of_no_evd),
	T(ep_create, evds_of_other_kinds),
	T(ep_create, objects_of_another_open),
	T(ep_create, no_place_for_the_handle),
	T(ep_create, counts_without_sense),
	T(ep_create, sizes_beyond_the_limits),
	T(ep_create, flags_without_sense),
	T(ep_create, models_not_offered),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
