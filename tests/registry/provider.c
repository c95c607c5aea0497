/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The smallest provider library: it registers a table, opens and closes, and tells the host
 * what it was asked. Its imports come from the global scope, as those of real ones do. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct info {
	char name[256];
	uint32_t major, minor, thread_safe;
};

struct table {
	const char *device_name;
	void *extension;
	uint32_t (*open)(const char *name, int qlen, void **evd, void **ia);
	uint32_t (*query)(void *ia, void **evd, uint64_t mask, void *attr, uint64_t provider_mask,
			  void *provider_attr);
	uint32_t (*close)(void *ia, uint32_t flags);
	void *others[76];
};

uint32_t dat_registry_add_provider(const struct table *, const struct info *);
uint32_t dat_registry_remove_provider(const struct table *, const struct info *);
void host_note(const char *what, const char *name, const char *more);

/* An IA object: its first word is the table, as DAT demands. */
static struct table table;
static struct {
	struct table *table;
} ia = { &table };

static uint32_t ia_open(const char *name, int qlen, void **evd, void **handle)
{
	(void)qlen;
	(void)evd;
	host_note("open", name, "-");
	*handle = &ia;
	return 0;
}

static uint32_t ia_query(void *handle, void **evd, uint64_t mask, void *attr,
			 uint64_t provider_mask, void *provider_attr)
{
	(void)evd;
	(void)mask;
	(void)attr;
	(void)provider_mask;
	(void)provider_attr;
	return handle == &ia ? 0 : 0x80050000u;
}

static uint32_t ia_close(void *handle, uint32_t flags)
{
	host_note("close", handle == &ia ? "ia" : "?", flags ? "graceful" : "abrupt");
	return 0;
}

static struct table table = {
	.device_name = "test",
	.open = ia_open,
	.query = ia_query,
	.close = ia_close,
};

/* What the thread of a provider with the parameter "late" does: it says that it ends as soon as
 * it is told to, and returns a while later. */
static enum { NO_THREAD, RUNS, IS_TO_END, SAYS_IT_ENDS } _Atomic state;

static void *late(void *unused)
{
	while (state != IS_TO_END)
		usleep(100);
	state = SAYS_IT_ENDS;
	usleep(30000);
	host_note("thread", "-", "-");
	return unused;
}

void dat_provider_init(const struct info *info, const char *instance_data)
{
	pthread_t thread;

	host_note("init", info->name, instance_data);
	if (!strcmp(instance_data, "fail"))
		return;
	dat_registry_add_provider(&table, info);
	if (!strcmp(instance_data, "late") && !pthread_create(&thread, NULL, late, NULL)) {
		pthread_detach(thread);
		state = RUNS;
	}
}

void dat_provider_fini(const struct info *info)
{
	host_note("fini", info->name, "-");
	dat_registry_remove_provider(&table, info);
	if (state == RUNS) {
		state = IS_TO_END;
		while (state != SAYS_IT_ENDS)
			usleep(100);
	}
}

/* The function for extension calls that need no open IA. */
uint32_t dapl_extensions(const char *name, uint32_t operation, void *arguments)
{
	(void)operation;
	(void)arguments;
	host_note("extensions", name, "-");
	return 0;
}

__attribute__((destructor)) static void unloaded(void)
{
	host_note("unload", "-", "-");
}
