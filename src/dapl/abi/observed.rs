//! An ABI for EVDs whose events somebody else is to know of, when the program takes them: those of DAT 1.2 do not say
//! which operation has ended.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use super::Abi;
use crate::abi::common::*;
use crate::dapl::ep_attr::{EpAttr, EpChange, EpParam};
use crate::dapl::types::{Event, Extension, IaAttr, LmrParam, LmrRange, RmrParam};
use crate::device::{Completion, DeviceAttr, Remote, Sge};
use crate::error::{Result, Version};

/// Who is told of the events that the program takes.
pub trait Observer: Send + Sync + 'static {
    /// Of the completion of a request or a receive.
    fn completion(completion: &Completion);

    /// Of any other event. `evd` is the EVD it is taken from.
    fn event(_event: &Event, _evd: DAT_EVD_HANDLE) {}
}

/// The ABI `A`, with an observer.
pub struct Observed<A, O>(PhantomData<fn() -> (A, O)>);

impl<A: Abi, O: Observer> Abi for Observed<A, O> {
    const VERSION: Version = A::VERSION;
    const MAJOR: u32 = A::MAJOR;
    const MINOR: u32 = A::MINOR;
    const IA_FIELDS: u64 = A::IA_FIELDS;
    const EP_FIELDS: u64 = A::EP_FIELDS;
    const LMR_FIELDS: u32 = A::LMR_FIELDS;
    const RMR_FIELDS: u32 = A::RMR_FIELDS;
    const DATAGRAMS: bool = A::DATAGRAMS;
    const EVD_FLAGS: DAT_EVD_FLAGS = A::EVD_FLAGS;
    const CNO_FIELDS: u32 = A::CNO_FIELDS;
    const SRQ_OPERATIONAL: DAT_SRQ_STATE = A::SRQ_OPERATIONAL;

    type LmrTriplet = A::LmrTriplet;
    type RmrTriplet = A::RmrTriplet;
    type Event = A::Event;
    type EpAttr = A::EpAttr;
    type EpParam = A::EpParam;
    type LmrParam = A::LmrParam;
    type RmrParam = A::RmrParam;
    type IaAttr = A::IaAttr;
    type ProviderAttr = A::ProviderAttr;
    type CnoParam = A::CnoParam;

    fn event(event: &Event, evd: DAT_EVD_HANDLE, out: &mut MaybeUninit<Self::Event>) {
        match event {
            Event::Completion(completion) => Self::completion(completion, evd, out),
            _ => {
                A::event(event, evd, out);
                O::event(event, evd);
            }
        }
    }

    fn completion(
        completion: &Completion,
        evd: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<Self::Event>,
    ) {
        A::completion(completion, evd, out);
        O::completion(completion);
    }

    // All else is that of the ABI.

    fn lmr_range(triplet: &Self::LmrTriplet) -> LmrRange {
        A::lmr_range(triplet)
    }

    fn sge(triplet: &Self::LmrTriplet) -> Result<Sge> {
        A::sge(triplet)
    }

    fn sge_in_place(triplet: &Self::LmrTriplet) -> Option<&Sge> {
        A::sge_in_place(triplet)
    }

    fn remote(triplet: &Self::RmrTriplet) -> (Remote, u64) {
        A::remote(triplet)
    }

    fn extend(out: &mut MaybeUninit<Self::Event>, extension: &Extension) {
        A::extend(out, extension);
    }

    fn event_number(event: &Self::Event) -> DAT_EVENT_NUMBER {
        A::event_number(event)
    }

    fn software_event(event: &Self::Event) -> (DAT_EVENT_NUMBER, DAT_PVOID) {
        A::software_event(event)
    }

    fn ep_attr(attr: &Self::EpAttr) -> EpAttr {
        A::ep_attr(attr)
    }

    fn ep_param(param: &EpParam) -> Self::EpParam {
        A::ep_param(param)
    }

    fn ep_change(mask: u64, param: &Self::EpParam) -> EpChange {
        A::ep_change(mask, param)
    }

    fn rmr_param(param: &RmrParam) -> Self::RmrParam {
        A::rmr_param(param)
    }

    fn lmr_param(param: &LmrParam) -> Self::LmrParam {
        A::lmr_param(param)
    }

    fn ia_attr(attr: &IaAttr<'_>) -> Self::IaAttr {
        A::ia_attr(attr)
    }

    fn provider_attr(
        name: &str,
        device: &DeviceAttr,
        named: *const [DAT_NAMED_ATTR],
        says_thread_safe: bool,
    ) -> Self::ProviderAttr {
        A::provider_attr(name, device, named, says_thread_safe)
    }

    fn cno_param(
        ia: DAT_IA_HANDLE,
        agent: DAT_OS_WAIT_PROXY_AGENT,
        fd: Option<RawFd>,
    ) -> Self::CnoParam {
        A::cno_param(ia, agent, fd)
    }
}
