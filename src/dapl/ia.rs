//! Interface adapters: `dat_ia_open`, `dat_ia_query`, `dat_ia_close`.
//!
//! Each open makes an instance of its own: a device, an asynchronous EVD, and the objects the
//! consumer creates in it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::abi::{Abi, IaAttr};
use super::cno::Cno;
use super::cr::Cr;
use super::ep::Ep;
use super::evd::{Evd, Stream};
use super::lmr::Lmr;
use super::object::{HandleType, boundary, check_mask, non_null, tag, write_opt};
use super::provider;
use super::psp::Psp;
use super::pz::Pz;
use super::rmr::Rmr;
use super::rsp::Rsp;
use super::rules::{self, Rules};
use super::srq::Srq;
use super::types::{CAddress, Event, Handle};
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, Object};

/// Least length of an asynchronous EVD. What is asked for is a minimum, chosen by programs that
/// think of rare errors, but every endpoint with an SRQ reports here when it has drained.
const MIN_ASYNC_QLEN: DAT_COUNT = 1024;

/// The provider attribute from which programs of OpenFabrics take the size of their buffers.
const MTU_NAME: &str = "DAT_IB_TRANSPORT_MTU";

/// The provider attribute that tells programs of OpenFabrics to use RDMA reads: dtest, for one,
/// leaves them out, and a peer with a provider that says so waits for them in vain.
const READ_NAME: &str = "DAT_IB_RDMA_READ";

/// An open interface adapter.
#[repr(align(64))]
pub struct Ia<D: Device> {
    /// The device behind it.
    pub device: Arc<D>,
    /// Whose rules its objects keep to.
    pub rules: Rules,
    table: *const c_void,
    handle: AtomicPtr<c_void>,
    context: AtomicU64,
    address: CAddress,
    transport: Attributes,
    specific: Attributes,
    state: Mutex<State<D>>,
    /// Regions by their context, for `dat_rmr_bind` of DAT 1.2.
    lmrs: Mutex<HashMap<u32, Weak<Lmr<D>>>>,
    /// Service points by what they listen on, for `dat_cr_handoff`.
    service_points: Mutex<HashMap<u64, Handle>>,
}

struct State<D: Device> {
    /// Objects of this instance by kind, in the order in which an abrupt close takes them down:
    /// users before what they use. `None` once the IA is being closed.
    children: Option<BTreeSet<(u32, usize)>>,
    async_evd: Option<Arc<Evd<D>>>,
    /// The async EVD was made by the open, not given by the consumer.
    owns_async_evd: bool,
}

/// Named attributes with the strings they point to.
struct Attributes {
    list: Vec<DAT_NAMED_ATTR>,
    _strings: Vec<CString>,
}

// SAFETY: `table` points to a provider table that is never freed; the attribute list points
// into strings that live as long as the IA; both are only read.
unsafe impl<D: Device> Send for Ia<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for Ia<D> {}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Ia<D> {
    const TAG: usize = tag(HandleType::Ia, D::INDEX);
}

/// Order of an abrupt close.
const fn rank(kind: HandleType) -> u32 {
    match kind {
        HandleType::Psp => 0,
        HandleType::Rsp => 1,
        HandleType::Cr => 2,
        HandleType::Ep => 3,
        HandleType::Rmr => 4,
        HandleType::Lmr => 5,
        HandleType::Srq => 6,
        // Before its EVDs: it tells its waiters and its agent of the end once.
        HandleType::Cno => 7,
        HandleType::Evd => 8,
        HandleType::Pz => 9,
        HandleType::Ia => 10,
    }
}

impl Attributes {
    fn new(pairs: &[(String, String)]) -> Self {
        let mut strings = Vec::new();
        let mut list = Vec::new();
        for (name, value) in pairs {
            let (Ok(name), Ok(value)) = (CString::new(&**name), CString::new(&**value)) else {
                continue;
            };
            list.push(DAT_NAMED_ATTR {
                name: name.as_ptr(),
                value: value.as_ptr(),
            });
            strings.extend([name, value]);
        }
        Attributes {
            list,
            _strings: strings,
        }
    }
}

impl<D: Device> Ia<D> {
    fn open((device, rules): (Arc<D>, Rules), table: *const c_void) -> Arc<Self> {
        Arc::new(Ia {
            address: CAddress::new(device.address()),
            transport: Attributes::new(&device.attr().transport_attr),
            specific: Attributes::new(&[
                (MTU_NAME.into(), device.attr().mtu.to_string()),
                (READ_NAME.into(), "TRUE".into()),
            ]),
            device,
            rules,
            table,
            handle: AtomicPtr::default(),
            context: AtomicU64::new(0),
            state: Mutex::new(State {
                children: Some(BTreeSet::new()),
                async_evd: None,
                owns_async_evd: false,
            }),
            lmrs: Mutex::default(),
            service_points: Mutex::default(),
        })
    }

