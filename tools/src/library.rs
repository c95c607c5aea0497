//! `libdat.so.1` and `libdat2.so.2` as a C program sees them: opened at run time, used through
//! their exported functions.

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, transmute};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};

use dat_core::abi::common::{
    DAT_BOOLEAN, DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_FLAGS, DAT_COUNT, DAT_EVD_HANDLE, DAT_FALSE,
    DAT_IA_ADDRESS_PTR, DAT_IA_HANDLE, DAT_NAME_MAX_LENGTH, DAT_NAME_PTR, DAT_PROVIDER_INFO,
    DAT_RETURN, DAT_SUCCESS, DAT_TRUE, DAT_UINT32,
};
use dat_core::abi::{v1, v2};
use dat_core::error::Version;
use dat_core::registry::key::Key;
use dat_core::strerror;

type ListProviders =
    unsafe extern "C" fn(DAT_COUNT, *mut DAT_COUNT, *mut *mut DAT_PROVIDER_INFO) -> DAT_RETURN;
type IaOpenv = unsafe extern "C" fn(
    DAT_NAME_PTR,
    DAT_COUNT,
    *mut DAT_EVD_HANDLE,
    *mut DAT_IA_HANDLE,
    DAT_UINT32,
    DAT_UINT32,
    DAT_BOOLEAN,
) -> DAT_RETURN;
type IaQuery = unsafe extern "C" fn(
    DAT_IA_HANDLE,
    *mut DAT_EVD_HANDLE,
    u64,
    *mut c_void,
    u64,
    *mut c_void,
) -> DAT_RETURN;
type IaClose = unsafe extern "C" fn(DAT_IA_HANDLE, DAT_CLOSE_FLAGS) -> DAT_RETURN;

/// Length of the asynchronous EVD of an IA that is opened for a look.
const QLEN: DAT_COUNT = 8;

/// A DAT library.
pub struct Library {
    version: Version,
    list_providers: ListProviders,
    ia_openv: IaOpenv,
    ia_query: IaQuery,
    ia_close: IaClose,
}

impl Library {
    /// Opens the library of a version. Provider libraries that it loads find it in the global
    /// scope, so a process opens one version only.
    ///
    /// # Errors
    ///
    /// What the loader says.
    pub fn open(version: Version) -> Result<Library, String> {
        let mut said = String::new();
        for path in candidates(version) {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
                continue;
            };
            // SAFETY: a C string; constructors of a DAT library do nothing dangerous.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            match NonNull::new(handle) {
                Some(handle) => return Library::bind(version, handle),
                None => said = last_error(),
            }
        }
        Err(said)
    }

    fn bind(version: Version, handle: NonNull<c_void>) -> Result<Library, String> {
        let symbol = |name: &CStr| {
            // SAFETY: an open handle and a C string.
            let symbol = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            NonNull::new(symbol).ok_or_else(last_error)
        };
        // SAFETY: the functions of a DAT library have these types under these names.
        unsafe {
            Ok(Library {
                version,
                list_providers: transmute::<NonNull<c_void>, ListProviders>(symbol(
                    c"dat_registry_list_providers",
                )?),
                ia_openv: transmute::<NonNull<c_void>, IaOpenv>(symbol(c"dat_ia_openv")?),
                ia_query: transmute::<NonNull<c_void>, IaQuery>(symbol(c"dat_ia_query")?),
                ia_close: transmute::<NonNull<c_void>, IaClose>(symbol(c"dat_ia_close")?),
            })
        }
    }

    /// The file that the library was loaded from.
    pub fn path(&self) -> String {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: an address inside the library, and a local to fill.
        let found = unsafe { libc::dladdr(self.ia_openv as *const c_void, info.as_mut_ptr()) };
        // SAFETY: zeroed, and filled if found.
        let name = unsafe { (*info.as_ptr()).dli_fname };
        if found == 0 || name.is_null() {
            return soname(self.version).to_owned();
        }
        // SAFETY: not NULL, so the name of the file, which lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// The keys of the registry, in its order.
    pub fn providers(&self) -> Vec<Key> {
        let mut count: DAT_COUNT = 0;
        // SAFETY: a call for the number alone: `count` is a local, a list is not needed.
        unsafe { (self.list_providers)(0, &mut count, ptr::null_mut()) };
        let blank = DAT_PROVIDER_INFO {
            ia_name: [0; DAT_NAME_MAX_LENGTH],
            dapl_version_major: 0,
            dapl_version_minor: 0,
            is_thread_safe: DAT_FALSE,
        };
        let mut infos = vec![blank; usize::try_from(count).unwrap_or(0)];
        let mut slots: Vec<*mut DAT_PROVIDER_INFO> = infos.iter_mut().map(ptr::from_mut).collect();
        let room = count;
        // SAFETY: as many pointers as `room` says, each to an element of `infos`.
        let code = unsafe { (self.list_providers)(room, &mut count, slots.as_mut_ptr()) };
        if code != DAT_SUCCESS {
            return Vec::new();
        }
        infos
            .iter()
            .take(usize::try_from(count).unwrap_or(0))
            // SAFETY: a reference.
            .filter_map(|info| unsafe { Key::from_info(info) })
            .collect()
    }

    /// Opens an IA, asks for its address and closes it.
    ///
    /// # Errors
    ///
    /// The name of the code of the call that failed.
    pub fn address(&self, key: &Key) -> Result<Option<String>, String> {
        let (mut evd, mut ia) = (ptr::null_mut(), ptr::null_mut());
        let safety = if key.thread_safe { DAT_TRUE } else { DAT_FALSE };
        let name = key.name.as_ptr().cast_mut();
        // SAFETY: a C string, which is only read, and locals to fill.
        let code =
            unsafe { (self.ia_openv)(name, QLEN, &mut evd, &mut ia, key.major, key.minor, safety) };
        self.check("dat_ia_open", code)?;
        let address = self.query_address(ia);
        // SAFETY: the IA was opened above and is not used any more.
        let code = unsafe { (self.ia_close)(ia, DAT_CLOSE_ABRUPT_FLAG) };
        let address = address?;
        self.check("dat_ia_close", code)?;
        Ok(address)
    }

    fn query_address(&self, ia: DAT_IA_HANDLE) -> Result<Option<String>, String> {
        let mut v1 = MaybeUninit::<v1::DAT_IA_ATTR>::zeroed();
        let mut v2 = MaybeUninit::<v2::DAT_IA_ATTR>::zeroed();
        let (mask, attributes) = match self.version {
            Version::V1 => (v1::DAT_IA_ALL, v1.as_mut_ptr().cast()),
            Version::V2 => (v2::DAT_IA_ALL, v2.as_mut_ptr().cast()),
        };
        let (no_evd, none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `attributes` is of the type of the version; nothing else is asked for.
        let code = unsafe { (self.ia_query)(ia, no_evd, mask, attributes, 0, none) };
        self.check("dat_ia_query", code)?;
        // SAFETY: zeroed, and filled by the call.
        let address = unsafe {
            match self.version {
                Version::V1 => (*v1.as_ptr()).ia_address_ptr,
                Version::V2 => (*v2.as_ptr()).ia_address_ptr,
            }
        };
        // SAFETY: the address of an open IA.
        Ok(unsafe { address_text(address) })
    }

    fn check(&self, call: &str, code: DAT_RETURN) -> Result<(), String> {
        if code == DAT_SUCCESS {
            return Ok(());
        }
        let names = strerror::names(self.version, code);
        Err(match names {
            Ok((kind, subtype)) => {
                let (kind, subtype) = (kind.to_string_lossy(), subtype.to_string_lossy());
                format!("{call}: {kind} {subtype}").trim_end().to_owned()
            }
            Err(_) => format!("{call}: code {code:#x}"),
        })
    }
}

/// The name of a version's library for the loader.
pub fn soname(version: Version) -> &'static str {
    match version {
        Version::V1 => "libdat.so.1",
        Version::V2 => "libdat2.so.2",
    }
}

