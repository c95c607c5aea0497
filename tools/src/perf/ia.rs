//! An open interface adapter, and how connections come about on it.

use std::cell::Cell;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ptr;
use std::time::{Duration, Instant};

use dat_core::abi::common::*;
use dat_core::abi::v2;

use super::api::{Api, kind};
use super::failure::{Result, check_interrupted, error};
use crate::loader;

/// The longest time in one call: a signal is noticed after it at the latest.
const STEP_US: DAT_TIMEOUT = 100_000;
/// Room of the EVDs for connection events and requests.
pub const EVENTS: DAT_COUNT = 64;

/// An open IA. It is closed when it is dropped, with all that was made on it.
pub struct Ia {
    /// The library.
    pub api: &'static Api,
    /// The handle.
    pub handle: DAT_IA_HANDLE,
    /// What it can do.
    pub limits: v2::DAT_IA_ATTR,
    /// As given by the user.
    pub name: String,
    open: Cell<bool>,
}

impl Ia {
    /// Opens an IA by its name.
    ///
    /// # Errors
    ///
    /// If there is none of the name or it is of no use.
    pub fn open(api: &'static Api, name: &str) -> Result<Ia> {
        let Ok(text) = CString::new(name) else {
            return error("the name of an IA has no NUL in it");
        };
        let (mut evd, mut handle) = (ptr::null_mut(), ptr::null_mut());
        let text = text.as_ptr().cast_mut();
        // SAFETY: a C string, which is only read, and locals to fill.
        let code = unsafe { (api.ia_openv)(text, 8, &mut evd, &mut handle, 2, 0, DAT_THREADSAFE) };
        if kind(code) == DAT_PROVIDER_NOT_FOUND {
            return error(format!(
                "no interface adapter is called \"{name}\", or it is of no use here; \
                 dat-info lists them"
            ));
        }
        api.check("dat_ia_open", code)?;
        let mut limits = MaybeUninit::<v2::DAT_IA_ATTR>::zeroed();
        let (attr, none) = (limits.as_mut_ptr(), ptr::null_mut());
        // SAFETY: a local of the right type to fill; nothing else is asked for.
        let code =
            unsafe { (api.ia_query)(handle, none, v2::DAT_IA_ALL, attr, 0, ptr::null_mut()) };
        // SAFETY: zeros are a value of the type; filled by the call.
        let limits = unsafe { limits.assume_init() };
        let ia = Ia {
            api,
            handle,
            limits,
            name: name.to_owned(),
            open: Cell::new(true),
        };
        api.check("dat_ia_query", code)?;
        Ok(ia)
    }

    /// Its address as text, if it has one.
    pub fn address(&self) -> Option<String> {
        // SAFETY: the address of an open IA, or NULL.
        unsafe { loader::address_text(self.limits.ia_address_ptr) }
    }

    /// Makes an EVD.
    pub fn evd(&self, length: DAT_COUNT, flags: DAT_EVD_FLAGS) -> Result<DAT_EVD_HANDLE> {
        let mut evd = ptr::null_mut();
        // SAFETY: an open IA and a local to fill.
        let code =
            unsafe { (self.api.evd_create)(self.handle, length, ptr::null_mut(), flags, &mut evd) };
        self.api.check("dat_evd_create", code)?;
        Ok(evd)
    }

