/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What another process of the same user can read of this one while it runs: DAT_COUNTERS, dat-top. Here it is
 * read from the socket of the library. */
#include "transfer.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef DAT2
#include <dat2/dat_ib_extensions.h>
#endif

/* Readers that the library serves at a time. */
enum { READERS = 4 };

/* --- reading ------------------------------------------------------------------------------ */

/* The address of the socket of a process, and its inode; the length is 0 if there is none. */
static socklen_t address_of(pid_t pid, struct sockaddr_un *address, unsigned long *inode)
{
	char line[512], begin[64];
	socklen_t length = 0;
	FILE *all;

	snprintf(begin, sizeof begin, "@libdat-figures/%d/", (int)pid);
	REQUIRE((all = fopen("/proc/net/unix", "r")) != NULL);
	while (!length && fgets(line, sizeof line, all)) {
		char *name = strstr(line, begin);
		unsigned long flags;

		if (!name || sscanf(line, "%*s %*s %*s %lx %*s %*s %lu", &flags, inode) != 2 ||
		    !(flags & 0x10000))
			continue;
		name[strcspn(name, "\n")] = 0;
		memset(address, 0, sizeof *address);
		address->sun_family = AF_UNIX;
		snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s", name + 1);
		length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	}
	fclose(all);
	return length;
}

static bool is_offered(pid_t pid)
{
	struct sockaddr_un address;
	unsigned long inode;

	return address_of(pid, &address, &inode) != 0;
}

