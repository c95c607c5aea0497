//! The function tables: `DAT_PROVIDER` of both versions, filled with the C functions of all
//! objects. This is the top of the provider: nothing below it knows which functions there are.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use super::abi::{Abi, V1, V2};
use super::function_table::function_table;
use super::ordered_calls::{self, EvdDequeue, EvdWait, Functions};
use super::provider::Tables;
use super::{
    cno, counted_calls, cr, csp, ep, evd, extension, generic, ia, ia_open, ia_query, lmr, psp, pz,
    rmr, rsp, srq, unsupported,
};
use crate::abi::{v1, v2};
use crate::device::Device;
use crate::handle::{self, ANY, SLOT};
use crate::thread_sanitizer::Checker;

/// A version of the ABI with its provider table.
pub trait ProviderTable: Abi {
    /// `DAT_PROVIDER`.
    type Table: 'static;

    /// The function for extended operations that need no open IA, if there are any.
    fn extensions<D: Device>() -> Option<v2::DAPL_EXTENSIONS_FUNC>;

    /// The table for a device, whose functions know so much of their handles ([`handle::get_as`]). `name`
    /// is the IA name and lives as long as the table.
    fn table<D: Device, const KNOWN: bool>(name: *const c_char) -> Self::Table;

    /// The same for IAs whose counters are on.
    fn counting_table<D: Device>(name: *const c_char) -> Self::Table;

    /// The same for a program that ThreadSanitizer checks: a table whose functions call those of `F`, and has all else
    /// from the one that is given.
    fn ordered_table<F: Functions<Abi = Self, Table = Self::Table>>(
        table: Self::Table,
    ) -> Self::Table;
}

/// The functions of a device.
struct Plain<A, D>(PhantomData<fn() -> (A, D)>);

impl<A: ProviderTable, D: Device> Functions for Plain<A, D> {
    type Abi = A;
    type Table = A::Table;

    fn table() -> A::Table {
        A::table::<D, ANY>(std::ptr::null())
    }

    fn evd_wait<O: Abi>() -> EvdWait<O::Event> {
        evd::evd_wait::<O, D, ANY>
    }

    fn evd_dequeue<O: Abi>() -> EvdDequeue<O::Event> {
        evd::evd_dequeue::<O, D, ANY>
    }
}

/// Those of IAs whose counters are on.
struct Counting<A, D>(PhantomData<fn() -> (A, D)>);

impl<A: ProviderTable, D: Device> Functions for Counting<A, D> {
    type Abi = A;
    type Table = A::Table;

    fn table() -> A::Table {
        A::counting_table::<D>(std::ptr::null())
    }

    fn evd_wait<O: Abi>() -> EvdWait<O::Event> {
        counted_calls::evd_wait::<O, D>
    }

    fn evd_dequeue<O: Abi>() -> EvdDequeue<O::Event> {
        counted_calls::evd_dequeue::<O, D>
    }
}

/// Makes the tables of a name, which live as long as the process, as every handle points to one.
pub fn leak<A: ProviderTable, D: Device>(name: *const c_char) -> Tables {
    fn leak<T>(provider: T, exported: T) -> *const c_void {
        let tables = Box::new(handle::Tables { provider, exported });
        std::ptr::from_ref(Box::leak(tables)).cast()
    }
    if Checker::get().is_some() {
        let plain = || A::ordered_table::<Plain<A, D>>(A::table::<D, ANY>(name));
        let counting = || A::ordered_table::<Counting<A, D>>(A::counting_table::<D>(name));
        return Tables {
            plain: leak(plain(), plain()),
            counting: leak(counting(), counting()),
        };
    }
    Tables {
        plain: leak(A::table::<D, ANY>(name), A::table::<D, SLOT>(name)),
        counting: leak(A::counting_table::<D>(name), A::counting_table::<D>(name)),
    }
}

