//! `libdapl-verbs.so.1`: the verbs provider for a registry library that is not ours. No logic: see
//! [`dat_core::setup::library`].

dat_core::provider_library! { V1, Verbs }
