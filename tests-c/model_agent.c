/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process that makes the calls which tests/model asks for, and answers what they gave.
 *
 *   model_agent IA
 *
 * Requests come on standard input, answers go to standard output: 16 numbers of 64 bits each. The
 * first of a request says which call, the second for which party. A party has an interface adapter
 * and objects of its own, as if it were a process; two parties in one process connect without
 * leaving it. Objects are named by their place in a table. The first number of an answer is what
 * the call returned; tests/model/agent.rs has the meaning of all others.
 */
#include "dat_compat.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORDS = 16, PARTIES = 2, SLOTS = 8, MEMORY = 1 << 16 };

/* The order is that of `Call` in tests/model/agent.rs. */
enum call {
	OPEN,
	CLOSE,
	EVD_CREATE,
	EVD_FREE,
	EVD_DEQUEUE,
	EVD_WAIT,
	EVD_POST_SE,
	EVD_QUERY,
	EVD_RESIZE,
	EVD_SET_UNWAITABLE,
	EVD_CLEAR_UNWAITABLE,
	SRQ_CREATE,
	SRQ_FREE,
	SRQ_POST_RECV,
	SRQ_QUERY,
	SRQ_SET_LW,
	PSP_CREATE,
	PSP_FREE,
	CR_ACCEPT,
	CR_REJECT,
	EP_CREATE,
	EP_FREE,
	EP_RESET,
	EP_CONNECT,
	EP_DISCONNECT,
	EP_GET_STATUS,
	EP_POST_RECV,
	EP_POST_SEND,
	EP_POST_RDMA_WRITE,
	EP_POST_RDMA_READ,
	MEMORY_WRITE,
	MEMORY_READ,
	CALLS
};

struct party {
	DAT_IA_HANDLE ia;
	DAT_IA_ATTR attr;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd[SLOTS];
	DAT_SRQ_HANDLE srq[SLOTS];
	DAT_EP_HANDLE ep[SLOTS];
	DAT_PSP_HANDLE psp[SLOTS];
	DAT_CR_HANDLE cr[SLOTS];
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	char *memory;
};

static struct party parties[PARTIES];
static const char *ia_name;

/* What a handle is called in the tables; -1 if it is in none. */
static int64_t slot_of(DAT_HANDLE handle, DAT_HANDLE const *table)
{
	for (int i = 0; i < SLOTS; i++)
		if (handle != DAT_HANDLE_NULL && table[i] == handle)
			return i;
	return -1;
}

static DAT_RETURN open_party(struct party *p, int64_t *out)
{
	DAT_PROVIDER_ATTR provider;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	DAT_VADDR address;
	DAT_VLEN length;
	DAT_RETURN ret;

	p->evd[0] = DAT_HANDLE_NULL;
	ret = dat_ia_open((DAT_NAME_PTR)(uintptr_t)ia_name, 16, &p->evd[0], &p->ia);
	if (ret != DAT_SUCCESS)
		return ret;
	ret = dat_ia_query(p->ia, NULL, DAT_IA_FIELD_ALL, &p->attr, DAT_PROVIDER_FIELD_ALL,
			   &provider);
	if (ret != DAT_SUCCESS)
		return ret;
	ret = dat_pz_create(p->ia, &p->pz);
	if (ret != DAT_SUCCESS)
		return ret;
	if (!p->memory && posix_memalign((void **)&p->memory, 4096, MEMORY) != 0)
		return DAT_INSUFFICIENT_RESOURCES;
	memset(p->memory, 0, MEMORY);
	memset(&region, 0, sizeof region);
	region.for_va = p->memory;
	ret = dx_lmr_create(p->ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, p->pz,
			    DAT_MEM_PRIV_ALL_FLAG, &lmr, &p->local, &p->remote, &length, &address);
	out[1] = (int64_t)p->remote;
	out[2] = (int64_t)(uintptr_t)p->memory;
	return ret;
}

static DAT_RETURN close_party(struct party *p)
{
	char *memory = p->memory;
	DAT_RETURN ret = dat_ia_close(p->ia, DAT_CLOSE_ABRUPT_FLAG);

	memset(p, 0, sizeof *p);
	p->memory = memory;
	return ret;
}

/* The number that dat_ep_connect of the peer has sent along; -1 if it did not arrive. */
static int64_t number_of(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM param;
	int64_t number;

	if (dat_cr_query(cr, DAT_CR_FIELD_ALL, &param) != DAT_SUCCESS ||
	    (size_t)param.private_data_size < sizeof number)
		return -1;
	memcpy(&number, param.private_data, sizeof number);
	return number;
}