/// The function table: slots whose functions read the same in both versions, and those given.
///
/// Together they are all slots.
macro_rules! provider_table {
    ($abi:ident, $c:ident, extensions: $extensions:expr, counting: $counting:expr, ordered: $ordered:ident, { $($slot:ident: $function:path,)* }) => {
        impl ProviderTable for $abi {
            type Table = $c::DAT_PROVIDER;

            fn extensions<D: Device>() -> Option<v2::DAPL_EXTENSIONS_FUNC> {
                $extensions
            }

            fn counting_table<D: Device>(name: *const c_char) -> $c::DAT_PROVIDER {
                $counting(Self::table::<D, ANY>(name))
            }

            fn ordered_table<F: Functions<Abi = Self, Table = Self::Table>>(
                table: $c::DAT_PROVIDER,
            ) -> $c::DAT_PROVIDER {
                ordered_calls::$ordered::<F>(table)
            }

            fn table<D: Device, const KNOWN: bool>(name: *const c_char) -> $c::DAT_PROVIDER {
                function_table! { KNOWN, $c::DAT_PROVIDER {
                    device_name: name,
                    extension: null_mut(),
                } {
                    ia_open_func: ia_open::ia_open::<$abi, D>,
                    ia_query_func: ia_query::ia_query::<$abi, D>,
                    ia_close_func: ia::ia_close::<$abi, D>,
                    set_consumer_context_func: generic::set_consumer_context::<$abi, D>,
                    get_consumer_context_func: generic::get_consumer_context::<$abi, D>,
                    get_handle_type_func: generic::get_handle_type::<$abi, D>,
                    cno_create_func: cno::cno_create::<$abi, D>,
                    cno_modify_agent_func: cno::cno_modify_agent::<$abi, D>,
                    cno_query_func: cno::cno_query::<$abi, D>,
                    cno_free_func: cno::cno_free::<$abi, D>,
                    cno_wait_func: cno::cno_wait::<$abi, D>,
                    cr_query_func: cr::cr_query::<$abi, D>,
                    cr_accept_func: cr::cr_accept::<$abi, D>,
                    evd_create_func: evd::evd_create::<$abi, D>,
                    evd_query_func: evd::evd_query::<$abi, D>,
                    evd_modify_cno_func: evd::evd_modify_cno::<$abi, D>,
                    evd_enable_func: evd::evd_enable::<$abi, D>,
                    evd_disable_func: evd::evd_disable::<$abi, D>,
                    evd_wait_func: evd::evd_wait::<$abi, D, KNOWN>,
                    evd_resize_func: evd::evd_resize::<$abi, D>,
                    evd_post_se_func: evd::evd_post_se::<$abi, D>,
                    evd_dequeue_func: evd::evd_dequeue::<$abi, D, KNOWN>,
                    evd_free_func: evd::evd_free::<$abi, D>,
                    ep_create_func: ep::ep_create::<$abi, D>,
                    ep_query_func: ep::ep_query::<$abi, D>,
                    ep_connect_func: ep::ep_connect::<$abi, D>,
                    ep_disconnect_func: ep::ep_disconnect::<$abi, D>,
                    ep_post_send_func: ep::ep_post_send::<$abi, D, KNOWN>,
                    ep_post_recv_func: ep::ep_post_recv::<$abi, D, KNOWN>,
                    ep_post_rdma_read_func: ep::ep_post_rdma_read::<$abi, D, KNOWN>,
                    ep_post_rdma_write_func: ep::ep_post_rdma_write::<$abi, D, KNOWN>,
                    ep_get_status_func: ep::ep_get_status::<$abi, D>,
                    ep_free_func: ep::ep_free::<$abi, D>,
                    ep_reset_func: ep::ep_reset::<$abi, D>,
                    lmr_query_func: lmr::lmr_query::<$abi, D>,
                    lmr_free_func: rmr::lmr_free::<$abi, D>,
                    lmr_sync_rdma_read_func: lmr::lmr_sync::<$abi, D>,
                    lmr_sync_rdma_write_func: lmr::lmr_sync::<$abi, D>,
                    psp_create_func: psp::psp_create::<$abi, D>,
                    psp_create_any_func: psp::psp_create_any::<$abi, D>,
                    psp_query_func: psp::psp_query::<$abi, D>,
                    psp_free_func: psp::psp_free::<$abi, D>,
                    cr_handoff_func: cr::cr_handoff::<$abi, D>,
                    ep_modify_func: ep::ep_modify::<$abi, D>,
                    ep_dup_connect_func: ep::ep_dup_connect::<$abi, D>,
                    ep_create_with_srq_func: ep::ep_create_with_srq::<$abi, D>,
                    ep_recv_query_func: ep::ep_recv_query::<$abi, D>,
                    ep_set_watermark_func: ep::ep_set_watermark::<$abi, D>,
                    rmr_create_func: rmr::rmr_create::<$abi, D>,
                    rmr_query_func: rmr::rmr_query::<$abi, D>,
                    rmr_free_func: rmr::rmr_free::<$abi, D>,
                    rsp_create_func: rsp::rsp_create::<$abi, D>,
                    rsp_query_func: rsp::rsp_query::<$abi, D>,
                    rsp_free_func: rsp::rsp_free::<$abi, D>,
                    srq_create_func: srq::srq_create::<$abi, D>,
                    srq_free_func: srq::srq_free::<$abi, D>,
                    srq_post_recv_func: srq::srq_post_recv::<$abi, D>,
                    srq_query_func: srq::srq_query::<$abi, D>,
                    srq_resize_func: srq::srq_resize::<$abi, D>,
                    srq_set_lw_func: srq::srq_set_lw::<$abi, D>,
                    pz_create_func: pz::pz_create::<$abi, D>,
                    pz_query_func: pz::pz_query::<$abi, D>,
                    pz_free_func: pz::pz_free::<$abi, D>,
                    evd_set_unwaitable_func: evd::evd_set_unwaitable::<$abi, D>,
                    evd_clear_unwaitable_func: evd::evd_clear_unwaitable::<$abi, D>,
                    $($slot: $function,)*
                }}
            }
        }
    };
}

