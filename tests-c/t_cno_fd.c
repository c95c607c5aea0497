/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_cno_fd_create, dat_cno_trigger: a CNO in poll and epoll. DAT 2.0 only. */
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct rig rig;
static DAT_CNO_HANDLE cno;
static DAT_FD fd;

static void cno_up(void)
{
	rig_up(&rig);
	fd = -1;
	OK(dat_cno_fd_create(rig.ia, &fd, &cno));
	REQUIRE(fd >= 0);
}

static DAT_EVD_HANDLE software_evd(void)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(rig.ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
	return evd;
}

/* Whether the descriptor is readable within so many microseconds. */
static bool readable(unsigned us)
{
	struct pollfd descriptor = { .fd = fd, .events = POLLIN };
	int count = poll(&descriptor, 1, (int)(us / 1000));

	REQUIRE(count >= 0);
	return count == 1 && descriptor.revents == POLLIN;
}

static void cno_fd_create__readable_while_there_is_a_trigger(void)
{
	DAT_EVD_HANDLE one, other, evd;

	cno_up();
	one = software_evd();
	other = software_evd();
	CHECK(!readable(0));
	evd = one;
	CHECK_RET(dat_cno_trigger(cno, &evd), DAT_QUEUE_EMPTY);
	CHECK(evd == DAT_HANDLE_NULL);
	OK(post_software_event(one, 1));
	OK(post_software_event(other, 2));
	OK(post_software_event(one, 3));
	CHECK(readable(0));
	OK(dat_cno_trigger(cno, &evd));
	CHECK(evd == one);
	CHECK(readable(0));
	OK(dat_cno_trigger(cno, &evd));
	CHECK(evd == other);
	CHECK(!readable(0));
	CHECK_RET(dat_cno_trigger(cno, &evd), DAT_QUEUE_EMPTY);
	/* And again. */
	OK(post_software_event(other, 4));
	CHECK(readable(0));
	OK(dat_cno_wait(cno, 0, &evd));
	CHECK(evd == other);
	CHECK(!readable(0));
	rig_down(&rig);
}

static void cno_fd_create__programs_may_read_it(void)
{
	DAT_EVD_HANDLE one, other, evd;
	DAT_UINT64 counter;

	cno_up();
	one = software_evd();
	other = software_evd();
	OK(post_software_event(one, 1));
	REQUIRE(read(fd, &counter, sizeof counter) == sizeof counter);
	CHECK(!readable(0));
	/* What comes later is not lost. */
	OK(post_software_event(other, 2));
	CHECK(readable(0));
	OK(dat_cno_trigger(cno, &evd));
	CHECK(evd == one);
	OK(dat_cno_trigger(cno, &evd));
	CHECK(evd == other);
	CHECK(!readable(0));
	rig_down(&rig);
}

static void cno_fd_create__in_an_event_loop(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int loop = epoll_create1(EPOLL_CLOEXEC);
	DAT_EVD_HANDLE evd;
	DAT_EVENT arrived;

	/* Messages that arrive wake the loop, with edges, too. */
	rig_up(&p.a);
	rig_up(&p.b);
	OK(dat_cno_fd_create(p.b.ia, &fd, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	REQUIRE(loop >= 0 && !epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event));
	for (DAT_UINT64 i = 1; i <= 100; i++) {
		OK(recv_nothing(p.ep_b, i));
		OK(send_nothing(p.ep_a, i, DAT_COMPLETION_DEFAULT_FLAG));
		REQUIRE(epoll_wait(loop, &event, 1, SOON / 1000) == 1);
		OK(dat_cno_trigger(cno, &evd));
		CHECK(evd == p.b.recv_evd);
		OK(dat_evd_dequeue(evd, &arrived));
		CHECK_EQ(arrived.event_data.dto_completion_event_data.user_cookie.as_64, i);
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	}
	close(loop);
	down();
}

static void cno_fd_create__query(void)
{
	DAT_CNO_PARAM param;

	cno_up();
	OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
	CHECK(param.ia_handle == rig.ia);
	CHECK_EQ(param.proxy_type, DAT_PROXY_TYPE_FD);
	CHECK_EQ(param.proxy.fd, fd);
	rig_down(&rig);
}

static void cno_fd_create__closed_with_the_cno(void)
{
	cno_up();
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	OK(dat_cno_free(cno));
	CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	OK(dat_cno_fd_create(rig.ia, &fd, &cno));
	software_evd();
	rig_down(&rig);
	CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
}

/* A thread that sleeps on it hears of the end. It has the file open as long as it sleeps, as by a copy. */
static void cno_fd_create__readable_at_the_end(void)
{
	cno_up();
	software_evd();
	fd = dup(fd);
	REQUIRE(fd >= 0);
	CHECK(!readable(0));
	rig_down(&rig);
	CHECK(readable(0));
	close(fd);
}

static void cno_fd_create__arguments(void)
{
	DAT_EVD_HANDLE evd;

	cno_up();
	CHECK_CODE(dat_cno_fd_create(rig.ia, NULL, &cno), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_cno_fd_create(rig.ia, &fd, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_RET(dat_cno_fd_create(DAT_HANDLE_NULL, &fd, &cno), DAT_INVALID_HANDLE);
	CHECK_CODE(dat_cno_trigger(cno, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_RET(dat_cno_trigger(rig.pz, &evd), DAT_INVALID_HANDLE);
	OK(dat_cno_free(cno));
	CHECK_RET(dat_cno_trigger(cno, &evd), DAT_INVALID_HANDLE);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(cno_fd_create, readable_while_there_is_a_trigger),
	T(cno_fd_create, programs_may_read_it),
	T(cno_fd_create, in_an_event_loop),
	T(cno_fd_create, query),
	T(cno_fd_create, closed_with_the_cno),
	T(cno_fd_create, readable_at_the_end),
	T(cno_fd_create, arguments),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