    /// The provider table: what the first word of every handle of this IA points to.
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
    pub fn add_child(&self, kind: HandleType, handle: Handle) -> bool {
        match &mut self.state.lock().children {
            Some(children) => children.insert((rank(kind), handle.0.expose_provenance())),
            None => false,
        }
    }

    /// Removes an object.
    pub fn remove_child(&self, kind: HandleType, handle: Handle) {
        if let Some(children) = &mut self.state.lock().children {
            children.remove(&(rank(kind), handle.0.addr()));
        }
    }

    /// Enters a region under its context.
    pub(super) fn remember_lmr(&self, context: u32, lmr: &Arc<Lmr<D>>) {
        self.lmrs.lock().insert(context, Arc::downgrade(lmr));
    }

    /// Removes a region.
    pub(super) fn forget_lmr(&self, context: u32) {
        self.lmrs.lock().remove(&context);
    }

    /// The region with this context.
    pub(super) fn lmr_of(&self, context: u32) -> Option<Arc<Lmr<D>>> {
        self.lmrs.lock().get(&context)?.upgrade()
    }

    /// Enters a service point.
    pub(super) fn add_service_point(&self, conn_qual: u64, handle: Handle) {
        self.service_points.lock().insert(conn_qual, handle);
    }

    /// Removes a service point.
    pub(super) fn remove_service_point(&self, conn_qual: u64, handle: Handle) {
        let mut points = self.service_points.lock();
        if points.get(&conn_qual) == Some(&handle) {
            points.remove(&conn_qual);
        }
    }

    /// The service point that listens on this qualifier.
    pub(super) fn service_point(&self, conn_qual: u64) -> Option<Handle> {
        self.service_points.lock().get(&conn_qual).copied()
    }

    /// Reports an asynchronous error on the async EVD of this instance.
    pub fn async_event(&self, number: DAT_EVENT_NUMBER, handle: Handle, reason: u32) {
        let evd = self.state.lock().async_evd.clone();
        if let Some(evd) = evd {
            evd.push(Event::Async {
                number,
                handle,
                reason,
            });
        }
    }

    /// Whether this EVD receives the asynchronous errors of this instance.
    pub fn is_async_evd(&self, evd: &Evd<D>) -> bool {
        let state = self.state.lock();
        state
            .async_evd
            .as_ref()
            .is_some_and(|own| std::ptr::eq(&**own, evd))
    }

    /// Closes the instance.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` when `graceful` and the consumer's objects remain;
    /// `DAT_INVALID_HANDLE` when another thread closes it.
    fn close(&self, graceful: bool) -> Result<()> {
        let (children, async_evd, owned) = {
            let mut state = self.state.lock();
            let Some(children) = &state.children else {
                return Err(Error::handle(Subtype::HandleIa));
            };
            let own = usize::from(state.owns_async_evd);
            if graceful && children.len() > own {
                return Err(Error::state(Subtype::StateIaInUse));
            }
            (
                state.children.take(),
                state.async_evd.take(),
                state.owns_async_evd,
            )
        };
        if let Some(evd) = async_evd {
            evd.detach(Stream::Async);
            if owned {
                evd.destroy();
            }
        }
        for (_, handle) in children.into_iter().flatten() {
            destroy::<D>(std::ptr::with_exposed_provenance_mut(handle));
        }
        handle::remove(self.handle().0, self);
        Ok(())
    }
}

/// Takes down an object of an IA that is closed abruptly, whatever its state.
fn destroy<D: Device>(handle: DAT_HANDLE) {
    if let Some(psp) = handle::get_shared::<Psp<D>>(handle) {
        psp.destroy();
    } else if let Some(ep) = handle::get_shared::<Ep<D>>(handle) {
        ep.destroy();
    } else if let Some(cr) = handle::get_shared::<Cr<D>>(handle) {
        cr.destroy();
    } else if let Some(lmr) = handle::get_shared::<Lmr<D>>(handle) {
        lmr.destroy();
    } else if let Some(evd) = handle::get_shared::<Evd<D>>(handle) {
        evd.destroy();
    } else if let Some(cno) = handle::get_shared::<Cno<D>>(handle) {
        cno.destroy();
    } else if let Some(pz) = handle::get_shared::<Pz<D>>(handle) {
        pz.destroy();
    } else if let Some(rmr) = handle::get_shared::<Rmr<D>>(handle) {
        rmr.destroy();
    } else if let Some(srq) = handle::get_shared::<Srq<D>>(handle) {
        srq.destroy();
    } else if let Some(rsp) = handle::get_shared::<Rsp<D>>(handle) {
        rsp.destroy();
    }
}

