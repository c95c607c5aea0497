//! `libdat.so.1` and `libdat2.so.2` as a C program sees them: opened at run time, used through
//! their exported functions.

use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr::{self, NonNull};

use dat_core::abi::common::{
    DAT_BOOLEAN, DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_FLAGS, DAT_COUNT, DAT_EVD_HANDLE, DAT_FALSE,
    DAT_IA_HANDLE, DAT_NAME_MAX_LENGTH, DAT_NAME_PTR, DAT_PROVIDER_INFO, DAT_RETURN, DAT_SUCCESS,
    DAT_TRUE, DAT_UINT32,
};
use dat_core::abi::{v1, v2};
use dat_core::error::Version;
use dat_core::registry::key::Key;
use dat_core::strerror;

use crate::info::attributes::Attributes;
use crate::loader;

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

/// What an IA says about itself.
pub struct Opened {
    /// Its address, if it is one of IP.
    pub address: Option<String>,
    /// `provider_name` of the provider attributes.
    pub provider_name: String,
    /// All attributes.
    pub attributes: Attributes,
}

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
        Library::bind(version, loader::open(version)?)
    }

    fn bind(version: Version, handle: NonNull<c_void>) -> Result<Library, String> {
        let symbol = |name: &CStr| loader::symbol(handle, name);
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
            return loader::soname(self.version).to_owned();
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

    /// Opens an IA, asks for its attributes and closes it.
    ///
    /// # Errors
    ///
    /// The name of the code of the call that failed.
    pub fn try_open(&self, key: &Key) -> Result<Opened, String> {
        let (mut evd, mut ia) = (ptr::null_mut(), ptr::null_mut());
        let safety = if key.thread_safe { DAT_TRUE } else { DAT_FALSE };
        let name = key.name.as_ptr().cast_mut();
        // SAFETY: a C string, which is only read, and locals to fill.
        let code =
            unsafe { (self.ia_openv)(name, QLEN, &mut evd, &mut ia, key.major, key.minor, safety) };
        self.check("dat_ia_open", code)?;
        let opened = self.query(ia);
        // SAFETY: the IA was opened above and is not used any more.
        let code = unsafe { (self.ia_close)(ia, DAT_CLOSE_ABRUPT_FLAG) };
        let opened = opened?;
        self.check("dat_ia_close", code)?;
        Ok(opened)
    }

    fn query(&self, ia: DAT_IA_HANDLE) -> Result<Opened, String> {
        let mut v1 = MaybeUninit::<(v1::DAT_IA_ATTR, v1::DAT_PROVIDER_ATTR)>::zeroed();
        let mut v2 = MaybeUninit::<(v2::DAT_IA_ATTR, v2::DAT_PROVIDER_ATTR)>::zeroed();
        let (v1, v2) = (v1.as_mut_ptr(), v2.as_mut_ptr());
        // SAFETY: both are there.
        let (masks, attributes, provider) = unsafe {
            match self.version {
                Version::V1 => (
                    (v1::DAT_IA_ALL, v1::DAT_PROVIDER_FIELD_ALL),
                    (&raw mut (*v1).0).cast(),
                    (&raw mut (*v1).1).cast(),
                ),
                Version::V2 => (
                    (v2::DAT_IA_ALL, v2::DAT_PROVIDER_FIELD_ALL),
                    (&raw mut (*v2).0).cast(),
                    (&raw mut (*v2).1).cast(),
                ),
            }
        };
        let no_evd = ptr::null_mut();
        // SAFETY: the attributes are of the types of the version.
        let code = unsafe { (self.ia_query)(ia, no_evd, masks.0, attributes, masks.1, provider) };
        self.check("dat_ia_query", code)?;
        // SAFETY: zeroed, and filled by the call.
        let (address, name, attributes) = unsafe {
            match self.version {
                Version::V1 => {
                    let (ia, provider) = &*v1;
                    let attributes = Attributes::of_v1(ia, provider);
                    (ia.ia_address_ptr, provider.provider_name, attributes)
                }
                Version::V2 => {
                    let (ia, provider) = &*v2;
                    let attributes = Attributes::of_v2(ia, provider);
                    (ia.ia_address_ptr, provider.provider_name, attributes)
                }
            }
        };
        let name = name.iter().take_while(|c| **c != 0).map(|c| *c as u8);
        Ok(Opened {
            // SAFETY: the address of an open IA.
            address: unsafe { loader::address_text(address) },
            provider_name: String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned(),
            attributes,
        })
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
