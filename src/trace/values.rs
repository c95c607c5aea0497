//! The text of values: arguments before the call, and what the call has filled in.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::arguments::{Argument, pointed_kind};
use super::names::Names;
use super::structures::{self, Field};
use super::{events, memory};
use crate::abi::common::{
    DAT_MEM_TYPE_LMR, DAT_MEM_TYPE_SHARED_VIRTUAL, DAT_MEM_TYPE_VIRTUAL, DAT_NAME_MAX_LENGTH,
    DAT_TIMEOUT_INFINITE,
};
use crate::abi::v2::{DAT_PROXY_TYPE_AGENT, DAT_PROXY_TYPE_FD};
use crate::error::Version;

/// The most elements of an array that are shown.
const MOST_ELEMENTS: usize = 4;
/// The most bytes of private data that are shown.
const MOST_BYTES: usize = 16;
/// The longest string that is shown: longer than a name may be.
const LONGEST: usize = DAT_NAME_MAX_LENGTH + 44;

/// Structures that a call gets by a pointer that is not `const`.
const INPUTS: &[&str] = &["DAT_LMR_TRIPLET", "DAT_SRQ_ATTR", "DAT_COMM"];

/// The value of another argument, or field, by its name.
type Beside<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// The text of an argument before the call: of one that the call fills in, the address.
pub fn before(version: Version, arguments: &[Argument], i: usize) -> String {
    let argument = &arguments[i];
    let beside = |name: &str| word_of(arguments, name);
    let address = argument.words[0];
    // In and out: the EVD for asynchronous events.
    let is_async_evd = argument.name == "async_event_handle"
        && pointed_kind(argument.kind) == Some((true, "DAT_EVD_HANDLE"));
    let text = if let Some(kind) = input(argument.kind) {
        pointed(version, kind, argument, mask(arguments, i), &beside)
    } else if is_async_evd {
        match memory::pointer(address) {
            Some(handle) => format!("[{}]", scalar(version, "DAT_EVD_HANDLE", handle)),
            None => unreadable(address),
        }
    } else {
        let bytes = match argument.kind {
            "DAT_REGION_DESCRIPTION" | "DAT_OS_WAIT_PROXY_AGENT" => argument
                .words
                .map(|word| (word as usize).to_ne_bytes())
                .concat(),
            _ => address.to_ne_bytes().to_vec(),
        };
        value(version, argument.name, argument.kind, &bytes, &beside)
    };
    format!("{}={text}", argument.name)
}

/// The text of an argument that the call has filled in; `None` if it is not of that kind.
pub fn after(version: Version, arguments: &[Argument], i: usize) -> Option<String> {
    let argument = &arguments[i];
    let (true, kind) = pointed_kind(argument.kind)? else {
        return None;
    };
    if INPUTS.contains(&kind) || argument.words[0] == 0 {
        return None;
    }
    let beside = |name: &str| word_of(arguments, name);
    let text = match pointed_kind(kind) {
        Some((true, "DAT_PROVIDER_INFO")) => names_of_providers(argument.words[0], &beside),
        _ => pointed(version, kind, argument, mask(arguments, i), &beside),
    };
    Some(format!("{}={text}", argument.name))
}

/// The kind of what an argument points to, if the call only reads that.
fn input(kind: &str) -> Option<&str> {
    match pointed_kind(kind)? {
        (false, "DAT_PROVIDER") => None,
        (false, kind) => Some(kind),
        (true, kind) => Some(kind).filter(|kind| INPUTS.contains(kind)),
    }
}

fn word_of(arguments: &[Argument], name: &str) -> Option<u64> {
    let found = arguments.iter().find(|argument| argument.name == name)?;
    Some(found.words[0])
}

/// The mask that says which fields of a structure are meant: the argument in front of it.
fn mask(arguments: &[Argument], i: usize) -> u64 {
    let mask = i.checked_sub(1).map(|before| &arguments[before]);
    mask.filter(|mask| mask.name.ends_with("_mask"))
        .map_or(u64::MAX, |mask| mask.words[0])
}

/// What an argument points to.
fn pointed(
    version: Version,
    kind: &str,
    argument: &Argument,
    mask: u64,
    beside: Beside<'_>,
) -> String {
    let address = argument.words[0];
    if address == 0 {
        return "NULL".to_owned();
    }
    if kind == "DAT_EVENT" {
        return events::text(version, address).unwrap_or_else(|| unreadable(address));
    }
    let size = argument.pointee;
    let Some(fields) = structures::of(version, kind) else {
        return match memory::exact(address, size) {
            Some(bytes) => format!("[{}]", value(version, "", kind, &bytes, beside)),
            None => unreadable(address),
        };
    };
    // The local triplets of a request are as many as its number says.
    let elements = match (kind, beside("num_segments")) {
        ("DAT_LMR_TRIPLET", Some(elements)) => elements,
        _ => {
            return match memory::exact(address, size) {
                Some(bytes) => structure(version, kind, fields, &bytes, mask),
                None => unreadable(address),
            };
        }
    };
    // A number of the type DAT_COUNT may be negative.
    let elements = usize::try_from(elements).unwrap_or(0);
    let elements = if elements > i32::MAX as usize {
        0
    } else {
        elements
    };
    let shown = elements.min(MOST_ELEMENTS);
    let Some(bytes) = memory::exact(address, shown * size) else {
        return unreadable(address);
    };
    let mut texts: Vec<String> = bytes
        .chunks_exact(size)
        .map(|bytes| structure(version, kind, fields, bytes, u64::MAX))
        .collect();
    if elements > shown {
        texts.push(format!("... {elements} in all"));
    }
    format!("[{}]", texts.join(", "))
}

