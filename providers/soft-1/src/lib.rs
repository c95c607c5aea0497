//! `libdapl-soft.so.1`: the soft provider for a registry library that is not ours. No logic: see
//! [`dat_core::setup::library`].

dat_core::provider_library! { V1, Soft }
