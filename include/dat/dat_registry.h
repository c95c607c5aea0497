/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What a provider library needs beyond <dat/udat.h>.
 */

#ifndef DAT_DAT_REGISTRY_H
#define DAT_DAT_REGISTRY_H

#include <dat/udat.h>
#include <dat/udat_redirection.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Entry points of a provider library: called after it was loaded and before it is unloaded. */
typedef void (*DAT_PROVIDER_INIT_FUNC)(
    IN const DAT_PROVIDER_INFO *provider_info, IN const char *instance_data);

typedef void (*DAT_PROVIDER_FINI_FUNC)(IN const DAT_PROVIDER_INFO *provider_info);

#define DAT_PROVIDER_INIT_FUNC_NAME dat_provider_init
#define DAT_PROVIDER_FINI_FUNC_NAME dat_provider_fini
#define DAT_PROVIDER_INIT_FUNC_STR "dat_provider_init"
#define DAT_PROVIDER_FINI_FUNC_STR "dat_provider_fini"

/* Adds a provider to the registry; its library calls this. */
extern DAT_RETURN dat_registry_add_provider(
    IN const DAT_PROVIDER *provider, IN const DAT_PROVIDER_INFO *provider_info);

/* Takes a provider out of the registry; its library calls this. */
extern DAT_RETURN dat_registry_remove_provider(
    IN const DAT_PROVIDER *provider, IN const DAT_PROVIDER_INFO *provider_info);

#ifdef __cplusplus
}
#endif

#endif
