//! Interface adapters: `dat_ia_close`, and what the objects of an IA share. `dat_ia_open` is in
//! [`super::ia_open`], `dat_ia_query` in [`super::ia_query`].
//!
//! Each open makes an instance of its own: a device, an asynchronous EVD, and the objects the
//! consumer creates in it. The IA is below its objects and does not know which kinds there are:
//! it reaches them through [`Child`], [`AsyncEvd`] and [`ServicePoint`].

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::abi::Abi;
use super::address::CAddress;
use super::async_events::{AsyncEvd, AsyncEvds};
use super::boundary::boundary;
use super::counters::{self, Counters, IaCounters};
use super::named_attributes::{Attributes, provider_attributes};
use super::parameters::Parameters;
use super::provider::{Instance, Tables};
use super::rules::Rules;
use super::types::{Event, Handle, HandleType, tag};
use crate::abi::common::*;
use crate::abi::v2::{DAT_IA_COUNTERS, DCNT_IA_ASYNC_ERROR};
use crate::delay;
use crate::device::Device;
use crate::error::{Error, Kind, Result, Subtype};
use crate::figures::{Json, Offer};
use crate::handle::{self, Object};

/// An object of an IA, as the IA sees it.
pub trait Child: Send + Sync {
    /// Takes the object down, whatever its state, when its IA is closed. Without effect on an
    /// object that is freed.
    fn destroy(&self);

    /// Writes the figures of the object, if objects of its kind have any. The caller holds no lock.
    fn figures(&self, _json: &mut Json) {}
}

/// A service point, as the IA sees it.
pub(super) trait ServicePoint<D: Device>: Send + Sync {
    /// Takes a request that another service point has got; gives it back if this one takes no
    /// requests.
    fn take(&self, request: D::ConnRequest) -> std::result::Result<(), D::ConnRequest>;
}

/// An open interface adapter.
#[repr(align(64))]
pub struct Ia<D: Device> {
    /// The device that this instance has opened.
    pub device: Arc<D>,
    /// Whose rules hold for its objects.
    pub rules: Rules,
    /// The name that the instance was opened by.
    pub(super) name: CString,
    /// Opened by `dat_ib_open_query`, and closed by `dat_ib_close_query` alone.
    pub(super) for_query: bool,
    /// The provider table, which is never freed.
    table: *const c_void,
    /// The counters, if they are on.
    pub(super) counters: Option<IaCounters>,
    /// See [`Instance`].
    pub(super) says_thread_safe: bool,
    handle: AtomicPtr<c_void>,
    context: AtomicU64,
    address: CAddress,
    /// The async EVDs of all open instances of the IA.
    async_evds: Arc<AsyncEvds>,
    pub(super) transport_attr: Attributes,
    pub(super) provider_attr: Attributes,
    state: Mutex<State>,
    /// Handles of the LMRs by their context, for `dat_rmr_bind` of DAT 1.2.
    lmrs: Mutex<BTreeMap<u32, Handle>>,
    /// Service points by the qualifier they listen on, for `dat_cr_handoff`.
    service_points: Mutex<BTreeMap<u64, ListedPoint<D>>>,
}

/// A service point, by its handle and its object.
type ListedPoint<D> = (Handle, Weak<dyn ServicePoint<D>>);

struct State {
    /// Objects of this instance by [`close_order`] and handle. `None` once the IA is being closed.
    children: Option<BTreeMap<(u32, usize), Weak<dyn Child>>>,
    async_evd: Option<Arc<dyn AsyncEvd>>,
    /// The async EVD was made by `dat_ia_open`, not given by the consumer.
    owns_async_evd: bool,
    /// Shows the figures of this instance to readers, if that is wanted.
    offer: Option<Offer>,
}

// SAFETY: `table` points to a provider table that is never freed, and is only read.
unsafe impl<D: Device> Send for Ia<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for Ia<D> {}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Ia<D> {
    const TAG: usize = tag(HandleType::Ia, D::INDEX);
}

/// The order in which an abrupt close takes the objects down: users before what they use.
const fn close_order(kind: HandleType) -> u32 {
    match kind {
        HandleType::Psp => 0,
        HandleType::Csp => 0,
        HandleType::Rsp => 1,
        HandleType::Cr => 2,
        HandleType::Ep => 3,
        HandleType::Rmr => 4,
        HandleType::Lmr => 5,
        HandleType::Srq => 6,
        // Before its EVDs, so that its waiters and its agent are notified of the end only once.
        HandleType::Cno => 7,
        HandleType::Evd => 8,
        HandleType::Pz => 9,
        HandleType::Resolution => 10,
        HandleType::Ia => 11,
    }
}