    /// The next event of an EVD; `None` if there is none before `deadline`. Without a deadline
    /// only a signal ends the wait.
    pub fn wait(
        &self,
        evd: DAT_EVD_HANDLE,
        deadline: Option<Instant>,
    ) -> Result<Option<v2::DAT_EVENT>> {
        let mut event = MaybeUninit::<v2::DAT_EVENT>::zeroed();
        let mut more = 0;
        loop {
            check_interrupted()?;
            // SAFETY: an EVD of ours, and locals to fill.
            let code =
                unsafe { (self.api.evd_wait)(evd, STEP_US, 1, event.as_mut_ptr(), &mut more) };
            match kind(code) {
                DAT_SUCCESS => {
                    // SAFETY: zeros are a value of the type; filled by the call.
                    return Ok(Some(unsafe { event.assume_init() }));
                }
                DAT_TIMEOUT_EXPIRED | DAT_INTERRUPTED_CALL => {}
                _ => self.api.check("dat_evd_wait", code)?,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Waits until a connection is up, and returns the peer's private data.
    pub fn connected(&self, evd: DAT_EVD_HANDLE, patience: Duration) -> Result<Vec<u8>> {
        let Some(event) = self.wait(evd, Some(Instant::now() + patience))? else {
            return error("no connection: no answer");
        };
        if event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED {
            return error(format!("no connection: {}", event_name(event.event_number)));
        }
        // SAFETY: the event says that this is its payload.
        let data = unsafe { event.event_data.connect_event_data };
        Ok(private_data(data.private_data, data.private_data_size))
    }

    /// Closes the IA, and says if that fails.
    pub fn close(&self) -> Result<()> {
        if !self.open.replace(false) {
            return Ok(());
        }
        // SAFETY: open until now, and not used any more.
        let code = unsafe { (self.api.ia_close)(self.handle, DAT_CLOSE_ABRUPT_FLAG) };
        self.api.check("dat_ia_close", code)
    }
}

impl Drop for Ia {
    fn drop(&mut self) {
        // Who wants to know calls `close`.
        let _ = self.close();
    }
}

/// A copy of private data.
pub fn private_data(data: DAT_PVOID, size: DAT_COUNT) -> Vec<u8> {
    match usize::try_from(size) {
        // SAFETY: the provider says that so many bytes are there.
        Ok(size) if !data.is_null() => unsafe {
            std::slice::from_raw_parts(data.cast::<u8>(), size).to_vec()
        },
        _ => Vec::new(),
    }
}

/// What a connection event means.
pub fn event_name(number: DAT_EVENT_NUMBER) -> String {
    match number {
        DAT_CONNECTION_EVENT_PEER_REJECTED => "refused by the server".into(),
        DAT_CONNECTION_EVENT_NON_PEER_REJECTED => "connection refused, no server there".into(),
        DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR => "the client went away".into(),
        DAT_CONNECTION_EVENT_DISCONNECTED => "closed by the peer".into(),
        DAT_CONNECTION_EVENT_BROKEN => "connection broken".into(),
        DAT_CONNECTION_EVENT_TIMED_OUT => "timed out".into(),
        DAT_CONNECTION_EVENT_UNREACHABLE => "host unreachable".into(),
        other => format!("unexpected event {other:#x}"),
    }
}

/// The first address of the family that the IA itself has, to which all devices connect; otherwise the first one.
fn of_family(found: impl Iterator<Item = SocketAddr>, ipv6: bool) -> Option<SocketAddr> {
    let all: Vec<SocketAddr> = found.collect();
    let same = all.iter().find(|address| address.is_ipv6() == ipv6);
    same.or(all.first()).copied()
}

/// A socket address as DAT takes it.
#[repr(C)]
pub union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    any: libc::sockaddr,
}

impl Address {
    /// The address of a host that an IA connects to.
    ///
    /// # Errors
    ///
    /// If the name is not known.
    pub fn resolve(host: &str, ia: &Ia) -> Result<Address> {
        Address::find(host, ia.address().is_some_and(|own| own.contains(':')))
    }

    fn find(host: &str, ipv6: bool) -> Result<Address> {
        match (host, 0).to_socket_addrs() {
            Ok(found) => match of_family(found, ipv6) {
                Some(address) => Ok(address.into()),
                None => error(format!("{host}: no address")),
            },
            Err(why) => error(format!("{host}: {why}")),
        }
    }

    /// The address of an IA.
    pub fn of(ia: &Ia) -> Result<Address> {
        match ia.address() {
            Some(text) => Address::resolve(&text, ia),
            None => error("this IA has no address"),
        }
    }

    /// For `dat_ep_connect`.
    pub fn as_ptr(&self) -> DAT_IA_ADDRESS_PTR {
        ptr::from_ref(self).cast_mut().cast()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        // SAFETY: zeros are a value of each member.
        let mut to: Address = unsafe { MaybeUninit::zeroed().assume_init() };
        match address {
            SocketAddr::V4(v4) => {
                to.v4.sin_family = libc::AF_INET as libc::sa_family_t;
                to.v4.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
            SocketAddr::V6(v6) => {
                to.v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                to.v6.sin6_addr.s6_addr = v6.ip().octets();
                to.v6.sin6_scope_id = v6.scope_id();
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_reached_by_the_family_of_the_ia() {
        let addresses = ["[2001:db8::1]:0", "192.0.2.1:0", "[2001:db8::2]:0"];
        let all = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
        let chosen = |found: &[SocketAddr], ipv6| of_family(found.iter().copied(), ipv6);
        assert_eq!(chosen(&all, true), Some(all[0]));
        assert_eq!(chosen(&all, false), Some(all[1]));
        assert_eq!(chosen(&all[..1], false), Some(all[0]));
        assert_eq!(chosen(&[], false), None);
    }
}
