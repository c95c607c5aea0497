//! `dat_registry_providers_related` of DAT 2.0: whether two IAs back each other up.

use std::ffi::{CStr, c_char};

use super::{Registry, ia_name};
use crate::abi::v2::{DAT_HA_FALSE, DAT_HA_RELATIONSHIP, DAT_HA_UNKNOWN};
use crate::error::{Error, Kind, Result, Subtype};

impl Registry {
    /// Whether two IAs back each other up. Those of the built-in providers never do. What the provider
    /// library of another vendor has can only be asked of an open IA of it, so it is not known here.
    ///
    /// # Errors
    ///
    /// `DAT_INVALID_PARAMETER` for a NULL name (1, 2) or answer (3); `DAT_PROVIDER_NOT_FOUND` for a name that
    /// is not in the registry.
    ///
    /// # Safety
    ///
    /// The names are NULL or C strings, `answer` is NULL or valid for a write.
    pub unsafe fn providers_related(
        &self,
        first: *const c_char,
        second: *const c_char,
        answer: *mut DAT_HA_RELATIONSHIP,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let (first, second) = unsafe { (ia_name(first), ia_name(second)) };
        let first = first.ok_or(Error::arg(Subtype::Arg1))?;
        let second = second.ok_or(Error::arg(Subtype::Arg2))?;
        if answer.is_null() {
            return Err(Error::arg(Subtype::Arg3));
        }
        let known = self.is_of_builtin(first)? & self.is_of_builtin(second)?;
        let related = if known { DAT_HA_FALSE } else { DAT_HA_UNKNOWN };
        // SAFETY: not NULL; the caller's promise.
        unsafe { answer.write(related) };
        Ok(())
    }

    /// Whether an IA name is that of a built-in provider.
    fn is_of_builtin(&self, name: &CStr) -> Result<bool> {
        match self.statics.is_of_builtin(name) {
            Some(is_of_builtin) => Ok(is_of_builtin),
            None if self.dynamic.has_name(name) => Ok(false),
            None => Err(Error::new(
                Kind::ProviderNotFound,
                Subtype::NameNotRegistered,
            )),
        }
    }
}