/// The fields of a structure that are in the mask, in braces.
fn structure(version: Version, kind: &str, fields: &[Field], bytes: &[u8], mask: u64) -> String {
    // In DAT 2.0 bits of this mask are numbers, not bits.
    let mask = match (version, kind) {
        (Version::V2, "DAT_CNO_PARAM") if mask != 0 => u64::MAX,
        _ => mask,
    };
    format!("{{{}}}", list(version, fields, bytes, mask).join(", "))
}

/// The texts of the fields of a structure that are in the mask.
pub fn list(version: Version, fields: &[Field], bytes: &[u8], mask: u64) -> Vec<String> {
    // The bit of the first attribute of an endpoint in the mask of its parameters.
    const FIRST_ATTRIBUTE: u32 = 12;
    let of = |field: &Field| bytes.get(field.offset..field.offset + field.size);
    let beside = |name: &str| {
        let field = fields.iter().find(|field| field.name == name)?;
        of(field).map(word)
    };
    let mut texts = Vec::new();
    for (bit, field) in fields.iter().enumerate() {
        let Some(bytes) = of(field) else { continue };
        let name = field.name.trim_start_matches("r#");
        if field.kind == "DAT_EP_ATTR" {
            let mask = if mask == u64::MAX {
                mask
            } else {
                mask >> FIRST_ATTRIBUTE
            };
            let attributes = structures::of(version, field.kind).unwrap_or_default();
            if mask != 0 {
                let text = structure(version, field.kind, attributes, bytes, mask);
                texts.push(format!("{name}={text}"));
            }
        } else if mask >> bit & 1 != 0 {
            let text = value(version, name, field.kind, bytes, &beside);
            texts.push(format!("{name}={text}"));
        }
    }
    texts
}

/// The first word of a value, or all of a shorter one, as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(word.len());
    let low = if cfg!(target_endian = "big") {
        word.len() - len
    } else {
        0
    };
    word[low..low + len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

/// The text of the value in these bytes.
fn value(version: Version, name: &str, kind: &str, bytes: &[u8], beside: Beside<'_>) -> String {
    if let Some(fields) = structures::of(version, kind) {
        return structure(version, kind, fields, bytes, u64::MAX);
    }
    let first = word(bytes);
    // Of a structure or a union of pointers.
    let pointers = bytes.split_at_checked(size_of::<usize>());
    let pointers = pointers.map_or([first, 0], |(one, other)| [one, other].map(word));
    match kind {
        "TEXT" => quoted(bytes.split(|byte| *byte == 0).next().unwrap_or_default()),
        "MATRIX" => bytes
            .chunks(6 * size_of::<u32>())
            .map(|row| {
                row.chunks(4)
                    .map(|one| if word(one) == 0 { '0' } else { '1' })
                    .collect()
            })
            .collect::<Vec<String>>()
            .join("/"),
        "SOCKADDR" => socket_address(bytes),
        "DAT_IA_ADDRESS_PTR" => address(first),
        "DAT_NAME_PTR" => text(first),
        _ if pointed_kind(kind) == Some((false, "c_char")) => text(first),
        "DAT_PVOID" if name == "private_data" => {
            private_data(first, beside("private_data_size").unwrap_or(0))
        }
        "DAT_REGION_DESCRIPTION" => region(beside("mem_type"), pointers),
        "DAT_OS_WAIT_PROXY_AGENT" => agent(pointers),
        "DAT_CNO_PROXY" => match beside("proxy_type").and_then(|kind| u32::try_from(kind).ok()) {
            Some(DAT_PROXY_TYPE_AGENT) => agent(pointers),
            Some(DAT_PROXY_TYPE_FD) => {
                format!("{{fd={}}}", word(&bytes[..bytes.len().min(4)]) as i32)
            }
            _ => pointer(pointers[0]),
        },
        _ => scalar(version, kind, first),
    }
}

/// A number, a flag, a handle.
pub fn scalar(version: Version, kind: &str, word: u64) -> String {
    if let Some(names) = Names::of(version, kind) {
        return names.text(word);
    }
    match kind {
        _ if kind.starts_with('*') => pointer(word),
        "DAT_EVD_HANDLE" if word == 1 => "DAT_EVD_ASYNC_EXISTS".to_owned(),
        "DAT_EVD_HANDLE" if word == 2 => "DAT_EVD_OUT_OF_SCOPE".to_owned(),
        _ if kind.ends_with("_HANDLE") && word == 0 => "DAT_HANDLE_NULL".to_owned(),
        "DAT_TIMEOUT" if word == u64::from(DAT_TIMEOUT_INFINITE) => {
            "DAT_TIMEOUT_INFINITE".to_owned()
        }
        "DAT_TIMEOUT" => format!("{word} us"),
        "DAT_COUNT" | "DAT_FD" | "c_int" => (word as i32).to_string(),
        "DAT_UINT32" | "DAT_SEG_LENGTH" | "DAT_UINT64" | "DAT_VLEN" | "DAT_CONN_QUAL"
        | "DAT_PORT_QUAL" => word.to_string(),
        "POINTER" | "DAT_PVOID" => pointer(word),
        _ => format!("{word:#x}"),
    }
}

fn pointer(word: u64) -> String {
    match word {
        0 => "NULL".to_owned(),
        _ => format!("{word:#x}"),
    }
}

/// An address at which the process has nothing, or nothing that may be read.
fn unreadable(address: u64) -> String {
    match address {
        0 => "NULL".to_owned(),
        _ => format!("{address:#x} (unreadable)"),
    }
}

fn quoted(text: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(text))
}

