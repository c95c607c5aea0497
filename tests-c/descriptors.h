/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that closes descriptors which are not its own. */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Closes the descriptors of this kind, which is what /proc says of them, and gives their number. */
static int close_kind(const char *kind)
{
	int count = 0;

	for (int fd = 3; fd < 1024; fd++) {
		char path[64], is[64] = "";

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, is, sizeof is - 1) < 0 || strcmp(is, kind) != 0)
			continue;
		close(fd);
		count++;
	}
	return count;
}

#endif
