//! The attributes of an IA and of its provider, by the names that the headers give them.

use std::ffi::{CStr, c_char};

use dat_core::abi::common::{DAT_BOOLEAN, DAT_COUNT, DAT_FALSE, DAT_NAMED_ATTR};
use dat_core::abi::{v1, v2};
use serde_json::{Map, Value};

/// Attributes, in the order of the headers.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Attributes(Vec<(String, Value)>);

/// Adds fields of a structure: numbers, booleans (`bool NAME`), text (`text NAME`), and lists of pairs
/// of strings (`named COUNT LIST`).
macro_rules! add {
    ($to:ident, $from:expr; $($kind:ident $($field:ident)+;)*) => {
        $( add!(@$kind $to, $from, $($field)+); )*
    };
    (@number $to:ident, $from:expr, $($field:ident)+) => {
        $( $to.add(stringify!($field), $from.$field.into()); )+
    };
    (@bool $to:ident, $from:expr, $($field:ident)+) => {
        $( $to.add(stringify!($field), ($from.$field != DAT_FALSE).into()); )+
    };
    (@text $to:ident, $from:expr, $field:ident) => {
        $to.add(stringify!($field), text(&$from.$field).into());
    };
    (@named $to:ident, $from:expr, $count:ident $list:ident) => {
        // SAFETY: the caller of the function says that the IA is open.
        $to.add(stringify!($list), unsafe { named($from.$count, $from.$list) });
    };
}

/// The attributes that both versions have.
macro_rules! add_common {
    ($to:ident, $ia:expr, $provider:expr) => {
        add! { $to, $ia;
            text adapter_name;
            text vendor_name;
            number hardware_version_major hardware_version_minor firmware_version_major
                firmware_version_minor max_eps max_dto_per_ep max_rdma_read_per_ep_in
                max_rdma_read_per_ep_out max_evds max_evd_qlen max_iov_segments_per_dto max_lmrs
                max_lmr_block_size max_lmr_virtual_address max_pzs max_message_size max_rdma_size
                max_rmrs max_rmr_target_address max_srqs max_ep_per_srq max_recv_per_srq
                max_iov_segments_per_rdma_read max_iov_segments_per_rdma_write max_rdma_read_in
                max_rdma_read_out;
            bool max_rdma_read_per_ep_in_guaranteed max_rdma_read_per_ep_out_guaranteed;
            named num_transport_attr transport_attr;
            named num_vendor_attr vendor_attr;
        }
        add! { $to, $provider;
            text provider_name;
            number provider_version_major provider_version_minor dapl_version_major
                dapl_version_minor lmr_mem_types_supported iov_ownership_on_return
                dat_qos_supported completion_flags_supported;
            bool is_thread_safe;
            number max_private_data_size;
            bool supports_multipath;
            number ep_creator pz_support optimal_buffer_alignment;
        }
        $to.add(
            "evd_stream_merging_supported",
            matrix(&$provider.evd_stream_merging_supported),
        );
        add! { $to, $provider;
            bool srq_supported;
            number srq_watermarks_supported;
            bool srq_ep_pz_difference_supported;
            number srq_info_supported ep_recv_info_supported;
            bool lmr_sync_req dto_async_return_guaranteed rdma_write_for_rdma_read_req;
        }
    };
}

impl Attributes {
    /// Those of DAT 1.2.
    ///
    /// # Safety
    /// `dat_ia_query` has filled both, and the IA is open.
    pub unsafe fn of_v1(ia: &v1::DAT_IA_ATTR, provider: &v1::DAT_PROVIDER_ATTR) -> Attributes {
        let mut all = Attributes::default();
        add_common!(all, ia, provider);
        add! { all, provider; named num_provider_specific_attr provider_specific_attr; }
        all
    }

    /// Those of DAT 2.0.
    ///
    /// # Safety
    /// As [`Attributes::of_v1`].
    pub unsafe fn of_v2(ia: &v2::DAT_IA_ATTR, provider: &v2::DAT_PROVIDER_ATTR) -> Attributes {
        let mut all = Attributes::default();
        add_common!(all, ia, provider);
        add! { all, ia;
            bool zb_supported;
            number extension_supported extension_version;
        }
        add! { all, provider;
            bool rdma_read_lmr_rmr_context_exposure;
            number rmr_scope_supported;
            bool is_signal_safe ha_supported;
            number ha_loadbalancing;
            named num_provider_specific_attr provider_specific_attr;
        }
        all
    }

