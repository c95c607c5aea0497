//! The text of an event.

use std::mem::offset_of;

use super::names::Names;
use super::{memory, structures, values};
use crate::abi::v2::{
    DAT_IB_DTO_EVENT, DAT_IB_EXTENSION_RANGE_BASE, DAT_IB_UD_CONNECTION_ERROR_EVENT,
    DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED, DAT_IB_UD_CONNECTION_REJECT_EVENT,
    DAT_IB_UD_CONNECTION_REQUEST_EVENT, DAT_IW_EXTENSION_RANGE_BASE,
};
use crate::abi::{v1, v2};
use crate::error::Version;

// Both versions begin alike.
const EVD: usize = offset_of!(v2::DAT_EVENT, evd_handle);
const DATA: usize = offset_of!(v2::DAT_EVENT, event_data);
const _: () = assert!(EVD == offset_of!(v1::DAT_EVENT, evd_handle));
const _: () = assert!(DATA == offset_of!(v1::DAT_EVENT, event_data));

/// The structure with the data of an event of this number.
fn data_of(number: u32) -> Option<&'static str> {
    Some(match number {
        v2::DAT_DTO_COMPLETION_EVENT | DAT_IB_DTO_EVENT => "DAT_DTO_COMPLETION_EVENT_DATA",
        v2::DAT_RMR_BIND_COMPLETION_EVENT => "DAT_RMR_BIND_COMPLETION_EVENT_DATA",
        v2::DAT_CONNECTION_REQUEST_EVENT | DAT_IB_UD_CONNECTION_REQUEST_EVENT => {
            "DAT_CR_ARRIVAL_EVENT_DATA"
        }
        v2::DAT_CONNECTION_EVENT_ESTABLISHED..=v2::DAT_CONNECTION_EVENT_UNREACHABLE
        | DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED
        | DAT_IB_UD_CONNECTION_REJECT_EVENT
        | DAT_IB_UD_CONNECTION_ERROR_EVENT => "DAT_CONNECTION_EVENT_DATA",
        v2::DAT_ASYNC_ERROR_EVD_OVERFLOW..=v2::DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR => {
            "DAT_ASYNCH_ERROR_EVENT_DATA"
        }
        v2::DAT_SOFTWARE_EVENT => "DAT_SOFTWARE_EVENT_DATA",
        _ => return None,
    })
}

/// The text of the event at an address; `None` if it cannot be read.
pub fn text(version: Version, address: u64) -> Option<String> {
    let size = match version {
        Version::V1 => size_of::<v1::DAT_EVENT>(),
        Version::V2 => size_of::<v2::DAT_EVENT>(),
    };
    let bytes = memory::exact(address, size)?;
    let number = u32::from_ne_bytes(*bytes.first_chunk()?);
    let name = Names::of(version, "DAT_EVENT_NUMBER")?.text(number.into());
    let evd = usize::from_ne_bytes(*bytes[EVD..].first_chunk()?) as u64;
    let mut texts = vec![
        format!("event_number={name}"),
        format!("evd_handle={}", values::scalar(version, "DAT_HANDLE", evd)),
    ];
    if let Some(fields) = data_of(number).and_then(|kind| structures::of(version, kind)) {
        texts.extend(values::list(version, fields, &bytes[DATA..], u64::MAX));
    }
    let of_extension = DAT_IB_EXTENSION_RANGE_BASE..DAT_IW_EXTENSION_RANGE_BASE;
    if version == Version::V2 && of_extension.contains(&number) {
        const AT: usize = offset_of!(v2::DAT_EVENT, event_extension_data);
        let fields = structures::of(version, "DAT_IB_EXTENSION_EVENT_DATA").unwrap_or_default();
        texts.extend(values::list(version, fields, &bytes[AT..], u64::MAX));
    }
    Some(format!("{{{}}}", texts.join(", ")))
}
