/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A provider library whose init function leaves a file of the name that its instance data is,
 * so that it shows whose code has run. It registers nothing. */
#include <fcntl.h>
#include <unistd.h>

void dat_provider_init(const void *info, const char *instance_data)
{
	int file = open(instance_data, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

	(void)info;
	if (file >= 0)
		close(file);
}

void dat_provider_fini(const void *info)
{
	(void)info;
}