impl<D: Device> Ia<D> {
    /// Makes an instance of an open device under this name, for `dat_ib_open_query` or for use, with a handle and without
    /// an asynchronous EVD.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES` when no handle is to be had.
    pub(super) fn create(
        name: &CStr,
        for_query: bool,
        device: Arc<D>,
        Parameters {
            rules, counters, ..
        }: Parameters,
        instance: Instance,
    ) -> Result<Arc<Self>> {
        let Tables { plain, counting } = instance.tables;
        let (table, counters) = match counters {
            true => (counting, Some(IaCounters::default())),
            false => (plain, None),
        };
        let ia = Arc::new(Ia {
            name: name.to_owned(),
            for_query,
            address: CAddress::new(device.address()),
            transport_attr: Attributes::new(&device.attr().transport_attr),
            provider_attr: Attributes::new(&provider_attributes(device.attr(), counters.is_some())),
            counters,
            device,
            rules,
            says_thread_safe: instance.says_thread_safe,
            async_evds: instance.async_evds,
            table,
            handle: AtomicPtr::default(),
            context: AtomicU64::new(0),
            state: Mutex::new(State {
                children: Some(BTreeMap::new()),
                async_evd: None,
                owns_async_evd: false,
                offer: None,
            }),
            lmrs: Mutex::default(),
            service_points: Mutex::default(),
        });
        let handle =
            handle::insert(table, ia.clone()).ok_or(Error::resource(Subtype::ResourceMemory))?;
        ia.handle.store(handle, Ordering::Relaxed);
        Ok(ia)
    }

    /// Sets the EVD that receives the asynchronous errors. With `owned` the IA destroys it.
    pub(super) fn set_async_evd(&self, evd: Arc<dyn AsyncEvd>, owned: bool) {
        self.async_evds.add(&evd);
        let mut state = self.state.lock();
        state.async_evd = Some(evd);
        state.owns_async_evd = owned;
    }

    /// The provider table, to which the first word behind every handle of this IA points.
    pub fn table(&self) -> *const c_void {
        self.table
    }

    /// The handle of the IA.
    pub fn handle(&self) -> Handle {
        Handle(self.handle.load(Ordering::Relaxed))
    }

    /// The consumer context.
    pub fn context(&self) -> &AtomicU64 {
        &self.context
    }

    /// The address of the IA as C sees it.
    pub fn address(&self) -> DAT_IA_ADDRESS_PTR {
        self.address.as_ptr()
    }

    /// Enters an object; `false` when the IA is being closed.
    pub fn add_child(&self, kind: HandleType, handle: Handle, child: Weak<dyn Child>) -> bool {
        match &mut self.state.lock().children {
            Some(children) => children
                .insert((close_order(kind), handle.0.addr()), child)
                .is_none(),
            None => false,
        }
    }

    /// Removes an object.
    pub fn remove_child(&self, kind: HandleType, handle: Handle) {
        if let Some(children) = &mut self.state.lock().children {
            children.remove(&(close_order(kind), handle.0.addr()));
        }
    }

    /// The object of this kind with this handle.
    pub(super) fn child(&self, kind: HandleType, handle: Handle) -> Option<Arc<dyn Child>> {
        let state = self.state.lock();
        let children = state.children.as_ref()?;
        children
            .get(&(close_order(kind), handle.0.addr()))?
            .upgrade()
    }

    /// Enters an LMR under its context.
    pub(super) fn add_lmr(&self, context: u32, lmr: Handle) {
        self.lmrs.lock().insert(context, lmr);
    }

    /// Removes an LMR.
    pub(super) fn remove_lmr(&self, context: u32) {
        self.lmrs.lock().remove(&context);
    }

    /// The handle of the LMR with this context.
    pub(super) fn lmr(&self, context: u32) -> Option<Handle> {
        self.lmrs.lock().get(&context).copied()
    }

    /// Enters a service point under the qualifier it listens on.
    pub(super) fn add_service_point(
        &self,
        conn_qual: u64,
        handle: Handle,
        point: Weak<dyn ServicePoint<D>>,
    ) {
        let mut points = self.service_points.lock();
        points.insert(conn_qual, (handle, point));
    }

    /// Removes a service point.
    pub(super) fn remove_service_point(&self, conn_qual: u64, handle: Handle) {
        let mut points = self.service_points.lock();
        if points
            .get(&conn_qual)
            .is_some_and(|point| point.0 == handle)
        {
            points.remove(&conn_qual);
        }
    }

    /// The service point that listens on this qualifier.
    pub(super) fn service_point(&self, conn_qual: u64) -> Option<Arc<dyn ServicePoint<D>>> {
        self.service_points.lock().get(&conn_qual)?.1.upgrade()
    }

    /// The counters, if they are on.
    pub fn counters(&self) -> Option<&IaCounters> {
        self.counters.as_ref()
    }

    /// The handles of the objects of a kind.
    pub fn objects(&self, kind: HandleType) -> Vec<Handle> {
        let state = self.state.lock();
        let of_kind = (close_order(kind), 0)..(close_order(kind) + 1, 0);
        let objects = state.children.iter().flat_map(|c| c.range(of_kind.clone()));
        objects
            .map(|((_, handle), _)| Handle(std::ptr::without_provenance_mut(*handle)))
            .collect()
    }