/* The object is gone, if that was a success: nothing is called by this place until another one is. */
static DAT_RETURN freed(DAT_RETURN ret, DAT_HANDLE *place)
{
	if (ret == DAT_SUCCESS)
		*place = DAT_HANDLE_NULL;
	return ret;
}

/* What the event holds: its number, its EVD, which object it is of, cookie, status, length. A
 * connection request gets the place `cr`. */
static void describe(struct party *p, const DAT_EVENT *event, int64_t cr, int64_t *out)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;

	out[1] = (int64_t)event->event_number;
	out[2] = slot_of(event->evd_handle, p->evd);
	switch (event->event_number) {
	case DAT_DTO_COMPLETION_EVENT:
		out[3] = slot_of(dto->ep_handle, p->ep);
		out[4] = (int64_t)dto->user_cookie.as_64;
		out[5] = (int64_t)dto->status;
		out[6] = (int64_t)dto->transfered_length;
		break;
	case DAT_CONNECTION_REQUEST_EVENT:
		p->cr[cr] = event->event_data.cr_arrival_event_data.cr_handle;
		out[3] = slot_of(event->event_data.cr_arrival_event_data.sp_handle.psp_handle,
				 p->psp);
		out[4] = number_of(p->cr[cr]);
		break;
	case DAT_SOFTWARE_EVENT:
		out[4] = (int64_t)(uintptr_t)event->event_data.software_event_data.pointer;
		break;
	case DAT_ASYNC_ERROR_EVD_OVERFLOW:
		out[3] = slot_of(event->event_data.asynch_error_event_data.dat_handle, p->evd);
		out[5] = (int64_t)event->event_data.asynch_error_event_data.reason;
		break;
	case DAT_ASYNC_ERROR_EP_BROKEN:
		out[3] = slot_of(event->event_data.asynch_error_event_data.dat_handle, p->ep);
		out[5] = (int64_t)event->event_data.asynch_error_event_data.reason;
		break;
	case DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR:
		out[3] = slot_of(event->event_data.asynch_error_event_data.dat_handle, p->srq);
		out[5] = (int64_t)event->event_data.asynch_error_event_data.reason;
		break;
	default:
		out[3] = slot_of(event->event_data.connect_event_data.ep_handle, p->ep);
	}
}

static DAT_RETURN query_evd(DAT_EVD_HANDLE evd, int64_t *out)
{
	DAT_EVD_PARAM param;
	DAT_RETURN ret = dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param);

	if (ret == DAT_SUCCESS) {
		out[1] = (int64_t)param.evd_qlen;
		out[2] = (int64_t)param.evd_state;
		out[3] = (int64_t)param.evd_flags;
	}
	return ret;
}

static DAT_RETURN query_srq(DAT_SRQ_HANDLE srq, int64_t *out)
{
	DAT_SRQ_PARAM param;
	DAT_RETURN ret = dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param);

	if (ret == DAT_SUCCESS) {
		out[1] = (int64_t)param.available_dto_count;
		out[2] = (int64_t)param.outstanding_dto_count;
		out[3] = (int64_t)param.max_recv_dtos;
	}
	return ret;
}

/* in: slot, EVDs of receives, requests and connections, SRQ or -1, size of both queues, flags of
 * receives and of requests. */
static DAT_RETURN create_ep(struct party *p, const int64_t *in)
{
	DAT_EP_ATTR attr;
	DAT_EVD_HANDLE recv = p->evd[in[1]], request = p->evd[in[2]], connect = p->evd[in[3]];

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = 1 << 16;
	attr.max_rdma_size = 1 << 16;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.max_recv_dtos = (DAT_COUNT)in[5];
	attr.max_request_dtos = (DAT_COUNT)in[6];
	attr.recv_completion_flags = (DAT_COMPLETION_FLAGS)in[7];
	attr.request_completion_flags = (DAT_COMPLETION_FLAGS)in[8];
	attr.max_recv_iov = 1;
	attr.max_request_iov = 1;
	attr.max_rdma_read_in = 4;
	attr.max_rdma_read_out = 4;
	attr.max_rdma_read_iov = 1;
	attr.max_rdma_write_iov = 1;
	attr.srq_soft_hw = DAT_HW_DEFAULT;
	if (in[4] >= 0)
		return dat_ep_create_with_srq(p->ia, p->pz, recv, request, connect, p->srq[in[4]],
					      &attr, &p->ep[in[0]]);
	return dat_ep_create(p->ia, p->pz, recv, request, connect, &attr, &p->ep[in[0]]);
}

