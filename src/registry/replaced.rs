//! Provider libraries of others that `builtin:verbs` replaces where they are not installed: those of
//! OpenFabrics and of Solaris.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use super::config::{Entry, Target};

/// OpenFabrics' provider libraries, up to `.so`: those from before its first releases, and those of DAT
/// 2.0 (with "o") and of 1.2.
const OPENFABRICS: [&[u8]; 9] = [
    b"libdapl",
    b"libdapl_openib_cma",
    b"libdaplofa",
    b"libdaploscm",
    b"libdaploucm",
    b"libdaplomcm",
    b"libdaplcma",
    b"libdaplscm",
    b"libdaplucm",
];

/// The one library of Solaris and illumos, for all adapters (tavor, arbel and hermon).
const SOLARIS: &[u8] = b"udapl_tavor";

/// The file name of a library, in any directory and with any version suffix, up to `.so`; `None` if the
/// name is of another form.
fn stem(library: &CStr) -> Option<&[u8]> {
    let file = library.to_bytes().rsplit(|&byte| byte == b'/').next()?;
    let end = file.windows(3).position(|part| part == b".so")?;
    matches!(file.get(end + 3), None | Some(b'.')).then_some(&file[..end])
}

fn is_solaris(library: &CStr) -> bool {
    stem(library) == Some(SOLARIS)
}

/// Whether `builtin:verbs` replaces `library` where that is not installed.
pub fn is_replaced(library: &CStr) -> bool {
    is_solaris(library) || stem(library).is_some_and(|stem| OPENFABRICS.contains(&stem))
}

/// What users have to know of `builtin:verbs` in the place of that library of OpenFabrics: those for
/// sockets ("scm"), datagrams ("ucm") and coprocessors ("mcm") connect by messages of their own.
pub fn note(library: &CStr) -> Option<&'static str> {
    let stem = stem(library)?;
    [&b"scm"[..], b"ucm", b"mcm"]
        .iter()
        .any(|manager| stem.ends_with(manager))
        .then_some("connects by rdma_cm, unlike peers that have this library")
}

/// The parameters that a built-in provider gets from an entry under an IA name. Entries of Solaris have
/// none: the name of the IA says which interface it is.
pub fn parameters<'a>(entry: &'a Entry, ia_name: &CStr) -> Cow<'a, CStr> {
    let is_blank = entry.ia_params.to_bytes().trim_ascii().is_empty();
    match &entry.target {
        Target::Library(library) if is_blank && is_solaris(library) => {
            Cow::Owned(linux_interface(ia_name))
        }
        _ => Cow::Borrowed(&entry.ia_params),
    }
}

/// The network interface of Linux for a name that Solaris has for IP over InfiniBand: `ib0` for `ibd0`
/// and for the default partition, `pffff.ibp0`; `ib0.8001` for another partition, `p8001.ibp0`. Any other
/// name stands for itself.
fn linux_interface(name: &CStr) -> CString {
    let interface = name.to_str().ok().and_then(|name| {
        if let Some(number) = name.strip_prefix("ibd") {
            return is_number(number).then(|| format!("ib{number}"));
        }
        let (key, number) = name.strip_prefix('p')?.split_once(".ibp")?;
        let key = u16::from_str_radix(key, 16).ok()?;
        is_number(number).then(|| match key {
            0xffff => format!("ib{number}"),
            key => format!("ib{number}.{key:04x}"),
        })
    });
    interface
        .and_then(|interface| CString::new(interface).ok())
        .unwrap_or_else(|| name.to_owned())
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests;
