//! `dat_extension_op`: the InfiniBand extensions of DAT 2.0 (`dat_ib_extensions.h`).

use std::ffi::{CStr, c_void};

use super::abi::Abi;
use super::boundary::{boundary, creation, non_null};
use super::ia::lookup_ia;
use super::ia_query::AttributesOut;
use super::{counter_operations, ep, ia_open, provider};
use crate::abi::v2::*;
use crate::abi::va_list::VaList;
use crate::device::Device;
use crate::error::{Error, Kind, Subtype};

/// The slot of `dat_extension_op`. An operation that there is not gives `DAT_NOT_IMPLEMENTED`.
///
/// # Safety
/// The list is a `va_list` of C with the arguments of the operation.
#[inline(never)]
pub unsafe extern "C" fn handle_extendedop<A: Abi, D: Device>(
    handle: DAT_HANDLE,
    extended_op: DAT_EXTENDED_OP,
    argument_list: *mut c_void,
) -> DAT_RETURN {
    // SAFETY: the caller's promise, for the list and its arguments.
    unsafe {
        let arguments = &mut VaList::received(argument_list);
        match extended_op as DAT_IB_OP {
            DAT_IB_FETCH_AND_ADD_OP => ep::fetch_and_add::<A, D>(handle, arguments),
            DAT_IB_CMP_AND_SWAP_OP => ep::compare_and_swap::<A, D>(handle, arguments),
            DAT_IB_RDMA_WRITE_IMMED_OP => ep::rdma_write_immediate::<A, D>(handle, arguments),
            DAT_IB_UD_SEND_OP => ep::post_send_datagram::<A, D>(handle, arguments),
            DAT_IB_UD_CM_FREE_OP => ep::free_exchange::<A, D>(handle, arguments),
            DAT_IB_UD_AH_FREE_OP => ep::free_address_handle::<A, D>(handle, arguments),
            DAT_IB_QUERY_COUNTERS_OP => counter_operations::query::<A, D>(handle, arguments),
            DAT_IB_PRINT_COUNTERS_OP => counter_operations::print::<A, D>(handle, arguments),
            DAT_IB_START_COUNTERS_OP => counter_operations::start::<A, D>(handle, arguments),
            DAT_IB_STOP_COUNTERS_OP => counter_operations::stop::<A, D>(handle, arguments),
            DAT_IB_CLOSE_QUERY_OP => close_query::<A, D>(handle),
            _ => not_implemented::<A>(),
        }
    }
}

/// `dapl_extensions`: operations on the name of an IA.
///
/// # Safety
/// The name is NULL or a C string; the list is a `va_list` of C with the arguments behind the name.
pub unsafe extern "C" fn extensions<A: Abi, D: Device>(
    name: DAT_NAME_PTR,
    extended_op: DAT_EXTENDED_OP,
    argument_list: *mut c_void,
) -> DAT_RETURN {
    // SAFETY: the caller's promise, for the list and its arguments.
    unsafe {
        let arguments = &mut VaList::received(argument_list);
        match extended_op as DAT_IB_OP {
            DAT_IB_OPEN_QUERY_OP => open_query::<A, D>(name, arguments),
            _ => not_implemented::<A>(),
        }
    }
}

fn not_implemented<A: Abi>() -> DAT_RETURN {
    Error::from(Kind::NotImplemented).code(A::VERSION)
}

/// `dat_ib_open_query`: the attributes of an IA for a program that does not want to use it. It is open,
/// without an asynchronous EVD, until `dat_ib_close_query`.
///
/// # Safety
/// The name is NULL or a C string; the list has the arguments of the macro behind the name, and the
/// pointers among them are NULL or point to memory for what they name.
unsafe fn open_query<A: Abi, D: Device>(name: DAT_NAME_PTR, arguments: &mut VaList) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let (ia_handle, ia_attr, provider_attr) = unsafe {
        (
            arguments.pointer::<DAT_IA_HANDLE>(),
            (arguments.word(), arguments.pointer::<A::IaAttr>()),
            (arguments.word(), arguments.pointer::<A::ProviderAttr>()),
        )
    };
    creation::<A>(|| {
        non_null(name, Subtype::Arg1)?;
        non_null(ia_handle, Subtype::Arg2)?;
        if ia_attr.1.is_null() && provider_attr.1.is_null() {
            // As OpenFabrics' providers do.
            return Err(Error::arg(Subtype::Arg5));
        }
        let attributes = AttributesOut::<A>::new(ia_attr, provider_attr)?;
        // SAFETY: not NULL, so a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let instance = provider::instance::<D>(name).ok_or(Error::arg(Subtype::Arg1))?;
        let (ia, _) = ia_open::create::<D>(name, instance, true)?;
        // SAFETY: NULL or valid, says the caller.
        unsafe {
            attributes.write(&ia);
            ia_handle.write(ia.handle().0);
        }
        Ok(())
    })
}

/// `dat_ib_close_query`. The registry, and the program, have an IA that `dat_ia_open` has opened: this does not end it.
fn close_query<A: Abi, D: Device>(handle: DAT_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(handle)?;
        match ia.for_query {
            true => ia.close(false),
            false => Err(Error::handle(Subtype::HandleIa)),
        }
    })
}
