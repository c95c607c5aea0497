/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a program of a user is: it is compiled with the installed headers, -DDAT2 for those of DAT 2.0,
 * and nothing else of this project. Opens the interface adapter that its argument names, "soft"
 * without one, and ends with status 0 if the library has the version of the headers.
 */
#ifdef DAT2
#include <dat2/udat.h>
#else
#include <dat/udat.h>
#endif
#include <stdio.h>

int main(int argc, char **argv)
{
	static char soft[] = "soft";
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;
	DAT_PROVIDER_ATTR attr;

	if (dat_ia_open(argc > 1 ? argv[1] : soft, 8, &evd, &ia) != DAT_SUCCESS)
		return 1;
	if (dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr) != DAT_SUCCESS)
		return 2;
	if (dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) != DAT_SUCCESS)
		return 3;
	printf("DAT %d.%d\n", (int)attr.dapl_version_major, (int)attr.dapl_version_minor);
	return attr.dapl_version_major == DAT_VERSION_MAJOR ? 0 : 4;
}