static DAT_RETURN status_of(DAT_EP_HANDLE ep, int64_t *out)
{
	DAT_EP_STATE state = (DAT_EP_STATE)-1;
	DAT_BOOLEAN recv_idle = 0, request_idle = 0;
	DAT_RETURN ret = dat_ep_get_status(ep, &state, &recv_idle, &request_idle);

	out[1] = (int64_t)state;
	out[2] = recv_idle != DAT_FALSE;
	out[3] = request_idle != DAT_FALSE;
	return ret;
}

/* in: endpoint, offset and length in our memory, cookie, flags; for RDMA the address and the key of
 * the target. */
static DAT_RETURN post(struct party *p, enum call call, const int64_t *in)
{
	DAT_EP_HANDLE ep = p->ep[in[0]];
	DAT_LMR_TRIPLET local = dx_local(p->local, p->memory + in[1], (size_t)in[2]);
	DAT_RMR_TRIPLET remote =
		dx_remote((DAT_RMR_CONTEXT)in[6], (void *)(uintptr_t)in[5], (size_t)in[2]);
	DAT_DTO_COOKIE cookie = { .as_64 = (DAT_UINT64)in[3] };
	DAT_COMPLETION_FLAGS flags = (DAT_COMPLETION_FLAGS)in[4];

	switch (call) {
	case EP_POST_RECV:
		return dat_ep_post_recv(ep, 1, &local, cookie, flags);
	case EP_POST_SEND:
		return dat_ep_post_send(ep, 1, &local, cookie, flags);
	case EP_POST_RDMA_WRITE:
		return dat_ep_post_rdma_write(ep, 1, &local, cookie, &remote, flags);
	default:
		return dat_ep_post_rdma_read(ep, 1, &local, cookie, &remote, flags);
	}
}

static DAT_RETURN post_srq(struct party *p, const int64_t *in)
{
	DAT_LMR_TRIPLET local = dx_local(p->local, p->memory + in[1], (size_t)in[2]);
	DAT_DTO_COOKIE cookie = { .as_64 = (DAT_UINT64)in[3] };

	return dat_srq_post_recv(p->srq[in[0]], 1, &local, cookie);
}

static DAT_RETURN create_srq(struct party *p, const int64_t *in)
{
	DAT_SRQ_ATTR attr = { .max_recv_dtos = (DAT_COUNT)in[1],
			      .max_recv_iov = 1,
			      .low_watermark = DAT_SRQ_LW_DEFAULT };

	return dat_srq_create(p->ia, p->pz, &attr, &p->srq[in[0]]);
}

static DAT_RETURN create_psp(struct party *p, const int64_t *in, int64_t *out)
{
	DAT_CONN_QUAL qualifier = 0;
	DAT_RETURN ret = dat_psp_create_any(p->ia, &qualifier, p->evd[in[1]], DAT_PSP_CONSUMER_FLAG,
					    &p->psp[in[0]]);

	out[1] = (int64_t)qualifier;
	return ret;
}

static DAT_RETURN wait_evd(struct party *p, const int64_t *in, int64_t *out)
{
	DAT_EVENT event = { 0 };
	DAT_COUNT more = -1;
	DAT_RETURN ret =
		dat_evd_wait(p->evd[in[0]], (DAT_TIMEOUT)in[1], (DAT_COUNT)in[2], &event, &more);

	if (ret == DAT_SUCCESS)
		describe(p, &event, in[3], out);
	out[7] = more;
	return ret;
}

static DAT_RETURN dequeue(struct party *p, const int64_t *in, int64_t *out)
{
	DAT_EVENT event = { 0 };
	DAT_RETURN ret = dat_evd_dequeue(p->evd[in[0]], &event);

	if (ret == DAT_SUCCESS)
		describe(p, &event, in[1], out);
	return ret;
}

static DAT_RETURN post_se(struct party *p, const int64_t *in)
{
	DAT_EVENT event = { .event_number = DAT_SOFTWARE_EVENT };

	event.event_data.software_event_data.pointer = (DAT_PVOID)(uintptr_t)in[1];
	return dat_evd_post_se(p->evd[in[0]], &event);
}

