//! `dat_ib_query_counters`, `dat_ib_print_counters`, `dat_ib_start_counter`, `dat_ib_stop_counter`.

use std::ffi::CString;
use std::sync::Arc;

use crate::abi::v2::*;
use crate::abi::va_list::VaList;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{boundary, non_null};
use crate::dapl::counters::{Counters, IaCounters, names};
use crate::dapl::ep::Ep;
use crate::dapl::evd::Evd;
use crate::dapl::ia::Ia;
use crate::device::{Device, HardwareCounter};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle;

/// An object that has counters.
enum Counted<D: Device> {
    Ia(Arc<Ia<D>>),
    Ep(Arc<Ep<D>>),
    Evd(Arc<Evd<D>>),
}

impl<D: Device> Counted<D> {
    /// The object of a handle.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` for an object of another kind.
    fn of(handle: DAT_HANDLE) -> Result<Self> {
        if let Some(ep) = handle::get_shared(handle) {
            return Ok(Counted::Ep(ep));
        }
        if let Some(evd) = handle::get_shared(handle) {
            return Ok(Counted::Evd(evd));
        }
        match handle::get_shared(handle) {
            Some(ia) => Ok(Counted::Ia(ia)),
            None => Err(Error::handle(Subtype::Handle1)),
        }
    }

    /// The counters and their names.
    ///
    /// # Errors
    /// `DAT_NOT_IMPLEMENTED` when nothing is counted for the IA.
    fn counters(&self) -> Result<(&Counters, &'static [&'static str])> {
        let (counters, names) = match self {
            Counted::Ia(ia) => (ia.counters().map(IaCounters::values), &names::IA[..]),
            Counted::Ep(ep) => (ep.counters(), &names::EP[..]),
            Counted::Evd(evd) => (evd.counters(), &names::EVD[..]),
        };
        Ok((counters.ok_or(Kind::NotImplemented)?, names))
    }

    /// Calls `f` with the number, the name and the value of a counter, or of each for the number
    /// behind the last. With `reset` they are 0 from then on.
    ///
    /// # Errors
    /// `DAT_NOT_IMPLEMENTED` when nothing is counted, `DAT_INVALID_PARAMETER` for a counter that the
    /// object does not have.
    fn read(&self, which: u32, reset: bool, mut f: impl FnMut(usize, &str, u64)) -> Result<()> {
        let (counters, names) = self.counters()?;
        let which = which as usize;
        let range = match which.cmp(&names.len()) {
            std::cmp::Ordering::Less => which..which + 1,
            std::cmp::Ordering::Equal => 0..which,
            std::cmp::Ordering::Greater => return Err(Error::arg(Subtype::Arg2)),
        };
        if let Counted::Ia(ia) = self
            && let Some(counters) = ia.counters()
        {
            let reset = if reset { range.clone() } else { 0..0 };
            counters.refresh(&*ia.device, &reset);
        }
        for counter in range {
            f(counter, names[counter], counters.read(counter, reset));
        }
        Ok(())
    }
}

/// `dat_ib_query_counters`: copies a counter to its place in the consumer's array of all counters of the
/// object, or all of them.
///
/// # Safety
/// The list has the arguments of the macro, after the handle; the array has all counters, or is NULL.
pub unsafe fn query<A: Abi, D: Device>(handle: DAT_HANDLE, arguments: &mut VaList) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let (which, out, reset) = unsafe {
        (
            arguments.int(),
            arguments.pointer::<DAT_UINT64>(),
            arguments.int() != 0,
        )
    };
    boundary::<A>(|| {
        let object = Counted::<D>::of(handle)?;
        object.counters()?;
        non_null(out, Subtype::Arg3)?;
        object.read(which, reset, |counter, _, value| {
            // SAFETY: the array has a place for each counter, says the caller.
            unsafe { out.add(counter).write(value) };
        })
    })
}

/// `dat_ib_print_counters`: the same on the standard output of the program, a line for each counter.
///
/// # Safety
/// The list has the arguments of the macro, after the handle.
pub unsafe fn print<A: Abi, D: Device>(handle: DAT_HANDLE, arguments: &mut VaList) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let (which, reset) = unsafe { (arguments.int(), arguments.int() != 0) };
    boundary::<A>(|| {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let process = std::process::id();
        Counted::<D>::of(handle)?.read(which, reset, |_, name, value| {
            let line = format!(" {host}:{process:#x}: {name} = {value}");
            if let Ok(line) = CString::new(line) {
                // By the C library, which keeps it in order with what the program prints.
                // SAFETY: a string.
                unsafe { libc::puts(line.as_ptr()) };
            }
        })
    })
}

/// Calls `connections`, or `hardware` with a group of its counters, for the group that the argument names.
fn group<A: Abi, D: Device>(
    handle: DAT_HANDLE,
    which: DAT_IA_COUNTER_TYPE,
    connections: impl FnOnce(&IaCounters),
    hardware: impl FnOnce(&IaCounters, &D, HardwareCounter),
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia: Arc<Ia<D>> = match Counted::of(handle)? {
            Counted::Ia(ia) => ia,
            _ => return Err(Error::handle(Subtype::HandleIa)),
        };
        let counters = ia.counters().ok_or(Kind::NotImplemented)?;
        match which {
            DCNT_IA_CM => connections(counters),
            DCNT_IA_LNK => hardware(counters, &ia.device, HardwareCounter::Port),
            DCNT_IA_DIAG => hardware(counters, &ia.device, HardwareCounter::Adapter),
            _ => return Err(Error::arg(Subtype::Arg2)),
        }
        Ok(())
    })
}

/// `dat_ib_start_counter`: the counters of a group are 0 and count.
///
/// # Safety
/// The list has the argument of the macro, after the handle.
pub unsafe fn start<A: Abi, D: Device>(handle: DAT_HANDLE, arguments: &mut VaList) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let which = unsafe { arguments.int() };
    group::<A, D>(
        handle,
        which,
        IaCounters::start_connections,
        IaCounters::start_hardware,
    )
}

/// `dat_ib_stop_counter`: the counters of a group keep their values.
///
/// # Safety
/// As [`start`].
pub unsafe fn stop<A: Abi, D: Device>(handle: DAT_HANDLE, arguments: &mut VaList) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let which = unsafe { arguments.int() };
    group::<A, D>(
        handle,
        which,
        IaCounters::stop_connections,
        IaCounters::stop_hardware,
    )
}
