//! The ABI version as a type parameter: conversions between C structures and the types of the
//! objects. All differences of layout between DAT 1.2 and 2.0 are here; the rules are the same.

mod convert;
mod observed;
mod v1;
mod v2;

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use super::ep_attr::{EpAttr, EpChange, EpParam};
use super::types::{Event, Extension, IaAttr, LmrParam, LmrRange, RmrParam};
use crate::abi::common::*;
use crate::device::{Completion, DeviceAttr, Remote, Sge};
use crate::error::{Result, Version};

pub use observed::{Observed, Observer};
pub use v1::V1;
pub use v2::V2;

/// A handle that the device returned as a number.
#[inline]
fn handle(context: u64) -> DAT_HANDLE {
    std::ptr::with_exposed_provenance_mut(context as usize)
}

/// Fills a name field of a C structure; the name is truncated to fit and always terminated.
fn fill_name(field: &mut [c_char; DAT_NAME_MAX_LENGTH], text: &[u8]) {
    *field = [0; DAT_NAME_MAX_LENGTH];
    for (to, from) in field
        .iter_mut()
        .zip(text.iter().copied())
        .take(DAT_NAME_MAX_LENGTH - 1)
    {
        *to = from as c_char;
    }
}

/// One version of the C ABI.
pub trait Abi: Send + Sync + 'static {
    /// The version whose return codes apply.
    const VERSION: Version;
    /// Major version of the API.
    const MAJOR: u32;
    /// Minor version of the API.
    const MINOR: u32;
    /// All bits of a `DAT_IA_ATTR_MASK`.
    const IA_FIELDS: u64;
    /// All bits of a `DAT_EP_PARAM_MASK`.
    const EP_FIELDS: u64;
    /// All bits of a `DAT_LMR_PARAM_MASK`.
    const LMR_FIELDS: u32;
    /// All bits of a `DAT_RMR_PARAM_MASK`.
    const RMR_FIELDS: u32;
    /// Whether there are endpoints for datagrams.
    const DATAGRAMS: bool;
    /// All bits that the `DAT_EVD_FLAGS` of an EVD may have.
    const EVD_FLAGS: DAT_EVD_FLAGS;
    /// All bits that a `DAT_CNO_PARAM_MASK` may have.
    const CNO_FIELDS: u32;
    /// `DAT_SRQ_STATE_OPERATIONAL`, which the versions number differently.
    const SRQ_OPERATIONAL: DAT_SRQ_STATE;

    /// `DAT_LMR_TRIPLET`.
    type LmrTriplet: Copy;
    /// `DAT_RMR_TRIPLET`.
    type RmrTriplet: Copy;
    /// `DAT_EVENT`.
    type Event: Copy;
    /// `DAT_EP_ATTR`.
    type EpAttr: Copy;
    /// `DAT_EP_PARAM`.
    type EpParam: Copy;
    /// `DAT_LMR_PARAM`.
    type LmrParam: Copy;
    /// `DAT_RMR_PARAM`.
    type RmrParam: Copy;
    /// `DAT_IA_ATTR`.
    type IaAttr: Copy;
    /// `DAT_PROVIDER_ATTR`.
    type ProviderAttr: Copy;
    /// `DAT_CNO_PARAM`.
    type CnoParam: Copy;

    /// A range of an LMR.
    fn lmr_range(triplet: &Self::LmrTriplet) -> LmrRange;
    /// A local segment of a post, which is argument 3.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for one that no device could move.
    fn sge(triplet: &Self::LmrTriplet) -> Result<Sge>;
    /// The same where the triplet is, if it has the layout of a segment.
    fn sge_in_place(triplet: &Self::LmrTriplet) -> Option<&Sge>;
    /// A remote range and its length.
    fn remote(triplet: &Self::RmrTriplet) -> (Remote, u64);
    /// Writes the event as C sees it. `evd` is the EVD it is taken from.
    fn event(event: &Event, evd: DAT_EVD_HANDLE, out: &mut MaybeUninit<Self::Event>);
    /// Adds what makes an event that was written one of an extension, which this version has.
    fn extend(out: &mut MaybeUninit<Self::Event>, extension: &Extension);
    /// Writes a completion as the event that C sees. `evd` is the EVD it is taken from.
    fn completion(completion: &Completion, evd: DAT_EVD_HANDLE, out: &mut MaybeUninit<Self::Event>);
    /// The number of an event that was written.
    fn event_number(event: &Self::Event) -> DAT_EVENT_NUMBER;
    /// Number and pointer of an event that `dat_evd_post_se` was given.
    fn software_event(event: &Self::Event) -> (DAT_EVENT_NUMBER, DAT_PVOID);
    /// Reads endpoint attributes.
    fn ep_attr(attr: &Self::EpAttr) -> EpAttr;
    /// Writes endpoint parameters.
    fn ep_param(param: &EpParam) -> Self::EpParam;
    /// Reads a change of endpoint parameters; `mask` is in the numbers of this version.
    fn ep_change(mask: u64, param: &Self::EpParam) -> EpChange;
    /// Writes RMR parameters.
    fn rmr_param(param: &RmrParam) -> Self::RmrParam;
    /// Writes LMR parameters.
    fn lmr_param(param: &LmrParam) -> Self::LmrParam;
    /// Writes IA attributes.
    fn ia_attr(attr: &IaAttr<'_>) -> Self::IaAttr;
    /// Writes provider attributes; `named` are the provider-specific ones, which must outlive the
    /// result.
    fn provider_attr(
        name: &str,
        device: &DeviceAttr,
        named: *const [DAT_NAMED_ATTR],
        says_thread_safe: bool,
    ) -> Self::ProviderAttr;
    /// Writes CNO parameters. `fd` is the descriptor of a CNO that has one.
    fn cno_param(
        ia: DAT_IA_HANDLE,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        fd: Option<RawFd>,
    ) -> Self::CnoParam;
}
