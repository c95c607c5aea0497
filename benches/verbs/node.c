/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For programs that run on the stand-in: the C library's function, for this process. The kernel's
 * connection manager, without which a library may not even load rdma-core, is there. The libraries
 * find it if the program is linked with -rdynamic.
 */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int statx(int dir, const char *path, int flags, unsigned int mask, void *out);
int statx(int dir, const char *path, int flags, unsigned int mask, void *out)
{
	if (path && strcmp(path, "/dev/infiniband/rdma_cm") == 0)
		path = "/dev/null";
	return syscall(SYS_statx, dir, path, flags, mask, out);
}
