/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* old_kernel VERSION PROGRAM [ARGUMENT]...: runs a program as on that version of Linux, as far as system calls tell: those
 * that came later are not there, nor are those options of others that the library asks for. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the numbers are those of x86-64"
#endif

/* Of Linux 6.5, 5.1 and 6.3. */
enum { PEER_PIDFD = 77, SEAL_FUTURE_WRITE = 0x10, NOEXEC_SEAL = 8 };

/* The first system call of a later version. */
static const struct {
	const char *name;
	unsigned first;
} versions[] = {
	{ "3.10", 314 }, /* sched_setattr */
	{ "4.4", 326 }, /* copy_file_range */
	{ "4.18", 335 }, /* 334 is rseq, then the numbers go on with 424 */
};

#define ARGUMENT(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[n]))
#define FAIL(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
/* What was loaded is the value, is at least that, or has a bit of that: goes on where `yes` is 0, and skips so many
 * instructions otherwise. */
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IS_FROM(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, yes, no)
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)

static int filter_calls(unsigned first)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		IS_FROM(first, 0, 1),
		FAIL(ENOSYS),
		IS(SYS_getsockopt, 0, 5),
		ARGUMENT(1),
		IS(SOL_SOCKET, 0, 11),
		ARGUMENT(2),
		IS(PEER_PIDFD, 0, 9),
		FAIL(ENOPROTOOPT),
		IS(SYS_fcntl, 0, 4),
		ARGUMENT(1),
		IS(F_ADD_SEALS, 0, 5),
		ARGUMENT(2),
		HAS(SEAL_FUTURE_WRITE, 4, 3),
		IS(SYS_memfd_create, 0, 2),
		ARGUMENT(1),
		HAS(NOEXEC_SEAL, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		FAIL(EINVAL),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 2 && i < sizeof versions / sizeof *versions; i++) {
		if (strcmp(argv[1], versions[i].name) != 0)
			continue;
		if (filter_calls(versions[i].first)) {
			perror("old_kernel: no filter of system calls");
			return 3;
		}
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		return 127;
	}
	fprintf(stderr, "usage: old_kernel 3.10|4.4|4.18 PROGRAM [ARGUMENT]...\n");
	return 2;
}
