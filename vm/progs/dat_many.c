/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_many IA...: opens all the IAs at once, whatever providers they are of, uses each, and closes
 * them in the order of their opening. Says PASSED at the end. */
#include <dat2/udat.h>
#include <stdio.h>
#include <stdlib.h>

/* For provider libraries, so that no header for consumers has it. */
extern DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *ia_handle);

#define MOST 16

struct one {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd, evd;
	DAT_PZ_HANDLE pz;
	DAT_LMR_HANDLE lmr;
};

static const char *name;
static char memory[4096];

static void check(const char *call, DAT_RETURN code)
{
	const char *major = "?", *minor = "?";

	if (code == DAT_SUCCESS)
		return;
	(void)dat_strerror(code, &major, &minor);
	printf("error: %s: %s: %s %s\n", name, call, major, minor);
	exit(1);
}
#define OK(call) check(#call, call)

static void require(const char *what, int holds)
{
	if (!holds) {
		printf("error: %s: not %s\n", name, what);
		exit(1);
	}
}
#define REQUIRE(condition) require(#condition, condition)

static void open_one(struct one *one)
{
	DAT_PROVIDER_ATTR provider;
	DAT_IA_ATTR attr;
	DAT_IA_HANDLE real = DAT_HANDLE_NULL;

	one->async_evd = DAT_HANDLE_NULL;
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)name, 8, &one->async_evd, &one->ia));
	OK(dat_ia_query(one->ia, NULL, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider));
	printf("%s: adapter %s, provider %s\n", name, attr.adapter_name, provider.provider_name);
	/* What a provider library asks of the registry. */
	OK(dats_get_ia_handle(one->ia, &real));
	REQUIRE(real != DAT_HANDLE_NULL);
}

static void use(struct one *one)
{
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_CONTEXT context;
	DAT_VLEN size;
	DAT_VADDR address;
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_pz_create(one->ia, &one->pz));
	OK(dat_evd_create(one->ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &one->evd));
	OK(dat_lmr_create(one->ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, one->pz,
			  DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_VA_TYPE_VA, &one->lmr, &context, NULL,
			  &size, &address));
	event.event_number = DAT_SOFTWARE_EVENT;
	event.evd_handle = one->evd;
	event.event_data.software_event_data.pointer = one;
	OK(dat_evd_post_se(one->evd, &event));
	OK(dat_evd_wait(one->evd, 1000000, 1, &event, &more));
	REQUIRE(event.event_data.software_event_data.pointer == one);
}

static void close_one(struct one *one)
{
	OK(dat_lmr_free(one->lmr));
	OK(dat_evd_free(one->evd));
	OK(dat_pz_free(one->pz));
	OK(dat_ia_close(one->ia, DAT_CLOSE_GRACEFUL_FLAG));
}

int main(int argc, char **argv)
{
	static struct one all[MOST];
	void (*const steps[])(struct one *) = { open_one, use, close_one };

	if (argc < 2 || argc > MOST + 1)
		return 2;
	for (unsigned step = 0; step < 3; step++)
		for (int i = 1; i < argc; i++) {
			name = argv[i];
			steps[step](&all[i - 1]);
		}
	printf("PASSED\n");
	return 0;
}