    fn add(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), value));
    }

    /// One value; for a list of pairs the value of the pair `name.key`.
    #[cfg(test)]
    fn get(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    /// As an object.
    pub fn to_json(&self) -> Value {
        Value::Object(self.0.iter().cloned().collect())
    }

    /// A line for each attribute, and for each pair of those that are lists.
    pub fn to_text(&self) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        for (name, value) in &self.0 {
            match value {
                Value::Object(pairs) => lines.extend(
                    pairs
                        .iter()
                        .map(|(key, value)| (format!("{name} {key}"), plain(value))),
                ),
                _ => lines.push((name.clone(), plain(value))),
            }
        }
        let width = lines.iter().map(|(name, _)| name.chars().count()).max();
        let width = width.unwrap_or(0);
        let line = |(name, value): &(String, String)| format!("  {name:width$}  {value}");
        let lines: Vec<String> = lines.iter().map(line).collect();
        lines
            .iter()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // A row of each stream, with a mark for each that it may share an EVD with.
        Value::Array(rows) => {
            let mark = |cell: &Value| if *cell == Value::Bool(true) { '1' } else { '0' };
            let row = |row: &Value| -> String {
                row.as_array().into_iter().flatten().map(mark).collect()
            };
            rows.iter().map(row).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// The text of an array of characters.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn matrix(merging: &[[DAT_BOOLEAN; 6]; 6]) -> Value {
    let row = |row: &[DAT_BOOLEAN; 6]| -> Value {
        row.iter()
            .map(|cell| Value::Bool(*cell != DAT_FALSE))
            .collect()
    };
    merging.iter().map(row).collect()
}

/// Pairs of strings as an object.
///
/// # Safety
/// `list` is NULL or has `count` pairs of C strings.
unsafe fn named(count: DAT_COUNT, list: *const DAT_NAMED_ATTR) -> Value {
    let mut pairs = Map::new();
    let count = usize::try_from(count).unwrap_or(0);
    if !list.is_null() {
        // SAFETY: the caller's promise.
        for pair in unsafe { std::slice::from_raw_parts(list, count) } {
            let text = |text: *const c_char| match text.is_null() {
                true => String::new(),
                // SAFETY: not NULL, and the caller's promise.
                false => unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned(),
            };
            pairs.insert(text(pair.name), text(pair.value).into());
        }
    }
    Value::Object(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    fn attributes() -> Attributes {
        let pair = DAT_NAMED_ATTR {
            name: c"DAT_COUNTERS".as_ptr(),
            value: c"TRUE".as_ptr(),
        };
        // SAFETY: zeros are values of both types.
        let (mut ia, mut provider): (v2::DAT_IA_ATTR, v2::DAT_PROVIDER_ATTR) =
            unsafe { MaybeUninit::zeroed().assume_init() };
        ia.adapter_name[0] = b'x' as c_char;
        ia.max_eps = 7;
        ia.max_lmr_virtual_address = u64::MAX;
        provider.is_thread_safe = dat_core::abi::common::DAT_TRUE;
        provider.evd_stream_merging_supported[1][2] = dat_core::abi::common::DAT_TRUE;
        provider.num_provider_specific_attr = 1;
        provider.provider_specific_attr = (&raw const pair).cast_mut();
        // SAFETY: as a query fills them, with one pair.
        unsafe { Attributes::of_v2(&ia, &provider) }
    }

    #[test]
    fn by_the_names_of_the_headers() {
        let all = attributes();
        assert_eq!(all.get("adapter_name"), Some(&"x".into()));
        assert_eq!(all.get("max_lmr_virtual_address"), Some(&u64::MAX.into()));
        assert_eq!(all.get("is_thread_safe"), Some(&true.into()));
        let json = all.to_json();
        assert_eq!(json["max_eps"], 7);
        assert_eq!(json["provider_specific_attr"]["DAT_COUNTERS"], "TRUE");
        assert_eq!(json["evd_stream_merging_supported"][1][2], true);
    }

    #[test]
    fn a_line_for_each() {
        let text = attributes().to_text();
        let value = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            line.unwrap()
                .trim_start()
                .strip_prefix(name)
                .unwrap()
                .trim()
        };
        assert_eq!(value("max_eps "), "7");
        assert_eq!(value("vendor_name"), "");
        assert_eq!(value("provider_specific_attr DAT_COUNTERS"), "TRUE");
        let merging = "000000 001000 000000 000000 000000 000000";
        assert_eq!(value("evd_stream_merging_supported"), merging);
    }
}
