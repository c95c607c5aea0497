//! What all objects but the IA have in common: a handle, an IA, a consumer context.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::counters;
use super::ia::{Child, Ia};
use super::types::{Handle, HandleType};
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};
use crate::handle::{self, Object};

/// The part that every object but the IA has.
pub struct Base<D: Device> {
    handle: AtomicPtr<std::ffi::c_void>,
    /// The IA instance the object belongs to.
    pub ia: Arc<Ia<D>>,
    context: AtomicU64,
}

impl<D: Device> Base<D> {
    /// For a new object; [`publish`] gives it its handle.
    pub fn new(ia: Arc<Ia<D>>) -> Self {
        Base {
            handle: AtomicPtr::default(),
            ia,
            context: AtomicU64::new(0),
        }
    }

    /// The handle; null before [`publish`].
    pub fn handle(&self) -> Handle {
        Handle(self.handle.load(Ordering::Relaxed))
    }

    /// The consumer context (`dat_get_consumer_context`), 0 when never set.
    pub fn context(&self) -> &AtomicU64 {
        &self.context
    }
}

/// An object of the provider other than the IA. [`dat_object!`] implements it.
pub trait DatObject<D: Device>: Object + Child {
    /// What kind.
    const TYPE: HandleType;
    /// Subtype of `DAT_INVALID_HANDLE` for a bad handle of this kind.
    const INVALID: Subtype;
    /// The common part.
    fn base(&self) -> &Base<D>;
}

/// Makes a type with a field `base` an object: its handle tag, [`DatObject`] and `handle()`.
/// The arguments are the type, its [`HandleType`] and the [`Subtype`] of `DatObject::INVALID`.
macro_rules! dat_object {
    ($object:ident, $kind:ident, $invalid:ident) => {
        // SAFETY: `tag` gives every kind of object of every device a tag of its own; the
        // alignment is checked where a handle is made.
        unsafe impl<D: $crate::device::Device> $crate::handle::Object for $object<D> {
            const TAG: usize =
                $crate::dapl::types::tag($crate::dapl::types::HandleType::$kind, D::INDEX);
        }

        impl<D: $crate::device::Device> $crate::dapl::object::DatObject<D> for $object<D> {
            const TYPE: $crate::dapl::types::HandleType = $crate::dapl::types::HandleType::$kind;
            const INVALID: $crate::error::Subtype = $crate::error::Subtype::$invalid;
            fn base(&self) -> &$crate::dapl::object::Base<D> {
                &self.base
            }
        }

        impl<D: $crate::device::Device> $object<D> {
            /// The handle.
            pub fn handle(&self) -> $crate::dapl::types::Handle {
                self.base.handle()
            }
        }
    };
}

pub(super) use dat_object;

/// Gives a new object its handle and enters it with its IA.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES` when no handle is to be had, `DAT_INVALID_HANDLE` when the IA is
/// being closed.
pub fn publish<D: Device, T: DatObject<D>>(object: &Arc<T>) -> Result<Handle> {
    let base = object.base();
    let handle = handle::insert(base.ia.table(), object.clone())
        .ok_or(Error::resource(Subtype::ResourceMemory))?;
    // Events of the device may carry the handle from now on; C gets it when the call returns.
    base.handle.store(handle, Ordering::Relaxed);
    let child: Weak<T> = Arc::downgrade(object);
    if !base.ia.add_child(T::TYPE, Handle(handle), child) {
        handle::remove(handle, &**object);
        return Err(Error::handle(Subtype::HandleIa));
    }
    if let Some((created, _)) = counters::of_kind(T::TYPE) {
        base.ia.count(created);
    }
    Ok(Handle(handle))
}

/// Invalidates the handle of an object. `false` if another thread was faster.
pub fn unpublish<D: Device, T: DatObject<D>>(object: &T) -> bool {
    let base = object.base();
    let handle = base.handle();
    if !handle::remove(handle.0, object) {
        return false;
    }
    base.ia.remove_child(T::TYPE, handle);
    if let Some((_, freed)) = counters::of_kind(T::TYPE) {
        base.ia.count(freed);
    }
    true
}

/// The object of a handle, or `DAT_INVALID_HANDLE` with the subtype of its kind.
pub fn lookup<D: Device, T: DatObject<D>>(handle: DAT_HANDLE) -> Result<Arc<T>> {
    handle::get_shared(handle).ok_or(Error::handle(T::INVALID))
}

/// [`lookup`] for an argument that may be `DAT_HANDLE_NULL`, with the error of the argument.
pub fn lookup_opt<D: Device, T: DatObject<D>>(
    handle: DAT_HANDLE,
    invalid: Subtype,
) -> Result<Option<Arc<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    match handle::get_shared(handle) {
        Some(object) => Ok(Some(object)),
        None => Err(Error::handle(invalid)),
    }
}
