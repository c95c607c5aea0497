/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "extended.h"

#ifdef DAT2
#include <string.h>

bool has(const char *name)
{
	for (DAT_COUNT i = 0; i < p.a.provider.num_provider_specific_attr; i++)
		if (!strcmp(p.a.provider.provider_specific_attr[i].name, name))
			return !strcmp(p.a.provider.provider_specific_attr[i].value, "TRUE");
	return false;
}

void up_for(const char *name, const DAT_EP_ATTR *attr)
{
	up_with(attr);
	if (!has(name))
		tap_unsupported(name);
}

DAT_EVENT expect_extended(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value,
			  DAT_UINT32 op, DAT_IB_EXT_TYPE type)
{
	DAT_EVENT event = expect(file, line, evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA dto = event.event_data.dto_completion_event_data;
	DAT_IB_EXTENSION_EVENT_DATA data;

	memcpy(&data, event.event_extension_data, sizeof data);
	if (dto.user_cookie.as_64 != value)
		tap_fail(file, line, "completion of cookie %llu, not %llu",
			 (unsigned long long)dto.user_cookie.as_64, (unsigned long long)value);
	if ((DAT_UINT32)dto.operation != op || data.type != type)
		tap_fail(file, line, "operation %u and type %u, not %u and %u", dto.operation,
			 data.type, op, type);
	/* As in the events of OpenFabrics' providers. */
	if ((DAT_UINT32)data.status != (DAT_UINT32)dto.status || event.evd_handle != evd)
		tap_fail(file, line, "status %u, not %u", data.status, dto.status);
	return event;
}

DAT_DTO_COMPLETION_STATUS status_of(const DAT_EVENT *event)
{
	return event->event_data.dto_completion_event_data.status;
}

DAT_VLEN length_of(const DAT_EVENT *event)
{
	return event->event_data.dto_completion_event_data.transfered_length;
}

DAT_UINT32 immed_of(const DAT_EVENT *event)
{
	DAT_IB_EXTENSION_EVENT_DATA data;

	memcpy(&data, event->event_extension_data, sizeof data);
	return data.val.immed.data;
}
#endif
