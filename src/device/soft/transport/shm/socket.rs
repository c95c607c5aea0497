//! How two processes of a host find each other: every port on which a process listens has a local
//! socket with a name in the abstract socket namespace.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use crate::kernel;
use crate::kernel::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::io::Errno;

use super::handshake::ShmRefusal;
use super::peer::Credentials;
use crate::descriptor::{self, OwnedFd};
use crate::device::{KERNEL_BACKLOG, netif};
use crate::sync::relax;

/// The socket name of a port on one address, or on all addresses if `None`.
fn abstract_name(address: Option<SocketAddr>, port: u16) -> Result<SocketAddrUnix, Errno> {
    let address = address.map_or("*".into(), netif::address_text);
    SocketAddrUnix::new_abstract_name(format!("libdat/{port}@{address}").as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    descriptor::open(|| kernel::net::socket_with(family, kind, flags, None))
}

/// How often a message is sent again that the system has no memory for: for some tenths of a second.
const SEND_ROUNDS: u32 = 5000;

/// Sends a message over a local socket by `send`, again while the system has no memory for it at the
/// moment: the messages of a connection through shared memory are short, and the peer waits for each.
pub(crate) fn send_now(mut send: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    for round in 0..SEND_ROUNDS {
        match send() {
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => relax(round),
            result => return result,
        }
    }
    send()
}

/// A local socket that accepts connections for a port, on one address or on all.
pub(crate) fn listen(address: Option<SocketAddr>, port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    kernel::net::bind(&socket, &abstract_name(address, port)?)?;
    kernel::net::listen(&socket, KERNEL_BACKLOG)?;
    Ok(socket)
}

/// More connections wait to be accepted than the kernel keeps.
pub(crate) const BUSY: ShmRefusal =
    ShmRefusal::new("the local socket of the peer has no room for another connection");

/// A socket that is connected to the process that listens on the port. `None` if no process
/// listens there.
///
/// # Errors
/// The process that listens is one of another user, or the connection fails; [`BUSY`] may be over in a moment.
pub(crate) fn connect(target: SocketAddr) -> Result<Option<OwnedFd>, ShmRefusal> {
    let mut refused = None;
    for address in [Some(target), None] {
        let socket = socket().map_err(ShmRefusal::of("a local socket cannot be created"))?;
        let name = abstract_name(address, target.port())
            .map_err(ShmRefusal::of("invalid name of a local socket"))?;
        match kernel::net::connect(&socket, &name) {
            Ok(()) if is_same_user(&socket) => return Ok(Some(socket)),
            Ok(()) => {
                refused = Some(ShmRefusal::new(
                    "a process of another user has the local socket of the port",
                ));
            }
            Err(Errno::CONNREFUSED) => {}
            Err(Errno::AGAIN) => refused = Some(BUSY),
            Err(error) => {
                refused = Some(ShmRefusal::of(
                    "the local socket of the peer accepts no connection",
                )(error));
            }
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Whether the process at the other end of a local socket is one of the same user.
pub(crate) fn is_same_user(socket: impl AsFd) -> bool {
    let own = kernel::process::geteuid().as_raw();
    Credentials::of(socket).is_ok_and(|peer| peer.uid == own)
}
