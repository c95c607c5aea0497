// SPDX-License-Identifier: MIT OR Apache-2.0
//
// touch PORT BYTES MESSAGES [ADDRESS]: messages to and fro through UCX, each written before it is sent
// and read after it has arrived, as dat-perf --touch does it: ucx_perftest leaves its buffers alone.
// Without an address it serves one client. The client prints the median and the mean of one way, in
// nanoseconds.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { WARM_UP = 20, TAG = 1 };

static ucp_worker_h worker;
static ucp_ep_h endpoint;

static void fail(const char *what)
{
	fprintf(stderr, "touch: %s\n", what);
	exit(1);
}

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		fail(what);
}

// Both workers' addresses go over a socket.
static int meet(uint16_t port, const char *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	const char *host = address ? address : "127.0.0.1";
	if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
		fail("no such address");
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	if (fd < 0)
		fail("socket");
	if (address) {
		if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
			fail("connect");
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 1) != 0)
		fail("bind");
	int peer = accept(fd, NULL, NULL);
	if (peer < 0)
		fail("accept");
	close(fd);
	return peer;
}

static void put(int fd, const void *bytes, size_t length)
{
	if (write(fd, bytes, length) != (ssize_t)length)
		fail("the peer is gone");
}

static void get(int fd, void *bytes, size_t length)
{
	if (recv(fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
		fail("the peer is gone");
}

static void start(int fd)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
				.features = UCP_FEATURE_TAG };
	ucp_worker_params_t single = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				       .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_context_h context;
	ucp_address_t *mine;
	size_t length, other;
	check(ucp_init(&params, NULL, &context), "ucp_init");
	check(ucp_worker_create(context, &single, &worker), "ucp_worker_create");
	check(ucp_worker_get_address(worker, &mine, &length), "ucp_worker_get_address");
	put(fd, &length, sizeof length);
	put(fd, mine, length);
	get(fd, &other, sizeof other);
	ucp_address_t *theirs = malloc(other);
	if (!theirs)
		fail("no memory");
	get(fd, theirs, other);
	ucp_ep_params_t to = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = theirs };
	check(ucp_ep_create(worker, &to, &endpoint), "ucp_ep_create");
	free(theirs);
	ucp_worker_release_address(worker, mine);
}

static void await(ucs_status_ptr_t request)
{
	if (!request)
		return;
	if (UCS_PTR_IS_ERR(request))
		fail("a transfer has failed");
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	check(ucp_request_check_status(request), "a transfer has failed");
	ucp_request_free(request);
}

static void send_one(char *bytes, size_t length, unsigned number)
{
	ucp_request_param_t none = { 0 };
	memset(bytes, (int)number, length);
	await(ucp_tag_send_nbx(endpoint, bytes, length, TAG, &none));
}

// A receive is posted before the message is on its way, as the buffers of dat-perf are.
static ucs_status_ptr_t post_receive(char *bytes, size_t length)
{
	ucp_request_param_t later = { .op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL };
	return ucp_tag_recv_nbx(worker, bytes, length, TAG, UINT64_MAX, &later);
}

static void take(ucs_status_ptr_t receive, const char *bytes, size_t length)
{
	await(receive);
	uint64_t sum = 0;
	for (size_t i = 0; i + 8 <= length; i += 8) {
		uint64_t word;
		memcpy(&word, bytes + i, sizeof word);
		sum += word;
	}
	__asm__ volatile("" : : "r"(sum), "r"(bytes[0]));
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void ping(char *out, char *in, size_t length, unsigned messages)
{
	double *times = calloc(messages, sizeof *times), sum = 0;
	if (!times)
		fail("no memory");
	for (unsigned number = 0; number < WARM_UP + messages; number++) {
		double begin = now();
		ucs_status_ptr_t receive = post_receive(in, length);
		send_one(out, length, number);
		take(receive, in, length);
		if (number >= WARM_UP)
			sum += times[number - WARM_UP] = (now() - begin) / 2;
	}
	qsort(times, messages, sizeof *times, by_size);
	printf("%.1f %.1f\n", times[messages / 2], sum / messages);
	free(times);
}

// The next receive is posted before the answer is sent: the client sends nothing sooner.
static void serve(char *out, char *in, size_t length, unsigned messages)
{
	unsigned all = WARM_UP + messages;
	ucs_status_ptr_t receive = post_receive(in, length);
	for (unsigned number = 0; number < all; number++) {
		take(receive, in, length);
		if (number + 1 < all)
			receive = post_receive(in, length);
		send_one(out, length, number);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: touch PORT BYTES MESSAGES [ADDRESS]\n");
		return 2;
	}
	size_t length = strtoul(argv[2], NULL, 0);
	unsigned messages = (unsigned)strtoul(argv[3], NULL, 0);
	if (length == 0 || messages == 0)
		fail("nothing to send");
	int fd = meet((uint16_t)strtoul(argv[1], NULL, 0), argv[4]);
	start(fd);
	char *out = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
	char *in = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
	if (!out || !in)
		fail("no memory");
	memset(out, 0, length);
	memset(in, 0, length);
	if (argv[4]) {
		ping(out, in, length, messages);
	} else {
		serve(out, in, length, messages);
	}
	// Neither leaves while the other still needs its worker.
	char end = 0;
	put(fd, &end, 1);
	while (recv(fd, &end, 1, MSG_DONTWAIT) < 0)
		ucp_worker_progress(worker);
	free(out);
	free(in);
	close(fd);
	return 0;
}
