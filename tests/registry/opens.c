/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* opens NAME [listen]: opens an interface adapter, listens on it if it is to, and closes it. Says
 * first whether the kernel has started the program in secure mode (AT_SECURE), and then what each
 * call gave. */
#include <stdio.h>
#include <sys/auxv.h>

#ifdef DAT_2
#include <dat2/udat.h>
#else
#include <dat/udat.h>
#endif

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL, requests;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	DAT_RETURN result;

	if (argc < 2)
		return 2;
	printf("secure %lu\n", getauxval(AT_SECURE));
	result = dat_ia_open(argv[1], 8, &async, &ia);
	printf("open 0x%x\n", (unsigned)result);
	if (result != DAT_SUCCESS)
		return 0;
	if (argc > 2) {
		result = dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests);
		if (result == DAT_SUCCESS)
			result = dat_psp_create_any(ia, &qualifier, requests, DAT_PSP_CONSUMER_FLAG,
						    &psp);
		printf("listen 0x%x\n", (unsigned)result);
	}
	return dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG) == DAT_SUCCESS ? 0 : 1;
}
