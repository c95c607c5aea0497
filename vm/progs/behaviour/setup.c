/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the scenarios begin with: an IA, two sides, a connection; and one transfer of one segment. */
#include "behaviour.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DAT_NAME_PTR ia_name;
DAT_IA_HANDLE ia;
DAT_EVD_HANDLE async = DAT_HANDLE_NULL, requests;
DAT_PZ_HANDLE pz;
DAT_PSP_HANDLE psp;
DAT_CONN_QUAL qualifier;
DAT_CR_HANDLE cr;
struct side a, b;
static struct sockaddr_storage address;

DAT_EVD_HANDLE make_evd(const char *name, DAT_COUNT length, DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	NEED(dat_evd_create(ia, length, DAT_HANDLE_NULL, flags, &evd));
	name_handle(name, evd);
	return evd;
}

void open_all(void)
{
	DAT_IA_ATTR attr;

	NEED(dat_ia_open(ia_name, 8, &async, &ia));
	name_handle("ia", ia);
	name_handle("async", async);
	NEED(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL));
	memcpy(&address, attr.ia_address_ptr, sizeof(struct sockaddr_in));
	NEED(dat_pz_create(ia, &pz));
	name_handle("pz", pz);
	requests = make_evd("requests", 8, DAT_EVD_CR_FLAG);
}

struct sockaddr *own_address(void)
{
	return (struct sockaddr *)&address;
}

DAT_EP_ATTR usual_attributes(void)
{
	DAT_EP_ATTR attr;

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = attr.max_rdma_size = SIDE_BYTES;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.recv_completion_flags = attr.request_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
	attr.max_recv_dtos = attr.max_request_dtos = 8;
	attr.max_recv_iov = attr.max_request_iov = attr.max_rdma_write_iov = 2;
	attr.max_rdma_read_iov = 1;
	attr.max_rdma_read_in = attr.max_rdma_read_out = 2;
	return attr;
}

DAT_SRQ_ATTR usual_srq_attributes(void)
{
	return (DAT_SRQ_ATTR){ .max_recv_dtos = 8,
			       .max_recv_iov = 1,
			       .low_watermark = DAT_SRQ_LW_DEFAULT };
}

static void name_of_side(const char *side, const char *what, DAT_HANDLE handle)
{
	char name[24];

	snprintf(name, sizeof name, "%s.%s", side, what);
	name_handle(name, handle);
}

void register_memory(struct side *side, DAT_VLEN length, DAT_MEM_PRIV_FLAGS privileges)
{
	DAT_REGION_DESCRIPTION region = { .for_va = side->memory };

	NEED(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, privileges,
			    DAT_VA_TYPE_VA, &side->lmr, &side->local, &side->remote, NULL, NULL));
}

void make_side(struct side *side, const char *name, const DAT_EP_ATTR *attr)
{
	DAT_EP_ATTR usual = usual_attributes();

	NEED(dat_evd_create(ia, 32, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &side->recv));
	NEED(dat_evd_create(ia, 32, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG,
			    &side->request));
	NEED(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &side->connect));
	NEED(dat_ep_create(ia, pz, side->recv, side->request, side->connect, attr ? attr : &usual,
			   &side->ep));
	name_of_side(name, "recv", side->recv);
	name_of_side(name, "request", side->request);
	name_of_side(name, "connect", side->connect);
	name_of_side(name, "ep", side->ep);
	side->memory = aligned_alloc(4096, SIDE_BYTES);
	if (!side->memory)
		fail("no memory");
	memset(side->memory, 0, SIDE_BYTES);
	register_memory(side, SIDE_BYTES, DAT_MEM_PRIV_ALL_FLAG);
	name_of_side(name, "lmr", side->lmr);
}

void open_sides(const DAT_EP_ATTR *attr)
{
	open_all();
	make_side(&a, "a", attr);
	make_side(&b, "b", attr);
}

void listen_on_any(void)
{
	for (qualifier = 20000; qualifier < 20100; qualifier++) {
		DAT_RETURN code =
			dat_psp_create(ia, qualifier, requests, DAT_PSP_CONSUMER_FLAG, &psp);

		if (code == DAT_SUCCESS) {
			name_handle("psp", psp);
			return;
		}
	}
	fail("no qualifier is free");
}

void open_listener(const DAT_EP_ATTR *attr)
{
	open_sides(attr);
	listen_on_any();
}

DAT_RETURN connect_to(DAT_EP_HANDLE ep, DAT_CONN_QUAL to, DAT_TIMEOUT timeout, DAT_COUNT size,
		      const void *private_data)
{
	return dat_ep_connect(ep, own_address(), to, timeout, size,
			      (DAT_PVOID)(uintptr_t)private_data, DAT_QOS_BEST_EFFORT,
			      DAT_CONNECT_DEFAULT_FLAG);
}

void await_request(void)
{
	DAT_EVENT event;

	if (!take_event(requests, SOON, &event))
		fail("no connection request");
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	name_handle("cr", cr);
}

void await_connection_event(const struct side *side, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;

	if (!take_event(side->connect, SOON, &event))
		fail("no connection event");
	if (event.event_number != number)
		fail("%s instead of %s", event_name(event.event_number), event_name(number));
}

void connect_sides(void)
{
	NEED(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	NEED(dat_cr_accept(cr, b.ep, 0, NULL));
	await_connection_event(&a, DAT_CONNECTION_EVENT_ESTABLISHED);
	await_connection_event(&b, DAT_CONNECTION_EVENT_ESTABLISHED);
}

void open_connection(const DAT_EP_ATTR *attr)
{
	open_listener(attr);
	connect_sides();
}

/* --- transfers ---------------------------------------------------------------------------- */

DAT_LMR_TRIPLET local_part(const struct side *side, size_t offset, size_t length)
{
	DAT_LMR_TRIPLET part;

	memset(&part, 0, sizeof part);
	part.lmr_context = side->local;
	part.virtual_address = (uintptr_t)side->memory + offset;
	part.segment_length = (DAT_SEG_LENGTH)length;
	return part;
}

DAT_RMR_TRIPLET remote_part(const struct side *side, size_t offset, size_t length)
{
	DAT_RMR_TRIPLET part;

	memset(&part, 0, sizeof part);
	part.rmr_context = side->remote;
	part.virtual_address = (uintptr_t)side->memory + offset;
	part.segment_length = (DAT_SEG_LENGTH)length;
	return part;
}

DAT_DTO_COOKIE cookie(uint64_t number)
{
	DAT_DTO_COOKIE cookie = { .as_64 = number };

	return cookie;
}

DAT_RETURN post_recv(struct side *side, size_t offset, size_t length, uint64_t number)
{
	DAT_LMR_TRIPLET part = local_part(side, offset, length);

	return dat_ep_post_recv(side->ep, 1, &part, cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN post_send(struct side *side, size_t length, uint64_t number, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET part = local_part(side, 0, length);

	return dat_ep_post_send(side->ep, 1, &part, cookie(number), flags);
}

DAT_RETURN post_write(struct side *from, const struct side *to, size_t length, uint64_t number,
		      DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET part = local_part(from, 0, length);
	DAT_RMR_TRIPLET target = remote_part(to, 0, length);

	return dat_ep_post_rdma_write(from->ep, 1, &part, cookie(number), &target, flags);
}

DAT_RETURN post_read(struct side *to, const struct side *from, size_t length, uint64_t number,
		     DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET part = local_part(to, 0, length);
	DAT_RMR_TRIPLET source = remote_part(from, 0, length);

	return dat_ep_post_rdma_read(to->ep, 1, &part, cookie(number), &source, flags);
}
