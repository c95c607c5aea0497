//! Handles. C may pass any bit pattern as a handle; only a valid handle of this module is ever
//! followed.
//!
//! [`arena`] makes handles whose validity can be checked, [`pin`] keeps the object of a checked
//! handle alive while a call uses it, without a lock or a counter. Together:
//!
//! ```text
//! let guard = pin::pin();
//! let ep: &Ep = handle::get(h, &guard).ok_or(invalid handle)?;
//! ```
//!
//! A free in another thread invalidates the handle at once; the object is dropped when the last
//! call that had looked it up has ended. A call that blocks takes a reference ([`share`]) and
//! ends its section.

mod arena;
mod biased;
#[cfg_attr(loom, path = "memory_model.rs")]
#[cfg_attr(miri, path = "memory_miri.rs")]
mod memory;
pub mod pin;
mod shared;

use std::ffi::c_void;
use std::sync::Arc;

pub use biased::{Biased, Held, INNER, Owned};
pub use pin::{Guard, Section};
pub use shared::Shared;

/// Low bits of an object's address that hold its tag.
const TAG_MASK: usize = 63;

/// A type whose values handles can name.
///
/// # Safety
/// No two types have the same [`Object::TAG`], the type is aligned to 64 bytes, and references
/// to it that reach [`share`] or [`remove`] are to objects that [`insert`] has taken.
pub unsafe trait Object: Send + Sync + 'static {
    /// Identifies the type: 1 to 63.
    const TAG: usize;
}

fn tagged<T: Object>(object: *const T) -> *mut c_void {
    const { assert!(T::TAG > 0 && T::TAG <= TAG_MASK && align_of::<T>() > TAG_MASK) };
    (object as *mut c_void).map_addr(|a| a | T::TAG)
}

/// Makes a handle for an object. The arena keeps one reference until [`remove`].
///
/// `table` is what the first word of the handle will point to: the provider table.
/// `None` when the address space for handles, or memory, is exhausted.
pub fn insert<T: Object>(table: *const c_void, object: Arc<T>) -> Option<*mut c_void> {
    let raw = Arc::into_raw(object);
    // For `pointer_to`.
    let _ = raw.expose_provenance();
    let handle = arena::insert(table.cast_mut(), tagged(raw));
    if handle.is_none() {
        // SAFETY: from `into_raw` above; the arena has not taken the reference.
        drop(unsafe { Arc::from_raw(raw) });
    }
    handle
}

/// The object of a handle, if the handle is valid and its object of this type.
#[inline]
pub fn get<T: Object>(handle: *mut c_void, guard: &Guard) -> Option<&T> {
    // SAFETY: from the arena, in the section of `guard`.
    unsafe { typed(arena::object(handle), guard, || ()) }.ok()
}

/// Nothing is known of a handle.
pub const ANY: bool = false;

/// A handle is the address of a slot of the arena, as the exported functions have found out
/// ([`dispatched_table_of`]). The handle need not be valid any more.
pub const SLOT: bool = true;

/// [`get`] for a handle of which something is known: [`ANY`] or [`SLOT`]. If the error is made out of line,
/// the check of the handle is also the test for the error, where an `Option` needs one more.
///
/// # Safety
/// What is said to be known is so.
#[inline(always)]
pub unsafe fn get_as<T: Object, E, const KNOWN: bool>(
    handle: *mut c_void,
    guard: &Guard,
    error: impl FnOnce() -> E,
) -> Result<&T, E> {
    let object = match KNOWN {
        // SAFETY: the caller's promise.
        SLOT => unsafe { arena::object_in(handle) },
        ANY => arena::object(handle),
    };
    // SAFETY: from the arena, in the section of `guard`.
    unsafe { typed(object, guard, error) }
}