static DAT_RETURN make(enum call call, struct party *p, const int64_t *in, int64_t *out)
{
	switch (call) {
	case OPEN:
		return open_party(p, out);
	case CLOSE:
		return close_party(p);
	case EVD_CREATE:
		return dat_evd_create(p->ia, (DAT_COUNT)in[1], DAT_HANDLE_NULL,
				      (DAT_EVD_FLAGS)in[2], &p->evd[in[0]]);
	case EVD_FREE:
		return freed(dat_evd_free(p->evd[in[0]]), &p->evd[in[0]]);
	case EVD_DEQUEUE:
		return dequeue(p, in, out);
	case EVD_WAIT:
		return wait_evd(p, in, out);
	case EVD_POST_SE:
		return post_se(p, in);
	case EVD_QUERY:
		return query_evd(p->evd[in[0]], out);
	case EVD_RESIZE:
		return dat_evd_resize(p->evd[in[0]], (DAT_COUNT)in[1]);
	case EVD_SET_UNWAITABLE:
		return dat_evd_set_unwaitable(p->evd[in[0]]);
	case EVD_CLEAR_UNWAITABLE:
		return dat_evd_clear_unwaitable(p->evd[in[0]]);
	case SRQ_CREATE:
		return create_srq(p, in);
	case SRQ_FREE:
		return freed(dat_srq_free(p->srq[in[0]]), &p->srq[in[0]]);
	case SRQ_POST_RECV:
		return post_srq(p, in);
	case SRQ_QUERY:
		return query_srq(p->srq[in[0]], out);
	case SRQ_SET_LW:
		return dat_srq_set_lw(p->srq[in[0]], (DAT_COUNT)in[1]);
	case PSP_CREATE:
		return create_psp(p, in, out);
	case PSP_FREE:
		return freed(dat_psp_free(p->psp[in[0]]), &p->psp[in[0]]);
	case CR_ACCEPT:
		return dat_cr_accept(p->cr[in[0]], p->ep[in[1]], 0, NULL);
	case CR_REJECT:
		return dx_cr_reject(p->cr[in[0]]);
	case EP_CREATE:
		return create_ep(p, in);
	case EP_FREE:
		return freed(dat_ep_free(p->ep[in[0]]), &p->ep[in[0]]);
	case EP_RESET:
		return dat_ep_reset(p->ep[in[0]]);
	case EP_CONNECT:
		/* Both ends have the same address. */
		return dat_ep_connect(p->ep[in[0]], p->attr.ia_address_ptr, (DAT_CONN_QUAL)in[1],
				      (DAT_TIMEOUT)in[2], sizeof in[3],
				      (DAT_PVOID)(uintptr_t)&in[3], DAT_QOS_BEST_EFFORT,
				      DAT_CONNECT_DEFAULT_FLAG);
	case EP_DISCONNECT:
		return dat_ep_disconnect(p->ep[in[0]], (DAT_CLOSE_FLAGS)in[1]);
	case EP_GET_STATUS:
		return status_of(p->ep[in[0]], out);
	case EP_POST_RECV:
	case EP_POST_SEND:
	case EP_POST_RDMA_WRITE:
	case EP_POST_RDMA_READ:
		return post(p, call, in);
	case MEMORY_WRITE:
		memcpy(p->memory + in[0], &in[2], (size_t)in[1]);
		return DAT_SUCCESS;
	case MEMORY_READ:
		memcpy(&out[1], p->memory + in[0], (size_t)in[1]);
		return DAT_SUCCESS;
	default:
		abort();
	}
}

/* Reads or writes all of it; false at the end of the input. */
static int whole(ssize_t (*step)(int, void *, size_t), int fd, void *at, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = step(fd, (char *)at + done, size - done);

		if (n <= 0)
			return 0;
		done += (size_t)n;
	}
	return 1;
}

static ssize_t write_some(int fd, void *at, size_t size)
{
	return write(fd, at, size);
}

int main(int argc, char **argv)
{
	int64_t request[WORDS], answer[WORDS];

	if (argc != 2)
		return 2;
	ia_name = argv[1];
	while (whole(read, STDIN_FILENO, request, sizeof request)) {
		memset(answer, 0, sizeof answer);
		if (request[0] < 0 || request[0] >= CALLS || request[1] < 0 ||
		    request[1] >= PARTIES)
			return 2;
		answer[0] = (int64_t)make((enum call)request[0], &parties[request[1]], request + 2,
					  answer);
		if (!whole(write_some, STDOUT_FILENO, answer, sizeof answer))
			return 1;
	}
	return 0;
}
