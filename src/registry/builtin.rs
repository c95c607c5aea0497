//! The providers that are part of a library, and what its registry is made from.

use std::ffi::CStr;

use super::config::Origin;
use super::load::Fini;
use crate::abi::common::DAT_PROVIDER_INFO;
use crate::abi::v2::DAPL_EXTENSIONS_FUNC;
use crate::error::Version;

/// An IA that a built-in provider offers on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuiltinIa {
    /// Its name, at most 255 bytes.
    pub name: String,
    /// The parameters its init function gets.
    pub params: String,
}

/// What a built-in provider is initialised with.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinEntry<'a> {
    /// The key of the entry.
    pub info: &'a DAT_PROVIDER_INFO,
    /// The parameters for the provider.
    pub params: &'a CStr,
    /// The place of the entry, for messages.
    pub origin: &'a Origin,
}

/// The IAs of a built-in provider, which `builtin:NAME` in the library field of `dat.conf` selects.
#[derive(Clone, Copy, Debug)]
pub struct Adapters {
    /// The name of the provider, without the prefix.
    pub name: &'static str,
    /// The address or device that these parameters select, or why there is none.
    pub probe: fn(params: &str) -> Result<String, String>,
    /// The IAs that the provider offers on this machine without a `dat.conf`.
    pub discover: fn() -> Vec<BuiltinIa>,
}

/// A built-in provider.
#[derive(Debug)]
pub struct Builtin {
    /// Its IAs.
    pub adapters: Adapters,
    /// Does what `dat_provider_init` of a provider library does. It calls
    /// [`add_provider`](super::add_provider).
    pub init: fn(&BuiltinEntry<'_>),
    /// `dat_provider_fini`, as a provider library has it. It calls
    /// [`remove_provider`](super::remove_provider).
    pub fini: Fini,
    /// `dapl_extensions`, as a provider library has it, if there are extensions.
    pub extensions: fn() -> Option<DAPL_EXTENSIONS_FUNC>,
}

impl AsRef<Adapters> for Builtin {
    fn as_ref(&self) -> &Adapters {
        &self.adapters
    }
}

impl AsRef<Adapters> for Adapters {
    fn as_ref(&self) -> &Adapters {
        self
    }
}

/// What the registry of a library is made from ([`crate::setup`] has the values). For a list of the
/// entries the [`Adapters`] of the providers are enough.
#[derive(Debug)]
pub struct Setup<P: 'static = Builtin> {
    /// The version of the API.
    pub version: Version,
    /// Its providers, in the order of the built-in table.
    pub builtins: &'static [P],
}

impl<P> Clone for Setup<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Setup<P> {}

impl<P: AsRef<Adapters>> Setup<P> {
    /// The built-in provider of a name.
    pub(super) fn builtin(&self, name: &str) -> Option<&'static P> {
        let mut builtins = self.builtins.iter();
        builtins.find(|builtin| builtin.as_ref().name == name)
    }
}