/// Where the library may be: beside this program as it was built, in the tree that it is
/// installed in, in the loader's search path.
fn candidates(version: Version) -> Vec<PathBuf> {
    let name = soname(version);
    let built = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
    let mut paths = Vec::new();
    if let Ok(program) = env::current_exe()
        && let Some(directory) = program.parent()
    {
        paths.push(directory.join(built));
        if let Some(prefix) = directory.parent() {
            let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
            for lib in ["lib", "lib64", &multiarch] {
                paths.push(prefix.join(lib).join(name));
            }
        }
    }
    paths.push(name.into());
    paths
}

/// An address as text, without a port; `None` if there is none or it is of another family.
///
/// # Safety
///
/// `address` is NULL or a socket address of its family's size.
unsafe fn address_text(address: DAT_IA_ADDRESS_PTR) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not NULL; every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this type; it may be aligned as bytes are.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_string())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).to_string())
        }
        _ => None,
    }
}

/// What the loader says of the last failure.
fn last_error() -> String {
    // SAFETY: no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not NULL, so a C string until the next call of this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_text() {
        // SAFETY: zero bytes are a value of the type.
        let mut v4: libc::sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
        v4.sin_family = libc::AF_INET as libc::sa_family_t;
        v4.sin_addr.s_addr = u32::from(Ipv4Addr::new(192, 0, 2, 7)).to_be();
        // SAFETY: zero bytes are a value of the type.
        let mut v6: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
        v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        v6.sin6_addr.s6_addr = Ipv6Addr::LOCALHOST.octets();
        // SAFETY: locals of their family's type, or NULL.
        unsafe {
            let text = address_text(ptr::from_mut(&mut v4).cast());
            assert_eq!(text.as_deref(), Some("192.0.2.7"));
            let text = address_text(ptr::from_mut(&mut v6).cast());
            assert_eq!(text.as_deref(), Some("::1"));
            v4.sin_family = libc::AF_UNIX as libc::sa_family_t;
            assert_eq!(address_text(ptr::from_mut(&mut v4).cast()), None);
            assert_eq!(address_text(ptr::null_mut()), None);
        }
    }

    #[test]
    fn the_library_beside_the_program_comes_first() {
        let first = |version| candidates(version)[0].file_name().unwrap().to_owned();
        assert_eq!(first(Version::V1), "libdat.so");
        assert_eq!(first(Version::V2), "libdat2.so");
        let last = candidates(Version::V2).pop().unwrap();
        assert_eq!(last.to_str(), Some("libdat2.so.2"));
    }
}
