//! Where two processes of a host find each other: a name in the abstract socket namespace for
//! every port that is listened on.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::handshake::ShmRefusal;
use super::peer::Credentials;

/// The name for a port; on all addresses if `None`.
fn name(address: Option<IpAddr>, port: u16) -> Result<SocketAddrUnix, Errno> {
    let address = address.map_or("*".into(), |ip| ip.to_canonical().to_string());
    SocketAddrUnix::new_abstract_name(format!("libdat/{port}@{address}").as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// A socket that hears those of this host who want the port.
pub(crate) fn listen(address: Option<IpAddr>, port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(address, port)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

/// A socket to whoever listens on the port, if that is a process of the same user. `None` if
/// nobody does.
pub(crate) fn connect(target: SocketAddr) -> Result<Option<OwnedFd>, ShmRefusal> {
    let mut refused = None;
    for address in [Some(target.ip()), None] {
        let socket = socket().map_err(ShmRefusal::of("no local socket"))?;
        let name = name(address, target.port()).map_err(ShmRefusal::of("no local name"))?;
        match rustix::net::connect(&socket, &name) {
            Ok(()) if is_same_user(&socket) => return Ok(Some(socket)),
            Ok(()) => refused = Some(ShmRefusal::new("another user has the name of the port")),
            Err(Errno::CONNREFUSED) => {}
            Err(error) => {
                refused = Some(ShmRefusal::of("its local socket takes no connection")(
                    error,
                ))
            }
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Whether the process at the other end is one of the same user.
pub(crate) fn is_same_user(socket: impl AsFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    Credentials::of(socket).is_ok_and(|peer| peer.uid == own)
}