/* Connects to the library; -1 if it offers nothing. */
static int reader(pid_t pid)
{
	struct sockaddr_un address;
	unsigned long inode;
	socklen_t length = address_of(pid, &address, &inode);
	int fd;

	if (!length)
		return -1;
	REQUIRE((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
	REQUIRE(connect(fd, (struct sockaddr *)&address, length) == 0);
	return fd;
}

/* All that comes, as a string. */
static char *read_all(int fd)
{
	size_t size = 1 << 16, length = 0;
	char *text = malloc(size);
	ssize_t got;

	REQUIRE(text != NULL);
	while ((got = read(fd, text + length, size - 1 - length)) > 0) {
		length += (size_t)got;
		if (length + 1 == size)
			REQUIRE((text = realloc(text, size *= 2)) != NULL);
	}
	text[length] = 0;
	close(fd);
	return text;
}

static char *figures(void)
{
	int fd = reader(getpid());

	REQUIRE(fd >= 0);
	return read_all(fd);
}

/* A copy of the part of the figures that is about an object. */
static char *of(const char *text, DAT_HANDLE handle)
{
	char key[64], *copy, *next;
	const char *at;

	snprintf(key, sizeof key, "\"handle\":\"%#lx\"", (unsigned long)(uintptr_t)handle);
	at = strstr(text, key);
	REQUIRE(at != NULL);
	REQUIRE((copy = strdup(at)) != NULL);
	next = strstr(copy + 1, "\"handle\":");
	if (next)
		*next = 0;
	return copy;
}

/* What follows a key. */
static const char *value(const char *object, const char *key)
{
	char quoted[64];
	const char *at;

	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	at = strstr(object, quoted);
	REQUIRE(at != NULL);
	return at + strlen(quoted);
}

static unsigned long long number(const char *object, const char *key)
{
	return strtoull(value(object, key), NULL, 10);
}

static bool begins(const char *object, const char *key, const char *with)
{
	const char *at = value(object, key);

	if (!strncmp(at, with, strlen(with)))
		return true;
	fprintf(stderr, "%s is %.40s\n", key, at);
	return false;
}

/* Whether this process has a thread that serves readers. */
static bool has_thread(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	bool found = false;

	REQUIRE(tasks != NULL);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *file;

		snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
		if ((file = fopen(path, "r"))) {
			if (fgets(name, sizeof name, file) && !strcmp(name, "dat-figures\n"))
				found = true;
			fclose(file);
		}
	}
	closedir(tasks);
	return found;
}

static void ask_for(const char *what)
{
	REQUIRE(setenv("DAT_COUNTERS", what, 1) == 0);
}

/* --- tests -------------------------------------------------------------------------------- */

static void figures__off(void)
{
	const char *values[] = { NULL, "", "off", "wrong" };
	struct rig rig;

	for (int i = 0; i < 4; i++) {
		if (values[i])
			ask_for(values[i]);
		else
			unsetenv("DAT_COUNTERS");
		rig_up(&rig);
		CHECK(!is_offered(getpid()));
		CHECK(!has_thread());
		rig_down(&rig);
	}
}

static void figures__until_closed(void)
{
	struct rig rig, other;
	int first, last;

	ask_for("states");
	REQUIRE((first = dup(0)) >= 0);
	close(first);
	rig_up(&rig);
	CHECK(is_offered(getpid()));
	/* A thread that answers has its name. */
	free(figures());
	CHECK(has_thread());
	rig_up(&other);
	rig_down(&rig);
	CHECK(is_offered(getpid()));
	rig_down(&other);
	CHECK(!is_offered(getpid()));
	/* A thread that was joined may take a moment to go. */
	for (unsigned long long end = now_us() + SOON; has_thread() && now_us() < end;)
		pause_us(1000);
	CHECK(!has_thread());
	REQUIRE((last = dup(0)) >= 0);
	close(last);
	CHECK_EQ(last, first);
	/* And once more. */
	rig_up(&rig);
	CHECK(is_offered(getpid()));
	rig_down(&rig);
	CHECK(!is_offered(getpid()));
}

static const char *path(void)
{
	if (strstr(tap_ia, "tcp"))
		return "\"TCP\"";
	return strstr(tap_ia, "sh") ? "\"shared memory\"" : "\"loopback\"";
}

static void figures__of_states(void)
{
	char *text, *object;
	DAT_EP_HANDLE idle;

	ask_for("states");
	up();
	idle = make_ep(&p.a, NULL);
	OK(b_receives(0, 100, 1));
	OK(b_receives(100, 100, 2));
	OK(b_receives(200, 100, 3));
	OK(a_sends(0, 50, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	await_idle(p.ep_a);
	text = figures();
	/* Of the three there may be one that waits to be polled for. */
	object = of(text, p.ep_b);
	CHECK(begins(object, "state", "\"CONNECTED\""));
	CHECK(begins(object, "path", path()));
	CHECK(begins(object, "peer", "\"127.0.0.1:"));
	CHECK(begins(object, "counters", "null"));
	CHECK(begins(object, "flushed", "null"));
	CHECK_EQ(number(object, "requests"), 0);
	CHECK_EQ(number(object, "max_receives"), 16);
	CHECK(number(object, "receives") - 2 <= 1);
	free(object);
	object = of(text, p.ep_a);
	CHECK(begins(object, "path", path()));
	CHECK_EQ(number(object, "requests"), 0);
	CHECK_EQ(number(object, "receives"), 0);
	free(object);
	object = of(text, idle);
	CHECK(begins(object, "state", "\"UNCONNECTED\""));
	CHECK(begins(object, "path", "null"));
	CHECK(begins(object, "peer", "null"));
	free(object);
	free(text);
	/* The completion is taken: no event is left, and one receive less is posted. */
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	text = figures();
	object = of(text, p.ep_b);
	CHECK_EQ(number(object, "receives"), 2);
	free(object);
	object = of(text, p.b.recv_evd);
	CHECK(begins(object, "kinds", "\"DTO"));
	CHECK(begins(object, "waiting", "false"));
	CHECK_EQ(number(object, "events"), 0);
	free(object);
	free(text);
	/* Requests whose completions nobody takes are events. */
	OK(a_writes(0, 0, 100, 5, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_reads(0, 0, 100, 6, DAT_COMPLETION_DEFAULT_FLAG));
	await_idle(p.ep_a);
	text = figures();
	object = of(text, p.a.request_evd);
	CHECK_EQ(number(object, "events"), 2);
	CHECK(number(object, "length") >= 2);
	free(object);
	free(text);
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	text = figures();
	object = of(text, p.ep_b);
	CHECK(begins(object, "state", "\"DISCONNECTED\""));
	CHECK_EQ(number(object, "receives"), 0);
	free(object);
	free(text);
	down();
}

static void figures__of_counters(void)
{
#ifdef DAT2
	DAT_UINT64 counters[DCNT_EP_ALL_COUNTERS];
#endif
	char *text, *object;
	DAT_EVENT event;

	ask_for("on");
	up();
	for (DAT_UINT64 i = 0; i < 3; i++) {
		OK(b_receives(1000 * i, 1000, i));
		OK(a_sends(0, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	OK(a_writes(0, 0, 5000, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	OK(a_reads(0, 0, 7000, 5, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_SUCCESS);
	CHECK_RET(dat_evd_dequeue(p.a.request_evd, &event), DAT_QUEUE_EMPTY);
	text = figures();
	object = of(text, p.ep_a);
	CHECK_EQ(number(object, "DCNT_EP_POST_SEND"), 3);
	CHECK_EQ(number(object, "DCNT_EP_POST_SEND_DATA"), 300);
	CHECK_EQ(number(object, "DCNT_EP_POST_WRITE"), 1);
	CHECK_EQ(number(object, "DCNT_EP_POST_WRITE_DATA"), 5000);
	CHECK_EQ(number(object, "DCNT_EP_POST_READ"), 1);
	CHECK_EQ(number(object, "DCNT_EP_POST_READ_DATA"), 7000);
	CHECK_EQ(number(object, "DCNT_EP_RECV"), 0);
	CHECK_EQ(number(object, "flushed"), 0);
	free(object);
	object = of(text, p.ep_b);
	CHECK_EQ(number(object, "DCNT_EP_RECV"), 3);
	CHECK_EQ(number(object, "DCNT_EP_RECV_DATA"), 300);
	CHECK_EQ(number(object, "DCNT_EP_POST_RECV"), 3);
	free(object);
	object = of(text, p.a.request_evd);
	CHECK(number(object, "DCNT_EVD_DEQUEUE_NOT_FOUND") >= 1);
	free(object);
	object = of(text, p.a.ia);
	CHECK_EQ(number(object, "DCNT_IA_CM_REQ_TX"), 1);
	free(object);
	free(text);
#ifdef DAT2
	/* What the program sets to 0 is 0 for all. */
	OK(dat_ib_query_counters(p.ep_a, DCNT_EP_ALL_COUNTERS, counters, 1));
	OK(a_writes(0, 0, 10, 6, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 6, DAT_DTO_SUCCESS);
	text = figures();
	object = of(text, p.ep_a);
	CHECK_EQ(number(object, "DCNT_EP_POST_SEND"), 0);
	CHECK_EQ(number(object, "DCNT_EP_POST_WRITE"), 1);
	CHECK_EQ(number(object, "DCNT_EP_POST_WRITE_DATA"), 10);
	free(object);
	free(text);
#endif
	/* Flushes are none of the receives that have succeeded; they count when they are taken. */
	OK(b_receives(0, 10, 7));
	OK(b_receives(0, 10, 8));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(p.b.recv_evd, 7, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.b.recv_evd, 8, DAT_DTO_ERR_FLUSHED);
	text = figures();
	object = of(text, p.ep_b);
	CHECK_EQ(number(object, "flushed"), 2);
	CHECK_EQ(number(object, "failed"), 0);
	CHECK_EQ(number(object, "DCNT_EP_RECV"), 3);
	free(object);
	free(text);
	down();
}

/* Readers that read nothing cost the program nothing, and it goes on. */
static void figures__of_many_endpoints(void)
{
	enum { COUNT = 1000 };
	int stalled[READERS], many = 0;
	DAT_EP_ATTR attr;
	char *text;

	ask_for("on");
	up();
	attr = ep_attr(&p.a);
	attr.max_recv_dtos = attr.max_request_dtos = 1;
	while (many < COUNT && many + 2 < p.a.attr.max_eps) {
		make_ep(&p.a, &attr);
		many++;
	}
	text = figures();
	for (const char *at = text; (at = strstr(at, "\"UNCONNECTED\"")); at++)
		many--;
	CHECK_EQ(many, 0);
	CHECK(text[strlen(text) - 1] == '\n');
	free(text);
	for (int i = 0; i < READERS; i++)
		REQUIRE((stalled[i] = reader(getpid())) >= 0);
	for (DAT_UINT64 i = 0; i < 100; i++) {
		OK(b_receives(0, 1000, i));
		OK(a_sends(0, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	/* The end does not wait for them. */
	down();
	CHECK(!is_offered(getpid()));
	for (int i = 0; i < READERS; i++)
		close(stalled[i]);
}

/* Any other user can connect, and gets nothing. */
static void figures__of_another_user(void)
{
	pid_t parent = getpid(), child;
	struct rig rig;
	char *text;
	int status;

	if (geteuid() != 0)
		tap_skip("only root can be another user");
	ask_for("states");
	rig_up(&rig);
	fflush(stdout);
	REQUIRE((child = fork()) >= 0);
	if (child == 0) {
		int fd = reader(parent);

		_exit(fd < 0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	REQUIRE((child = fork()) >= 0);
	if (child == 0) {
		int fd;

		alarm(20);
		if (setgid(65534) || setuid(65534))
			_exit(2);
		fd = reader(parent);
		text = fd < 0 ? NULL : read_all(fd);
		_exit(text == NULL ? 3 : *text ? 4 : 0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	text = figures();
	CHECK(*text == '{');
	free(text);
	rig_down(&rig);
}

/* Whether this process has a descriptor of the socket. */
static bool has_socket(unsigned long inode)
{
	char want[64], path[300], found[64];
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *fd;
	bool has = false;

	snprintf(want, sizeof want, "socket:[%lu]", inode);
	while ((fd = readdir(fds))) {
		ssize_t length;

		snprintf(path, sizeof path, "/proc/self/fd/%s", fd->d_name);
		length = readlink(path, found, sizeof found - 1);
		if (length > 0) {
			found[length] = 0;
			has |= !strcmp(found, want);
		}
	}
	closedir(fds);
	return has;
}

/* A child has nothing of the socket of its parent, and offers its own figures. */
static void figures__of_a_child(void)
{
	struct sockaddr_un address;
	int go[2], closed[2], status;
	unsigned long inode;
	struct rig rig;
	pid_t child;
	char byte = 0;

	ask_for("states");
	rig_up(&rig);
	REQUIRE(address_of(getpid(), &address, &inode) != 0);
	CHECK(has_socket(inode));
	REQUIRE(pipe(go) == 0 && pipe(closed) == 0);
	fflush(stdout);
	REQUIRE((child = fork()) >= 0);
	if (child == 0) {
		alarm(20);
		close(go[1]);
		tap_begin(tap_ia);
		CHECK(!has_socket(inode));
		CHECK(write(closed[1], &byte, 1) == 1);
		CHECK(!is_offered(getpid()));
		rig_up(&rig);
		CHECK(is_offered(getpid()));
		free(figures());
		rig_down(&rig);
		CHECK(!is_offered(getpid()));
		/* Until the parent has seen that nothing of its own is left. */
		CHECK(read(go[0], &byte, 1) == 1);
		_exit(tap_status());
	}
	REQUIRE(read(closed[0], &byte, 1) == 1);
	rig_down(&rig);
	CHECK(!is_offered(getpid()));
	REQUIRE(write(go[1], &byte, 1) == 1);
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
}

/* A program that allows itself no more descriptors for a while gives its figures when it does again. */
static void figures__while_no_descriptor_is_allowed(void)
{
	struct sockaddr_un address;
	struct rlimit limit, none;
	struct pollfd readable;
	unsigned long inode;
	socklen_t length;
	struct rig rig;
	char *text;
	int fd;

	ask_for("states");
	rig_up(&rig);
	REQUIRE((length = address_of(getpid(), &address, &inode)) != 0);
	REQUIRE((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
	REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = 0;
	REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
	REQUIRE(connect(fd, (struct sockaddr *)&address, length) == 0);
	/* The library tries to accept meanwhile. */
	pause_us(NEVER);
	REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	readable = (struct pollfd){ .fd = fd, .events = POLLIN };
	REQUIRE(poll(&readable, 1, SOON / 1000) == 1);
	text = read_all(fd);
	CHECK(strstr(text, "\"handle\":") != NULL);
	free(text);
	rig_down(&rig);
	CHECK(!is_offered(getpid()));
}

static const struct tap_test tests[] = {
	T(figures, off),
	T(figures, until_closed),
	T(figures, of_states),
	T(figures, of_counters),
	T(figures, of_many_endpoints),
	T(figures, of_another_user),
	T(figures, of_a_child),
	T(figures, while_no_descriptor_is_allowed),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