/// The IA of a handle.
pub(super) fn lookup_ia<D: Device>(handle: DAT_IA_HANDLE) -> Result<Arc<Ia<D>>> {
    handle::get_shared(handle).ok_or(Error::handle(Subtype::HandleIa))
}

/// `dat_ia_open`, the provider's part.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ia_open<A: Abi, D: Device>(
    name: DAT_NAME_PTR,
    async_evd_min_qlen: DAT_COUNT,
    async_evd_handle: *mut DAT_EVD_HANDLE,
    ia_handle: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        non_null(name, Subtype::Arg1)?;
        non_null(async_evd_handle, Subtype::Arg3)?;
        non_null(ia_handle, Subtype::Arg4)?;
        // SAFETY: not NULL, and the man page says that it is a string.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        let instance = provider::instance::<A, D>(name).ok_or(Error::arg(Subtype::Arg1))?;
        // SAFETY: not NULL.
        let given = unsafe { async_evd_handle.read() };
        // DAT_EVD_ASYNC_EXISTS and DAT_EVD_OUT_OF_SCOPE speak of an EVD elsewhere on the host;
        // each of our instances reports for itself, so this one has no async EVD then.
        let elsewhere = given == DAT_EVD_ASYNC_EXISTS || given == DAT_EVD_OUT_OF_SCOPE;
        let given: Option<Arc<Evd<D>>> = if given.is_null() || elsewhere {
            None
        } else {
            let evd: Arc<Evd<D>> =
                handle::get_shared(given).ok_or(Error::handle(Subtype::HandleEvdAsync))?;
            Some(evd)
        };
        if given.is_none() && !elsewhere && async_evd_min_qlen <= 0 {
            return Err(Error::arg(Subtype::Arg2));
        }
        let device = rules::open::<D>(&instance.params).map_err(|why| {
            log::error!("{}: {why}", name.to_string_lossy());
            Error::resource(Subtype::ResourceDevice)
        })?;
        let ia = Ia::open(device, instance.table);
        let handle = handle::insert(instance.table, ia.clone())
            .ok_or(Error::resource(Subtype::ResourceMemory))?;
        ia.handle.store(handle, Ordering::Relaxed);
        let attached = match given {
            Some(evd) => evd.attach(Stream::Async).map(|()| Some((evd, false))),
            None if elsewhere => Ok(None),
            None => Evd::create(
                &ia,
                async_evd_min_qlen.max(MIN_ASYNC_QLEN),
                None,
                DAT_EVD_ASYNC_FLAG,
            )
            .and_then(|evd| evd.attach(Stream::Async).map(|()| Some((evd, true)))),
        };
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let _ = ia.close(false);
                return Err(error);
            }
        };
        let mut state = ia.state.lock();
        if let Some((evd, owned)) = attached {
            // SAFETY: not NULL.
            unsafe { async_evd_handle.write(evd.handle().0) };
            state.async_evd = Some(evd);
            state.owns_async_evd = owned;
        }
        drop(state);
        // SAFETY: not NULL.
        unsafe { ia_handle.write(handle) };
        Ok(())
    })
}

/// `dat_ia_query`. The registry calls it with a NULL `async_evd_handle`.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ia_query<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    async_evd_handle: *mut DAT_EVD_HANDLE,
    ia_attr_mask: DAT_IA_ATTR_MASK,
    ia_attr: *mut A::IaAttr,
    provider_attr_mask: DAT_PROVIDER_ATTR_MASK,
    provider_attr: *mut A::ProviderAttr,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        check_mask(ia_attr_mask, A::IA_FIELDS, Subtype::Arg3)?;
        if ia_attr_mask != 0 {
            non_null(ia_attr, Subtype::Arg4)?;
        }
        if provider_attr_mask != 0 {
            non_null(provider_attr, Subtype::Arg6)?;
        }
        let evd = ia.state.lock().async_evd.as_ref().map(|e| e.handle().0);
        // SAFETY: NULL or valid, says the caller.
        unsafe { write_opt(async_evd_handle, evd.unwrap_or(DAT_HANDLE_NULL)) };
        if ia_attr_mask != 0 {
            let attr = A::ia_attr(&IaAttr {
                device: ia.device.attr(),
                address: ia.address(),
                transport: &ia.transport.list,
            });
            // SAFETY: checked for NULL.
            unsafe { ia_attr.write(attr) };
        }
        if provider_attr_mask != 0 {
            let name = format!("libdat-{}", D::NAME);
            let attr = A::provider_attr(&name, ia.device.attr(), &ia.specific.list);
            // SAFETY: checked for NULL.
            unsafe { provider_attr.write(attr) };
        }
        Ok(())
    })
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
