/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "moved.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of newer kernels than the headers may be of. */
#define NEW_USERFAULTFD _IO(0xAA, 0x00)
/* Write protection (bit 0), also of files in memory (12), and UFFDIO_MOVE (16). */
#define FEATURES (1ull << 0 | 1ull << 12 | 1ull << 16)

bool moves_memory(const char *ia)
{
	return strstr(ia, "shared") != NULL;
}

const char *why_none_moves(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURES };
	struct rlimit limit;
	int fd, error;

	/* The file is as large as the address space. */
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < 1ull << 47)
		return "the size of files is limited, so no memory can move";
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);

		if (device >= 0) {
			fd = ioctl(device, NEW_USERFAULTFD, O_CLOEXEC | O_NONBLOCK);
			close(device);
		}
	}
	if (fd < 0)
		return "userfaultfd is not permitted, so no memory can move";
	error = ioctl(fd, UFFDIO_API, &api);
	close(fd);
	return error ? "the kernel is older than Linux 6.8, so no memory can move" : NULL;
}

bool is_moved(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	bool found = false;

	while (maps && !found && fgets(line, sizeof line, maps)) {
		unsigned long start, end, offset;

		found = sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 &&
			start <= (uintptr_t)at && (uintptr_t)at < end && offset == start &&
			strstr(line, "memfd:libdat-memory");
	}
	if (maps)
		fclose(maps);
	return found;
}
