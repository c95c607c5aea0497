//! The layouts that the verbs device has of rdma-core's structures, compared with those that
//! bindgen makes of the installed headers for the crate `rdma-sys`.
//!
//! `tests/verbs_layout.rs` asks a C compiler for offsets and sizes of whole structures. The bindings
//! are Rust, so here the size of every member and the arguments of the functions that are called
//! through pointers are compared too.

use std::mem::{align_of, offset_of, size_of};

use dat_core::testing::device::Sge;
use dat_core::testing::device::verbs::sys::*;

#[path = "../verbs_structures/mod.rs"]
mod verbs_structures;

/// How a member, which is a type of its own, is passed about.
trait Shape {
    /// Sizes in bytes: of the result, then of the arguments.
    const SIZES: &'static [usize];
}

macro_rules! shapes {
    ($($arg:ident)*) => {
        impl<R $(, $arg)*> Shape for Option<unsafe extern "C" fn($($arg),*) -> R> {
            const SIZES: &'static [usize] = &[size_of::<R>() $(, size_of::<$arg>())*];
        }
    };
}

shapes!(A);
shapes!(A B);
shapes!(A B C);

fn member_size<T, M>(_: fn(*const T) -> *const M) -> usize {
    size_of::<M>()
}

fn sizes<T, M: Shape>(_: fn(*const T) -> *const M) -> &'static [usize] {
    M::SIZES
}

/// Compares the offset and the size of a member.
macro_rules! member {
    ($ours:ident . { $($field:ident).+ }, $theirs:ident . $($path:tt).+) => {
        let what = concat!(stringify!($theirs), ".", stringify!($($path).+));
        assert_eq!(
            offset_of!($ours, $($field).+),
            offset_of!(rdma_sys::$theirs, $($path).+),
            "offset of {what}"
        );
        assert_eq!(
            // SAFETY: only the type of the place is looked at; the function is never called.
            member_size::<$ours, _>(|s| unsafe { &raw const (*s).$($field).+ }),
            // SAFETY: as above.
            member_size::<rdma_sys::$theirs, _>(|s| unsafe { &raw const (*s).$($path).+ }),
            "size of {what}"
        );
    };
}

/// A member under the name that rdma-sys has for it: that of C unless another one is given.
macro_rules! named {
    ($ours:ident . $field:tt, $theirs:ident, { $($c:tt)+ }, {}) => {
        member!($ours.$field, $theirs.$($c)+);
    };
    ($ours:ident . $field:tt, $theirs:ident, { $($c:tt)+ }, { $($rust:tt)+ }) => {
        member!($ours.$field, $theirs.$($rust)+);
    };
}

macro_rules! compare {
    ($count:expr, $ours:ident, $theirs:ident, whole, $members:tt) => {
        let what = stringify!($theirs);
        assert_eq!(size_of::<$ours>(), size_of::<rdma_sys::$theirs>(), "size of {what}");
        assert_eq!(align_of::<$ours>(), align_of::<rdma_sys::$theirs>(), "alignment of {what}");
        compare!($count, $ours, $theirs, part, $members);
    };
    ($count:expr, $ours:ident, $theirs:ident, part,
     { $($($field:ident).+ = $($c:tt).+ $(/ $($rust:tt).+)?,)+ }) => {
        $(named!($ours.{ $($field).+ }, $theirs, { $($c).+ }, { $($($rust).+)? });)+
        *$count += 1;
    };
}

#[test]
fn structures_are_those_of_the_bindings() {
    let mut count = 0;
    verbs_structures::structures!(compare, &mut count);
    assert!(count > 20, "{count} structures");
}

#[test]
fn functions_take_what_those_of_the_bindings_take() {
    macro_rules! same {
        ($($function:ident)+) => {$(
            assert_eq!(
                // SAFETY: only the type of the place is looked at; the function is never called.
                sizes::<ContextOps, _>(|s| unsafe { &raw const (*s).$function }),
                // SAFETY: as above.
                sizes::<rdma_sys::ibv_context_ops, _>(|s| unsafe { &raw const (*s).$function }),
                "{}",
                stringify!($function)
            );
        )+};
    }
    same!(alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv);
}
