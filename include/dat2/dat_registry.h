/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What a provider library needs beyond <dat2/udat.h>.
 */

#ifndef DAT2_DAT_REGISTRY_H
#define DAT2_DAT_REGISTRY_H

#include <dat2/udat.h>
#include <dat2/udat_redirection.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether two IAs back each other up. */
typedef enum dat_ha_relationship {
    DAT_HA_FALSE = 0,
    DAT_HA_TRUE = 1,
    DAT_HA_UNKNOWN = 2,
    DAT_HA_CONFLICTING = 3,
    DAT_HA_EXTENSION_BASE = 4
} DAT_HA_RELATIONSHIP;

/* Entry points of a provider library: called after it was loaded and before it is unloaded. */
typedef void (*DAT_PROVIDER_INIT_FUNC)(
    IN const DAT_PROVIDER_INFO *provider_info, IN const char *instance_data);

typedef void (*DAT_PROVIDER_FINI_FUNC)(IN const DAT_PROVIDER_INFO *provider_info);

#define DAT_PROVIDER_INIT_FUNC_NAME dat_provider_init
#define DAT_PROVIDER_FINI_FUNC_NAME dat_provider_fini
#define DAT_PROVIDER_INIT_FUNC_STR "dat_provider_init"
#define DAT_PROVIDER_FINI_FUNC_STR "dat_provider_fini"

/* Adds a provider to the registry; its library calls this. */
DAT_EXPORT DAT_RETURN dat_registry_add_provider(
    IN const DAT_PROVIDER *provider, IN const DAT_PROVIDER_INFO *provider_info);

/* Tells whether two IAs back each other up. */
DAT_EXPORT DAT_RETURN dat_registry_providers_related(
    IN const DAT_NAME_PTR name1, IN const DAT_NAME_PTR name2, OUT DAT_HA_RELATIONSHIP *answer);

/* Takes a provider out of the registry; its library calls this. */
DAT_EXPORT DAT_RETURN dat_registry_remove_provider(
    IN const DAT_PROVIDER *provider, IN const DAT_PROVIDER_INFO *provider_info);

#ifdef __cplusplus
}
#endif

#endif
