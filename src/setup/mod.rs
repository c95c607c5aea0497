//! What each library consists of: the version of its API and its built-in providers. The
//! libraries hand this to their registry. `dat-info`, which opens IAs through the libraries alone, has a
//! list of the IAs without the code of their providers.
//!
//! This is the top of the crate, where the registry, which knows no device, and the provider,
//! which knows no registry, are put together.

mod builtin;
pub mod library;

pub use builtin::{adapters, builtin};

use crate::dapl::abi::{V1, V2};
use crate::device::soft::Soft;
use crate::device::verbs::Verbs;
use crate::error::Version;
use crate::registry::{Adapters, Builtin, Setup};

const PROVIDERS_1_2: &[Builtin] = &[builtin::<V1, Soft>(), builtin::<V1, Verbs>()];
const PROVIDERS_2_0: &[Builtin] = &[builtin::<V2, Soft>(), builtin::<V2, Verbs>()];

/// `libdat.so.1`.
pub const DAT_1_2: Setup = Setup {
    version: Version::V1,
    builtins: PROVIDERS_1_2,
};

/// `libdat2.so.2`.
pub const DAT_2_0: Setup = Setup {
    version: Version::V2,
    builtins: PROVIDERS_2_0,
};

/// The IAs of both libraries' providers.
const ADAPTERS: &[Adapters] = &[adapters::<Soft>(), adapters::<Verbs>()];

/// The list of `libdat.so.1`.
pub const LIST_1_2: Setup<Adapters> = Setup {
    version: Version::V1,
    builtins: ADAPTERS,
};

/// The list of `libdat2.so.2`.
pub const LIST_2_0: Setup<Adapters> = Setup {
    version: Version::V2,
    builtins: ADAPTERS,
};