/// The string at an address.
fn text(address: u64) -> String {
    match memory::string(address, LONGEST) {
        Some(text) => quoted(&text),
        None => unreadable(address),
    }
}

/// How many bytes of private data there are, and the first of them.
fn private_data(address: u64, size: u64) -> String {
    let size = usize::try_from(size as i32).unwrap_or(0);
    if size == 0 || address == 0 {
        return pointer(address);
    }
    let bytes = memory::bytes(address, size.min(MOST_BYTES));
    if bytes.is_empty() {
        return unreadable(address);
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() < size { "..." } else { "" };
    format!("<{hex}{more}>")
}

/// Memory to register.
fn region(mem_type: Option<u64>, [first, second]: [u64; 2]) -> String {
    match mem_type.and_then(|kind| u32::try_from(kind).ok()) {
        Some(DAT_MEM_TYPE_VIRTUAL) => format!("{{for_va={}}}", pointer(first)),
        Some(DAT_MEM_TYPE_LMR) => format!("{{for_lmr_handle={}}}", pointer(first)),
        Some(DAT_MEM_TYPE_SHARED_VIRTUAL) => format!(
            "{{virtual_address={}, shared_memory_id={}}}",
            pointer(first),
            pointer(second)
        ),
        _ => pointer(first),
    }
}

/// The agent of a CNO.
fn agent([data, function]: [u64; 2]) -> String {
    match (data, function) {
        (0, 0) => "DAT_OS_WAIT_PROXY_AGENT_NULL".to_owned(),
        _ => format!(
            "{{instance_data={}, proxy_agent_func={}}}",
            pointer(data),
            pointer(function)
        ),
    }
}

/// The socket address at an address.
fn address(address: u64) -> String {
    if address == 0 {
        return "NULL".to_owned();
    }
    // Of the family IPv4 there may be no more than the shorter one.
    let long = memory::exact(address, size_of::<libc::sockaddr_in6>());
    let bytes = long.or_else(|| memory::exact(address, size_of::<libc::sockaddr_in>()));
    match bytes {
        Some(bytes) => socket_address(&bytes),
        None => unreadable(address),
    }
}

/// A socket address: its IP address and port.
fn socket_address(bytes: &[u8]) -> String {
    let family = bytes.first_chunk().map_or(0, |b| u16::from_ne_bytes(*b));
    let port = bytes
        .get(2..4)
        .map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let field = |at: usize| {
        let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    match i32::from(family) {
        libc::AF_INET => {
            let address = Ipv4Addr::from_bits(u32::from_be(field(4)));
            SocketAddr::from(SocketAddrV4::new(address, port)).to_string()
        }
        libc::AF_INET6 if bytes.len() >= size_of::<libc::sockaddr_in6>() => {
            let address: [u8; 16] = bytes[8..24].try_into().unwrap_or_default();
            let address = SocketAddrV6::new(Ipv6Addr::from(address), port, 0, field(24));
            SocketAddr::from(address).to_string()
        }
        _ => format!("{{sa_family={family}}}"),
    }
}

/// The names of the IAs in the list that `dat_registry_list_providers` has filled in.
fn names_of_providers(list: u64, beside: Beside<'_>) -> String {
    let count = |name| beside(name).and_then(|count| usize::try_from(count as i32).ok());
    let returned = beside("entries_returned").and_then(|at| memory::exact(at, size_of::<i32>()));
    let returned = returned.map_or(0, |bytes| word(&bytes) as i32);
    let returned = usize::try_from(returned).unwrap_or(0);
    let all = returned.min(count("max_to_return").unwrap_or(0));
    let shown = all.min(MOST_ELEMENTS);
    let at = |i: usize| list.checked_add((i * size_of::<usize>()) as u64);
    let name = |i: usize| {
        at(i)
            .and_then(memory::pointer)
            .map_or_else(|| unreadable(list), text)
    };
    let mut texts: Vec<String> = (0..shown).map(name).collect();
    if all > shown {
        texts.push(format!("... {all} in all"));
    }
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests;
