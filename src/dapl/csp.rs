//! Common service points of DAT 2.0: `dat_csp_create`, `dat_csp_query`, `dat_csp_free`. They are listened on
//! as sockets are: at an address with a port, in a communication domain. Endpoints connect to them by
//! `dat_ep_common_connect`.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::abi::Abi;
use super::address::{CAddress, read_socket_address};
use super::boundary::{answer_query, boundary, creation, non_null};
use super::evd::{Evd, Queued};
use super::ia::{Child, Ia, ServicePoint, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::service::{Arrival, Listening, Qual, Upcall, listen};
use crate::abi::common::*;
use crate::abi::v2::{
    DAT_COMM, DAT_CSP_FIELD_ALL, DAT_CSP_HANDLE, DAT_CSP_PARAM, DAT_CSP_PARAM_MASK,
};
use crate::device::{ConnectionRequest, Device, ListenHandler};
use crate::error::{Error, Kind, Result, Subtype};

/// A common service point: connection requests arrive at it until it is freed.
#[repr(align(64))]
pub struct Csp<D: Device> {
    base: Base<D>,
    /// The communication domain, which the consumer gets a pointer to.
    comm: Box<DAT_COMM>,
    /// Where it listens, with the port.
    address: CAddress,
    /// The port.
    conn_qual: u64,
    /// The EVD for the events of requests.
    evd: Arc<Evd<D>>,
    /// `None` once the CSP is freed.
    listening: Mutex<Option<Listening<D>>>,
}

dat_object!(Csp, Csp, HandleCsp);

impl<D: Device> Child for Csp<D> {
    fn destroy(&self) {
        let _ = self.free();
    }
}

impl<D: Device> ListenHandler<D> for Csp<D> {
    fn request(&self, request: D::ConnRequest) {
        // Its communication domain is that of streams. A request that is dropped is refused.
        if request.is_for_datagrams() {
            return;
        }
        let (evd, sp) = (&self.evd, self.handle());
        let arrival = Arrival::new(&self.base.ia, evd, sp, self.conn_qual, request, None);
        let Some(arrival) = arrival else {
            return;
        };
        let queued = match &*self.listening.lock() {
            Some(_) => arrival.queue(),
            None => Queued::Closed,
        };
        arrival.report(queued);
    }
}

impl<D: Device> ServicePoint<D> for Csp<D> {
    fn take(&self, request: D::ConnRequest) -> std::result::Result<(), D::ConnRequest> {
        if request.is_for_datagrams() {
            return Err(request);
        }
        self.request(request);
        Ok(())
    }
}

/// Checks that the devices connect in this communication domain: streams over IP.
///
/// # Errors
/// `DAT_COMM_NOT_SUPPORTED`.
fn check_comm(comm: &DAT_COMM, address: SocketAddr) -> Result<()> {
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let stream = comm.r#type == libc::SOCK_STREAM;
    let protocol = matches!(comm.protocol, 0 | libc::IPPROTO_TCP);
    match comm.domain == family && stream && protocol {
        true => Ok(()),
        false => Err(Kind::CommNotSupported.into()),
    }
}

impl<D: Device> Csp<D> {
    /// Listens at `address`, of which port 0 stands for one that is free.
    ///
    /// # Errors
    /// `DAT_COMM_NOT_SUPPORTED`, `DAT_INVALID_ADDRESS` for an address that is not the one of the IA, and
    /// those of [`listen`].
    fn create(
        ia: &Arc<Ia<D>>,
        comm: DAT_COMM,
        asked: SocketAddr,
        evd: DAT_EVD_HANDLE,
    ) -> Result<Arc<Self>> {
        check_comm(&comm, asked)?;
        // With the scope of a link-local address, which the caller may leave out.
        let mut address = ia.device.address();
        if !asked.ip().is_unspecified() && asked.ip() != address.ip() {
            return Err(Kind::InvalidAddress.into());
        }
        let qual = match asked.port() {
            0 => Qual::Any,
            port => Qual::This(port.into()),
        };
        let upcall = Upcall::new();
        let (listening, conn_qual, evd) = listen(ia, qual, evd, &upcall)?;
        address.set_port(u16::try_from(conn_qual).unwrap_or(0));
        let csp = Arc::new(Csp {
            base: Base::new(ia.clone()),
            comm: Box::new(comm),
            address: CAddress::new(address),
            conn_qual,
            evd,
            listening: Mutex::new(Some(listening)),
        });
        publish(&csp).inspect_err(|_| {
            csp.stop();
        })?;
        let point: Weak<Self> = Arc::downgrade(&csp);
        ia.add_service_point(conn_qual, csp.handle(), point);
        upcall.open(&csp);
        Ok(csp)
    }

    /// Stops listening. `false` if that has happened before.
    fn stop(&self) -> bool {
        let listening = self.listening.lock().take();
        listening.is_some()
    }

    fn free(&self) -> Result<()> {
        if !self.stop() {
            return Err(Error::handle(Subtype::HandleCsp));
        }
        let ia = &self.base.ia;
        ia.remove_service_point(self.conn_qual, self.handle());
        unpublish(self);
        Ok(())
    }
}

/// `dat_csp_create`.
///
/// # Safety
/// `comm` is NULL or points to a communication domain, `address` to a socket address, `csp_handle` to memory
/// for a handle.
pub unsafe extern "C" fn csp_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    comm: *mut DAT_COMM,
    address: DAT_IA_ADDRESS_PTR,
    evd_handle: DAT_EVD_HANDLE,
    csp_handle: *mut DAT_CSP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(comm, Subtype::Arg2)?;
        non_null(address, Subtype::Arg3)?;
        non_null(csp_handle, Subtype::Arg5)?;
        // SAFETY: neither is NULL.
        let (comm, address) = unsafe { (comm.read(), read_socket_address(address)?) };
        let csp = Csp::create(&ia, comm, address, evd_handle)?;
        // SAFETY: not NULL.
        unsafe { csp_handle.write(csp.handle().0) };
        Ok(())
    })
}

/// `dat_csp_query`.
///
/// # Safety
/// `csp_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn csp_query<A: Abi, D: Device>(
    csp_handle: DAT_CSP_HANDLE,
    mask: DAT_CSP_PARAM_MASK,
    csp_param: *mut DAT_CSP_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let csp: Arc<Csp<D>> = lookup(csp_handle)?;
        let read = || {
            Ok(DAT_CSP_PARAM {
                ia_handle: csp.base.ia.handle().0,
                comm: std::ptr::from_ref(&*csp.comm).cast_mut(),
                address_ptr: csp.address.as_ptr(),
                evd_handle: csp.evd.handle().0,
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_CSP_FIELD_ALL.into(), csp_param, read) }
    })
}

/// `dat_csp_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn csp_free<A: Abi, D: Device>(csp_handle: DAT_CSP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Csp<D>>(csp_handle)?.free())
}
