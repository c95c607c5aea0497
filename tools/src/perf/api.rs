//! The functions of `libdat2.so.2` that are measured, as a C program calls them.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};

use dat_core::abi::common::{DAT_RETURN, DAT_SUCCESS, DAT_TYPE_MASK};
use dat_core::abi::v2;
use dat_core::error::Version;

use super::failure::{Failure, Result, error};
use crate::loader;

type Strerror =
    unsafe extern "C" fn(DAT_RETURN, *mut *const c_char, *mut *const c_char) -> DAT_RETURN;

/// The function pointer in a type of the provider table.
type Of<T> = <T as IntoIterator>::Item;

macro_rules! functions {
    ($($field:ident, $symbol:literal, $type:ty;)*) => {
        /// The functions, under their names without `dat_`.
        #[allow(missing_docs)]
        pub struct Api {
            $(pub $field: $type,)*
        }

        impl Api {
            fn bind(library: NonNull<c_void>) -> std::result::Result<Api, String> {
                Ok(Api {
                    $($field: {
                        let symbol = loader::symbol(library, $symbol)?;
                        // SAFETY: the function of this name in a DAT 2.0 library has this type.
                        unsafe { transmute::<NonNull<c_void>, $type>(symbol) }
                    },)*
                })
            }
        }
    };
}

functions! {
    cr_accept, c"dat_cr_accept", Of<v2::DAT_CR_ACCEPT_FUNC>;
    cr_query, c"dat_cr_query", Of<v2::DAT_CR_QUERY_FUNC>;
    cr_reject, c"dat_cr_reject", Of<v2::DAT_CR_REJECT_FUNC>;
    ep_connect, c"dat_ep_connect", Of<v2::DAT_EP_CONNECT_FUNC>;
    ep_create, c"dat_ep_create", Of<v2::DAT_EP_CREATE_FUNC>;
    ep_disconnect, c"dat_ep_disconnect", Of<v2::DAT_EP_DISCONNECT_FUNC>;
    ep_free, c"dat_ep_free", Of<v2::DAT_EP_FREE_FUNC>;
    ep_post_rdma_read, c"dat_ep_post_rdma_read", Of<v2::DAT_EP_POST_RDMA_READ_FUNC>;
    ep_post_rdma_write, c"dat_ep_post_rdma_write", Of<v2::DAT_EP_POST_RDMA_WRITE_FUNC>;
    ep_post_recv, c"dat_ep_post_recv", Of<v2::DAT_EP_POST_RECV_FUNC>;
    ep_post_send, c"dat_ep_post_send", Of<v2::DAT_EP_POST_SEND_FUNC>;
    evd_create, c"dat_evd_create", Of<v2::DAT_EVD_CREATE_FUNC>;
    evd_dequeue, c"dat_evd_dequeue", Of<v2::DAT_EVD_DEQUEUE_FUNC>;
    evd_free, c"dat_evd_free", Of<v2::DAT_EVD_FREE_FUNC>;
    evd_wait, c"dat_evd_wait", Of<v2::DAT_EVD_WAIT_FUNC>;
    ia_close, c"dat_ia_close", Of<v2::DAT_IA_CLOSE_FUNC>;
    ia_openv, c"dat_ia_openv", Of<v2::DAT_IA_OPENV_FUNC>;
    ia_query, c"dat_ia_query", Of<v2::DAT_IA_QUERY_FUNC>;
    lmr_create, c"dat_lmr_create", Of<v2::DAT_LMR_CREATE_FUNC>;
    lmr_free, c"dat_lmr_free", Of<v2::DAT_LMR_FREE_FUNC>;
    psp_create, c"dat_psp_create", Of<v2::DAT_PSP_CREATE_FUNC>;
    psp_create_any, c"dat_psp_create_any", Of<v2::DAT_PSP_CREATE_ANY_FUNC>;
    pz_create, c"dat_pz_create", Of<v2::DAT_PZ_CREATE_FUNC>;
    pz_free, c"dat_pz_free", Of<v2::DAT_PZ_FREE_FUNC>;
    strerror, c"dat_strerror", Strerror;
}

impl Api {
    /// Loads the library. It stays until the program ends.
    ///
    /// # Errors
    ///
    /// What the loader says.
    pub fn load() -> Result<&'static Api> {
        let version = Version::V2;
        let library = loader::open(version).and_then(Api::bind);
        match library {
            Ok(api) => Ok(Box::leak(Box::new(api))),
            Err(why) => error(format!("cannot load {}: {why}", loader::soname(version))),
        }
    }

    /// An error with the name of the code, unless `code` is success.
    #[inline(always)]
    pub fn check(&self, call: &str, code: DAT_RETURN) -> Result<()> {
        if code == DAT_SUCCESS {
            return Ok(());
        }
        Err(self.failure(call, code))
    }

    /// The error with the name of the code.
    #[cold]
    #[inline(never)]
    pub fn failure(&self, call: &str, code: DAT_RETURN) -> Failure {
        let (mut kind, mut subtype) = (ptr::null(), ptr::null());
        // SAFETY: two locals to fill.
        let known = unsafe { (self.strerror)(code, &mut kind, &mut subtype) } == DAT_SUCCESS;
        let text = |name: *const c_char| {
            if name.is_null() || !known {
                return String::new();
            }
            // SAFETY: not NULL, so a name that lives as long as the library.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        };
        let names = format!("{} {}", text(kind), text(subtype));
        Failure::Error(match names.trim() {
            "" => format!("{call}: code {code:#x}"),
            names => format!("{call}: {names}"),
        })
    }
}

/// The type of a return code, without class and subtype.
#[inline]
pub fn kind(code: DAT_RETURN) -> DAT_RETURN {
    code & DAT_TYPE_MASK
}
