//! `libdapl-soft.so.2`: the soft provider for a registry library that is not ours. No logic: see
//! [`dat_core::setup::library`].

dat_core::provider_library! { V2, Soft }