/// The same pointer, of which the compiler does not know how it was calculated.
#[inline(always)]
fn unknown(pointer: *mut c_void) -> *mut c_void {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut pointer = pointer;
        // SAFETY: no instruction.
        unsafe {
            std::arch::asm!(
                "/* {0} */",
                inout(reg) pointer,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pointer
}

/// The object without its tag, if it is of this type.
///
/// # Safety
/// The object was read in the arena, in the section of the guard.
#[inline(always)]
unsafe fn typed<T: Object, E>(
    object: *mut c_void,
    _guard: &Guard,
    error: impl FnOnce() -> E,
) -> Result<&T, E> {
    // The address without the tag is needed anyway, and is tested by one instruction; of a tag the compiler
    // would have to make a number first. No tag is 0, so null has another.
    let object = unknown(object.map_addr(|a| a.wrapping_sub(T::TAG)));
    if object.addr() & TAG_MASK != 0 {
        return Err(error());
    }
    let object = object.cast::<T>();
    // SAFETY: the tag shows that `insert::<T>` stored the object. `remove` defers the drop until the
    // section, which began before the load, has ended.
    unsafe {
        // What [`unknown`] gives is not known to be that.
        std::hint::assert_unchecked(!object.is_null());
        Ok(&*object)
    }
}

/// The pointer to an object that [`insert`] has taken from its `Arc`, by which the counters of the
/// `Arc` may be accessed; by a reference to the object they may not.
fn pointer_to<T: Object>(object: &T) -> *const T {
    std::ptr::with_exposed_provenance(std::ptr::from_ref(object).addr())
}

/// A reference that outlives the section, for calls that block or store the object.
pub fn share<T: Object>(object: &T) -> Arc<T> {
    let raw = pointer_to(object);
    // SAFETY: by the contract of the trait the object is in an `Arc`, which is alive while it is
    // borrowed.
    unsafe {
        Arc::increment_strong_count(raw);
        Arc::from_raw(raw)
    }
}

/// The object of a handle as a reference of the caller's own.
pub fn get_shared<T: Object>(handle: *mut c_void) -> Option<Arc<T>> {
    let guard = pin::pin();
    get::<T>(handle, &guard).map(share)
}

/// Invalidates a handle. `false` if another thread has done so before, or if the handle never was
/// one of this object; nothing has changed then. The arena's reference is dropped when no section
/// can access the object any more.
pub fn remove<T: Object>(handle: *mut c_void, object: &T) -> bool {
    if !arena::remove(handle, tagged(object)) {
        return false;
    }
    struct Raw<T>(*const T);
    // SAFETY: the pointer represents an `Arc<T>` of a type that is Send and Sync.
    unsafe impl<T: Object> Send for Raw<T> {}
    impl<T> Raw<T> {
        fn release(self) {
            // SAFETY: the reference that `insert` gave to the arena; `arena::remove` returns true
            // once for each.
            drop(unsafe { Arc::from_raw(self.0) });
        }
    }
    let raw = Raw(pointer_to(object));
    pin::retire(move || raw.release());
    true
}

/// The provider table of a handle, if the handle is valid.
#[inline]
pub fn table_of(handle: *mut c_void) -> Option<*const c_void> {
    let table = arena::table(handle)?;
    (!table.is_null()).then_some(table.cast_const())
}

/// The function tables that the handles of a provider lead to.
#[repr(C)]
pub struct Tables<T> {
    /// For whoever follows a handle: first, as that finds only the address of the whole.
    pub provider: T,
    /// For the exported functions of this library, which have found the table by
    /// [`dispatched_table_of`]: the functions need not check once more that the handle is the address of a
    /// [`SLOT`]. No slot of this table is empty.
    pub exported: T,
}

/// [`table_of`] for exported functions: what a call of them costs most of the time. It is one of
/// [`Tables`].
#[inline]
pub fn dispatched_table_of(handle: *mut c_void) -> Option<*const c_void> {
    let table = arena::dispatched_table(handle)?;
    (!table.is_null()).then_some(table.cast_const())
}

/// Diverts exported functions: [`dispatched_table_of`] finds nothing from now on, so that each call
/// looks for its provider where that may cost something.
pub fn divert() {
    arena::divert();
}

/// Whether the value is in the address range of the handles, valid or not. Such a value must
/// never be taken for the pointer of another provider.
pub fn is_ours(handle: *mut c_void) -> bool {
    arena::in_range(handle)
}

#[cfg(test)]
mod tests;