provider_table!(V1, v1, extensions: None, counting: counted_calls::count_v1::<D>, ordered: ordered_v1, {
    cr_reject_func: cr::cr_reject_plain::<V1, D>,
    lmr_create_func: lmr::lmr_create::<V1, D>,
    rmr_bind_func: rmr::rmr_bind::<V1, D>,
});

provider_table!(V2, v2, extensions: Some(extension::extensions::<V2, D>), counting: counted_calls::count_v2::<D>, ordered: ordered_v2, {
    cr_reject_func: cr::cr_reject::<V2, D>,
    lmr_create_func: lmr::lmr_create_with_va_type::<V2, D>,
    rmr_bind_func: rmr::rmr_bind_lmr::<V2, D>,
    ep_post_send_with_invalidate_func: ep::ep_post_send_with_invalidate::<V2, D>,
    csp_create_func: csp::csp_create::<V2, D>,
    csp_query_func: csp::csp_query::<V2, D>,
    csp_free_func: csp::csp_free::<V2, D>,
    ep_common_connect_func: ep::ep_common_connect::<V2, D>,
    rmr_create_for_ep_func: rmr::rmr_create_for_ep::<V2, D>,
    ep_post_rdma_read_to_rmr_func: rmr::ep_post_rdma_read_to_rmr::<V2, D>,
    cno_fd_create_func: cno::cno_fd_create::<V2, D>,
    cno_trigger_func: cno::cno_trigger::<V2, D>,
    ia_ha_related_func: unsupported::ia_ha_related::<V2>,
    handle_extendedop_func: extension::handle_extendedop::<V2, D>,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::Soft;

    /// The words of a table.
    fn words<T>(table: &T) -> &[usize] {
        let words = std::ptr::from_ref(table).cast();
        // SAFETY: a structure of pointers.
        unsafe { std::slice::from_raw_parts(words, size_of::<T>() / size_of::<usize>()) }
    }

    /// Under ThreadSanitizer every function is one that tells the checker something, and the rest is the same.
    fn all_are_ordered<A: ProviderTable>() {
        let name = c"soft".as_ptr();
        let of = [
            (
                A::table::<Soft, ANY>(name),
                A::ordered_table::<Plain<A, Soft>>(A::table::<Soft, ANY>(name)),
            ),
            (
                A::counting_table::<Soft>(name),
                A::ordered_table::<Counting<A, Soft>>(A::counting_table::<Soft>(name)),
            ),
        ];
        // The name, and no extension.
        const FIELDS: usize = 2;
        for (usual, ordered) in &of {
            let (usual, ordered) = (words(usual), words(ordered));
            assert_eq!(usual[..FIELDS], ordered[..FIELDS]);
            for (slot, (usual, ordered)) in usual.iter().zip(ordered).enumerate().skip(FIELDS) {
                assert!(*ordered != 0 && usual != ordered, "word {slot}");
            }
        }
    }

    #[test]
    fn ordered_tables_have_every_function() {
        all_are_ordered::<V1>();
        all_are_ordered::<V2>();
    }
}
