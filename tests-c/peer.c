/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The second process of a test. */
#include "common.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int peer_main(int argc, char **argv, const struct tap_test *tests,
	      void (*be_peer)(const char *role, const char *argument))
{
	if (argc < 4 || strcmp(argv[2], "--peer") != 0)
		return tap_main(argc, argv, tests);
	tap_begin(argv[1]);
	be_peer(argv[3], argc > 4 ? argv[4] : "");
	return tap_status();
}

void await_end_of_input(void)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
}

struct peer start_peer(const char *role, const char *argument)
{
	struct peer peer;
	int in[2], out[2];

	REQUIRE(pipe(in) == 0 && pipe(out) == 0);
	peer.pid = fork();
	REQUIRE(peer.pid >= 0);
	if (peer.pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[0]);
		close(in[1]);
		close(out[0]);
		close(out[1]);
		execl(tap_self, tap_self, tap_peer_ia, "--peer", role, argument, (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	peer.input = in[1];
	peer.output = fdopen(out[0], "r");
	REQUIRE(peer.output != NULL);
	REQUIRE(fgets(peer.line, sizeof peer.line, peer.output) != NULL);
	return peer;
}

DAT_CONN_QUAL peer_qualifier(const struct peer *peer)
{
	return strtoull(peer->line, NULL, 10);
}

void kill_peer(struct peer *peer)
{
	REQUIRE(kill(peer->pid, SIGKILL) == 0);
	REQUIRE(waitpid(peer->pid, NULL, 0) == peer->pid);
	close(peer->input);
	fclose(peer->output);
}

void end_peer(struct peer *peer)
{
	char line[256];
	int status;

	close(peer->input);
	while (fgets(line, sizeof line, peer->output))
		printf("# peer: %s", line);
	REQUIRE(waitpid(peer->pid, &status, 0) == peer->pid);
	CHECK_EQ(status, 0);
	fclose(peer->output);
}

void stop_peer(const struct peer *peer)
{
	int status;

	REQUIRE(kill(peer->pid, SIGSTOP) == 0);
	REQUIRE(waitpid(peer->pid, &status, WUNTRACED) == peer->pid);
	REQUIRE(WIFSTOPPED(status));
}

void continue_peer(const struct peer *peer)
{
	REQUIRE(kill(peer->pid, SIGCONT) == 0);
}
