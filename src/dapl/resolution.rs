//! What an endpoint for datagrams has learned about a peer: the address handle that its datagrams are
//! sent to, and the private data of the peer.
//!
//! An event of the endpoint brings it to the consumer, who gives the two parts back on their own:
//! `dat_ib_ud_ah_free` and `dat_ib_ud_cm_free`. Both know it by the same handle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Mutex;

use super::ia::{Child, Ia};
use super::object::{Base, dat_object, publish, unpublish};
use super::private_data::PrivateData;
use super::types::{Event, Extension, Handle, Opaque, Peer};
use crate::abi::common::*;
use crate::abi::v2::DAT_IB_EXT_TYPE;
use crate::device::{AddressHandle, Device};
use crate::error::Result;
use crate::handle;

/// See the [module](self).
#[repr(align(64))]
pub struct Resolution<D: Device> {
    base: Base<D>,
    /// What has happened, in the words of the extensions.
    kind: DAT_IB_EXT_TYPE,
    /// Number and address of the peer; `None` if it was not resolved.
    peer: Option<(u32, SocketAddr)>,
    /// Whether an event has brought it to the consumer.
    is_delivered: AtomicBool,
    parts: Mutex<Parts>,
}

/// What the consumer gives back.
struct Parts {
    /// Where datagrams can be sent; `None` if the peer was not resolved, or that was given back.
    to: Option<Arc<dyn AddressHandle>>,
    /// Private data of the peer, which the event points to; `None` once that was given back.
    private_data: Option<PrivateData>,
}

dat_object!(Resolution, Resolution, Handle2);

impl<D: Device> Child for Resolution<D> {
    fn destroy(&self) {
        unpublish(self);
    }
}

impl<D: Device> Resolution<D> {
    /// Of an endpoint of this IA.
    ///
    /// # Errors
    /// Those of [`publish`].
    pub fn create(
        ia: &Arc<Ia<D>>,
        kind: DAT_IB_EXT_TYPE,
        to: Option<Arc<dyn AddressHandle>>,
        private_data: &[u8],
    ) -> Result<Arc<Self>> {
        let resolution = Arc::new(Resolution {
            base: Base::new(ia.clone()),
            kind,
            peer: to.as_ref().map(|to| (to.qp_number(), to.address())),
            is_delivered: AtomicBool::new(false),
            parts: Mutex::new(Parts {
                to,
                private_data: Some(PrivateData::new(private_data)),
            }),
        });
        publish(&resolution)?;
        Ok(resolution)
    }

    /// Where datagrams can be sent that have this address handle; `None` if there is no such handle, or it
    /// was freed.
    pub fn address_handle(handle: *mut std::ffi::c_void) -> Option<Arc<dyn AddressHandle>> {
        let resolution = handle::get_shared::<Resolution<D>>(handle)?;
        let parts = resolution.parts.lock();
        parts.to.clone()
    }

    /// `dat_ib_ud_ah_free`: false if that has happened before, or there was none.
    pub fn free_address_handle(&self) -> bool {
        let mut parts = self.parts.lock();
        let freed = parts.to.take();
        if parts.private_data.is_none() {
            unpublish(self);
        }
        freed.is_some()
    }

    /// `dat_ib_ud_cm_free`: false if that has happened before.
    pub fn free_private_data(&self) -> bool {
        let mut parts = self.parts.lock();
        let freed = parts.private_data.take();
        if parts.to.is_none() {
            unpublish(self);
        }
        freed.is_some()
    }

    /// The endpoint is freed. What the consumer has not learned of goes with it.
    pub fn release(&self) {
        if !self.is_delivered.load(Ordering::Relaxed) {
            self.destroy();
        }
        self.free_private_data();
    }

    /// The event that brings the resolution with this handle to the consumer, and its extension. After the
    /// endpoint was freed there is nothing to bring.
    pub fn deliver(
        handle: Handle,
        number: DAT_EVENT_NUMBER,
        ep: Handle,
    ) -> (Event, Option<Extension>) {
        let resolution = handle::get_shared::<Resolution<D>>(handle.0);
        let (mut data, mut size) = (std::ptr::null_mut(), 0);
        if let Some(resolution) = &resolution {
            resolution.is_delivered.store(true, Ordering::Relaxed);
            if let Some(private_data) = &resolution.parts.lock().private_data {
                (data, size) = (private_data.address(), private_data.len());
            }
        }
        let event = Event::Connection {
            number,
            ep,
            private_data: Opaque(data),
            private_data_size: size,
        };
        let extension = resolution.map(|resolution| Extension {
            number,
            kind: resolution.kind,
            peer: resolution.peer.map(|(qp_number, address)| Peer {
                handle,
                qp_number,
                address,
            }),
            context: handle,
        });
        (event, extension)
    }
}