    /// Up to `most` objects of a kind, in the order of their handles, from the first one behind `after`.
    pub(super) fn children(
        &self,
        kind: HandleType,
        after: Option<Handle>,
        most: usize,
    ) -> Vec<(Handle, Option<Arc<dyn Child>>)> {
        let first = after.map_or(0, |after| after.0.addr() + 1);
        let of_kind = (close_order(kind), first)..(close_order(kind) + 1, 0);
        let state = self.state.lock();
        let objects = state.children.iter().flat_map(|c| c.range(of_kind.clone()));
        objects
            .take(most)
            .map(|((_, handle), object)| {
                let handle = Handle(std::ptr::without_provenance_mut(*handle));
                (handle, object.upgrade())
            })
            .collect()
    }

    /// Sets what shows the figures of this instance to readers, until it is closed.
    pub(super) fn set_offer(&self, offer: Offer) {
        let mut state = self.state.lock();
        // Not an instance that another thread has closed.
        if state.children.is_some() {
            state.offer = Some(offer);
        }
    }

    /// The name that the instance was opened by.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Counts one more of something, if counters are on.
    pub fn count(&self, counter: DAT_IA_COUNTERS) {
        if let Some(counters) = &self.counters {
            counters.count(counter);
        }
    }

    /// Counters for an object of this IA, if they are on.
    pub fn new_counters(&self, len: u32) -> Option<Counters> {
        self.counters.as_ref().map(|_| Counters::new(len))
    }

    /// Reports an asynchronous error in the async EVDs of all open instances of the IA.
    pub fn async_event(&self, number: DAT_EVENT_NUMBER, handle: Handle, reason: u32) {
        self.queue_async_event(|| (), number, handle, reason);
        self.report_async_events();
    }

    /// Calls `first`, which queues another event of an object, and then queues an asynchronous error
    /// of the object: the errors of several objects are in the order of these events. The caller
    /// calls [`report_async_events`](Self::report_async_events) when it holds no lock any more.
    pub(super) fn queue_async_event<T>(
        &self,
        first: impl FnOnce() -> T,
        number: DAT_EVENT_NUMBER,
        handle: Handle,
        reason: u32,
    ) -> T {
        let event = Event::Async {
            number,
            handle,
            reason,
        };
        self.count(DCNT_IA_ASYNC_ERROR);
        if let Some(counter) = counters::of_async_event(number) {
            self.count(counter);
        }
        self.async_evds.queue_after(first, event)
    }

    /// Wakes those that wait for the asynchronous errors that were queued.
    pub(super) fn report_async_events(&self) {
        self.async_evds.report();
    }

    /// The handle of the EVD that receives the asynchronous errors of this instance.
    pub fn async_evd(&self) -> Option<Handle> {
        let evd = self.state.lock().async_evd.clone();
        evd.map(|evd| evd.handle())
    }

    /// Closes the instance.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` when `graceful` and the consumer's objects remain;
    /// `DAT_INVALID_HANDLE` when another thread closes it.
    pub(super) fn close(&self, graceful: bool) -> Result<()> {
        let (children, async_evd, owned, offer) = {
            let mut state = self.state.lock();
            let Some(children) = &state.children else {
                return Err(Error::handle(Subtype::HandleIa));
            };
            let own = usize::from(state.owns_async_evd);
            // What endpoints have learned about peers need not be given back: programs of older versions
            // of the extensions have no call for that.
            let mut objects = children.range(..(close_order(HandleType::Resolution), 0));
            if graceful && objects.nth(own).is_some() {
                return Err(Error::state(Subtype::StateIaInUse));
            }
            (
                state.children.take(),
                state.async_evd.take(),
                state.owns_async_evd,
                state.offer.take(),
            )
        };
        drop(offer);
        if let Some(evd) = async_evd {
            self.async_evds.remove(&*evd);
            evd.detach();
            if owned {
                evd.destroy();
            }
        }
        for child in children.into_iter().flat_map(BTreeMap::into_values) {
            if let Some(child) = child.upgrade() {
                delay::point("ia.close");
                child.destroy();
            }
        }
        handle::remove(self.handle().0, self);
        Ok(())
    }
}

/// The IA of a handle.
pub(super) fn lookup_ia<D: Device>(handle: DAT_IA_HANDLE) -> Result<Arc<Ia<D>>> {
    handle::get_shared(handle).ok_or(Error::handle(Subtype::HandleIa))
}

/// `dat_ia_close`, the provider's part.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn ia_close<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    flags: DAT_CLOSE_FLAGS,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        match flags {
            DAT_CLOSE_ABRUPT_FLAG => ia.close(false),
            DAT_CLOSE_GRACEFUL_FLAG => ia.close(true),
            _ => Err(Error::new(Kind::InvalidParameter, Subtype::Arg2)),
        }
    })
}
